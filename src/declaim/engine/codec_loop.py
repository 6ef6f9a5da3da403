"""The codec stage's thread: frames into samples, batched over streams, as soon as they are made.

Work-conserving: when it is free it takes every frame that waits, decodes streams with equally many
together, and delivers. So first audio needs one frame, and under load chunks grow by themselves.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from declaim.codec.stream import Decoder
from declaim.contracts.errors import EngineFailed
from declaim.contracts.request import FloatArray, Frame
from declaim.engine.frame_loop import LoopPulse, stage_failure
from declaim.scheduler.record import Outcome

MAX_CHUNK_FRAMES = 64
"""Most frames of one stream that are decoded in one call."""


@dataclass(frozen=True)
class CodecEvents:
    """What the codec stage tells; called in its thread.

    chunk: key, first sample and samples of a stream, in order. ended: all of a stream was
    delivered. broken: the stage itself ended; nothing follows.
    """

    chunk: Callable[[str, int, FloatArray], None]
    ended: Callable[[Outcome], None]
    broken: Callable[[EngineFailed], None]


@dataclass
class _Voice:
    """One stream in the stage. row: of the decoder's state, None until one is free.

    emitted: frames decoded so far, the stream's cursor.
    """

    waiting: deque[Frame] = field(default_factory=deque)
    outcome: Outcome | None = None
    row: int | None = None
    emitted: int = 0


@dataclass
class CodecCounters:
    """Totals since the start. batches: decoder calls; streams: streams summed over them; seconds:
    spent in them."""

    frames: int = 0
    batches: int = 0
    streams: int = 0
    nan_samples: int = 0
    seconds: float = 0.0


class CodecLoop:
    """Runs a Decoder in a thread of its own; at most `rows` streams at once, the others wait.

    Frames come by `push` and `finish` from the frame stage, `drop` and `run` from anywhere.
    """

    def __init__(
        self, decoder: Decoder, rows: int, events: CodecEvents, prepare: Callable[[], None]
    ) -> None:
        self.decoder = decoder
        self.events = events
        self.pulse = LoopPulse()
        self.counters = CodecCounters()
        self._prepare = prepare
        self._state = decoder.new_state(rows)
        self._free = list(range(rows))[::-1]
        self._voices: dict[str, _Voice] = {}
        self._jobs: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="declaim-codec", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the call under way."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def push(self, request_id: str, frame: Frame) -> None:
        """One more frame of a stream; the first opens it."""
        with self._wake:
            self._voices.setdefault(request_id, _Voice()).waiting.append(frame)
            self._wake.notify()

    def finish(self, outcome: Outcome) -> None:
        """No frame of this stream follows."""
        with self._wake:
            self._voices.setdefault(outcome.request_id, _Voice()).outcome = outcome
            self._wake.notify()

    def drop(self, request_id: str) -> None:
        """Forget a stream that no frame follows; a chunk being made is not delivered."""
        with self._wake:
            voice = self._voices.pop(request_id, None)
            if voice is not None and voice.row is not None:
                self._free.append(voice.row)

    def run(self, job: Callable[[], None]) -> None:
        """Run a job (encoding a reference) in the stage's thread, one between two rounds."""
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()

    @property
    def streams(self) -> int:
        """Streams that hold a row."""
        return self._state.rows - len(self._free)

    def _run(self) -> None:
        try:
            self._prepare()
            while self._wait():
                self.pulse.beat(True)
                if self._jobs:
                    self._jobs.popleft()()
                for group in self._take():
                    self._decode(group)
        except Exception as error:  # noqa: BLE001 - whatever broke the loop ends every stream
            self.pulse.beat(False)
            self.events.broken(stage_failure("codec", error))

    def _wait(self) -> bool:
        with self._wake:
            while not (self._stopping or self._jobs or self._ready()):
                self.pulse.beat(False)
                self._wake.wait()
            return not self._stopping

    def _ready(self) -> bool:
        """Whether any stream can be moved on."""
        return any(
            (voice.waiting and (voice.row is not None or self._free))
            or (voice.outcome is not None and not voice.waiting)
            for voice in self._voices.values()
        )

    def _take(self) -> list[list[tuple[str, _Voice, list[Frame]]]]:
        """Everything that waits, by streams with equally many frames; ends what has no more."""
        groups: dict[int, list[tuple[str, _Voice, list[Frame]]]] = {}
        ended = []
        with self._wake:
            for request_id, voice in list(self._voices.items()):
                if voice.waiting and self._has_row(voice):
                    count = min(len(voice.waiting), MAX_CHUNK_FRAMES)
                    frames = [voice.waiting.popleft() for _ in range(count)]
                    groups.setdefault(count, []).append((request_id, voice, frames))
                elif voice.outcome is not None and not voice.waiting:
                    del self._voices[request_id]
                    if voice.row is not None:
                        self._free.append(voice.row)
                    ended.append(voice.outcome)
        for outcome in ended:
            self.events.ended(outcome)
        return list(groups.values())

    def _has_row(self, voice: _Voice) -> bool:
        if voice.row is None and self._free:
            voice.row = self._free.pop()
            self._state.reset(voice.row)
        return voice.row is not None

    def _decode(self, group: list[tuple[str, _Voice, list[Frame]]]) -> None:
        codes = np.stack([[frame.row[1:] for frame in frames] for _, _, frames in group])
        batch = torch.from_numpy(codes.astype(np.int64)).transpose(1, 2)
        rows = [voice.row for _, voice, _ in group if voice.row is not None]
        start = time.perf_counter()
        samples = self.decoder.step(batch, self._state, rows).cpu().numpy()
        self.counters.seconds += time.perf_counter() - start
        self.counters.frames += codes.shape[0] * codes.shape[1]
        self.counters.batches += 1
        self.counters.streams += len(group)
        hop = self.decoder.config.hop
        for (request_id, voice, frames), sound in zip(group, samples, strict=True):
            first = voice.emitted * hop
            voice.emitted += len(frames)
            with self._wake:
                live = self._voices.get(request_id) is voice
            if live:
                self.events.chunk(request_id, first, self._clean(sound))

    def _clean(self, samples: FloatArray) -> FloatArray:
        broken = np.isnan(samples)
        self.counters.nan_samples += int(broken.sum())
        return np.where(broken, np.float32(0), np.clip(samples, -1, 1))
