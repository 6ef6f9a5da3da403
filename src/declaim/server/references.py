"""Voices to copy as a request body carries them: base64, data: URLs and codes.

Knows no audio format: who makes the application hands it a decoder.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator

import numpy as np

from declaim.contracts.errors import DeclaimError, InvalidRequest
from declaim.contracts.request import FloatArray, IntArray, Reference
from declaim.server.body import ReferenceBody, SpeechBody

DecodeReference = Callable[[bytes], FloatArray]
"""A file's bytes to float32 [n] mono at the engine's rate; raises DeclaimError."""

MAX_REFERENCES = 16

_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_OTHER_URL = re.compile(r"[a-z][a-z0-9+.-]{0,20}:", re.IGNORECASE)
_SPEAKER = "<|speaker:"


def read_references(body: SpeechBody, decode: DecodeReference) -> tuple[Reference, ...]:
    """Every reference of a body: that of ref_audio, or those of `references`.

    With several, a transcript without a speaker tag gets its own `speaker`, or its place. Decodes
    files, which takes time. Raises InvalidRequest or what the decoder raises, with `param`.
    """
    items = list(_items(body))
    if len(items) > MAX_REFERENCES:
        raise InvalidRequest(
            f"references must hold at most {MAX_REFERENCES}, not {len(items)}",
            param="references",
            limit=MAX_REFERENCES,
            value=len(items),
        )
    found = []
    for index, (place, item) in enumerate(items):
        text = _transcript(place, item)
        speaker = item.speaker
        if speaker is None and len(items) > 1:
            speaker = index
        if speaker is not None and not text.lstrip().startswith(_SPEAKER):
            text = f"{_SPEAKER}{speaker}|>{text}"
        found.append(_reference(place, item, text, decode))
    return tuple(found)


def _items(body: SpeechBody) -> Iterator[tuple[str, ReferenceBody]]:
    """Each reference with the prefix of its fields' names."""
    if body.ref_audio and body.references:
        raise InvalidRequest(
            "ref_audio and references cannot both be given: put all voices into references",
            param="ref_audio",
        )
    if body.ref_audio:
        yield "ref_", ReferenceBody(text=body.ref_text, audio=body.ref_audio)
    elif body.ref_text:
        raise InvalidRequest("ref_text is given without ref_audio", param="ref_audio")
    for index, item in enumerate(body.references or ()):
        yield f"references[{index}].", item


def _transcript(place: str, item: ReferenceBody) -> str:
    if item.text is None or not item.text.strip():
        raise InvalidRequest(
            f"{place}text is needed: the transcript of what the reference says",
            param=f"{place}text",
        )
    return item.text


def _reference(place: str, item: ReferenceBody, text: str, decode: DecodeReference) -> Reference:
    if (not item.audio) == (item.vq_codes is None):
        both = "both" if item.audio else "neither"
        raise InvalidRequest(
            f"{place}audio or {place}vq_codes must be given, not {both}",
            param=f"{place}audio",
            limit="one of audio and vq_codes",
            value=both,
        )
    if item.vq_codes is not None:
        return Reference(text=text, codes=_codes(f"{place}vq_codes", item.vq_codes))
    param = f"{place}audio"
    data = _bytes(param, item.audio or "")
    try:
        return Reference(text=text, samples=decode(data))
    except DeclaimError as error:
        said = error.message.removeprefix(f"{error.param}: ")
        raise type(error)(
            f"{param}: {said}", param=param, limit=error.limit, value=error.value
        ) from error


def _codes(param: str, rows: list[list[int]]) -> IntArray:
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise InvalidRequest(
            f"{param} must hold one list a codebook, all of one length above 0", param=param
        )
    return np.array(rows, dtype=np.int64)


def _bytes(param: str, text: str) -> bytes:
    """What base64 or a data: URL holds."""
    if match := _DATA_URL.match(text):
        text = text[match.end() :]
    elif match := _OTHER_URL.match(text):
        raise InvalidRequest(
            f"{param} must be base64 or a data: URL in base64, not {match.group()}",
            param=param,
            limit="base64",
            value=match.group(),
        )
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{param} is not valid base64", param=param) from error
    if not data:
        raise InvalidRequest(f"{param} holds no bytes", param=param)
    return data
