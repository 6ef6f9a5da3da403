"""What the scheduler asks of the runner in one step, and what comes back: integers only.

A *row* is a frame-shaped input at a position of one request. A row whose next frame is known is
*labelled*; the last row of a request's known history is *sampled*. A *span* is the rows of one
request in one step.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from declaim.contracts.request import Frame, SamplingParams


class StepKind(StrEnum):
    """What a step's spans are: decode rows only, prompt rows only, or both.

    A one-row prompt chunk is not a decode: the kind comes from the plan, never from shapes.
    """

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(frozen=True)
class Span:
    """The rows of one request in one step.

    first: position of the first row. count: number of rows. sampled: the last row is the end of
    the known history, so a frame is drawn after it.
    rows: int32 [count, 1 + Q]; None for a decode row, whose input is the slot's last frame.
    next_row: int32 [1 + Q], the row after the last one, which labels it; None where sampled.
    """

    request_id: str
    slot: int
    first: int
    count: int
    sampled: bool
    rows: NDArray[np.int32] | None
    next_row: NDArray[np.int32] | None

    @property
    def labelled(self) -> int:
        """How many of the span's rows have a known next frame."""
        return self.count - 1 if self.sampled else self.count

    @property
    def length(self) -> int:
        """Rows of context after the span."""
        return self.first + self.count


@dataclass(frozen=True)
class Admission:
    """Everything that a slot is reset to.

    frame_index: index of the next frame to generate. window: the last main tokens of the whole
    known history (prompt rows count), oldest first; a shorter one is padded with -1 on the left.
    """

    slot: int
    sampling: SamplingParams
    seed: int
    frame_index: int
    window: tuple[int, ...]


@dataclass(frozen=True)
class PageGrant:
    """Pages added to a slot's block table, in order."""

    slot: int
    pages: tuple[int, ...]


@dataclass(frozen=True)
class PrefixSave:
    """Keep a slot's recurrent state, as the last step left it, under a prefix number."""

    slot: int
    prefix: int


@dataclass(frozen=True)
class PrefixLoad:
    """Start a slot from the recurrent state kept under a prefix number."""

    prefix: int
    slot: int


@dataclass(frozen=True)
class PageCopy:
    """Copy a page's K and V in every attention layer."""

    source: int
    target: int


@dataclass(frozen=True)
class StepPlan:
    """One step.

    Applied in this order before the rows: prefix saves (the state as the last step left it),
    releases (slots whose request is gone or was preempted; their block tables are emptied),
    admissions, page copies, prefix loads, page grants. A prefix is saved by the plan after the
    one that ended it, before its owner runs on; the owner's partly filled last page is copied
    then.
    """

    kind: StepKind
    spans: tuple[Span, ...]
    prefix_saves: tuple[PrefixSave, ...] = ()
    releases: tuple[int, ...] = ()
    admissions: tuple[Admission, ...] = ()
    page_copies: tuple[PageCopy, ...] = ()
    prefix_loads: tuple[PrefixLoad, ...] = ()
    page_grants: tuple[PageGrant, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of the step."""
        return sum(span.count for span in self.spans)

    @property
    def sampled(self) -> tuple[Span, ...]:
        """The spans after which a frame is drawn, in order."""
        return tuple(span for span in self.spans if span.sampled)


@dataclass(frozen=True)
class StepResult:
    """The frames of one step by request id."""

    frames: dict[str, Frame] = field(default_factory=dict)
