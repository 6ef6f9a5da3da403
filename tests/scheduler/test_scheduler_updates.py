"""What results, aborts and failures do to requests and to the books."""

from collections.abc import Callable

import numpy as np
import pytest

from declaim.contracts.errors import Conflict, EngineFailed
from declaim.contracts.request import FinishReason, Frame, FrameRequest
from declaim.contracts.step import StepPlan, StepResult
from declaim.scheduler.limits import SchedulerStatistics
from declaim.scheduler.scheduler import Scheduler

Requests = Callable[..., FrameRequest]
Schedulers = Callable[..., Scheduler]
Answers = Callable[..., StepResult]

IDLE = SchedulerStatistics()


def planned(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan()
    assert plan is not None
    return plan


def test_end_frame_stops_and_is_not_emitted(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 2))
    (first,) = scheduler.update(answer(planned(scheduler)))
    assert first.outcome is None
    assert first.frame is not None and not first.frame.end
    assert first.frame.row.tolist() == [900, 901, 902]
    (last,) = scheduler.update(answer(planned(scheduler), ends=("a",)))
    assert last.frame is None and last.outcome is not None
    assert last.outcome.reason is FinishReason.STOP
    assert last.outcome.frames.tolist() == [[900, 901, 902]]
    assert last.outcome.error is None
    assert scheduler.statistics() == IDLE
    scheduler.check()


def test_end_at_once_gives_no_frames(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 2))
    (update,) = scheduler.update(answer(planned(scheduler), ends=("a",)))
    assert update.outcome is not None
    assert update.outcome.frames.shape == (0, 3)
    assert update.outcome.frames.dtype == np.int32


def test_max_frames_is_length_and_its_last_frame_is_emitted(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 2, max_frames=3))
    last_rows = 0
    for index in range(3):
        plan = planned(scheduler)
        last_rows = plan.spans[0].length
        (update,) = scheduler.update(answer(plan))
        assert update.frame is not None
        assert (update.outcome is not None) == (index == 2)
    assert update.outcome is not None
    assert update.outcome.reason is FinishReason.LENGTH
    assert len(update.outcome.frames) == 3
    assert last_rows == 2 + 3 - 1
    assert scheduler.plan() is None


def test_end_after_max_frames_is_never_drawn(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 2, max_frames=1))
    (update,) = scheduler.update(answer(planned(scheduler)))
    assert update.outcome is not None and update.outcome.reason is FinishReason.LENGTH


def test_updates_come_in_plan_order_for_sampled_spans_only(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(max_num_batched_tokens=5)
    for name, rows in (("a", 2), ("b", 2), ("c", 9)):
        scheduler.add(request_of(name, rows))
    plan = planned(scheduler)
    frames = answer(plan).frames
    updates = scheduler.update(StepResult(dict(reversed(frames.items()))))
    assert [update.request_id for update in updates] == ["a", "b"]


def test_a_reused_result_buffer_changes_no_history(
    request_of: Requests, scheduler_of: Schedulers
) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 2))
    buffer = np.zeros(3, dtype=np.int32)
    seen = []
    for index in range(4):
        planned(scheduler)
        buffer[:] = index
        seen += scheduler.update(StepResult({"a": Frame(buffer, end=False)}))
    assert [update.frame.row[0] for update in seen if update.frame] == [0, 1, 2, 3]
    assert seen[-1].outcome is not None
    assert seen[-1].outcome.frames[:, 0].tolist() == [0, 1, 2, 3]


def test_abort_of_a_waiting_request(request_of: Requests, scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 2))
    outcome = scheduler.abort("a")
    assert outcome is not None
    assert (outcome.request_id, outcome.reason) == ("a", FinishReason.ABORT)
    assert outcome.frames.shape == (0, 3)
    assert scheduler.plan() is None
    assert scheduler.statistics() == IDLE


@pytest.mark.parametrize("steps", [1, 3, 5], ids=["in the prompt", "at its end", "decoding"])
def test_abort_between_steps_releases_in_the_next_plan(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers, steps: int
) -> None:
    scheduler = scheduler_of(lambda request, at: 2)
    scheduler.add(request_of("a", 6, max_frames=9))
    scheduler.add(request_of("b", 6, max_frames=9))
    for _ in range(steps):
        scheduler.update(answer(planned(scheduler)))
    outcome = scheduler.abort("a")
    assert outcome is not None and len(outcome.frames) == max(steps - 2, 0)
    scheduler.check()
    plan = planned(scheduler)
    assert plan.releases == (0,)
    assert [span.request_id for span in plan.spans] == ["b"]
    scheduler.update(answer(plan))
    scheduler.check()


@pytest.mark.parametrize("steps", [0, 2, 4], ids=["in the prompt", "at its end", "decoding"])
@pytest.mark.parametrize("answered", [True, False])
def test_abort_while_a_step_is_under_way_drops_its_frame(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers, steps: int, answered: bool
) -> None:
    scheduler = scheduler_of(lambda request, at: 2)
    scheduler.add(request_of("a", 6, max_frames=9))
    scheduler.add(request_of("b", 6, max_frames=9))
    for _ in range(steps):
        scheduler.update(answer(planned(scheduler)))
    frames = dict(answer(planned(scheduler)).frames)
    assert scheduler.abort("a") is not None
    scheduler.check()
    if not answered:
        frames.pop("a", None)
    updates = scheduler.update(StepResult(frames))
    assert [update.request_id for update in updates] == [name for name in frames if name == "b"]
    scheduler.check()
    assert planned(scheduler).releases == (0,)


def test_an_id_reused_under_way_does_not_get_the_old_frame(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 2))
    result = answer(planned(scheduler))
    scheduler.abort("a")
    scheduler.add(request_of("a", 3, base=50))
    assert scheduler.update(result) == []
    plan = planned(scheduler)
    assert plan.releases == (0,)
    assert [admission.window for admission in plan.admissions] == [(50, 51, 52)]
    assert [(span.first, span.count) for span in plan.spans] == [(0, 3)]


def test_abort_twice_and_of_strangers_is_none(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 2, max_frames=1))
    assert scheduler.abort("b") is None
    scheduler.update(answer(planned(scheduler)))
    assert scheduler.abort("a") is None
    assert scheduler.fail("a", EngineFailed("late")) is None


def test_failing_one_request_harms_no_other(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    for name in ("a", "b"):
        scheduler.add(request_of(name, 2))
    plan = planned(scheduler)
    error = EngineFailed("the frame of a holds no number")
    outcome = scheduler.fail("a", error)
    assert outcome is not None
    assert (outcome.reason, outcome.error) == (FinishReason.ERROR, error)
    frames = {"b": answer(plan).frames["b"]}
    assert [update.request_id for update in scheduler.update(StepResult(frames))] == ["b"]
    plan = planned(scheduler)
    assert plan.releases == (0,)
    assert [span.request_id for span in plan.spans] == ["b"]


def test_a_step_that_failed_as_a_whole_ends_all_of_its_requests(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(max_num_seqs=2)
    for name in ("a", "b", "c"):
        scheduler.add(request_of(name, 2))
    for span in planned(scheduler).spans:
        assert scheduler.fail(span.request_id, EngineFailed("the step failed")) is not None
    assert scheduler.update(StepResult()) == []
    scheduler.check()
    plan = planned(scheduler)
    assert plan.releases == (0, 1)
    assert [(span.request_id, span.slot) for span in plan.spans] == [("c", 0)]


def test_duplicate_id_conflicts_until_the_first_is_over(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 2))
    with pytest.raises(Conflict, match="id 'a' is not finished"):
        scheduler.add(request_of("a", 3))
    plan = planned(scheduler)
    with pytest.raises(Conflict):
        scheduler.add(request_of("a", 3))
    scheduler.update(answer(plan, ends=("a",)))
    scheduler.add(request_of("a", 3))
    assert scheduler.statistics().waiting == 1


def test_results_that_do_not_fit_the_plan_are_our_bug(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    with pytest.raises(AssertionError, match="no plan is under way"):
        scheduler.update(StepResult())
    scheduler.add(request_of("a", 2))
    result = answer(planned(scheduler))
    with pytest.raises(AssertionError, match="no result yet"):
        scheduler.plan()
    with pytest.raises(AssertionError, match="frames of"):
        scheduler.update(StepResult())
    with pytest.raises(AssertionError, match="frames of"):
        scheduler.update(StepResult({**result.frames, "b": result.frames["a"]}))
    with pytest.raises(AssertionError, match="shape"):
        scheduler.update(StepResult({"a": Frame(np.zeros(2, dtype=np.int32), end=False)}))
