"""A preempted request is the request: frames, logits, state and pages, bit for bit.

Memory that a preempted request has left is NaN when the next step runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from numpy.typing import NDArray
from poisoned import PoisonedEngine, request_of

from declaim.contracts.request import FrameRequest
from declaim.contracts.step import StepPlan, StepResult

MakeEngine = Callable[..., PoisonedEngine]
Trace = Mapping[str, NDArray[Any]]

FRAMES = 24


def subject() -> FrameRequest:
    """A request that runs long enough to be preempted within and behind its window."""
    return request_of("subject", rows=37, seed=2, frames=FRAMES)


def neighbour(index: int) -> FrameRequest:
    return request_of(f"n{index}", rows=3 + 11 * index, seed=index, frames=5 + 3 * index)


def alone(engine: PoisonedEngine, request: FrameRequest) -> Trace:
    engine.submit(request)
    engine.run()
    return engine.trace(request.id)


def assert_same(left: Trace, right: Trace) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.shape == right[name].shape, name
        assert value.tobytes() == right[name].tobytes(), f"{name} differs"


@pytest.mark.parametrize(("every", "chunk"), [(1, 0), (1, 16), (9, 0), (9, 1), (9, 16)])
def test_preempted_after_every_so_many_frames(
    make_engine: MakeEngine, every: int, chunk: int
) -> None:
    whole = alone(make_engine(), subject())
    assert len(whole["frames"]) == FRAMES, "the subject must run long enough"
    cut = (lambda request, at: chunk) if chunk else None
    engine = make_engine(preempt_every=every, chunk_rows=cut)
    assert_same(whole, alone(engine, subject()))
    assert len(engine.preempted) == (FRAMES - 1) // every


@pytest.mark.parametrize("every", [1, 3, 9])
def test_among_others_that_are_preempted_too(make_engine: MakeEngine, every: int) -> None:
    requests = [neighbour(0), neighbour(1), subject(), neighbour(2), neighbour(3)]
    engine = make_engine(preempt_every=every, max_num_seqs=3, max_num_batched_tokens=24)
    for request in requests:
        engine.submit(request)
    engine.run()
    assert {name for name, _ in engine.preempted} >= {"subject", "n3"}
    for request in requests:
        assert_same(alone(make_engine(), request), engine.trace(request.id))


def test_resumed_in_another_slot(make_engine: MakeEngine) -> None:
    """Its neighbour has left the slot before it by then."""
    whole = alone(make_engine(), subject())
    engine = make_engine(preempt_every=9)
    engine.submit(request_of("before", rows=5, seed=1, frames=40))
    engine.step()
    engine.submit(subject())
    engine.step()
    assert engine.slot_of("subject") == 1
    for _ in range(4):
        engine.step()
    engine.abort("before")
    engine.run()
    assert engine.slot_of("subject") == 0
    assert_same(whole, engine.trace("subject"))


@pytest.mark.parametrize("pages", [6, 8, 11])
def test_page_shortage(make_engine: MakeEngine, pages: int) -> None:
    """Preempted because pages ran out, in whatever state that finds each one."""
    requests = [
        request_of(f"r{index}", rows=20 + 7 * index, seed=30 + index, frames=30)
        for index in range(5)
    ]
    engine = make_engine(kv_pages=pages, max_num_batched_tokens=16)
    for request in requests:
        engine.submit(request)
    engine.run()
    assert engine.preempted
    for request in requests:
        assert_same(alone(make_engine(), request), engine.trace(request.id))


def forget_windows(engine: PoisonedEngine) -> None:
    """Resume with an empty window, as an engine would that loses it."""
    run = engine.engine.runner.step

    def step(plan: StepPlan) -> StepResult:
        admissions = tuple(
            replace(admission, window=()) if admission.frame_index else admission
            for admission in plan.admissions
        )
        return run(replace(plan, admissions=admissions))

    engine.engine.runner.step = step  # type: ignore[method-assign]


def test_the_repetition_window_is_restored(make_engine: MakeEngine) -> None:
    """Preempted inside the window; the same frames, which an empty window would change."""
    whole = alone(make_engine(), subject())
    engine = make_engine(preempt_every=5)
    assert_same(whole, alone(engine, subject()))
    drawn = whole["frames"][:, 0].tolist()
    resumed = [report.plan.admissions for report in engine.reports if report.plan.releases]
    window = engine.config.generation.ras_window
    assert [one.frame_index for (one,) in resumed] == [5, 10, 15, 20]
    for (admission,) in resumed:
        known = [*subject().prompt.rows[:, 0].tolist(), *drawn[: admission.frame_index]]
        assert list(admission.window) == known[-window:]
    forgetful = make_engine(preempt_every=5)
    forget_windows(forgetful)
    assert alone(forgetful, subject())["frames"].tobytes() != whole["frames"].tobytes()
