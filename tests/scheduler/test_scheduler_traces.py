"""Random traces against a simulated device that believes nothing it is told."""

import random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from numpy.typing import NDArray
from simulated import Device, frame_of

from declaim.contracts.errors import EngineFailed
from declaim.contracts.request import FinishReason, FrameRequest, Prompt
from declaim.scheduler.limits import SchedulerLimits
from declaim.scheduler.record import Outcome
from declaim.scheduler.scheduler import Scheduler

WIDTH = 3
VOICES = [
    np.random.default_rng(900 + rows).integers(0, 999, (rows, WIDTH), dtype=np.int32)
    for rows in (0, 1, 4, 7, 16)
]


class Trial:
    """A scheduler and a device, run together."""

    def __init__(
        self, limits: SchedulerLimits, cuts: int = 0, preempt_every: int | None = None
    ) -> None:
        self.scheduler = Scheduler(
            limits, WIDTH, self._cut if cuts else None, preempt_every=preempt_every
        )
        self.device = Device(limits, preempt_every)
        self.cuts = cuts
        self.emitted: dict[str, list[NDArray[np.int32]]] = {}
        self.requests: dict[str, FrameRequest] = {}
        self.reasons: list[FinishReason] = []
        self.free_names: list[str] = []
        self.steps = 0

    def _cut(self, request: FrameRequest, at: int) -> int:
        return 1 + (request.seed + 7 * at) % self.cuts

    def add(self, rows: int, max_frames: int, *, voice: int = 0, priority: int = 0) -> None:
        """A new request, of a voice's rows and its own; it takes the id freed last, if any.

        Without rows of its own it has a prefix that is never kept.
        """
        number = len(self.reasons) + len(self.requests)
        name = self.free_names.pop() if self.free_names else str(number)
        own = np.random.default_rng(number).integers(0, 999, (rows, WIDTH), dtype=np.int32)
        request = FrameRequest(
            name,
            Prompt(np.concatenate([VOICES[voice], own]), len(VOICES[voice])),
            seed=3 * number,
            max_frames=max_frames,
            priority=priority,
        )
        self.scheduler.add(request)
        self.device.ask(request)
        self.requests[request.id] = request
        self.emitted[request.id] = []

    def hold(self, name: str, held: bool) -> None:
        """Hold or release a request that waits or runs."""
        self.scheduler.hold(name, held)
        (self.device.live.get(name) or self.device.waiting[name]).held = held

    def step(self, *victims: str, failing: bool = False) -> bool:
        """One step, in which the victims are ended between plan and update; False if idle.

        All but one of them are followed by a new request, which takes over a victim's id.
        """
        plan = self.scheduler.plan()
        if plan is None:
            unfinished = [*self.device.live.values(), *self.device.waiting.values()]
            assert not unfinished or any(asked.held for asked in unfinished), "work, and no plan"
            return False
        self.steps += 1
        result = self.device.run(plan)
        owned = {page for stream in self.device.living() for page in stream.table}
        assert self.scheduler.statistics().pages_in_use == len(owned)
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

    def end(self, name: str, *, failing: bool = False) -> None:
        """Abort or fail a request, in whatever state it is."""
        if failing:
            outcome = self.scheduler.fail(name, EngineFailed("on purpose"))
        else:
            outcome = self.scheduler.abort(name)
        assert outcome is not None
        assert outcome.reason is (FinishReason.ERROR if failing else FinishReason.ABORT)
        self._close(outcome)

    def _close(self, outcome: Outcome) -> None:
        request = self.requests.pop(outcome.request_id)
        self.device.forget(request.id)
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
        """Run until idle, within a bound that nothing which starves or runs in circles keeps."""
        for name in self.requests:
            self.hold(name, False)
        bound = self.steps
        for request in self.requests.values():
            rows = len(request.prompt.rows) + request.max_frames
            bound += rows * (request.max_frames if self.scheduler.preempt_every else 2)
        while self.step():
            assert self.steps <= bound, "a request starves"
        assert not self.requests and not self.device.live and not self.device.waiting
        self.scheduler.check()
        statistics = self.scheduler.statistics()
        assert (statistics.running, statistics.waiting, statistics.pages_in_use) == (0, 0, 0)
        assert statistics.preemptions == self.device.preempted


class Traces(RuleBasedStateMachine):
    """Any order of arrivals, steps, holds, aborts and failures, at any limits."""

    @initialize(
        slots=st.integers(1, 4),
        spare=st.integers(0, 12),
        page_size=st.sampled_from([1, 2, 4, 16]),
        spare_pages=st.integers(0, 12),
        window=st.integers(0, 5),
        prefixes=st.integers(0, 3),
        cuts=st.sampled_from([0, 1, 2, 3, 7]),
        preempt_every=st.sampled_from([None, None, 1, 2, 5]),
    )
    def start(
        self,
        slots: int,
        spare: int,
        page_size: int,
        spare_pages: int,
        window: int,
        prefixes: int,
        cuts: int,
        preempt_every: int | None,
    ) -> None:
        pages = -(-40 // page_size) + spare_pages
        limits = SchedulerLimits(slots, slots + spare, pages, page_size, 40, window, prefixes)
        self.trial = Trial(limits, cuts, preempt_every)

    @rule(
        rows=st.integers(0, 12),
        max_frames=st.integers(1, 12),
        voice=st.integers(0, 4),
        priority=st.integers(0, 1),
    )
    def add(self, rows: int, max_frames: int, voice: int, priority: int) -> None:
        self.trial.add(max(rows, int(voice == 0)), max_frames, voice=voice, priority=priority)

    @rule(steps=st.integers(1, 4))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.trial.step()
            self.trial.scheduler.check()

    @precondition(lambda self: bool(self.trial.requests))
    @rule(data=st.data(), held=st.booleans())
    def hold(self, data: st.DataObject, held: bool) -> None:
        self.trial.hold(data.draw(st.sampled_from(list(self.trial.requests))), held)

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


@pytest.mark.parametrize(
    ("cuts", "preempt_every", "prefixes"), [(0, None, 0), (1, None, 2), (7, 3, 2), (0, 1, 1)]
)
def test_two_thousand_requests_with_aborts_leave_nothing(
    cuts: int, preempt_every: int | None, prefixes: int
) -> None:
    limits = SchedulerLimits(8, 24, 20, 4, 80, 16, prefixes)
    trial, chance = Trial(limits, cuts, preempt_every), random.Random(cuts)
    for number in range(2000):
        trial.add(
            chance.randint(1, 40),
            chance.randint(1, 20),
            voice=chance.choice([0, 2, 3, 4]),
            priority=chance.randint(0, 1),
        )
        for _ in range(chance.randint(0, 6)):
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
    assert trial.device.preempted > 50
    statistics = trial.scheduler.statistics()
    if prefixes:
        assert min(statistics.prefix_hits, statistics.prefix_evictions) > 100


@pytest.mark.parametrize("pages", [64 * 16, 160])
def test_ten_thousand_requests_at_once(pages: int) -> None:
    """With pages for all slots, and with a sixth of them."""
    limits = SchedulerLimits(64, 512, pages, 4, 64, 16, 4)
    trial, chance = Trial(limits), random.Random(5)
    for number in range(10_000):
        voice = 4 if number % 3 else 0
        trial.add(chance.randint(1, 12), chance.randint(1, 30), voice=voice)
    trial.drain()
    assert len(trial.reasons) == 10_000
    assert trial.steps < 10_000
    assert trial.scheduler.statistics().prefix_hits > 6000
    assert (trial.device.preempted > 50) == (pages == 160)
