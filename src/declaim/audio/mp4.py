"""Tables of MP4 and QuickTime files that a few bytes can make huge. Decodes nothing."""

import re

_TABLE = re.compile(rb"stsz|trun|cmov")


def overstates(content: bytes) -> bool:
    """Whether a file, if it is one of these, claims more packets than its bytes could hold.

    A reader makes an index of all packets before it decodes the first. Most of its tables have
    bytes for each packet, but packets of one size (`stsz`) and those of a fragment (`trun`) are
    only counted. The boxes are found wherever they stand, so that no nesting hides them; a
    compressed table of contents (`cmov`) would, and is taken for an overstatement.
    """
    room = len(content)
    for match in _TABLE.finditer(content):
        name, start, body = match.group(), match.start(), match.end()
        size = _number(content, start - 4)
        if 1 < size < 8 or size > len(content):
            continue  # not a box
        if size == 1:
            body += 8  # a 64-bit size follows the name
        if name == b"cmov":
            return True
        count = _number(content, body + (8 if name == b"stsz" else 4))
        room -= count * _number(content, body + 4) if name == b"stsz" else count
        if room < 0:
            return True
    return False


def _number(content: bytes, offset: int) -> int:
    return int.from_bytes(content[max(0, offset) : max(0, offset + 4)], "big")
