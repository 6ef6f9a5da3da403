"""The engine's front door as a protocol: who knows only this file can serve.

Knows no HTTP, no tensor and no device. `speak`, `abort`, `info`, `health` and `statistics` return
at once; the others are awaited. All are called from the event loop's thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from declaim.contracts.request import (
    FinishReason,
    FloatArray,
    IntArray,
    SamplingParams,
    SpeechRequest,
)


@dataclass(frozen=True)
class PcmChunk:
    """Consecutive samples of one stream.

    first: index of the first sample in the stream. samples: float32 [n] in [-1, 1] at the engine's
    rate; what was NaN is 0 (and counted in the statistics).
    """

    request_id: str
    first: int
    samples: FloatArray


@dataclass(frozen=True)
class Timings:
    """Seconds from `speak`: until the prompt was admitted to a slot, until the first chunk was
    ready, and until the last. None for what did not happen."""

    admitted: float | None
    first_audio: float | None
    finished: float | None


@dataclass(frozen=True)
class SpeechOutcome:
    """How a stream ended.

    frames: emitted frames. frames_sha256: hexadecimal, of the int64 [frames, 1 + Q] rows in C
    order, little-endian. seed: repeats the request exactly. prompt_rows: rows of its prompt.
    """

    request_id: str
    reason: FinishReason
    frames: int
    frames_sha256: str
    seed: int
    prompt_rows: int
    timings: Timings


@dataclass(frozen=True)
class EngineInfo:
    """What an engine serves; constant while it runs.

    rate: samples a second. hop: samples a frame. codebooks: Q. codebook_size: V. context: most
    rows of a stream. sampling: what a request without its own draws with.
    reference_seconds: shortest and longest reference clip. codec_fingerprint: names the codec.
    """

    model: str
    rate: int
    hop: int
    codebooks: int
    codebook_size: int
    context: int
    max_frames: int
    input_characters: int
    reference_seconds: tuple[float, float]
    sampling: SamplingParams
    codec_fingerprint: str


@dataclass(frozen=True)
class EngineHealth:
    """ready: loaded and taking requests. failure: what ended the engine, if anything did.

    heartbeat_seconds: since a loop of the engine last came round, while it has work.
    """

    ready: bool
    failure: str | None
    heartbeat_seconds: float


class SpeechStream(Protocol):
    """One request's sound, while it is made.

    Iteration ends when all of it was given, and raises the DeclaimError that broke the stream;
    a stream that failed never ends cleanly.
    """

    request_id: str

    def __aiter__(self) -> "SpeechStream":
        """Itself: a stream is iterated once."""
        ...

    async def __anext__(self) -> PcmChunk:
        """The next chunk."""
        ...

    async def outcome(self) -> SpeechOutcome:
        """Wait for the end; raises what broke the stream."""
        ...

    async def aclose(self) -> None:
        """Give the rest up: the request is aborted unless it is over. Safe to call twice."""
        ...


class SpeechEngine(Protocol):
    """Text in, streams of samples out, many at once."""

    @property
    def info(self) -> EngineInfo:
        """What it serves."""
        ...

    def speak(self, request: SpeechRequest) -> SpeechStream:
        """Admit a request, or raise at once.

        Raises InvalidRequest or TooLarge for what cannot be served, Conflict for an id in use,
        Overloaded when the queue is full or the engine closes, EngineFailed after a failure.
        """
        ...

    def abort(self, request_id: str) -> bool:
        """End a request at any moment; its stream raises Cancelled. False if there is none."""
        ...

    async def encode_reference(self, samples: FloatArray) -> IntArray:
        """Codes int64 [Q, frames] of a clip, float32 [n] at the engine's rate."""
        ...

    def health(self) -> EngineHealth:
        """Whether it can serve now."""
        ...

    def statistics(self) -> Mapping[str, float]:
        """Counters and gauges by name."""
        ...

    async def close(self) -> None:
        """Stop: running streams raise Overloaded; returns when the threads have ended."""
        ...
