"""Random traces against a device of slots and pages that believes nothing it is told.

The device keeps its own block tables, positions and owners, and holds every plan against them and
against the requests themselves; a frame is a function of (seed, index), as on the real device.
"""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from numpy.typing import NDArray

from declaim.contracts.errors import EngineFailed
from declaim.contracts.request import FinishReason, Frame, FrameRequest, Prompt
from declaim.contracts.step import Span, StepKind, StepPlan, StepResult
from declaim.scheduler.limits import SchedulerLimits
from declaim.scheduler.record import Outcome
from declaim.scheduler.scheduler import Scheduler

WIDTH = 3


def frame_of(seed: int, index: int) -> Frame:
    """The frame that a request with this seed draws at this index; about 1 in 25 ends."""
    mixed = (seed * 2654435761 + index * 40503 + 12345) % 1000003
    row = np.array([mixed % 997, mixed % 89, index], dtype=np.int32)
    return Frame(row, end=mixed % 25 == 0)


@dataclass
class Stream:
    """A slot as the device sees it."""

    request: FrameRequest
    seed: int
    frame_index: int
    length: int = 0
    table: list[int] = field(default_factory=list)


class Device:
    """Runs plans, and asserts each rule of a plan on its own books."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.queue: dict[str, FrameRequest] = {}
        self.live: dict[str, FrameRequest] = {}
        self.streams: dict[int, Stream] = {}
        self.free_pages = set(range(limits.pages))

    def pages(self, rows: int) -> int:
        return (rows + self.limits.page_size - 1) // self.limits.page_size

    def run(self, plan: StepPlan) -> StepResult:
        self._release_and_admit(plan)
        for grant in plan.page_grants:
            assert grant.pages and set(grant.pages) <= self.free_pages, "a page with two owners"
            self.free_pages -= set(grant.pages)
            self.streams[grant.slot].table += grant.pages
        self._check_step(plan)
        frames = {}
        for span in plan.spans:
            stream = self.streams[span.slot]
            self._check_span(span, stream)
            stream.length = span.length
            assert len(stream.table) == self.pages(stream.length), "table and rows disagree"
            if span.sampled:
                frames[span.request_id] = frame_of(stream.seed, stream.frame_index)
                stream.frame_index += 1
        return StepResult(frames)

    def _lives(self, stream: Stream) -> bool:
        return self.live.get(stream.request.id) is stream.request

    def living(self) -> list[Stream]:
        """Streams whose request is not over; an id may stand in a dead and a living one."""
        return [stream for stream in self.streams.values() if self._lives(stream)]

    def _release_and_admit(self, plan: StepPlan) -> None:
        for slot in plan.releases:
            stream = self.streams.pop(slot)
            assert not self._lives(stream), "a live stream is released"
            self.free_pages |= set(stream.table)
        for admission in plan.admissions:
            name = next(iter(self.queue))
            request = self.live[name] = self.queue.pop(name)
            assert 0 <= admission.slot < self.limits.max_num_seqs
            assert admission.slot not in self.streams, "a slot with two owners"
            main = [int(token) for token in request.prompt.rows[:, 0]]
            assert admission.window == tuple(main[::-1][: self.limits.window][::-1])
            assert (admission.sampling, admission.seed) == (request.sampling, request.seed)
            self.streams[admission.slot] = Stream(request, admission.seed, admission.frame_index)

    def _check_step(self, plan: StepPlan) -> None:
        assert 1 <= plan.rows <= self.limits.max_num_batched_tokens
        assert len(plan.spans) <= self.limits.max_num_seqs
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
        drawn = {stream.request.id for stream in self.living() if stream.frame_index}
        assert decodes == [name for name in self.live if name in drawn]
        prompting = [name for name in self.live if name not in drawn]
        assert chunks == prompting[: len(chunks)], "a younger prompt before an older one"
        if plan.rows < self.limits.max_num_batched_tokens:
            assert chunks == prompting, "rows left over, and a prompt that waits"
            waiting = next(iter(self.queue.values()), None)
            assert waiting is None or not self._fits(waiting), "room, and a request that waits"

    def _fits(self, request: FrameRequest) -> bool:
        reserved = [
            self.pages(len(r.prompt.rows) + r.max_frames) for r in [*self.live.values(), request]
        ]
        return len(self.live) < self.limits.max_num_seqs and sum(reserved) <= self.limits.pages

    def _check_span(self, span: Span, stream: Stream) -> None:
        prompt = stream.request.prompt.rows
        assert span.request_id == stream.request.id
        assert span.first == stream.length, "positions with a gap"
        assert span.count >= 1
        if span.rows is None:
            assert span.first == len(prompt) + stream.frame_index - 1
            assert span.count == 1 and span.sampled
        else:
            assert span.length <= len(prompt) and span.rows.dtype == np.int32
            assert np.array_equal(span.rows, prompt[span.first : span.length])
            assert span.sampled == (span.length == len(prompt))
        if span.sampled:
            assert span.next_row is None
        else:
            assert span.next_row is not None
            assert np.array_equal(span.next_row, prompt[span.length])

    def forget(self, request: FrameRequest) -> None:
        """The request is over; its slot stays until a plan releases it."""
        books = self.queue if self.queue.get(request.id) is request else self.live
        assert books.pop(request.id) is request


class Trial:
    """A scheduler and a device, run together."""

    def __init__(self, limits: SchedulerLimits, cuts: int) -> None:
        self.scheduler = Scheduler(limits, WIDTH, self._cut if cuts else None)
        self.device = Device(limits)
        self.cuts = cuts
        self.emitted: dict[str, list[NDArray[np.int32]]] = {}
        self.requests: dict[str, FrameRequest] = {}
        self.reasons: list[FinishReason] = []
        self.free_names: list[str] = []
        self.steps = 0

    def _cut(self, request: FrameRequest, at: int) -> int:
        return 1 + (request.seed + 7 * at) % self.cuts

    def add(self, rows: int, max_frames: int) -> None:
        """A new request; it takes the id that was freed last, if any."""
        number = len(self.reasons) + len(self.requests)
        name = self.free_names.pop() if self.free_names else str(number)
        values = np.random.default_rng(number).integers(0, 999, (rows, WIDTH), dtype=np.int32)
        request = FrameRequest(name, Prompt(values, 0), seed=3 * number, max_frames=max_frames)
        self.scheduler.add(request)
        self.device.queue[request.id] = request
        self.requests[request.id] = request
        self.emitted[request.id] = []

    def step(self, *victims: str, failing: bool = False) -> bool:
        """One step, in which the victims are ended between plan and update; False if idle.

        All but one of them are followed by a new request, which takes over a victim's id.
        """
        plan = self.scheduler.plan()
        if plan is None:
            assert not self.scheduler.has_work, "work, and no plan"
            return False
        self.steps += 1
        assert self.scheduler.statistics().pages_in_use == sum(
            self.device.pages(span.length) for span in plan.spans
        ) + sum(self.device.pages(length) for length in self._left_out(plan))
        result = self.device.run(plan)
        for name in victims:
            self.end(name, failing=failing)
        for _ in victims[1:]:
            self.add(2, 2)
        for update in self.scheduler.update(result):
            if update.frame is not None:
                self.emitted[update.request_id].append(update.frame.row)
            if update.outcome is not None:
                self._close(update.outcome)
        return True

    def _left_out(self, plan: StepPlan) -> list[int]:
        planned = {span.request_id for span in plan.spans}
        return [
            stream.length for stream in self.device.living() if stream.request.id not in planned
        ]

    def end(self, name: str, *, failing: bool = False) -> None:
        if failing:
            outcome = self.scheduler.fail(name, EngineFailed("on purpose"))
        else:
            outcome = self.scheduler.abort(name)
        assert outcome is not None
        assert outcome.reason is (FinishReason.ERROR if failing else FinishReason.ABORT)
        self._close(outcome)

    def _close(self, outcome: Outcome) -> None:
        request = self.requests.pop(outcome.request_id)
        self.device.forget(request)
        emitted = self.emitted.pop(outcome.request_id)
        drawn = [frame_of(request.seed, index) for index in range(len(outcome.frames))]
        assert [row.tolist() for row in emitted] == [frame.row.tolist() for frame in drawn]
        assert outcome.frames.tolist() == [row.tolist() for row in emitted]
        assert not any(frame.end for frame in drawn)
        if outcome.reason is FinishReason.STOP:
            assert frame_of(request.seed, len(drawn)).end
        elif outcome.reason is FinishReason.LENGTH:
            assert len(drawn) == request.max_frames
        self.reasons.append(outcome.reason)
        self.free_names.append(request.id)

    def drain(self) -> None:
        """Run until idle, in no more steps than one row a step would take; nothing is left."""
        bound = self.steps + sum(
            len(request.prompt.rows) + request.max_frames for request in self.requests.values()
        )
        while self.step():
            assert self.steps <= bound, "a request starves"
        assert not self.requests and not self.device.live and not self.device.queue
        self.scheduler.check()
        statistics = self.scheduler.statistics()
        assert (statistics.running, statistics.waiting) == (0, 0)
        assert (statistics.pages_in_use, statistics.pages_reserved) == (0, 0)


class Traces(RuleBasedStateMachine):
    """Any order of arrivals, steps, aborts and failures, at any limits."""

    @initialize(
        slots=st.integers(1, 4),
        spare=st.integers(0, 12),
        page_size=st.sampled_from([1, 2, 4, 16]),
        spare_pages=st.integers(0, 12),
        window=st.integers(0, 5),
        cuts=st.sampled_from([0, 1, 2, 3, 7]),
    )
    def start(
        self, slots: int, spare: int, page_size: int, spare_pages: int, window: int, cuts: int
    ) -> None:
        pages = -(-24 // page_size) + spare_pages
        limits = SchedulerLimits(slots, slots + spare, pages, page_size, 24, window)
        self.trial = Trial(limits, cuts)

    @rule(rows=st.integers(1, 16), max_frames=st.integers(1, 8))
    def add(self, rows: int, max_frames: int) -> None:
        self.trial.add(rows, max_frames)

    @rule(steps=st.integers(1, 4))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.trial.step()
            self.trial.scheduler.check()

    @precondition(lambda self: bool(self.trial.requests))
    @rule(data=st.data(), failing=st.booleans())
    def end(self, data: st.DataObject, failing: bool) -> None:
        self.trial.end(data.draw(st.sampled_from(list(self.trial.requests))), failing=failing)
        self.trial.scheduler.check()

    @precondition(lambda self: bool(self.trial.requests))
    @rule(data=st.data(), failing=st.booleans())
    def end_under_way(self, data: st.DataObject, failing: bool) -> None:
        names = st.sampled_from(list(self.trial.requests))
        victims = data.draw(st.lists(names, unique=True, min_size=1, max_size=3))
        self.trial.step(*victims, failing=failing)
        self.trial.scheduler.check()

    def teardown(self) -> None:
        if hasattr(self, "trial"):
            self.trial.drain()


TestTraces = Traces.TestCase
TestTraces.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("cuts", [0, 1, 7])
def test_two_thousand_requests_with_aborts_leave_nothing(cuts: int) -> None:
    limits = SchedulerLimits(8, 24, 40, 4, 60, 16)
    trial, chance = Trial(limits, cuts), random.Random(cuts)
    for number in range(2000):
        trial.add(chance.randint(1, 40), chance.randint(1, 20))
        for _ in range(chance.randint(0, 3)):
            names = list(trial.requests)
            victims = chance.sample(names, min(len(names), int(chance.random() < 0.1)))
            trial.step(*victims, failing=chance.random() < 0.3)
            if number % 10 == 0:
                trial.scheduler.check()
        if trial.requests and chance.random() < 0.3:
            trial.end(chance.choice(list(trial.requests)))
    trial.drain()
    assert len(trial.reasons) == 2000
    assert set(trial.reasons) == set(FinishReason)


def test_ten_thousand_requests_at_once() -> None:
    limits = SchedulerLimits(64, 512, 64 * 8, 16, 128, 16)
    trial, chance = Trial(limits, 0), random.Random(5)
    for _ in range(10_000):
        trial.add(chance.randint(1, 60), chance.randint(1, 12))
    trial.drain()
    assert len(trial.reasons) == 10_000
    assert trial.steps < 10_000 * 12 / 30
