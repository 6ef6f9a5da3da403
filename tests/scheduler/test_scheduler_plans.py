"""Each rule of planning, by literal plans."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from declaim.contracts.request import FrameRequest, SamplingParams
from declaim.contracts.step import Admission, PageGrant, StepKind, StepPlan, StepResult
from declaim.scheduler.limits import SchedulerStatistics
from declaim.scheduler.scheduler import Scheduler

Requests = Callable[..., FrameRequest]
Schedulers = Callable[..., Scheduler]
Answers = Callable[..., StepResult]


def shape(plan: StepPlan | None) -> list[tuple[str, int, int, int, bool]]:
    """Each span as (request, slot, first, count, sampled)."""
    assert plan is not None
    return [(s.request_id, s.slot, s.first, s.count, s.sampled) for s in plan.spans]


def step(scheduler: Scheduler, answer: Answers, *ends: str) -> StepPlan:
    """One step, with the books checked on both sides of the update."""
    plan = scheduler.plan()
    assert plan is not None
    scheduler.check()
    scheduler.update(answer(plan, ends=ends))
    scheduler.check()
    return plan


def test_nothing_to_do(scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of()
    assert scheduler.plan() is None
    assert not scheduler.has_work


def test_whole_prompt_in_one_step(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 6, seed=7, sampling=SamplingParams(temperature=0.5)))
    plan = step(scheduler, answer)
    assert plan.kind is StepKind.PREFILL
    assert plan.rows == 6
    assert shape(plan) == [("a", 0, 0, 6, True)]
    assert plan.admissions == (
        Admission(0, SamplingParams(temperature=0.5), 7, 0, window=(2, 3, 4, 5)),
    )
    assert plan.page_grants == (PageGrant(0, (0, 1)),)
    assert plan.releases == ()
    span = plan.spans[0]
    assert span.rows is not None and span.rows.dtype == np.int32
    assert span.rows[[0, 5]].tolist() == [[0, 1, 2], [5, 6, 7]]
    assert span.next_row is None
    assert (span.labelled, span.length) == (5, 6)


def test_decode_row_has_no_rows_of_its_own(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 6))
    step(scheduler, answer)
    plan = step(scheduler, answer)
    assert plan.kind is StepKind.DECODE
    assert shape(plan) == [("a", 0, 6, 1, True)]
    assert plan.spans[0].rows is None and plan.spans[0].next_row is None
    assert plan.admissions == () and plan.page_grants == ()


def test_chunks_are_labelled_by_the_next_chunks_first_row(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(max_num_batched_tokens=4, max_num_seqs=1)
    scheduler.add(request_of("a", 10))
    plans = [step(scheduler, answer) for _ in range(3)]
    spans = [plan.spans[0] for plan in plans]
    assert [shape(plan) for plan in plans] == [
        [("a", 0, 0, 4, False)],
        [("a", 0, 4, 4, False)],
        [("a", 0, 8, 2, True)],
    ]
    next_rows = [None if span.next_row is None else span.next_row.tolist() for span in spans]
    assert next_rows == [[4, 5, 6], [8, 9, 10], None]
    assert [span.labelled for span in spans] == [4, 4, 1]
    assert [span.rows[0, 0] for span in spans if span.rows is not None] == [0, 4, 8]
    assert [len(plan.admissions) for plan in plans] == [1, 0, 0]


def test_any_cut_can_be_forced(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    cuts = {"a": {0: 1, 1: 3, 4: 2, 6: 9}, "b": dict.fromkeys(range(3), 1)}
    scheduler = scheduler_of(lambda request, at: cuts[request.id][at])
    scheduler.add(request_of("a", 10))
    scheduler.add(request_of("b", 3))
    assert [shape(step(scheduler, answer)) for _ in range(4)] == [
        [("a", 0, 0, 1, False), ("b", 1, 0, 1, False)],
        [("a", 0, 1, 3, False), ("b", 1, 1, 1, False)],
        [("a", 0, 4, 2, False), ("b", 1, 2, 1, True)],
        [("b", 1, 3, 1, True), ("a", 0, 6, 4, True)],
    ]


def test_decode_rows_come_first_then_the_oldest_prompt(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(max_num_batched_tokens=8)
    scheduler.add(request_of("a", 3))
    step(scheduler, answer)
    for name in ("b", "c", "d"):
        scheduler.add(request_of(name, 9))
    plans = [step(scheduler, answer) for _ in range(3)]
    assert [shape(plan) for plan in plans] == [
        [("a", 0, 3, 1, True), ("b", 1, 0, 7, False)],
        [("a", 0, 4, 1, True), ("b", 1, 7, 2, True), ("c", 2, 0, 5, False)],
        [("a", 0, 5, 1, True), ("b", 1, 9, 1, True), ("c", 2, 5, 4, True), ("d", 3, 0, 2, False)],
    ]
    assert {plan.kind for plan in plans} == {StepKind.MIXED}


def test_one_row_prompt_chunk_is_no_decode(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(lambda request, at: 1)
    scheduler.add(request_of("a", 1))
    plan = step(scheduler, answer)
    assert plan.kind is StepKind.PREFILL
    assert shape(plan) == [("a", 0, 0, 1, True)]
    assert plan.spans[0].rows is not None
    scheduler.add(request_of("b", 2))
    assert [step(scheduler, answer).kind for _ in range(3)] == [
        StepKind.MIXED,
        StepKind.MIXED,
        StepKind.DECODE,
    ]


def test_pages_are_granted_as_rows_need_them(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(page_size=2)
    scheduler.add(request_of("a", 3, max_frames=5))
    scheduler.add(request_of("b", 4, max_frames=5))
    plans = [step(scheduler, answer) for _ in range(3)]
    assert [plan.page_grants for plan in plans] == [
        (PageGrant(0, (0, 1)), PageGrant(1, (2, 3))),
        (PageGrant(1, (4,)),),
        (PageGrant(0, (5,)),),
    ]
    statistics = scheduler.statistics()
    assert (statistics.pages_in_use, statistics.pages_kept) == (6, 0)


def test_admission_waits_for_a_slot(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(max_num_seqs=2)
    for name in ("a", "b", "c"):
        scheduler.add(request_of(name, 2, base=10))
    assert shape(step(scheduler, answer)) == [("a", 0, 0, 2, True), ("b", 1, 0, 2, True)]
    assert scheduler.statistics().waiting == 1
    assert shape(step(scheduler, answer, "a")) == [("a", 0, 2, 1, True), ("b", 1, 2, 1, True)]
    plan = step(scheduler, answer)
    assert shape(plan) == [("b", 1, 3, 1, True), ("c", 0, 0, 2, True)]
    assert plan.releases == (0,)
    assert plan.admissions == (Admission(0, SamplingParams(), 0, 0, window=(10, 11)),)
    assert plan.page_grants == (PageGrant(0, (0,)),)


def test_nobody_overtakes_the_first_that_waits(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(pages=4)
    scheduler.add(request_of("a", 4, max_frames=4))
    scheduler.add(request_of("large", 12, max_frames=4))
    scheduler.add(request_of("small", 1, max_frames=1))
    assert shape(step(scheduler, answer)) == [("a", 0, 0, 4, True)]
    assert shape(step(scheduler, answer, "a")) == [("a", 0, 4, 1, True)]
    assert shape(step(scheduler, answer)) == [("large", 0, 0, 12, True)]
    assert shape(step(scheduler, answer, "large")) == [("large", 0, 12, 1, True)]
    assert shape(step(scheduler, answer)) == [("small", 0, 0, 1, True)]


def test_urgent_requests_are_admitted_first(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    """By priority, then by arrival."""
    scheduler = scheduler_of(max_num_seqs=1)
    for name, priority in (("a", 1), ("b", 1), ("c", 0), ("d", 1), ("e", 0)):
        scheduler.add(replace(request_of(name, 2), priority=priority))
    order = [step(scheduler, answer, *"abcde").spans[0].request_id for _ in range(5)]
    assert order == ["c", "e", "a", "b", "d"]


def test_failed_admission_takes_nothing(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(pages=4)
    scheduler.add(request_of("a", 1, max_frames=12))
    scheduler.add(request_of("b", 12, max_frames=1))
    for pages in (1, 1, 1, 1, 2, 2):
        step(scheduler, answer)
        assert scheduler.statistics() == SchedulerStatistics(1, 1, pages)
    scheduler.abort("a")
    scheduler.check()
    assert shape(step(scheduler, answer)) == [("b", 0, 0, 12, True)]
    assert scheduler.statistics() == SchedulerStatistics()


def test_admission_leaves_the_watermark_and_what_running_prompts_lack(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    """Nine pages hold both, but not the watermark too; the first has one page of its five."""
    for pages, admitted in ((9, ["a"]), (10, ["a", "b"])):
        scheduler = scheduler_of(lambda request, at: 4, pages=pages)
        scheduler.add(request_of("a", 20, max_frames=3))
        scheduler.add(request_of("b", 13, max_frames=3))
        assert [name for name, *_ in shape(step(scheduler, answer))] == admitted


def test_admission_waits_for_the_budget(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(max_num_batched_tokens=4)
    scheduler.add(request_of("a", 4))
    scheduler.add(request_of("b", 4))
    assert shape(step(scheduler, answer)) == [("a", 0, 0, 4, True)]
    statistics = scheduler.statistics()
    assert (statistics.running, statistics.waiting, statistics.pages_in_use) == (1, 1, 1)


def test_prompts_advance_when_every_slot_is_taken(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(max_num_seqs=3, max_num_batched_tokens=3)
    for name in ("a", "b"):
        scheduler.add(request_of(name, 1, max_frames=9))
    scheduler.add(request_of("c", 3, max_frames=9))
    counts = [shape(step(scheduler, answer))[-1] for _ in range(4)]
    assert counts == [
        ("c", 2, 0, 1, False),
        ("c", 2, 1, 1, False),
        ("c", 2, 2, 1, True),
        ("c", 2, 3, 1, True),
    ]


def test_releases_wait_for_the_next_plan_that_has_work(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of()
    for name in ("a", "b"):
        scheduler.add(request_of(name, 2))
    step(scheduler, answer, "a", "b")
    assert scheduler.plan() is None
    assert scheduler.statistics().pages_in_use == 0
    scheduler.add(request_of("c", 2))
    plan = step(scheduler, answer)
    assert plan.releases == (0, 1)
    assert [admission.slot for admission in plan.admissions] == [0]
    assert step(scheduler, answer).releases == ()


def test_window_is_shorter_than_a_short_prompt_and_may_be_none(
    request_of: Requests, scheduler_of: Schedulers
) -> None:
    windows = []
    for width, rows in ((4, 2), (4, 4), (4, 9), (0, 9)):
        scheduler = scheduler_of(window=width)
        scheduler.add(request_of("a", rows))
        plan = scheduler.plan()
        assert plan is not None
        windows.append(plan.admissions[0].window)
    assert windows == [(0, 1), (0, 1, 2, 3), (5, 6, 7, 8), ()]


def test_rows_of_a_plan_cannot_be_written(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(lambda request, at: 2)
    scheduler.add(request_of("a", 3))
    span = step(scheduler, answer).spans[0]
    for rows in (span.rows, span.next_row):
        assert rows is not None
        with pytest.raises(ValueError, match="read-only"):
            rows[0] = 5


def test_a_prompt_changed_after_add_changes_nothing(
    request_of: Requests, scheduler_of: Schedulers
) -> None:
    scheduler = scheduler_of()
    request = request_of("a", 3)
    scheduler.add(request)
    request.prompt.rows[:] = 99
    plan = scheduler.plan()
    assert plan is not None and plan.spans[0].rows is not None
    assert plan.spans[0].rows[:, 0].tolist() == [0, 1, 2]


def test_eight_requests_share_their_steps(
    request_of: Requests, scheduler_of: Schedulers, answer: Answers
) -> None:
    scheduler = scheduler_of(
        max_num_seqs=8, max_num_batched_tokens=512, pages=1000, max_model_len=2000
    )
    for name in "abcdefgh":
        scheduler.add(request_of(name, 300, max_frames=40))
    steps, decodes = 0, 0
    while scheduler.has_work:
        plan = step(scheduler, answer)
        steps += 1
        decodes += plan.kind is StepKind.DECODE
    prompt_steps = -(-8 * 300 // 512)
    assert decodes >= 30
    assert steps - prompt_steps <= 60
