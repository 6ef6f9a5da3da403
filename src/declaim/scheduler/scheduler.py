"""Which rows of which requests make the next step, and what its result means.

There are no phases: every request has known rows and computed rows, and catches up. Knows
integers only: no tensor, no device, no clock, and not what a row means.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from declaim.contracts.errors import Conflict, DeclaimError, InvalidConfig, InvalidRequest
from declaim.contracts.request import FinishReason, Frame, FrameRequest, shown
from declaim.contracts.step import Admission, PageGrant, Span, StepKind, StepPlan, StepResult
from declaim.scheduler.memory import MemoryBooks
from declaim.scheduler.record import Outcome, RequestRecord, RequestUpdate, open_record

ChunkRows = Callable[[FrameRequest, int], int]
"""Rows wanted, at least 1, for the next prompt chunk of a request at a computed position."""


@dataclass(frozen=True)
class SchedulerLimits:
    """What a step and the device's memory hold.

    max_num_seqs: slots, hence most spans of a step. max_num_batched_tokens: most rows of a step.
    pages: pages without the null page. page_size: rows of a page. max_model_len: most rows of one
    request, prompt and frames. window: W, main tokens that the repetition rule looks at.
    Raises InvalidConfig for a value that cannot work.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    pages: int
    page_size: int
    max_model_len: int
    window: int

    def __post_init__(self) -> None:
        for item in fields(self):
            self._check_least(item.name, 0 if item.name == "window" else 1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidConfig(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): every stream decodes a row in each step",
                param="max_num_batched_tokens",
                limit=self.max_num_seqs,
                value=self.max_num_batched_tokens,
            )

    def _check_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidConfig(
                f"{name} must be an integer of at least {least}, not {shown(value)}",
                param=name,
                limit=least,
                value=value,
            )


@dataclass(frozen=True)
class SchedulerStatistics:
    """Counts at one moment; pages_reserved counts pages in use and pages promised."""

    waiting: int
    running: int
    pages_in_use: int
    pages_reserved: int


class Scheduler:
    """Requests in, step plans out, one plan under way at a time.

    A plan's spans: the decode row of every running request that has one, in order of admission;
    then, while max_num_batched_tokens lasts, the next prompt chunk of the running requests, oldest
    first; then that of requests admitted in this plan. Requests are admitted in order of arrival,
    those of priority 0 first, when a slot and pages for prompt + max_frames are free; none
    overtakes one of its own priority or a more urgent one. A held request has no rows until it is
    released.

    chunk_rows, if given, makes prompt chunks shorter than the step has room for.
    Not safe for concurrent calls: one thread owns it.
    """

    def __init__(
        self, limits: SchedulerLimits, row_width: int, chunk_rows: ChunkRows | None = None
    ) -> None:
        self.limits = limits
        self.row_width = row_width
        self._chunk_rows = chunk_rows
        self._memory = MemoryBooks(limits.max_num_seqs, limits.pages, limits.page_size)
        self._waiting: OrderedDict[str, RequestRecord] = OrderedDict()
        self._running: dict[str, RequestRecord] = {}
        self._releases: list[int] = []
        self._under_way: list[tuple[Span, RequestRecord]] | None = None

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self._waiting or self._running)

    def statistics(self) -> SchedulerStatistics:
        """Counts of requests and pages now."""
        return SchedulerStatistics(
            waiting=len(self._waiting),
            running=len(self._running),
            pages_in_use=self._memory.pages_in_use,
            pages_reserved=self._memory.pages_reserved,
        )

    def add(self, request: FrameRequest) -> None:
        """Put a request at the queue's end.

        Raises Conflict if its id belongs to an unfinished request, and InvalidRequest if its
        prompt is not what the model takes or if it could never fit. A refused request leaves
        nothing behind.
        """
        if request.id in self._waiting or request.id in self._running:
            raise Conflict(
                f"a request with the id {shown(request.id)} is not finished yet",
                param="id",
                value=request.id,
            )
        record = open_record(request, self.row_width)
        self._check_fits(record)
        self._waiting[request.id] = record

    def _check_fits(self, record: RequestRecord) -> None:
        limits = self.limits
        rows = record.reserved_rows
        wish = f"prompt rows ({len(record.prompt)}) + max_frames ({record.request.max_frames})"
        if rows > limits.max_model_len:
            raise InvalidRequest(
                f"{wish} = {rows}, over the limit of {limits.max_model_len} rows (max_model_len)",
                param="max_frames",
                limit=limits.max_model_len,
                value=rows,
            )
        pages = self._memory.pages_for(rows)
        if pages > limits.pages:
            raise InvalidRequest(
                f"{wish} need {pages} pages of {limits.page_size} rows, "
                f"over the {limits.pages} that there are",
                param="max_frames",
                limit=limits.pages,
                value=pages,
            )

    def plan(self) -> StepPlan | None:
        """The next step, to be answered by `update`; None when no request has work.

        Slots freed since the last plan are released in this one; without work they wait.
        """
        assert self._under_way is None, "the last plan has no result yet"
        running = [record for record in self._running.values() if not record.held]
        decoding = [record for record in running if record.decodes]
        prompting = [record for record in running if not record.decodes]
        work = [(record.decode_span(), record) for record in decoding]
        budget = self.limits.max_num_batched_tokens - len(decoding)
        admissions = []
        while budget:
            if prompting:
                record = prompting.pop(0)
            else:
                admitted = self._admit()
                if admitted is None:
                    break
                record, admission = admitted
                admissions.append(admission)
            span = record.prompt_span(self._chunk(record, budget))
            work.append((span, record))
            budget -= span.count
        if not work:
            return None
        self._under_way = work
        releases, self._releases = tuple(self._releases), []
        spans = tuple(span for span, _ in work)
        return StepPlan(
            kind=_kind(len(decoding), len(spans)),
            spans=spans,
            releases=releases,
            admissions=tuple(admissions),
            page_grants=self._grants(spans),
        )

    def _chunk(self, record: RequestRecord, budget: int) -> int:
        count = min(budget, len(record.prompt) - record.computed_rows)
        if self._chunk_rows is None:
            return count
        wanted = self._chunk_rows(record.request, record.computed_rows)
        assert wanted >= 1, f"chunk_rows must give at least 1, not {wanted}"
        return min(count, wanted)

    def _admit(self) -> tuple[RequestRecord, Admission] | None:
        if not self._waiting:
            return None
        record = min(self._waiting.values(), key=lambda record: record.request.priority)
        slot = self._memory.reserve(record.reserved_rows)
        if slot is None:
            return None
        request = record.request
        record.slot = slot
        del self._waiting[request.id]
        self._running[request.id] = record
        window = record.window(self.limits.window)
        return record, Admission(slot, request.sampling, request.seed, 0, window)

    def _grants(self, spans: tuple[Span, ...]) -> tuple[PageGrant, ...]:
        grown = ((span.slot, self._memory.grow(span.slot, span.length)) for span in spans)
        return tuple(PageGrant(slot, pages) for slot, pages in grown if pages)

    def update(self, result: StepResult) -> list[RequestUpdate]:
        """Record the frames of the plan under way; one update per sampled span, in plan order.

        The result must hold a frame for every sampled span whose request is not over, and may
        hold one for a request that was aborted or failed meanwhile, which is dropped. A frame
        that ends the speech finishes its request with `stop` and is not emitted; the frame that
        reaches max_frames is emitted and finishes it with `length`.
        """
        work = self._under_way
        assert work is not None, "no plan is under way"
        sampled = {span.request_id for span, _ in work if span.sampled}
        needed = {span.request_id for span, record in work if span.sampled and not record.over}
        found = result.frames.keys()
        assert needed <= found <= sampled, f"frames of {set(found)}, for a plan of {sampled}"
        self._under_way = None
        updates = []
        for span, record in work:
            if record.over:
                continue
            record.computed_rows = span.length
            if span.sampled:
                updates.append(self._take(record, result.frames[span.request_id]))
        return updates

    def _take(self, record: RequestRecord, frame: Frame) -> RequestUpdate:
        request_id = record.request.id
        if frame.end:
            return RequestUpdate(request_id, None, self._finish(record, FinishReason.STOP))
        assert frame.row.shape == (self.row_width,), f"a frame of shape {frame.row.shape}"
        row = frame.row.astype(np.int32)
        row.flags.writeable = False
        record.frames.append(row)
        outcome = None
        if len(record.frames) == record.request.max_frames:
            outcome = self._finish(record, FinishReason.LENGTH)
        return RequestUpdate(request_id, Frame(row, end=False), outcome)

    def hold(self, request_id: str, held: bool) -> None:
        """Give a running request no rows while it is held; it keeps its slot and its pages.

        Takes effect with the next plan. Ids that do not run are ignored: it may just be over.
        """
        record = self._running.get(request_id)
        if record is not None:
            record.held = held

    def abort(self, request_id: str) -> Outcome | None:
        """End a request that waits or runs; its slot and pages are free at once.

        Allowed while a step is under way: its frame is then dropped. None if no unfinished
        request has this id: the caller cannot know whether it finished a moment ago.
        """
        return self._end(request_id, FinishReason.ABORT, None)

    def fail(self, request_id: str, error: DeclaimError) -> Outcome | None:
        """End one request with an error, as `abort` does; no other request notices."""
        return self._end(request_id, FinishReason.ERROR, error)

    def _end(
        self, request_id: str, reason: FinishReason, error: DeclaimError | None
    ) -> Outcome | None:
        record = self._running.get(request_id) or self._waiting.get(request_id)
        return None if record is None else self._finish(record, reason, error)

    def _finish(
        self, record: RequestRecord, reason: FinishReason, error: DeclaimError | None = None
    ) -> Outcome:
        record.over = True
        if record.slot is None:
            del self._waiting[record.request.id]
        else:
            del self._running[record.request.id]
            self._memory.release(record.slot)
            self._releases.append(record.slot)
        return record.outcome(reason, error)

    def check(self) -> None:
        """Assert that the books balance and agree with the requests; everything free when idle.

        For tests and for idle moments; it walks all pages.
        """
        self._memory.check()
        ahead = {id(record): span.length for span, record in self._under_way or []}
        for record in self._running.values():
            assert record.slot is not None, "a running request without a slot"
            rows = ahead.get(id(record), record.computed_rows)
            owned = len(self._memory.pages_of(record.slot))
            assert owned == self._memory.pages_for(rows), f"{owned} pages for {rows} rows"
            assert record.computed_rows < record.known_rows, "a running request without work"
        slots = [record.slot for record in self._running.values()]
        assert len(set(slots)) == len(slots), "a slot with two owners"
        assert set(slots) == self._memory.owned_slots(), "slots and requests disagree"
        for record in self._waiting.values():
            assert record.slot is None and not record.frames, "a waiting request owns something"
        if not self._running:
            assert self._memory.pages_reserved == 0, "pages without an owner"


def _kind(decoding: int, spans: int) -> StepKind:
    if decoding == spans:
        return StepKind.DECODE
    return StepKind.MIXED if decoding else StepKind.PREFILL
