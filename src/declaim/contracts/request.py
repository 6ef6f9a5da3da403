"""What a caller asks for and what a stream carries, before and after the frame stage.

Knows no tokenizer, no device and no audio format. Arrays are numpy: int64 where a file or a
caller sees them, int32 on the way to the device.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declaim.contracts.errors import InvalidRequest

IntArray = NDArray[np.integer[Any]]
FloatArray = NDArray[np.float32]

MAX_FRAMES = 2048
"""Most frames of one request: 95 seconds at 21.5 frames a second."""

MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How the draws of one request are made; the defaults are the model family's own.

    temperature: 0 to 2; 0 is arg max in the main draw and in every code.
    top_p: in (0, 1]; the main draw keeps the candidate that crosses it, the codes drop it.
    top_k: at least 1, or None: unlimited for the main draw, `codebook_top_k` for the codes;
        the codes never keep more than `codebook_top_k`.
    ras_*: the repetition-aware second draw, taken when the first main token is semantic and
        stands among the last W main tokens (W is the checkpoint's); `repetition_aware` False
        never takes it (the draw is made all the same).
    """

    temperature: float = 1.0
    top_p: float = 0.9
    top_k: int | None = None
    codebook_top_k: int = 30
    ras_temperature: float = 1.0
    ras_top_k: int = 30
    ras_top_p: float = 0.95
    repetition_aware: bool = True

    def __post_init__(self) -> None:
        for name in ("temperature", "ras_temperature"):
            _check_number(name, getattr(self, name), 0.0, 2.0)
        for name in ("top_p", "ras_top_p"):
            _check_number(name, getattr(self, name), 0.0, 1.0, open_low=True)
        for name in ("top_k", "codebook_top_k", "ras_top_k"):
            value = getattr(self, name)
            if value is None and name == "top_k":
                continue
            check_integer(name, value, 1, 2**31 - 1)
        if not isinstance(self.repetition_aware, bool):
            raise InvalidRequest(
                f"repetition_aware must be true or false, not {shown(self.repetition_aware)}",
                param="repetition_aware",
                value=self.repetition_aware,
            )


def _check_number(
    name: str, value: object, low: float, high: float, *, open_low: bool = False
) -> None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not low <= number <= high or (open_low and number == low):
        limit = f"{'(' if open_low else '['}{low:g}, {high:g}]"
        raise InvalidRequest(
            f"{name} must be a number in {limit}, not {shown(value)}",
            param=name,
            limit=limit,
            value=value,
        )


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raise InvalidRequest unless value is a plain integer (no bool) in [low, high].

    An integer of another type, such as numpy's, is refused too: its arithmetic overflows.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequest(
            f"{name} must be an integer in [{low}, {high}], not {shown(value)}",
            param=name,
            limit=f"[{low}, {high}]",
            value=value,
        )


def shown(value: object) -> str:
    """A refused value as a message shows it: short whatever its size, with its type if odd."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    short = text if len(text) <= 60 else f"{text[:57]}..."
    plain = value is None or type(value) in (bool, int, float, str)
    return short if plain else f"{short} of type {type(value).__name__}"


@dataclass(frozen=True)
class Prompt:
    """A request's input, ready for the frame stage.

    rows: int32 [rows, 1 + Q]; column 0 the main token, then the Q codes (zeros on text rows).
    prefix_rows: how many leading rows depend on the voice alone.
    """

    rows: NDArray[np.int32]
    prefix_rows: int


@dataclass(frozen=True)
class Reference:
    """A voice to speak in: its transcript, and its sound as exactly one of codes and samples.

    codes: int64 [Q, frames] of the codec. samples: float32 [n] mono at the codec's rate.
    """

    text: str
    codes: IntArray | None = None
    samples: FloatArray | None = None

    def __post_init__(self) -> None:
        if (self.codes is None) == (self.samples is None):
            raise InvalidRequest(
                "a reference must hold either codes or samples",
                param="references",
                limit="one of codes and samples",
                value="both" if self.codes is not None else "neither",
            )


@dataclass(frozen=True)
class SpeechRequest:
    """What a caller asks for.

    id: unique among the requests that are not finished. sampling: the checkpoint's and deploy
    file's defaults without one. seed: fresh without one. max_frames: from the defaults without
    one. priority: 0, or 1 for what may wait. deadline_seconds: from admission to the last sample.
    """

    id: str
    text: str
    references: tuple[Reference, ...] = ()
    sampling: SamplingParams | None = None
    seed: int | None = None
    max_frames: int | None = None
    priority: int = 0
    deadline_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.seed is not None:
            check_integer("seed", self.seed, 0, MAX_SEED)
        if self.max_frames is not None:
            check_integer("max_frames", self.max_frames, 1, MAX_FRAMES)
        check_integer("priority", self.priority, 0, 1)
        if self.deadline_seconds is not None:
            _check_number("deadline_seconds", self.deadline_seconds, 0.0, 86400.0, open_low=True)


@dataclass(frozen=True)
class FrameRequest:
    """What the frame stage is asked for.

    id: unique among the requests that are not finished.
    seed: 0 to 2**63 - 1; every draw depends on it and on the frame's index alone.
    max_frames: most frames to generate, 1 to 2048; an end frame does not count.
    priority: 0, or 1 for what may wait until no request of priority 0 does.
    """

    id: str
    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    max_frames: int = MAX_FRAMES
    priority: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise InvalidRequest(
                f"id must be a string that is not empty, not {shown(self.id)}",
                param="id",
                value=self.id,
            )
        check_integer("seed", self.seed, 0, MAX_SEED)
        check_integer("max_frames", self.max_frames, 1, MAX_FRAMES)
        check_integer("priority", self.priority, 0, 1)


@dataclass(frozen=True)
class Frame:
    """One generated frame of one request.

    row: int32 [1 + Q]. end: its main token is the end of speech; such a frame is not emitted.
    """

    row: NDArray[np.int32]
    end: bool


class FinishReason(StrEnum):
    """Why a request ended: the end frame, max_frames, a caller's wish, or an error."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
