"""Kept prefixes: where chunks end, what is saved, shared, copied and given up."""

from collections.abc import Callable

import numpy as np
import pytest

from declaim.contracts.request import Frame, FrameRequest, Prompt
from declaim.contracts.step import PageCopy, PageGrant, PrefixLoad, PrefixSave, StepPlan, StepResult
from declaim.scheduler.scheduler import Scheduler

Schedulers = Callable[..., Scheduler]


def request(name: str, *, voice: int, prefix: int, own: int = 3, frames: int = 9) -> FrameRequest:
    """`prefix` rows of a voice, then rows of the request's own."""
    rows = np.full((prefix + own, 3), 500 + ord(name[0]), dtype=np.int32)
    rows[:prefix] = voice
    return FrameRequest(name, Prompt(rows, prefix), max_frames=frames)


def step(scheduler: Scheduler, *ends: str) -> StepPlan:
    plan = scheduler.plan()
    assert plan is not None
    scheduler.check()
    row = np.zeros(3, dtype=np.int32)
    frames = {span.request_id: Frame(row, span.request_id in ends) for span in plan.sampled}
    scheduler.update(StepResult(frames))
    scheduler.check()
    return plan


def finish(scheduler: Scheduler) -> None:
    while scheduler.has_work:
        step(scheduler)


def spans(plan: StepPlan) -> list[tuple[str, int, int]]:
    return [(span.request_id, span.first, span.count) for span in plan.spans]


def test_a_prefix_is_saved_after_its_chunk_and_shared(scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(prefixes=2)
    scheduler.add(request("a", voice=1, prefix=10))
    plan = step(scheduler)
    assert spans(plan) == [("a", 0, 10)] and plan.prefix_saves == ()
    scheduler.add(request("b", voice=1, prefix=10, own=5))
    plan = step(scheduler)
    assert plan.prefix_saves == (PrefixSave(0, 0),)
    assert spans(plan) == [("a", 10, 3), ("b", 10, 5)]
    assert plan.prefix_loads == (PrefixLoad(0, 1),)
    assert plan.page_copies == (PageCopy(2, 3), PageCopy(3, 5))
    assert plan.page_grants == (PageGrant(0, (4,)), PageGrant(1, (0, 1, 5, 6)))
    statistics = scheduler.statistics()
    assert (statistics.prefix_hits, statistics.prefix_misses) == (1, 1)
    assert (statistics.prefixes_kept, statistics.pages_in_use, statistics.pages_kept) == (1, 6, 1)


def test_whole_pages_need_no_copy(scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(prefixes=1)
    scheduler.add(request("a", voice=1, prefix=8))
    step(scheduler)
    scheduler.add(request("b", voice=1, prefix=8))
    plan = step(scheduler)
    assert plan.page_copies == () and plan.prefix_loads == (PrefixLoad(0, 1),)
    assert plan.page_grants == (PageGrant(0, (2,)), PageGrant(1, (0, 1, 3)))


@pytest.mark.parametrize("cut", [1, 3, 4, 7])
def test_a_chunk_ends_at_the_prefix_whatever_the_cut(scheduler_of: Schedulers, cut: int) -> None:
    scheduler = scheduler_of(lambda request, at: cut, prefixes=1)
    scheduler.add(request("a", voice=1, prefix=7, own=9))
    ends: list[int] = []
    saved_at: list[int] = []
    while not ends or ends[-1] < 16:
        plan = step(scheduler)
        ends.append(plan.spans[0].length)
        saved_at += [plan.spans[0].first] if plan.prefix_saves else []
    assert 7 in ends and saved_at == [7]


@pytest.mark.parametrize(("prefix", "own", "prefixes"), [(0, 5, 2), (5, 0, 2), (5, 5, 0)])
def test_nothing_is_kept_of(scheduler_of: Schedulers, prefix: int, own: int, prefixes: int) -> None:
    scheduler = scheduler_of(prefixes=prefixes)
    for name in "ab":
        scheduler.add(request(name, voice=1, prefix=prefix, own=own))
        plan = step(scheduler)
        assert (name, 0, prefix + own) in spans(plan)
        assert not plan.prefix_saves and not plan.prefix_loads
    statistics = scheduler.statistics()
    assert (statistics.prefix_hits, statistics.prefix_misses) == (0, 0)


def test_content_is_compared_in_full(scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(prefixes=4)
    scheduler.add(request("a", voice=1, prefix=8))
    step(scheduler), step(scheduler)
    other = request("b", voice=1, prefix=8)
    other.prompt.rows[3, 2] = 2
    shorter = request("c", voice=1, prefix=7)
    for one in (other, shorter):
        scheduler.add(one)
    assert step(scheduler).prefix_loads == ()
    assert scheduler.statistics().prefix_misses == 3


def test_those_that_start_meanwhile_compute_it_themselves(scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(max_num_batched_tokens=16, prefixes=2)
    for name in "ab":
        scheduler.add(request(name, voice=1, prefix=8))
    assert spans(step(scheduler)) == [("a", 0, 8), ("b", 0, 8)]
    plan = step(scheduler)
    assert plan.prefix_saves == (PrefixSave(0, 0),)
    assert scheduler.statistics().prefixes_kept == 1


def test_the_least_recently_used_makes_room(scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(prefixes=2)
    for name, voice in (("a", 1), ("b", 2), ("c", 1), ("d", 3)):
        scheduler.add(request(name, voice=voice, prefix=8, frames=1))
        finish(scheduler)
    hits = []
    for name, voice in (("e", 1), ("f", 2)):
        scheduler.add(request(name, voice=voice, prefix=8, frames=1))
        hits.append(bool(step(scheduler).prefix_loads))
        finish(scheduler)
    assert hits == [True, False]
    assert scheduler.statistics().prefix_evictions == 2


def test_a_prefix_in_use_is_not_evicted_for_another(scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(prefixes=1)
    scheduler.add(request("a", voice=1, prefix=8))
    step(scheduler), step(scheduler)
    scheduler.add(request("b", voice=2, prefix=8))
    step(scheduler)
    assert step(scheduler).prefix_saves == ()
    assert scheduler.statistics().prefix_evictions == 0
    scheduler.add(request("c", voice=1, prefix=8))
    assert step(scheduler).prefix_loads == (PrefixLoad(0, 2),)


def test_pages_of_unused_prefixes_go_before_anyone_is_preempted(scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(pages=6, prefixes=2)
    scheduler.add(request("a", voice=1, prefix=8, frames=1))
    finish(scheduler)
    assert scheduler.statistics().pages_kept == 2
    for name in "bc":
        scheduler.add(request(name, voice=0, prefix=0, own=4, frames=8))
    finish(scheduler)
    statistics = scheduler.statistics()
    assert (statistics.prefix_evictions, statistics.preemptions) == (1, 0)


def test_one_that_needs_every_page_gets_them(scheduler_of: Schedulers) -> None:
    """Its own prefix's spare page too: it may never be stuck on what it shares."""
    scheduler = scheduler_of(pages=5, prefixes=1)
    for name in "ab":
        scheduler.add(request(name, voice=1, prefix=6, own=2, frames=12))
        finish(scheduler)
    assert scheduler.statistics().preemptions == 0


def test_a_hit_that_does_not_fit_starts_without_its_prefix(scheduler_of: Schedulers) -> None:
    """Four pages of history, of which the prefix would hold three for the sake of one."""
    scheduler = scheduler_of(pages=4, prefixes=1)
    scheduler.add(request("a", voice=1, prefix=6, own=2, frames=1))
    finish(scheduler)
    assert scheduler.statistics().pages_kept == 2
    scheduler.add(request("b", voice=1, prefix=6, own=9, frames=1))
    finish(scheduler)
    statistics = scheduler.statistics()
    assert (statistics.prefix_hits, statistics.prefix_misses) == (0, 2)


def test_a_prefix_makes_no_room_for_the_one_that_starts_behind_it(scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(pages=6, prefixes=1)
    scheduler.add(request("a", voice=1, prefix=8, own=1, frames=1))
    finish(scheduler)
    scheduler.add(request("x", voice=0, prefix=0, own=5, frames=3))
    scheduler.add(request("b", voice=1, prefix=8, own=8, frames=1))
    assert [spans(step(scheduler)) for _ in range(3)] == [
        [("x", 0, 5)],
        [("x", 5, 1)],
        [("x", 6, 1)],
    ]
    assert spans(step(scheduler)) == [("b", 8, 8)]
    assert scheduler.statistics().preemptions == 0


def test_shared_pages_outlive_their_first_owner(scheduler_of: Schedulers) -> None:
    scheduler = scheduler_of(prefixes=1)
    scheduler.add(request("a", voice=1, prefix=8))
    step(scheduler)
    for name in "bc":
        scheduler.add(request(name, voice=1, prefix=8))
    step(scheduler, "a")
    assert scheduler.statistics().pages_in_use == 4
    scheduler.add(request("d", voice=0, prefix=0, own=20))
    granted = {page for grant in step(scheduler).page_grants for page in grant.pages}
    assert not granted & {0, 1}
