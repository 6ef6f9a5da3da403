"""An engine without a model: each request's stream follows a script."""

import asyncio
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from declaim.contracts.engine import EngineHealth, EngineInfo, PcmChunk, SpeechOutcome, Timings
from declaim.contracts.errors import Cancelled, DeclaimError, Overloaded
from declaim.contracts.request import (
    FinishReason,
    FloatArray,
    IntArray,
    SamplingParams,
    SpeechRequest,
)

HOP = 2048
RATE = 44100
WAIT_SECONDS = 10

INFO = EngineInfo(
    model="fake",
    rate=RATE,
    hop=HOP,
    codebooks=4,
    codebook_size=64,
    context=4096,
    max_frames=2048,
    input_characters=4096,
    reference_seconds=(1.0, 60.0),
    sampling=SamplingParams(temperature=0.7),
    codec_fingerprint="0" * 64,
)


class Gate:
    """Holds a stream until a test opens it, from any thread."""

    def __init__(self) -> None:
        self._opened: Future[None] = Future()
        self.reached = threading.Event()

    def open(self) -> None:
        self._opened.set_result(None)

    async def passed(self) -> None:
        self.reached.set()
        await asyncio.shield(asyncio.wrap_future(self._opened))


Step = FloatArray | Gate | Exception
Script = Callable[[SpeechRequest], Sequence[Step]]


def sound(frames: int, seed: int = 0) -> list[FloatArray]:
    """Chunks of one frame each, of noise below full scale."""
    samples = np.random.default_rng(seed).uniform(-0.9, 0.9, (frames, HOP))
    return [row.astype(np.float32) for row in samples]


class FakeStream:
    """Gives the script's chunks, waits at its gates, raises its errors, or ends well."""

    def __init__(self, request: SpeechRequest, steps: Sequence[Step]) -> None:
        self.request_id = request.id
        self.request = request
        self.closed = threading.Event()
        self._steps = list(steps)
        self._first = 0
        self._broken = asyncio.get_running_loop().create_future()
        self._error: Exception | None = None

    def __aiter__(self) -> "FakeStream":
        return self

    async def __anext__(self) -> PcmChunk:
        while self._steps:
            step = self._steps.pop(0)
            if isinstance(step, Gate):
                passing = asyncio.ensure_future(step.passed())
                await asyncio.wait((passing, self._broken), return_when=asyncio.FIRST_COMPLETED)
                passing.cancel()
            if self._error is not None:
                raise self._error
            if isinstance(step, Exception):
                self._error = step
                raise step
            if isinstance(step, np.ndarray):
                first, self._first = self._first, self._first + len(step)
                return PcmChunk(self.request_id, first, step)
        raise StopAsyncIteration

    async def outcome(self) -> SpeechOutcome:
        if self._error is not None:
            raise self._error
        return SpeechOutcome(
            request_id=self.request_id,
            reason=FinishReason.STOP,
            frames=self._first // HOP,
            frames_sha256=hashlib.sha256(b"").hexdigest(),
            seed=self.request.seed or 0,
            prompt_rows=7,
            timings=Timings(0.1, 0.2, 0.3),
        )

    async def aclose(self) -> None:
        if not self.closed.is_set():
            self.fail(Cancelled("the stream was closed"))
            self.closed.set()

    def fail(self, error: DeclaimError) -> None:
        if self._steps and self._error is None:
            self._error = error
            self._broken.set_result(None)


class FakeEngine:
    """Implements SpeechEngine; `refusal` is what `speak` raises instead."""

    def __init__(self, script: Script | None = None) -> None:
        self.info = replace(INFO)
        self.streams: list[FakeStream] = []
        self.refusal: DeclaimError | None = None
        self.state = EngineHealth(True, None, 0.0)
        self.closed = threading.Event()
        self._script: Script = script or (lambda request: sound(3))

    @property
    def requests(self) -> list[SpeechRequest]:
        return [stream.request for stream in self.streams]

    def speak(self, request: SpeechRequest) -> FakeStream:
        if self.refusal is not None:
            raise self.refusal
        stream = FakeStream(request, self._script(request))
        self.streams.append(stream)
        return stream

    def abort(self, request_id: str) -> bool:
        found = [stream for stream in self.streams if stream.request_id == request_id]
        for stream in found:
            stream.fail(Cancelled("the request was aborted"))
        return bool(found)

    async def encode_reference(self, samples: FloatArray) -> IntArray:
        raise AssertionError("the server hands references over with the request")

    def health(self) -> EngineHealth:
        return self.state

    def statistics(self) -> Mapping[str, float]:
        return {}

    async def close(self) -> None:
        for stream in self.streams:
            stream.fail(Overloaded("the engine is shutting down"))
        self.closed.set()
