"""The body of a speech request: its fields, their types, and how JSON becomes them.

Types are strict: nothing is coerced. What a field's value means is decided elsewhere.
"""

import difflib
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import MAX_FRAMES, MAX_SEED, shown

_MAX_DIGITS = 400
_MAX_INTEGER = 2**31 - 1

Code = Annotated[int, Field(ge=0, le=_MAX_INTEGER)]


class ReferenceBody(BaseModel):
    """A voice to copy: its transcript, and its sound as one of audio and vq_codes.

    audio: base64 or a data: URL. vq_codes: [codebooks][frames].
    """

    model_config = ConfigDict(strict=True)

    text: str | None = None
    audio: str | None = None
    vq_codes: list[list[Code]] | None = None
    speaker: Annotated[int, Field(ge=0, le=15)] | None = None


class VoiceBody(BaseModel):
    """A voice by its id."""

    model_config = ConfigDict(strict=True)

    id: str


class SpeechBody(BaseModel):
    """The fields of a speech request; null is the same as absent, but for `input`."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    input: str
    model: str | None = None
    voice: str | VoiceBody | None = None
    response_format: str | None = None
    stream_format: str | None = None
    stream: bool | None = None
    sample_rate: Annotated[int, Field(ge=8000, le=48000)] | None = None
    speed: float | None = None
    instructions: str | None = None
    references: list[ReferenceBody] | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1, le=_MAX_INTEGER)] | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_FRAMES)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_FRAMES)] | None = None
    repetition_penalty: float | None = None
    user: Any = None
    language: Any = None
    backend: Any = None
    features: Any = None
    task_type: Any = None


def parse_body(raw: bytes) -> tuple[SpeechBody, tuple[str, ...]]:
    """A body's fields, and the names of those that nobody reads.

    Raises InvalidRequest naming the first field that cannot be used.
    """
    try:
        content = json.loads(raw.decode("utf-8"), parse_int=_integer)
    except UnicodeDecodeError as error:
        raise InvalidRequest("the body is not UTF-8", param="body") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the body is not JSON that can be read", param="body") from error
    if not isinstance(content, dict):
        raise InvalidRequest(
            f"the body must be a JSON object, not {_described(content)}", param="body"
        )
    try:
        body = SpeechBody.model_validate(content)
    except ValidationError as error:
        raise _refusal(error) from error
    return body, tuple(_unknown_fields(content))


def _integer(digits: str) -> int | float:
    """An integer, or infinity for one that no field could hold."""
    if len(digits) <= _MAX_DIGITS:
        return int(digits)
    return -math.inf if digits.startswith("-") else math.inf


def _refusal(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_context=False)[0]
    param = _param(first["loc"])
    if first["type"] == "missing":
        return InvalidRequest(f"{param} is required", param=param)
    said = re.sub(r"^Input should\b", f"{param} must", first["msg"])
    if said == first["msg"]:
        said = f"{param}: {said}"
    return InvalidRequest(f"{said}, not {_described(first['input'])}", param=param)


def _param(location: Sequence[str | int]) -> str:
    """`references[0].text`: names and indices, without the names of types in a union."""
    name = str(location[0])
    for part in location[1:]:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part in ReferenceBody.model_fields:
            name += f".{part}"
    return name


def _described(value: object) -> str:
    """A refused value in JSON's words, short whatever its size."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return shown(value[:60] if isinstance(value, str) else value)


def _unknown_fields(content: dict[str, Any]) -> Iterator[str]:
    """The names that no model has, those of references with their place."""
    yield from (name for name in content if name not in SpeechBody.model_fields)
    for index, item in enumerate(content.get("references") or ()):
        for name in item:
            if name not in ReferenceBody.model_fields:
                yield f"references[{index}].{name}"


def refuse_unknown(names: Sequence[str]) -> None:
    """Raise InvalidRequest for the first name, with the nearest known one."""
    if not names:
        return
    place, dot, last = names[0].rpartition(".") if "]." in names[0] else ("", "", names[0])
    known = ReferenceBody.model_fields if dot else SpeechBody.model_fields
    near = difflib.get_close_matches(last, known, n=1)
    hint = f"; did you mean {place}{dot}{near[0]}?" if near else ""
    name = _plain(names[0])
    raise InvalidRequest(f"unknown field {name}{hint}", param=name)


def header_list(names: Sequence[str]) -> str:
    """Field names as the value of one header: at most 20, each quoted and cut."""
    return ", ".join(_plain(name) for name in names[:20])


def _plain(name: str) -> str:
    return quote(name[:64], safe="[]._- ", errors="replace")
