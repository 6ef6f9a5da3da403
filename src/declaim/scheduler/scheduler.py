"""Which rows of which requests make the next step, and what its result means.

There are no phases: every request has known rows and computed rows, and catches up. Knows
integers only: no tensor, no device, no clock, and not what a row means.
"""

from collections.abc import Callable

import numpy as np

from declaim.contracts.errors import Conflict, DeclaimError, InvalidRequest
from declaim.contracts.request import FinishReason, Frame, FrameRequest, shown
from declaim.contracts.step import PageCopy, PrefixLoad, Span, StepPlan, StepResult
from declaim.scheduler.draft import PlanDraft
from declaim.scheduler.limits import SchedulerLimits, SchedulerStatistics, check_limit
from declaim.scheduler.memory import MemoryBooks
from declaim.scheduler.prefixes import KeptPrefix, PrefixIndex
from declaim.scheduler.record import Outcome, RequestRecord, RequestUpdate, open_record
from declaim.scheduler.waiting import WaitingRequests

WATERMARK_SHARE = 50
"""One page in so many, rounded up, is left to running requests when another is admitted."""

ChunkRows = Callable[[FrameRequest, int], int]
"""Rows wanted, at least 1, for the next chunk of a request's history at a computed position."""


class Scheduler:
    """Requests in, step plans out, one plan under way at a time.

    Requests rank by priority, 0 first, then by arrival. A plan's spans: the decode row of every
    running request that has one, by rank; then, while max_num_batched_tokens lasts, the next
    chunk of the running requests that have history to compute, by rank; then that of requests
    admitted in this plan. None overtakes one of a higher rank at admission. A held request has no
    rows, and is not admitted, until it is released.

    Pages are granted as rows need them. When none is free, kept prefixes that nobody uses are
    evicted, then the running request of the lowest rank is preempted, be it the one in need: its
    slot and pages are freed, and it waits, at its rank, to compute prompt and frames anew in any
    slot. The first by rank is never preempted for another, so that it always gets on. To be
    admitted, a request must find a slot, and pages for its whole history beside those that
    running requests still lack for theirs and, while any runs, a watermark of one page in
    `WATERMARK_SHARE`.

    A prompt's prefix is kept when its first owner has computed it: a chunk ends there, and the
    next plan saves it. Requests that start later with the same content start behind it; those
    that start meanwhile compute it themselves. The row behind a prefix must be a text row, which
    is not checked here: a semantic one would leave its codes in the tower's last prefix row.

    chunk_rows, if given, makes chunks shorter than the step has room for. preempt_every, if
    given, preempts each request after so many frames in its slot, whether or not pages run out.
    Not safe for concurrent calls: one thread owns it.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        row_width: int,
        chunk_rows: ChunkRows | None = None,
        *,
        preempt_every: int | None = None,
    ) -> None:
        if preempt_every is not None:
            check_limit("preempt_every", preempt_every, 1)
        self.limits = limits
        self.row_width = row_width
        self.preempt_every = preempt_every
        self._chunk_rows = chunk_rows
        self._memory = MemoryBooks(limits.max_num_seqs, limits.pages, limits.page_size)
        self._prefixes = PrefixIndex(limits.prefixes, self._memory)
        self._waiting = WaitingRequests()
        self._running: dict[str, RequestRecord] = {}
        self._draft = PlanDraft()
        self._under_way: list[tuple[Span, RequestRecord]] | None = None
        self._arrivals = 0
        self._preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self._waiting or self._running)

    def statistics(self) -> SchedulerStatistics:
        """Counts of requests, pages and prefixes."""
        pages_in_use = self._memory.pages_in_use
        return SchedulerStatistics(
            waiting=len(self._waiting),
            running=len(self._running),
            pages_in_use=pages_in_use,
            pages_kept=self.limits.pages - self._memory.free_pages - pages_in_use,
            preemptions=self._preemptions,
            prefixes_kept=len(self._prefixes),
            prefix_hits=self._prefixes.hits,
            prefix_misses=self._prefixes.misses,
            prefix_evictions=self._prefixes.evictions,
        )

    def add(self, request: FrameRequest) -> None:
        """Let a request wait, behind all that came before it.

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
        record = open_record(request, self.row_width, self._arrivals)
        self._check_fits(record)
        self._arrivals += 1
        self._waiting.add(record)

    def _check_fits(self, record: RequestRecord) -> None:
        limits = self.limits
        rows = record.most_rows
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
        running = sorted(self._running.values(), key=lambda record: record.rank)
        running = [record for record in running if not record.held]
        for record in running:
            self._save_prefix(record)
        for record in running:
            if self.preempt_every and record.frames_in_slot >= self.preempt_every:
                self._preempt(record)
        for record in running:
            if record.drawn and self._make_room(record, record.computed_rows + 1):
                self._draft.work.append((record.decode_span(), record))
        for record in running:
            if record.slot is not None and not record.drawn:
                self._catch_up(record)
        while self._budget and (admitted := self._admit()):
            self._catch_up(admitted)
        draft = self._draft
        if not draft.work:
            return None
        self._draft = PlanDraft()
        self._under_way = draft.work
        return draft.plan()

    @property
    def _budget(self) -> int:
        return self.limits.max_num_batched_tokens - self._draft.rows

    def _save_prefix(self, record: RequestRecord) -> None:
        if record.computed_rows == record.prefix_rows and self._prefixes.wants(record.prefix):
            saved = self._prefixes.save(record.prefix, record.prefix_rows, record.owned_slot)
            if saved is not None:
                save, copy = saved
                self._draft.saves.append(save)
                self._draft.copies += [copy] if copy else []

    def _catch_up(self, record: RequestRecord) -> None:
        """Give a request the next chunk of its history, if rows and pages allow it."""
        count = min(self._budget, self._chunk(record))
        if count and self._make_room(record, record.computed_rows + count):
            self._draft.work.append((record.history_span(count), record))

    def _chunk(self, record: RequestRecord) -> int:
        count = len(record.history) - record.computed_rows
        before_end = record.prefix_rows - record.computed_rows
        if 0 < before_end < count and self._prefixes.wants(record.prefix):
            count = before_end
        if self._chunk_rows is None:
            return count
        wanted = self._chunk_rows(record.request, record.computed_rows)
        assert wanted >= 1, f"chunk_rows must give at least 1, not {wanted}"
        return min(count, wanted)

    def _make_room(self, record: RequestRecord, rows: int) -> bool:
        """Grant pages for so many rows; False if it is the request itself that must make room."""
        slot = record.owned_slot
        while self._memory.free_pages < self._memory.lacks(slot, rows):
            if self._prefixes.evict():
                continue
            last = max(self._running.values(), key=lambda running: running.rank)
            if len(self._running) == 1:
                self._prefixes.evict_any()
                continue
            self._preempt(last)
            if last is record:
                return False
        self._draft.grant(slot, self._memory.grow(slot, rows))
        return True

    def _preempt(self, record: RequestRecord) -> None:
        del self._running[record.request.id]
        slot = record.leave()
        self._memory.release(slot)
        self._draft.release(slot)
        self._waiting.add(record)
        self._preemptions += 1

    def _admit(self) -> RequestRecord | None:
        """Admit the first that waits, with its prefix or else without; None without room."""
        record = self._waiting.first()
        if record is None or not self._memory.free_slots:
            return None
        kept = self._prefixes.find(record.prefix)
        if kept is not None and not self._fits(record, kept):
            kept = None
        if kept is None and not self._fits(record, None):
            return None
        self._waiting.remove(record)
        self._running[record.request.id] = record
        slot = self._memory.open()
        assert slot is not None, "a free slot that is none"
        self._prefixes.count(record.prefix, hit=kept is not None)
        record.enter(slot, 0 if kept is None else kept.rows)
        self._draft.admissions.append(record.admission(self.limits.window))
        if kept is not None:
            self._load_prefix(record, kept)
        return record

    def _fits(self, record: RequestRecord, kept: KeptPrefix | None) -> bool:
        shared = 0 if kept is None else kept.rows // self.limits.page_size
        wanted = self._memory.pages_for(len(record.history)) - shared
        for running in self._running.values():
            wanted += self._memory.lacks(running.owned_slot, len(running.history))
        if self._running:
            wanted += -(-self.limits.pages // WATERMARK_SHARE)
        return wanted <= self._memory.free_pages + self._prefixes.evictable_pages(kept)

    def _load_prefix(self, record: RequestRecord, kept: KeptPrefix) -> None:
        slot = record.owned_slot
        self._draft.loads.append(PrefixLoad(kept.number, slot))
        self._draft.grant(slot, self._memory.share(slot, kept.number, kept.rows))
        rest = self._memory.lacks(slot, kept.rows)
        granted = self._make_room(record, kept.rows)
        assert granted, "a request that was admitted without room"
        if rest:
            source = self._memory.prefixes[kept.number][-1]
            self._draft.copies.append(PageCopy(source, self._memory.tables[slot][-1]))

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
        record.drawn = True
        outcome = None
        if len(record.frames) == record.request.max_frames:
            outcome = self._finish(record, FinishReason.LENGTH)
        return RequestUpdate(request_id, Frame(row, end=False), outcome)

    def hold(self, request_id: str, held: bool) -> None:
        """Give a request no rows while it is held; unless preempted, it keeps slot and pages.

        Takes effect with the next plan. Ids of no unfinished request are ignored: it may just be
        over.
        """
        record = self._find(request_id)
        if record is not None:
            record.held = held

    def _find(self, request_id: str) -> RequestRecord | None:
        return self._running.get(request_id) or self._waiting.get(request_id)

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
        record = self._find(request_id)
        return None if record is None else self._finish(record, reason, error)

    def _finish(
        self, record: RequestRecord, reason: FinishReason, error: DeclaimError | None = None
    ) -> Outcome:
        record.over = True
        if record.slot is None:
            self._waiting.remove(record)
        else:
            del self._running[record.request.id]
            self._memory.release(record.slot)
            self._draft.release(record.slot)
        return record.outcome(reason, error)

    def check(self) -> None:
        """Assert that the books balance and agree with the requests; everything free when idle.

        For tests and for idle moments; it walks all pages.
        """
        self._memory.check()
        self._prefixes.check()
        ahead = {id(record): span.length for span, record in self._under_way or []}
        for record in self._running.values():
            rows = ahead.get(id(record), record.computed_rows)
            owned = len(self._memory.tables[record.owned_slot])
            assert owned == self._memory.pages_for(rows), f"{owned} pages for {rows} rows"
            assert record.computed_rows < record.known_rows, "a running request without work"
        slots = [record.owned_slot for record in self._running.values()]
        assert len(set(slots)) == len(slots), "a slot with two owners"
        assert set(slots) == self._memory.tables.keys(), "slots and requests disagree"
        for record in self._waiting.all():
            assert record.slot is None and not record.drawn, "a waiting request owns something"
            assert len(record.history) == record.known_rows, "a history with a gap"
        if not self._running:
            assert self._memory.pages_in_use == 0, "pages without an owner"
