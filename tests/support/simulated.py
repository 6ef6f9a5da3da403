"""A device of slots and pages that believes nothing it is told, for schedulers without a model.

It keeps its own block tables and positions. A slot's state is a hash of every row that it has
seen, and a page's cell holds the state after its row: whatever is lost, repeated, overwritten or
loaded from elsewhere shows. A frame is a function of (seed, index), as on the real device.
"""

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from declaim.contracts.request import Frame, FrameRequest
from declaim.contracts.step import Admission, Span, StepKind, StepPlan, StepResult
from declaim.scheduler.limits import SchedulerLimits
from declaim.scheduler.scheduler import WATERMARK_SHARE

State = int
Rows = NDArray[np.int32]


def frame_of(seed: int, index: int) -> Frame:
    """The frame that a request with this seed draws at this index; about 1 in 25 ends."""
    mixed = (seed * 2654435761 + index * 40503 + 12345) % 1000003
    row = np.array([mixed % 997, mixed % 89, index], dtype=np.int32)
    return Frame(row, end=mixed % 25 == 0)


def advance(state: State, row: Rows) -> State:
    """The state after one more row."""
    return hash((state, row.tobytes()))


@dataclass
class Asked:
    """A request as the device should see it. arrival: its place among all requests."""

    request: FrameRequest
    arrival: int
    held: bool = False
    states: list[State] = field(default_factory=list)

    @property
    def rank(self) -> tuple[int, int]:
        return self.request.priority, self.arrival

    def row(self, position: int) -> Rows:
        """A row of the prompt, or of the frames after it."""
        prompt = self.request.prompt.rows
        if position < len(prompt):
            row: Rows = prompt[position]
            return row
        return frame_of(self.request.seed, position - len(prompt)).row

    def states_of(self, rows: int) -> list[State]:
        """The states after each of the first rows."""
        while len(self.states) < rows:
            before = self.states[-1] if self.states else 0
            self.states.append(advance(before, self.row(len(self.states))))
        return self.states[:rows]


@dataclass
class Stream:
    """A slot. frame_index: of the next frame. last: whether the slot holds the last frame."""

    asked: Asked
    frame_index: int
    state: State = 0
    length: int = 0
    last: bool = False
    table: list[int] = field(default_factory=list)

    @property
    def known(self) -> int:
        return len(self.asked.request.prompt.rows) + self.frame_index


class Device:
    """Runs plans, and asserts each rule of a plan on its own books.

    waiting, live: unfinished requests by id, without and with a slot. queue: those that wait, by
    rank. frames: made so far.
    """

    def __init__(self, limits: SchedulerLimits, preempt_every: int | None) -> None:
        self.limits = limits
        self.preempt_every = preempt_every
        self.waiting: dict[str, Asked] = {}
        self.queue: list[Asked] = []
        self.live: dict[str, Asked] = {}
        self.frames: dict[str, int] = {}
        self.streams: dict[int, Stream] = {}
        self.cells: list[list[State | None]] = [
            [None] * limits.page_size for _ in range(limits.pages)
        ]
        self.prefixes: dict[int, State] = {}
        self.preempted = 0
        self.arrivals = 0

    def ask(self, request: FrameRequest) -> None:
        """A new request waits."""
        self._wait(Asked(request, self.arrivals))
        self.frames[request.id] = 0
        self.arrivals += 1

    def _wait(self, asked: Asked) -> None:
        self.waiting[asked.request.id] = asked
        insort(self.queue, asked, key=lambda waiting: waiting.rank)

    def _leave_queue(self, request_id: str) -> Asked:
        asked = self.waiting.pop(request_id)
        del self.queue[bisect_left(self.queue, asked.rank, key=lambda waiting: waiting.rank)]
        return asked

    def _next(self) -> Asked | None:
        """Who is to be admitted next."""
        return next((asked for asked in self.queue if not asked.held), None)

    def forget(self, request_id: str) -> None:
        """The request is over; its slot stays until a plan releases it."""
        if request_id in self.waiting:
            self._leave_queue(request_id)
        else:
            del self.live[request_id]
        del self.frames[request_id]

    def pages(self, rows: int) -> int:
        """Pages that so many rows fill."""
        return (rows + self.limits.page_size - 1) // self.limits.page_size

    def run(self, plan: StepPlan) -> StepResult:
        """One step."""
        for save in plan.prefix_saves:
            self.prefixes[save.prefix] = self.streams[save.slot].state
        self._release(plan.releases)
        self._admit(plan.admissions)
        for copy in plan.page_copies:
            self.cells[copy.target] = list(self.cells[copy.source])
        started = {admission.slot for admission in plan.admissions}
        for load in plan.prefix_loads:
            assert load.slot in started, "a prefix is loaded into a slot that runs"
            stream = self.streams[load.slot]
            stream.state = self.prefixes[load.prefix]
            stream.length = stream.asked.request.prompt.prefix_rows
            assert 0 < stream.length < len(stream.asked.request.prompt.rows)
        for grant in plan.page_grants:
            assert grant.pages, "an empty grant"
            self.streams[grant.slot].table += grant.pages
        self._check_step(plan)
        shares = Counter(page for stream in self.living() for page in stream.table)
        frames = {}
        for span in plan.spans:
            stream = self.streams[span.slot]
            self._run_span(span, stream, shares)
            if span.sampled:
                frames[span.request_id] = frame_of(stream.asked.request.seed, stream.frame_index)
                stream.frame_index += 1
                stream.last = True
        return StepResult(frames)

    def lives(self, stream: Stream) -> bool:
        """Whether the stream's request is not over and has not left the slot."""
        return self.live.get(stream.asked.request.id) is stream.asked

    def living(self) -> list[Stream]:
        """Streams of live requests; an id may stand in a dead and a living one."""
        living = [stream for stream in self.streams.values() if self.lives(stream)]
        return sorted(living, key=lambda stream: stream.asked.rank)

    def _release(self, slots: tuple[int, ...]) -> None:
        before = [stream.asked for stream in self.living()]
        gone = []
        for slot in slots:
            stream = self.streams.pop(slot)
            if self.lives(stream):
                name = stream.asked.request.id
                self._wait(self.live.pop(name))
                self.frames[name] = stream.frame_index
                gone.append(stream.asked)
        self.preempted += len(gone)
        if gone and not self.preempt_every:
            assert len(gone) < len(before), "the first by rank is preempted"
            assert gone == before[: -len(gone) - 1 : -1], "not the newest is preempted"

    def _admit(self, admissions: tuple[Admission, ...]) -> None:
        for admission in admissions:
            asked = self._next()
            assert asked is not None, "nobody waits"
            name, request = asked.request.id, asked.request
            self.live[name] = self._leave_queue(name)
            assert 0 <= admission.slot < self.limits.max_num_seqs
            assert admission.slot not in self.streams, "a slot with two owners"
            assert (admission.sampling, admission.seed) == (request.sampling, request.seed)
            assert admission.frame_index == self.frames[name], "frames repeated or left out"
            known = len(request.prompt.rows) + admission.frame_index
            first = max(known - self.limits.window, 0)
            main = tuple(int(asked.row(position)[0]) for position in range(first, known))
            assert admission.window == main
            self.streams[admission.slot] = Stream(asked, admission.frame_index)

    def _check_step(self, plan: StepPlan) -> None:
        assert 1 <= plan.rows <= self.limits.max_num_batched_tokens
        assert len({span.request_id for span in plan.spans}) == len(plan.spans)
        decodes = [span.request_id for span in plan.spans if span.rows is None]
        chunks = [span.request_id for span in plan.spans if span.rows is not None]
        assert [span.request_id for span in plan.spans] == decodes + chunks
        expected = {
            (True, False): StepKind.DECODE,
            (False, True): StepKind.PREFILL,
            (True, True): StepKind.MIXED,
        }
        assert plan.kind is expected[bool(decodes), bool(chunks)]
        free = [stream for stream in self.living() if not stream.asked.held]
        assert decodes == [stream.asked.request.id for stream in free if stream.last]
        started = {admission.slot for admission in plan.admissions}
        late = [self.streams[slot] for slot in started]
        early = [stream for stream in free if stream not in late and not stream.last]
        names = [stream.asked.request.id for stream in early]
        names += [s.asked.request.id for s in sorted(late, key=lambda s: s.asked.rank)]
        assert chunks == names[: len(chunks)], "a younger prompt before an older one"
        if plan.rows < self.limits.max_num_batched_tokens:
            assert chunks == names, "rows left over, and a prompt that waits"
            assert not self._has_room(), "room, and a request that waits"

    def _has_room(self) -> bool:
        """Whether the next waiting request fits for certain, whatever the prefixes hold."""
        asked = self._next()
        if asked is None or len(self.live) == self.limits.max_num_seqs:
            return False
        wanted = self.pages(len(asked.request.prompt.rows) + self.frames[asked.request.id])
        for stream in self.living():
            wanted += max(self.pages(stream.known) - len(stream.table), 0)
        if self.live:
            wanted += -(-self.limits.pages // WATERMARK_SHARE)
        owned = {page for stream in self.living() for page in stream.table}
        return wanted + len(owned) + self.limits.prefixes <= self.limits.pages

    def _run_span(self, span: Span, stream: Stream, shares: Counter[int]) -> None:
        asked = stream.asked
        assert span.request_id == asked.request.id
        assert span.first == stream.length, "positions with a gap"
        assert span.count >= 1
        assert span.sampled == (span.length == stream.known)
        rows = [asked.row(position) for position in range(span.first, span.length)]
        if span.rows is None:
            assert stream.last and span.count == 1, "a slot without a last frame decodes"
            assert span.length == stream.known
        else:
            assert not stream.last and span.rows.dtype == np.int32
            assert np.array_equal(span.rows, np.stack(rows)), "rows that are not the history's"
        if span.sampled:
            assert span.next_row is None
        else:
            assert span.next_row is not None
            assert np.array_equal(span.next_row, asked.row(span.length))
        for row in rows:
            stream.state = advance(stream.state, row)
            self._write(stream, shares)
        assert len(stream.table) == self.pages(stream.length), "table and rows disagree"
        read = [cell for page in stream.table for cell in self.cells[page]]
        assert read[: stream.length] == asked.states_of(stream.length), "a page with other rows"

    def _write(self, stream: Stream, shares: Counter[int]) -> None:
        page, offset = divmod(stream.length, self.limits.page_size)
        number = stream.table[page]
        assert shares[number] == 1, "a shared page is written"
        self.cells[number][offset] = stream.state
        stream.length += 1
