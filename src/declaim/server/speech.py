"""What the fields of a speech request mean: from a body to a SpeechRequest and an answer's format.

Knows no HTTP. The checks are in the order in which the fields are documented.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace

from declaim.contracts.engine import EngineInfo
from declaim.contracts.errors import DeclaimError, InvalidRequest, NotFound
from declaim.contracts.request import SamplingParams, SpeechRequest, shown
from declaim.server.body import SpeechBody, header_list, refuse_unknown
from declaim.server.delivery import AnswerFormat
from declaim.server.encoding import check_format, default_rate
from declaim.server.references import DecodeReference, read_references
from declaim.server.settings import ServerSettings

ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""OpenAI's names of models, which many clients cannot change."""

VOICES = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage",
    "shimmer", "verse",
)  # fmt: skip
"""OpenAI's names of voices: all speak without a reference."""

_SPEAKER_TAG = re.compile(r"<\|speaker:\d+\|>")
_SPEAKABLE = ("L", "N", "S")
"""Letters, numbers and symbols; not marks, punctuation, separators and controls."""

_CODES = re.compile(r"(references\[\d+\])\.codes")


@dataclass(frozen=True)
class Served:
    """What bodies are read against."""

    info: EngineInfo
    settings: ServerSettings
    decode: DecodeReference


@dataclass(frozen=True)
class Asked:
    """A body's fields, the names of unknown ones, and what the request gets besides."""

    body: SpeechBody
    unknown: tuple[str, ...]
    request_id: str
    fresh_seed: int


def read_speech(asked: Asked, served: Served) -> tuple[SpeechRequest, AnswerFormat]:
    """The request and its answer's format; decodes reference files, which takes time.

    fresh_seed: for a request without one. Raises NotFound for an unknown model, InvalidRequest
    for everything else that cannot be served, naming the field.
    """
    body = asked.body
    if served.settings.strict_fields:
        refuse_unknown(asked.unknown)
    _check_input(body.input, served.info.input_characters)
    _check_model(body.model, served)
    _check_voice(body)
    name = check_format(body.response_format)
    _check_fixed(body)
    seed = asked.fresh_seed if body.seed is None else body.seed
    request = SpeechRequest(
        id=asked.request_id,
        text=body.input,
        references=read_references(body, served.decode),
        sampling=_sampling(body, served.info.sampling),
        seed=seed,
        max_frames=_max_frames(body),
    )
    rate = body.sample_rate or default_rate(name, served.info.rate)
    streamed = name == "pcm" or body.stream is True
    extra = tuple(_notes(body, asked.unknown))
    return request, AnswerFormat(name, served.info.rate, rate, streamed, seed, extra)


def model_names(served: Served) -> tuple[str, ...]:
    """Every name that the model answers to, its own first."""
    aliases = ALIASES if served.settings.aliases else ()
    return (served.info.model, *(name for name in aliases if name != served.info.model))


def as_field(error: DeclaimError, body: SpeechBody) -> DeclaimError:
    """An error of the engine's with the name that its parameter has in the body."""
    param = error.param or ""
    names = {"text": "input", "max_frames": "max_new_tokens"}
    if body.max_new_tokens is None and body.max_tokens is not None:
        names["max_frames"] = "max_tokens"
    if body.ref_audio:
        names |= {"references[0]": "ref_audio", "references[0].text": "ref_text"}
    field = names.get(param) or _CODES.sub(r"\1.vq_codes", param)
    if field == param:
        return error
    message = error.message
    if message.startswith(param):
        message = field + message.removeprefix(param)
    return type(error)(message, param=field, limit=error.limit, value=error.value)


def _check_input(text: str, limit: int) -> None:
    if len(text) > limit:
        raise InvalidRequest(
            f"input must have at most {limit} characters (code points), not {len(text)}",
            param="input",
            limit=limit,
            value=len(text),
        )
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidRequest("input holds a lone surrogate: it is not valid text", param="input")
    if not any(
        unicodedata.category(character)[0] in _SPEAKABLE for character in _SPEAKER_TAG.sub("", text)
    ):
        raise InvalidRequest("input holds nothing to speak", param="input")


def _check_model(name: str | None, served: Served) -> None:
    names = model_names(served)
    if name is not None and name not in names:
        raise NotFound(
            f"there is no model {shown(name)} here; there is {', '.join(names)}",
            param="model",
            limit=names,
            value=name,
        )


def _check_voice(body: SpeechBody) -> None:
    voice = body.voice if isinstance(body.voice, str | None) else body.voice.id
    if voice is not None and voice not in VOICES:
        raise InvalidRequest(
            f"there is no voice {shown(voice)} here; there is {', '.join(VOICES)}",
            param="voice",
            limit=VOICES,
            value=voice,
        )


def _check_fixed(body: SpeechBody) -> None:
    """Fields that may be given but only with one value."""
    for name, value, only in (
        ("stream_format", body.stream_format, "audio"),
        ("speed", body.speed, 1.0),
        ("repetition_penalty", body.repetition_penalty, 1.0),
    ):
        if value is not None and value != only:
            raise InvalidRequest(
                f"{name} can only be {only}, not {shown(value)}",
                param=name,
                limit=only,
                value=value,
            )


def _sampling(body: SpeechBody, default: SamplingParams) -> SamplingParams:
    return replace(
        default,
        temperature=default.temperature if body.temperature is None else body.temperature,
        top_p=default.top_p if body.top_p is None else body.top_p,
        top_k=default.top_k if body.top_k is None else body.top_k,
    )


def _max_frames(body: SpeechBody) -> int | None:
    given = {body.max_new_tokens, body.max_tokens} - {None}
    if len(given) > 1:
        raise InvalidRequest(
            f"max_tokens is another name of max_new_tokens: {body.max_tokens} and "
            f"{body.max_new_tokens} cannot both be meant",
            param="max_tokens",
            limit=body.max_new_tokens,
            value=body.max_tokens,
        )
    return next(iter(given), None)


def _notes(body: SpeechBody, unknown: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Headers that say what was not done."""
    if body.instructions and body.instructions.strip():
        yield "x-warnings", "instructions are not followed by this model"
    if unknown:
        yield "x-ignored-fields", header_list(unknown)
