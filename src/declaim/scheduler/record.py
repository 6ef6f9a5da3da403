"""What the scheduler knows of one request: its history of rows, and how far it is computed.

History is the prompt's rows, then the generated frames; it stays on the host, whole, until the
request is over.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from declaim.contracts.errors import DeclaimError, InvalidRequest
from declaim.contracts.request import FinishReason, Frame, FrameRequest
from declaim.contracts.step import Admission, Span

Rows = NDArray[np.int32]


@dataclass(frozen=True)
class Outcome:
    """How a request ended.

    frames: int32 [frames, 1 + Q], every emitted frame in order, whatever the reason.
    error: what broke it; None unless the reason is `error`.
    """

    request_id: str
    reason: FinishReason
    frames: Rows
    error: DeclaimError | None = None


@dataclass(frozen=True)
class RequestUpdate:
    """What one step brought to one request.

    frame: the emitted frame; None where the step drew the end frame.
    outcome: set when the request is over; it then owns nothing any more.
    """

    request_id: str
    frame: Frame | None
    outcome: Outcome | None


@dataclass(eq=False)
class RequestRecord:
    """One unfinished request.

    arrival: its place among all requests ever added. prompt: int32 [rows, 1 + Q], the
    scheduler's own, read-only. frames: generated rows, each int32 [1 + Q], read-only.
    history: what a slot computes before it draws anew: the prompt, followed after a preemption
    by the frames that were made until then. prefix: bytes of the prompt's leading rows that
    depend on the voice alone; empty for none.
    computed_rows: rows that the device has seen. started_with: frames made before the slot was
    taken. slot: None while the request waits. drawn: the slot holds the last frame, so that the
    next row is a decode row. held: it gets no rows for now. over: it has an outcome; a step that
    is still under way must not touch it.
    """

    request: FrameRequest
    arrival: int
    prompt: Rows
    history: Rows
    prefix: bytes
    frames: list[Rows] = field(default_factory=list)
    computed_rows: int = 0
    started_with: int = 0
    slot: int | None = None
    drawn: bool = False
    held: bool = False
    over: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Who goes first: priority 0 before 1, then by arrival. The last is preempted first."""
        return self.request.priority, self.arrival

    @property
    def prefix_rows(self) -> int:
        """Rows of the prefix."""
        return self.request.prompt.prefix_rows if self.prefix else 0

    @property
    def known_rows(self) -> int:
        """Rows of the whole known history."""
        return len(self.prompt) + len(self.frames)

    @property
    def frames_in_slot(self) -> int:
        """Frames made since the slot was taken."""
        return len(self.frames) - self.started_with if self.drawn else 0

    @property
    def most_rows(self) -> int:
        """Rows that the request may come to.

        One more than can be computed: the frame that reaches `max_frames` is never an input.
        """
        return len(self.prompt) + self.request.max_frames

    def enter(self, slot: int, computed_rows: int) -> None:
        """Start in a slot whose first rows are computed already."""
        self.slot = slot
        self.computed_rows = computed_rows
        self.started_with = len(self.frames)

    def leave(self) -> int:
        """Go back to waiting, to compute the whole history anew later; the slot that it had."""
        slot = self.owned_slot
        made = self.frames[len(self.history) - len(self.prompt) :]
        if made:
            self.history = np.concatenate([self.history, np.stack(made)])
            self.history.flags.writeable = False
        self.slot, self.drawn, self.computed_rows = None, False, 0
        return slot

    @property
    def owned_slot(self) -> int:
        """The slot of a request that runs."""
        assert self.slot is not None, "a waiting request has no slot"
        return self.slot

    def decode_span(self) -> Span:
        """The span of the last generated frame, whose row the device has."""
        return self._span(1, sampled=True, rows=None, next_row=None)

    def history_span(self, count: int) -> Span:
        """The span of the next `count` rows of the history; views, no copies."""
        end = self.computed_rows + count
        rows = self.history[self.computed_rows : end]
        if end == len(self.history):
            return self._span(count, sampled=True, rows=rows, next_row=None)
        return self._span(count, sampled=False, rows=rows, next_row=self.history[end])

    def _span(self, count: int, *, sampled: bool, rows: Rows | None, next_row: Rows | None) -> Span:
        return Span(
            request_id=self.request.id,
            slot=self.owned_slot,
            first=self.computed_rows,
            count=count,
            sampled=sampled,
            rows=rows,
            next_row=next_row,
        )

    def admission(self, window: int) -> Admission:
        """What the slot is reset to; window: W."""
        first = max(len(self.history) - window, 0)
        return Admission(
            slot=self.owned_slot,
            sampling=self.request.sampling,
            seed=self.request.seed,
            frame_index=len(self.frames),
            window=tuple(self.history[first:, 0].tolist()),
        )

    def outcome(self, reason: FinishReason, error: DeclaimError | None = None) -> Outcome:
        """The request's end, with all of its frames."""
        frames = np.empty((len(self.frames), self.prompt.shape[1]), dtype=np.int32)
        for index, row in enumerate(self.frames):
            frames[index] = row
        return Outcome(self.request.id, reason, frames, error)


def open_record(request: FrameRequest, row_width: int, arrival: int) -> RequestRecord:
    """A record of a new request, with its own copy of the prompt.

    It has no prefix unless at least one row of the prompt follows it.

    Raises InvalidRequest unless the prompt is int32 [at least 1, row_width] without negative
    values.
    """
    rows = request.prompt.rows
    if rows.dtype != np.int32 or rows.ndim != 2 or rows.shape[1] != row_width:
        raise InvalidRequest(
            f"prompt rows must be int32 [rows, {row_width}], not {rows.dtype} {list(rows.shape)}",
            param="prompt",
            limit=row_width,
            value=list(rows.shape),
        )
    if not len(rows):
        raise InvalidRequest(
            "the prompt must have at least 1 row, not 0", param="prompt", limit=1, value=0
        )
    lowest = int(rows.min())
    if lowest < 0:
        raise InvalidRequest(
            f"prompt rows must hold no negative value, not {lowest}",
            param="prompt",
            limit=0,
            value=lowest,
        )
    prompt = rows.copy()
    prompt.flags.writeable = False
    prefix_rows = request.prompt.prefix_rows
    prefix = prompt[:prefix_rows].tobytes() if 0 < prefix_rows < len(prompt) else b""
    return RequestRecord(request, arrival, prompt, prompt, prefix)
