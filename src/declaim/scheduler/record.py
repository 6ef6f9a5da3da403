"""What the scheduler knows of one request: its history of rows, and how far it is computed.

History is the prompt's rows, then the generated frames; it stays on the host, whole, until the
request is over.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from declaim.contracts.errors import DeclaimError, InvalidRequest
from declaim.contracts.request import FinishReason, Frame, FrameRequest
from declaim.contracts.step import Span

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

    prompt: int32 [rows, 1 + Q], the scheduler's own, read-only. frames: generated rows, each
    int32 [1 + Q]. computed_rows: rows of the history that the device has seen.
    slot: None while the request waits. held: it gets no rows for now. over: it has an outcome; a
    step that is still under way must not touch it.
    """

    request: FrameRequest
    prompt: Rows
    frames: list[Rows] = field(default_factory=list)
    computed_rows: int = 0
    slot: int | None = None
    held: bool = False
    over: bool = False

    @property
    def known_rows(self) -> int:
        """Rows of the whole known history."""
        return len(self.prompt) + len(self.frames)

    @property
    def reserved_rows(self) -> int:
        """Rows to reserve pages for.

        One more than can be computed: the frame that reaches `max_frames` is never an input.
        """
        return len(self.prompt) + self.request.max_frames

    @property
    def decodes(self) -> bool:
        """Whether the one row that is left to compute is the last generated frame."""
        return bool(self.frames) and self.computed_rows == self.known_rows - 1

    def decode_span(self) -> Span:
        """The span of the last generated frame, whose row the device has."""
        return self._span(1, sampled=True, rows=None, next_row=None)

    def prompt_span(self, count: int) -> Span:
        """The span of the next `count` prompt rows; views of the prompt, no copies."""
        end = self.computed_rows + count
        rows = self.prompt[self.computed_rows : end]
        if end == len(self.prompt):
            return self._span(count, sampled=True, rows=rows, next_row=None)
        return self._span(count, sampled=False, rows=rows, next_row=self.prompt[end])

    def _span(self, count: int, *, sampled: bool, rows: Rows | None, next_row: Rows | None) -> Span:
        assert self.slot is not None, "a waiting request has no span"
        return Span(
            request_id=self.request.id,
            slot=self.slot,
            first=self.computed_rows,
            count=count,
            sampled=sampled,
            rows=rows,
            next_row=next_row,
        )

    def window(self, width: int) -> tuple[int, ...]:
        """The last main tokens of the prompt, at most `width`, oldest first."""
        first = max(len(self.prompt) - width, 0)
        return tuple(self.prompt[first:, 0].tolist())

    def outcome(self, reason: FinishReason, error: DeclaimError | None = None) -> Outcome:
        """The request's end, with all of its frames."""
        frames = np.empty((len(self.frames), self.prompt.shape[1]), dtype=np.int32)
        for index, row in enumerate(self.frames):
            frames[index] = row
        return Outcome(self.request.id, reason, frames, error)


def open_record(request: FrameRequest, row_width: int) -> RequestRecord:
    """A record of a new request, with its own copy of the prompt.

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
    return RequestRecord(request, prompt)
