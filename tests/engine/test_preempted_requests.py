"""A preempted request is the request: frames, logits, state and pages, bit for bit.

Memory that a preempted request has left is NaN when the next step runs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from numpy.typing import NDArray
from poisoned import PoisonedEngine, request_of

from declaim.contracts.request import FrameRequest

MakeEngine = Callable[..., PoisonedEngine]
Trace = Mapping[str, NDArray[Any]]

FRAMES = 20


def subject() -> FrameRequest:
    """A request that runs long enough to be preempted within and behind its window."""
    return request_of("subject", rows=37, seed=1234, frames=FRAMES)


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


@pytest.mark.parametrize("chunk", [0, 1, 16])
@pytest.mark.parametrize("every", [1, 9])
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
    assert len({slot for name, slot in engine.preempted if name == "subject"}) > 1
    for request in requests:
        assert_same(alone(make_engine(), request), engine.trace(request.id))


def test_resumed_in_another_slot(make_engine: MakeEngine) -> None:
    """The slot that it had is taken by a request that waited for it, with more urgency."""
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


def test_the_repetition_window_is_restored(make_engine: MakeEngine) -> None:
    """A window that starts from the prompt alone gives other frames."""
    whole = alone(make_engine(), subject())
    engine = make_engine(preempt_every=5)
    seen = []
    admit = engine.state.frames.admit
    window = engine.config.generation.ras_window
    engine.submit(subject())
    while engine.step():
        seen += engine.reports[-1].plan.admissions
    assert callable(admit)
    for admission in seen[1:]:
        assert 0 < admission.frame_index < window + 5
        drawn = whole["frames"][: admission.frame_index, 0].tolist()
        assert list(admission.window)[-len(drawn) :] == drawn[-window:]
    assert_same(whole, engine.trace("subject"))
