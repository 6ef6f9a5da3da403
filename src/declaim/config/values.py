"""The kinds of value that a deploy file can hold, and how a wrong one is refused.

Knows no file and no key. Every kind carries a Rule: the words that documents and errors use.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field

from declaim.config.section import shortened
from declaim.contracts.errors import InvalidConfig

LARGEST_COUNT = 2**31 - 1
LARGEST_BYTES = 2**63 - 1
BYTE_UNITS: Mapping[str, int] = {
    "": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_BYTES = re.compile(r"([0-9]{1,19}) ?([A-Za-z]*)")


@dataclass(frozen=True)
class Rule:
    """What a value must be, in words that follow "must be"."""

    text: str


def parse_bytes(value: object) -> object:
    """A byte size such as 1GiB as an integer; anything that is none is left for the validator."""
    found = _BYTES.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2] not in BYTE_UNITS:
        return value
    return int(found[1]) * BYTE_UNITS[found[2]]


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _distinct(values: tuple[int, ...]) -> tuple[int, ...]:
    if not values or len(set(values)) != len(values):
        raise ValueError("empty or repeated")
    return values


def _ordered(values: tuple[float, float]) -> tuple[float, float]:
    if values[0] > values[1]:
        raise ValueError("not in order")
    return values


def _words(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError("blank")
    return value


Text = Annotated[str, AfterValidator(_words), Rule("a text that is not blank")]
Count = Annotated[
    int,
    Field(ge=1, le=LARGEST_COUNT),
    Rule(f"an integer in [1, {LARGEST_COUNT}]"),
]
Port = Annotated[int, Field(ge=0, le=65535), Rule("an integer in [0, 65535]")]
ByteSize = Annotated[
    int,
    BeforeValidator(parse_bytes),
    Field(ge=1, le=LARGEST_BYTES),
    Rule("a number of bytes of at least 1, plain or with KiB, MiB, GiB, KB, MB or GB"),
]
ByteBudget = Annotated[
    int,
    BeforeValidator(parse_bytes),
    Field(ge=0, le=LARGEST_BYTES),
    Rule("a number of bytes, plain or with KiB, MiB, GiB, KB, MB or GB; 0 for none"),
]
Devices = Annotated[
    tuple[Annotated[int, Field(ge=0, le=LARGEST_COUNT)], ...],
    BeforeValidator(_as_tuple),
    AfterValidator(_distinct),
    Rule("a list of device numbers, each of at least 0 and none twice"),
]
Sizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=LARGEST_COUNT)], ...],
    BeforeValidator(_as_tuple),
    AfterValidator(_distinct),
    Rule("a list of integers of at least 1, none twice"),
]
Seconds = Annotated[
    tuple[
        Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)],
        Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)],
    ],
    BeforeValidator(_as_tuple),
    AfterValidator(_ordered),
    Rule("a list of two numbers in (0, 86400], the lower one first"),
]
Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False), Rule("a number in [0, 2]")]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), Rule("a number in (0, 1]")]


def rule_of(annotation: Any, metadata: Collection[Any] = ()) -> str:
    """What a value of a field must be, in words."""
    for item in metadata:
        if isinstance(item, Rule):
            return item.text
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return rule_of(parts[0], parts[1:])
    if origin is Literal:
        *others, last = map(str, parts)
        return f"{', '.join(others)} or {last}" if others else last
    if origin in (Union, UnionType):
        ordered = sorted(parts, key=lambda part: part is not NoneType)
        return " or ".join(rule_of(part) for part in ordered)
    assert annotation in (bool, NoneType), annotation
    return "true or false" if annotation is bool else "null"


def choices_of(annotation: Any) -> tuple[str, ...]:
    """The words that a field takes, none where it takes other values than fixed words."""
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return tuple(part for part in parts if isinstance(part, str))
    return tuple(choice for part in parts for choice in choices_of(part))


def takes_text(annotation: Any) -> bool:
    """Whether a field takes any text, so that a number typed for it is meant as text."""
    if annotation is str:
        return True
    structured = get_origin(annotation) in (Annotated, Union, UnionType)
    return structured and any(takes_text(part) for part in get_args(annotation))


def spelled(name: object) -> str:
    """A name that a file holds, as text of bounded length."""
    return (name if isinstance(name, str) else shown(name))[:80]


def nearest(name: object, known: Collection[str]) -> str:
    """The known name that is most like the given one, in any case of letters.

    Of two as like as each other, the one that shares more letters.
    """
    given = spelled(name).casefold()

    def likeness(item: str) -> tuple[float, int]:
        other = item.casefold()
        letters = Counter(given) & Counter(other)
        return SequenceMatcher(None, given, other).ratio(), letters.total()

    return max(known, key=likeness)


def shown(value: object) -> str:
    """A refused value as YAML would show it, short whatever its size."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        nested = any(isinstance(item, list | tuple) for item in value[:6])
        if nested or len(value) > 6:
            return f"a list of {len(value)} entries"
        return f"[{', '.join(shown(item) for item in value)}]"
    return shortened(value)


def invalid(
    key: str, rule: str, value: object, *, choices: Collection[str] = (), source: str = ""
) -> InvalidConfig:
    """The error for a key's value; the caller raises it.

    choices: words that it takes, of which the nearest is named. source: where the value stands.
    """
    hint = ""
    if choices and isinstance(value, str):
        hint = f"; did you mean {nearest(value, choices)}?"
    where = f" ({source})" if source else ""
    return InvalidConfig(
        f"{key} must be {rule}; found {shown(value)}{where}{hint}",
        param=key,
        limit=rule,
        value=value,
    )


def unknown(
    kind: str, name: object, known: Collection[str], *, key: str = "", source: str = ""
) -> InvalidConfig:
    """The error for a name that does not exist, with the nearest that does.

    kind: what it would name. key: its dotted place, the name itself by default.
    """
    where = f" ({source})" if source else ""
    return InvalidConfig(
        f"there is no {kind} {shown(name)}{where}; did you mean {nearest(name, known)}?",
        param=key or spelled(name),
        limit=", ".join(known),
        value=name,
    )
