"""The engine: joins the frame stage and the codec stage into streams of sound.

Plan, run and update happen in the frame stage's thread, decoding in the codec stage's; this file
knows who must hear of what. It never reads audio files and never speaks HTTP.
"""

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from declaim.codec.encoder import Encoder
from declaim.codec.stream import Decoder
from declaim.contracts.engine import (
    EngineHealth,
    EngineInfo,
    PcmChunk,
    SpeechOutcome,
    Timings,
)
from declaim.contracts.errors import Cancelled, Conflict, DeclaimError, EngineFailed, Overloaded
from declaim.contracts.request import FloatArray, IntArray, Reference, SpeechRequest
from declaim.engine.admission import Admission, ReferenceCodes
from declaim.engine.codec_loop import CodecEvents, CodecLoop
from declaim.engine.frame_loop import FrameEvents, FrameLoop
from declaim.engine.frames import FrameEngine, fresh_seed
from declaim.engine.stream import Stream
from declaim.scheduler.record import Outcome


@dataclass(frozen=True)
class EngineParts:
    """What an engine is made of. codec_rows: most streams in the codec stage at once.

    queue: most unfinished requests. prepare: run first in either stage's thread.
    """

    info: EngineInfo
    admission: Admission
    frames: FrameEngine
    decoder: Decoder
    encoder: Encoder
    codec_rows: int
    queue: int
    prepare_frames: Callable[[], None]
    prepare_codec: Callable[[], None]


@dataclass
class _Active:
    """One unfinished request. taken: frames that its caller has taken."""

    stream: Stream
    seed: int
    prompt_rows: int = 0
    admitted: float | None = None
    first_audio: float | None = None
    taken: int = 0


class Engine:
    """Text in, streams of samples out; implements SpeechEngine. Start it with `start`."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._active: dict[str, _Active] = {}
        self._lock = threading.Lock()
        self._failure: EngineFailed | None = None
        self._ready = False
        self._closing = False
        self._totals = {"finished": 0, "failed": 0, "frames": 0, "samples": 0}
        self._references = ReferenceCodes(parts.encoder.encode)
        self._frames = FrameLoop(
            parts.frames,
            FrameEvents(
                admitted=self._on_admitted,
                frame=lambda request_id, frame: self._codec.push(request_id, frame),
                ended=lambda outcome: self._codec.finish(outcome),
                failed=self._on_failed,
                broken=self._on_broken,
            ),
            parts.prepare_frames,
        )
        self._codec = CodecLoop(
            parts.decoder,
            parts.codec_rows,
            CodecEvents(chunk=self._on_chunk, ended=self._on_ended, broken=self._on_broken),
            parts.prepare_codec,
        )

    def start(self) -> None:
        """Start both stages; requests are taken from now on."""
        self._frames.start()
        self._codec.start()
        self._ready = True

    @property
    def info(self) -> EngineInfo:
        """What it serves."""
        return self._parts.info

    def speak(self, request: SpeechRequest) -> Stream:
        """Admit a request, or raise at once; see SpeechEngine."""
        self._parts.admission.check(request)
        seed = fresh_seed() if request.seed is None else request.seed
        stream = Stream(request.id, self.info.hop, self._on_taken, self._on_closed)
        with self._lock:
            self._check_open(request.id)
            self._active[request.id] = _Active(stream, seed)
        if any(reference.samples is not None for reference in request.references):
            self._codec.run(lambda: self._submit(request, seed))
        else:
            self._submit(request, seed)
        return stream

    def _check_open(self, request_id: str) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise Overloaded("the engine is shutting down")
        if request_id in self._active:
            raise Conflict(
                f"a request with the id {request_id!r} is not finished yet",
                param="id",
                value=request_id,
            )
        if len(self._active) >= self._parts.queue:
            raise Overloaded(
                f"{len(self._active)} requests are under way, as many as the queue holds",
                param="queue",
                limit=self._parts.queue,
                value=len(self._active),
            )

    def _submit(self, request: SpeechRequest, seed: int) -> None:
        """Encode what must be, then hand the request to the frame stage."""
        try:
            references = tuple(map(self._encoded, request.references))
            frames = self._parts.admission.frame_request(request, references, seed)
        except DeclaimError as error:
            self._on_failed(request.id, error)
            return
        with self._lock:
            active = self._active.get(request.id)
            if active is None:
                return
            active.prompt_rows = len(frames.prompt.rows)
        seconds = request.deadline_seconds
        self._frames.submit(frames, None if seconds is None else active.stream.started + seconds)

    def _encoded(self, reference: Reference) -> Reference:
        if reference.samples is None:
            return reference
        return Reference(text=reference.text, codes=self._codes(reference.samples))

    def _codes(self, samples: FloatArray) -> IntArray:
        kept = self._references.kept(samples)
        return self._references.encode(samples) if kept is None else kept

    async def encode_reference(self, samples: FloatArray) -> IntArray:
        """Codes int64 [Q, frames] of a clip; raises InvalidRequest for one that cannot be used."""
        self._parts.admission.check_samples(samples, "reference")
        loop = asyncio.get_running_loop()
        made: asyncio.Future[IntArray] = loop.create_future()

        def resolve(codes: IntArray) -> None:
            if not made.done():
                made.set_result(codes)

        self._codec.run(
            lambda: loop.call_soon_threadsafe(resolve, self._codes(samples)) and None
        )
        return await made

    def abort(self, request_id: str) -> bool:
        """End a request at any moment; its stream raises Cancelled."""
        cancelled = Cancelled("the request was aborted", param="id", value=request_id)
        return self._end(request_id, cancelled)

    def _end(self, request_id: str, error: DeclaimError) -> bool:
        with self._lock:
            active = self._active.pop(request_id, None)
            if active is None:
                return False
            self._totals["failed"] += 1
        self._frames.abort(request_id)
        self._codec.drop(request_id)
        active.stream.fail(error)
        return True

    def health(self) -> EngineHealth:
        """Ready unless a stage has failed or the engine closes."""
        beat = max(self._frames.pulse.age(), self._codec.pulse.age())
        failure = None if self._failure is None else self._failure.message
        return EngineHealth(self._ready and failure is None and not self._closing, failure, beat)

    def statistics(self) -> Mapping[str, float]:
        """Counters since the start and gauges of now."""
        scheduler = self._parts.frames.scheduler.statistics()
        codec = self._codec.counters
        return {
            "requests_running": scheduler.running,
            "requests_waiting": scheduler.waiting,
            "requests_finished": self._totals["finished"],
            "requests_failed": self._totals["failed"],
            "frames": self._totals["frames"],
            "audio_seconds": self._totals["samples"] / self.info.rate,
            "kv_pages_in_use": scheduler.pages_in_use,
            "kv_pages_reserved": scheduler.pages_reserved,
            "codec_streams": self._codec.streams,
            "codec_batches": codec.batches,
            "codec_batch_streams": codec.streams,
            "nan_samples": codec.nan_samples,
            "reference_hits": self._references.hits,
            "reference_misses": self._references.misses,
        }

    async def close(self) -> None:
        """Break what runs with Overloaded, stop both stages and wait for their threads."""
        with self._lock:
            self._closing = True
            active = list(self._active)
        for request_id in active:
            self._end(request_id, Overloaded("the engine is shutting down"))
        self._frames.stop()
        self._codec.stop()
        await asyncio.to_thread(self._frames.join)
        await asyncio.to_thread(self._codec.join)

    def _on_admitted(self, request_id: str) -> None:
        active = self._active.get(request_id)
        if active is not None:
            active.admitted = time.monotonic() - active.stream.started

    def _on_chunk(self, chunk: PcmChunk) -> None:
        active = self._active.get(chunk.request_id)
        if active is None:
            return
        if active.first_audio is None:
            active.first_audio = time.monotonic() - active.stream.started
        self._totals["frames"] += len(chunk.samples) // self.info.hop
        self._totals["samples"] += len(chunk.samples)
        active.stream.deliver(chunk)

    def _on_ended(self, outcome: Outcome) -> None:
        with self._lock:
            active = self._active.pop(outcome.request_id, None)
            if active is None:
                return
            self._totals["finished"] += 1
        rows = np.ascontiguousarray(outcome.frames, dtype="<i8")
        finished = time.monotonic() - active.stream.started
        active.stream.finish(
            SpeechOutcome(
                request_id=outcome.request_id,
                reason=outcome.reason,
                frames=len(rows),
                frames_sha256=hashlib.sha256(rows.tobytes()).hexdigest(),
                seed=active.seed,
                prompt_rows=active.prompt_rows,
                timings=Timings(active.admitted, active.first_audio, finished),
            )
        )

    def _on_failed(self, request_id: str, error: DeclaimError) -> None:
        self._end(request_id, error)

    def _on_closed(self, request_id: str) -> None:
        self._end(request_id, Cancelled("the stream was closed", param="id", value=request_id))

    def _on_taken(self, request_id: str, frames: int) -> None:
        active = self._active.get(request_id)
        if active is not None:
            active.taken += frames
            self._frames.taken(request_id, active.taken)

    def _on_broken(self, failure: EngineFailed) -> None:
        """A stage ended by itself: everyone hears of it, and the other stage stops too."""
        with self._lock:
            self._failure = self._failure or failure
            active, self._active = self._active, {}
        for request in active.values():
            request.stream.fail(failure)
        self._frames.stop()
        self._codec.stop()
