"""Who is preempted when, what comes back, and that the first by rank always gets on."""

from collections.abc import Callable

import numpy as np
import pytest

from declaim.contracts.errors import InvalidConfig
from declaim.contracts.request import FinishReason, Frame, FrameRequest, Prompt, SamplingParams
from declaim.contracts.step import Admission, PageGrant, StepKind, StepPlan, StepResult
from declaim.scheduler.limits import SchedulerLimits
from declaim.scheduler.scheduler import Scheduler

Requests = Callable[..., FrameRequest]
Schedulers = Callable[..., Scheduler]


def request(
    name: str, rows: int, *, frames: int = 20, priority: int = 0, seed: int = 0
) -> FrameRequest:
    """Prompt row r is [r, r, r]."""
    prompt = np.repeat(np.arange(rows, dtype=np.int32)[:, None], 3, axis=1)
    return FrameRequest(name, Prompt(prompt, 0), SamplingParams(), seed, frames, priority)


class Steps:
    """Steps of a scheduler whose frame number n of any request is [100 + n, n, n]."""

    def __init__(self, **options: int | None) -> None:
        preempt_every = options.pop("preempt_every", None)
        limits: dict[str, int] = {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "pages": 8,
            "page_size": 4,
            "max_model_len": 100,
            "window": 4,
            **{name: value for name, value in options.items() if value is not None},
        }
        self.scheduler = Scheduler(SchedulerLimits(**limits), 3, preempt_every=preempt_every)
        self.frames: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}

    def add(self, *requests: FrameRequest) -> None:
        for one in requests:
            self.frames[one.id] = []
            self.scheduler.add(one)

    def step(self) -> StepPlan:
        plan = self.scheduler.plan()
        assert plan is not None
        self.scheduler.check()
        frames = {}
        for span in plan.sampled:
            index = len(self.frames[span.request_id])
            row = np.array([100 + index, index, index], dtype=np.int32)
            frames[span.request_id] = Frame(row, end=False)
        for update in self.scheduler.update(StepResult(frames)):
            assert update.frame is not None
            self.frames[update.request_id].append(int(update.frame.row[0]))
            if update.outcome is not None:
                self.reasons[update.request_id] = update.outcome.reason
        self.scheduler.check()
        return plan

    def names(self) -> list[str]:
        return [span.request_id for span in self.step().spans]


def test_the_newest_goes_first_and_returns_with_its_history() -> None:
    steps = Steps(pages=5)
    steps.add(request("a", 4, frames=12), request("b", 7, frames=9, seed=9))
    assert [steps.names() for _ in range(5)] == [["a", "b"]] * 5
    plan = steps.step()
    assert [span.request_id for span in plan.spans] == ["a"]
    assert (plan.releases, plan.page_grants) == ((1,), (PageGrant(0, (1,)),))
    while "b" not in (names := steps.names()):
        assert names == ["a"] and steps.frames["b"] == [100, 101, 102, 103, 104]
    assert steps.reasons["a"] is FinishReason.LENGTH
    while steps.scheduler.has_work:
        steps.step()
    assert steps.frames["b"] == [100 + index for index in range(9)]
    assert steps.scheduler.statistics().preemptions == 1


def test_resuming_is_an_admission_with_a_longer_history() -> None:
    steps = Steps(preempt_every=3)
    steps.add(request("a", 2, seed=5))
    for _ in range(3):
        steps.step()
    plan = steps.step()
    assert plan.releases == (0,)
    assert plan.admissions == (Admission(0, SamplingParams(), 5, 3, window=(1, 100, 101, 102)),)
    assert plan.page_grants == (PageGrant(0, (0, 1)),)
    assert plan.kind is StepKind.PREFILL
    (span,) = plan.spans
    assert (span.first, span.count, span.sampled, span.next_row) == (0, 5, True, None)
    assert span.rows is not None and span.rows[:, 0].tolist() == [0, 1, 100, 101, 102]
    assert steps.step().kind is StepKind.DECODE
    assert steps.frames["a"] == [100, 101, 102, 103, 104]


def test_one_row_of_history_left_is_no_decode_row() -> None:
    """The slot does not hold the last frame: its row must come from the host."""
    steps = Steps(preempt_every=1, max_num_batched_tokens=4)
    steps.add(request("a", 4))
    steps.step()
    plans = [steps.step(), steps.step()]
    assert [(plan.kind, plan.rows) for plan in plans] == [
        (StepKind.PREFILL, 4),
        (StepKind.PREFILL, 1),
    ]
    rows = plans[1].spans[0].rows
    assert rows is not None and rows.tolist() == [[100, 0, 0]]
    next_row = plans[0].spans[0].next_row
    assert next_row is not None and next_row.tolist() == [100, 0, 0]


@pytest.mark.parametrize("preempt_every", [1, 2, 9])
def test_frames_budget_and_order_survive(preempt_every: int) -> None:
    steps = Steps(preempt_every=preempt_every, pages=64)
    steps.add(*(request(name, 3, frames=11) for name in "abc"))
    while steps.scheduler.has_work:
        steps.step()
    assert steps.frames == dict.fromkeys("abc", [100 + index for index in range(11)])
    assert set(steps.reasons.values()) == {FinishReason.LENGTH}
    assert steps.scheduler.statistics().preemptions == 3 * (10 // preempt_every)


def test_the_less_urgent_class_goes_first_whatever_its_age() -> None:
    steps = Steps(pages=7)
    steps.add(request("later", 4, priority=1), request("first", 4), request("second", 4))
    gone: list[str] = []
    while not gone:
        before = set(steps.names())
        gone = sorted({"first", "second", "later"} - before)
    assert gone == ["later"]
    while "second" in (names := steps.names()):
        assert "later" not in names and "first" in names
    steps.step()
    while steps.scheduler.has_work:
        steps.step()
    assert {name: len(frames) for name, frames in steps.frames.items()} == dict.fromkeys(
        ("first", "second", "later"), 20
    )


def test_rows_and_pages_of_this_plan_are_taken_back() -> None:
    """A chunk of a higher rank needs a page when the lowest has its row and its page already."""
    steps = Steps(pages=9, max_num_seqs=5, max_num_batched_tokens=8)
    steps.add(*(request(name, 1, priority=1) for name in "abcd"))
    for _ in range(3):
        steps.step()
    steps.add(request("urgent", 12))
    plan = steps.step()
    assert [(span.request_id, span.count) for span in plan.spans][-1] == ("urgent", 4)
    plan = steps.step()
    assert [(span.request_id, span.count) for span in plan.spans] == [
        *(("a", 1), ("b", 1), ("c", 1)),
        ("urgent", 4),
    ]
    assert plan.releases == (3,)
    assert [grant.slot for grant in plan.page_grants] == [0, 1, 2, 4]
    while steps.scheduler.has_work:
        steps.step()
    assert {name: len(frames) for name, frames in steps.frames.items()} == dict.fromkeys(
        (*"abcd", "urgent"), 20
    )


def test_the_preempted_stands_before_all_that_never_ran() -> None:
    steps = Steps(preempt_every=2, max_num_seqs=1)
    steps.add(request("a", 2, frames=5), request("b", 2, frames=5))
    assert [steps.names() for _ in range(6)] == [["a"]] * 5 + [["b"]]


def test_the_first_by_rank_always_gets_on() -> None:
    steps = Steps(pages=6, max_num_batched_tokens=4)
    steps.add(*(request(name, 4) for name in "abcd"))
    while steps.scheduler.has_work:
        unfinished = [name for name in "abcd" if name not in steps.reasons]
        plan = steps.step()
        assert unfinished[0] in [span.request_id for span in plan.spans]
    assert steps.scheduler.statistics().preemptions > 0


@pytest.mark.parametrize("state", ["queued", "in its history", "decoding", "preempted"])
def test_abort_in_every_state_leaves_nothing(state: str) -> None:
    steps = Steps(max_num_batched_tokens=4, preempt_every=2 if state == "in its history" else None)
    steps.add(request("a", 4))
    if state == "preempted":
        steps = Steps(pages=5)
        steps.add(request("first", 4, frames=16), request("a", 4, frames=16))
        while not steps.scheduler.statistics().preemptions:
            steps.step()
        assert steps.frames["a"]
    elif state == "decoding":
        steps.step(), steps.step()
    elif state == "in its history":
        while steps.step().releases != (0,):
            pass
    outcome = steps.scheduler.abort("a")
    assert outcome is not None
    assert outcome.frames[:, 0].tolist() == steps.frames["a"]
    steps.scheduler.check()
    steps.scheduler.abort("first")
    steps.scheduler.check()
    assert steps.scheduler.plan() is None
    statistics = steps.scheduler.statistics()
    assert (statistics.running, statistics.waiting, statistics.pages_in_use) == (0, 0, 0)


def test_a_held_request_keeps_its_pages_until_others_need_them() -> None:
    steps = Steps(pages=6)
    steps.add(request("a", 4), request("b", 8, frames=16))
    steps.step()
    steps.scheduler.hold("b", True)
    assert [steps.names() for _ in range(3)] == [["a"]] * 3
    assert steps.scheduler.statistics().running == 2
    while steps.scheduler.statistics().running == 2:
        steps.step()
    assert steps.scheduler.statistics().preemptions == 1
    while "a" not in steps.reasons:
        assert steps.names() == ["a"]
    assert steps.scheduler.plan() is None
    steps.scheduler.hold("b", False)
    while steps.scheduler.has_work:
        steps.step()
    assert steps.frames["b"] == [100 + index for index in range(16)]


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_preempt_every_must_be_a_count(value: int) -> None:
    with pytest.raises(InvalidConfig, match="^preempt_every must be an integer of at least 1"):
        Steps(preempt_every=value)
