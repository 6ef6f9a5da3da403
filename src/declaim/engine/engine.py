"""The engine: joins the frame stage and the codec stage into streams of sound.

Plan, run and update happen in the frame stage's thread, decoding in the codec stage's; this file
knows who must hear of what. It never reads audio files and never speaks HTTP.
"""

import asyncio
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from weakref import ReferenceType, ref

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
from declaim.engine.frame_loop import FrameEvents, FrameLoop, stage_failure
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
    """One unfinished request. taken: frames that its caller has taken.

    stream: the caller's alone to hold, so that one which is dropped ends its request.
    """

    request_id: str
    stream: ReferenceType[Stream]
    seed: int
    started: float
    prompt_rows: int = 0
    admitted: float | None = None
    first_audio: float | None = None
    taken: int = 0


class Engine:
    """Text in, streams of samples out; implements SpeechEngine. Start it with `start`."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._active: dict[str, _Active] = {}  # by key, which no two requests ever share
        self._keys: dict[str, str] = {}  # of unfinished requests, by their id
        self._clips: set[Callable[[DeclaimError], None]] = set()
        self._numbers = itertools.count()
        self._lock = threading.RLock()  # a stream that is collected ends its request anywhere
        self._failure: EngineFailed | None = None
        self._ready = False
        self._closing = False
        self._totals = {"finished": 0, "failed": 0, "frames": 0, "samples": 0}
        self._references = ReferenceCodes(parts.encoder.encode)
        self._frames = FrameLoop(
            parts.frames,
            FrameEvents(
                admitted=self._on_admitted,
                frame=lambda key, frame: self._codec.push(key, frame),
                ended=lambda outcome: self._codec.finish(outcome),
                failed=self._end,
                gone=lambda key: self._codec.drop(key),
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
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check_open()
            self._check_room(request.id)
            key = str(next(self._numbers))
            stream = Stream(
                request.id,
                self.info.hop,
                loop,
                lambda frames: self._on_taken(key, frames),
                lambda: self._on_closed(key),
            )
            self._active[key] = _Active(request.id, ref(stream), seed, stream.started)
            self._keys[request.id] = key
        if any(reference.samples is not None for reference in request.references):
            self._codec.run(lambda: self._submit(key, request))
        else:
            self._submit(key, request)
        return stream

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise Overloaded("the engine is shutting down")

    def _check_room(self, request_id: str) -> None:
        if request_id in self._keys:
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

    def _submit(self, key: str, request: SpeechRequest) -> None:
        """Encode what must be, then hand the request to the frame stage."""
        active = self._active.get(key)
        if active is None:
            return
        try:
            references = tuple(map(self._encoded, request.references))
            frames = self._parts.admission.frame_request(key, request, references, active.seed)
        except DeclaimError as error:
            self._end(key, error)
            return
        active.prompt_rows = len(frames.prompt.rows)
        seconds = request.deadline_seconds
        deadline = None if seconds is None else active.started + seconds
        with self._lock:  # an abort was before this, or its order comes after
            if key in self._active:
                self._frames.submit(frames, deadline)

    def _encoded(self, reference: Reference) -> Reference:
        if reference.samples is None:
            return reference
        return Reference(text=reference.text, codes=self._codes(reference.samples))

    def _codes(self, samples: FloatArray) -> IntArray:
        kept = self._references.kept(samples)
        if kept is not None:
            return kept
        try:
            return self._references.encode(samples)
        except DeclaimError:
            raise
        except Exception as error:  # one clip's fault, whatever it is, ends one request
            raise stage_failure("encoder", error) from error

    async def encode_reference(self, samples: FloatArray) -> IntArray:
        """Codes int64 [Q, frames] of a clip; raises InvalidRequest for one that cannot be used."""
        self._parts.admission.check_samples(samples, "reference")
        loop = asyncio.get_running_loop()
        made: asyncio.Future[IntArray] = loop.create_future()

        def settle(codes: IntArray | None, error: DeclaimError | None) -> None:
            if made.done():
                return
            if error is not None:
                made.set_exception(error)
            elif codes is not None:
                made.set_result(codes)

        def encode() -> None:
            codes, broken = None, None
            try:
                codes = self._codes(samples)
            except DeclaimError as error:
                broken = error
            answer(codes, broken)

        def answer(codes: IntArray | None, error: DeclaimError | None) -> None:
            with suppress(RuntimeError):  # the caller's loop is closed: nobody is left to hear
                loop.call_soon_threadsafe(settle, codes, error)

        def give_up(error: DeclaimError) -> None:
            answer(None, error)

        with self._lock:
            self._check_open()
            self._clips.add(give_up)
        try:
            self._codec.run(encode)
            return await made
        finally:
            self._clips.discard(give_up)

    def abort(self, request_id: str) -> bool:
        """End a request at any moment; its stream raises Cancelled."""
        key = self._keys.get(request_id)
        if key is None:
            return False
        return self._end(key, Cancelled("the request was aborted", param="id", value=request_id))

    def _end(self, key: str, error: DeclaimError) -> bool:
        """Break one request. Its frames stop first; then the codec forgets it."""
        active = self._forget(key, "failed")
        if active is None:
            return False
        self._frames.abort(key)
        if stream := active.stream():
            stream.fail(error)
        return True

    def _forget(self, key: str, counted: str) -> _Active | None:
        """Take an unfinished request out and count it, `finished` or `failed`; None if over."""
        with self._lock:
            active = self._active.pop(key, None)
            if active is not None:
                del self._keys[active.request_id]
                self._totals[counted] += 1
            return active

    def health(self) -> EngineHealth:
        """Ready unless a stage has failed or the engine closes."""
        beat = max(self._frames.pulse.age(), self._codec.pulse.age())
        failure = None if self._failure is None else self._failure.message
        return EngineHealth(self._ready and failure is None and not self._closing, failure, beat)

    def statistics(self) -> Mapping[str, float]:
        """Counters since the start and gauges of now."""
        scheduler = self._parts.frames.scheduler.statistics()
        graphs = self._parts.frames.runner.graphs
        codec = self._codec.counters
        return {
            "requests_running": scheduler.running,
            "requests_waiting": scheduler.waiting,
            "requests_finished": self._totals["finished"],
            "requests_failed": self._totals["failed"],
            "frames": self._totals["frames"],
            "audio_seconds": self._totals["samples"] / self.info.rate,
            "kv_pages_in_use": scheduler.pages_in_use,
            "kv_pages_kept": scheduler.pages_kept,
            "preemptions": scheduler.preemptions,
            "prefixes_kept": scheduler.prefixes_kept,
            "prefix_hits": scheduler.prefix_hits,
            "prefix_misses": scheduler.prefix_misses,
            "prefix_evictions": scheduler.prefix_evictions,
            "steps": self._frames.steps,
            "step_seconds": self._frames.seconds,
            "graph_replays": graphs.replays.total(),
            "graph_misses": graphs.misses.total(),
            "codec_seconds": codec.seconds,
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
        for key in active:
            self._end(key, Overloaded("the engine is shutting down"))
        for give_up in list(self._clips):
            give_up(Overloaded("the engine is shutting down"))
        self._frames.stop()
        self._codec.stop()
        if self._ready:
            await asyncio.to_thread(self._frames.join)
            await asyncio.to_thread(self._codec.join)

    def _on_admitted(self, key: str) -> None:
        active = self._active.get(key)
        if active is not None and active.admitted is None:
            active.admitted = time.monotonic() - active.started

    def _on_chunk(self, key: str, first: int, samples: FloatArray) -> None:
        active = self._active.get(key)
        if active is None:
            return
        if active.first_audio is None:
            active.first_audio = time.monotonic() - active.started
        self._totals["frames"] += len(samples) // self.info.hop
        self._totals["samples"] += len(samples)
        if stream := active.stream():
            stream.deliver(PcmChunk(active.request_id, first, samples))

    def _on_ended(self, outcome: Outcome) -> None:
        active = self._forget(outcome.request_id, "finished")
        stream = None if active is None else active.stream()
        if active is None or stream is None:
            return
        rows = np.ascontiguousarray(outcome.frames, dtype="<i8")
        finished = time.monotonic() - active.started
        stream.finish(
            SpeechOutcome(
                request_id=active.request_id,
                reason=outcome.reason,
                frames=len(rows),
                frames_sha256=hashlib.sha256(rows.tobytes()).hexdigest(),
                seed=active.seed,
                prompt_rows=active.prompt_rows,
                timings=Timings(active.admitted, active.first_audio, finished),
            )
        )

    def _on_closed(self, key: str) -> None:
        self._end(key, Cancelled("the stream was closed"))

    def _on_taken(self, key: str, frames: int) -> None:
        active = self._active.get(key)
        if active is not None:
            active.taken += frames
            self._frames.taken(key, active.taken)

    def _on_broken(self, failure: EngineFailed) -> None:
        """A stage ended by itself: everyone hears of it, and the other stage stops too."""
        with self._lock:
            self._failure = self._failure or failure
            active = list(self._active)
        for key in active:
            self._end(key, failure)
        for give_up in list(self._clips):
            give_up(failure)
        self._frames.stop()
        self._codec.stop()
