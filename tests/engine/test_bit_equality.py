"""A request's bytes depend on the request and its seed: not on cuts, slots, neighbours or padding.

Logits, recurrent state, pages and frames are compared bit for bit, within one thread and two.
"""

import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from poisoned import PoisonedEngine, request_of

from declaim.contracts.request import FrameRequest

MakeEngine = Callable[..., PoisonedEngine]

PROMPT = 97
FRAMES = 12
CUTS: dict[str, list[int]] = {
    "ones": [1] * PROMPT,
    "twos": [2] * 48 + [1],
    "threes": [3] * 32 + [1],
    "sevens": [7] * 13 + [6],
    "ragged": [17, 3, 40, 30, 7],
}


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def subject(greedy: bool) -> FrameRequest:
    """The request that every case repeats."""
    return request_of("subject", rows=PROMPT, seed=1234, frames=FRAMES, greedy=greedy)


def neighbour(index: int) -> FrameRequest:
    """Another request of its own length and seed."""
    return request_of(f"n{index}", rows=3 + 11 * index, seed=index, frames=5 + 3 * index)


def alone(engine: PoisonedEngine, request: FrameRequest) -> dict[str, np.ndarray]:
    """Everything that a request leaves behind when it runs alone and whole."""
    engine.submit(request)
    engine.run()
    return engine.trace(request.id)


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    """Bit for bit, part by part."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.dtype == right[name].dtype and value.shape == right[name].shape, name
        assert value.tobytes() == right[name].tobytes(), f"{name} differs"


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "seeded"])
@pytest.mark.parametrize("cut", CUTS)
def test_every_cut(make_engine: MakeEngine, threads: int, cut: str, greedy: bool) -> None:
    whole = alone(make_engine(threads=threads), subject(greedy))
    assert len(whole["frames"]) > 3
    cuts = CUTS[cut]
    ends = np.cumsum([0, *cuts]).tolist()
    engine = make_engine(threads=threads, chunk_rows=lambda request, done: cuts[ends.index(done)])
    assert_same(whole, alone(engine, subject(greedy)))


@pytest.mark.parametrize("others", [1, 2, 3, 5, 8])
def test_among_others(make_engine: MakeEngine, threads: int, others: int) -> None:
    """Requests join before and after the subject, leave while it runs, and share its steps."""
    whole = alone(make_engine(threads=threads), subject(greedy=False))
    engine = make_engine(threads=threads, max_num_seqs=9, max_num_batched_tokens=40)
    for index in range(others // 2):
        engine.submit(neighbour(index))
    engine.submit(subject(greedy=False))
    for index in range(others // 2, others):
        engine.step()
        engine.submit(neighbour(index))
    engine.run()
    assert_same(whole, engine.trace("subject"))
    if others > 1:
        assert "mixed" in {report.plan.kind for report in engine.reports}


def test_unlike_cuts_side_by_side(make_engine: MakeEngine, threads: int) -> None:
    """Spans of one row before, between and behind longer ones, of prompts and of decodes."""
    cuts = {"n2": 1, "n4": 7, "subject": 1, "n5": 3}
    requests = [neighbour(2), neighbour(4), subject(greedy=False), neighbour(5)]
    engine = make_engine(threads=threads, chunk_rows=lambda request, done: cuts[request.id])
    for request in requests:
        engine.submit(request)
    engine.run()
    for request in requests:
        assert_same(alone(make_engine(threads=threads), request), engine.trace(request.id))


def test_any_slot(make_engine: MakeEngine, threads: int) -> None:
    """The subject in each slot, some used before, with the others of the batch still running."""
    whole = alone(make_engine(threads=threads), subject(greedy=False))
    for slot in range(4):
        engine = make_engine(threads=threads, max_num_seqs=4)
        for index in range(slot):
            engine.submit(request_of(f"long{index}", rows=5, seed=index, frames=40))
            engine.step()
        engine.submit(subject(greedy=False))
        engine.run()
        assert engine.slot_of("subject") == slot
        assert_same(whole, engine.trace("subject"))


def test_reused_slot(make_engine: MakeEngine, threads: int) -> None:
    """A slot's former owner leaves nothing, even when the first span has one row."""
    whole = alone(make_engine(threads=threads), subject(greedy=False))
    engine = make_engine(threads=threads, max_num_seqs=1, chunk_rows=lambda request, done: 1)
    engine.submit(neighbour(4))
    engine.submit(subject(greedy=False))
    engine.run()
    assert engine.slot_of("subject") == engine.slot_of("n4") == 0
    assert_same(whole, engine.trace("subject"))


@pytest.mark.parametrize("page_size", [16, 128])
def test_recurrent_state_in_bfloat16(make_engine: MakeEngine, threads: int, page_size: int) -> None:
    """The state is rounded after every row, so that a cut is no place of its own."""
    options = {"mamba_ssm_cache_dtype": "bfloat16", "page_size": page_size, "threads": threads}
    whole = alone(make_engine(**options), subject(greedy=False))
    exact = alone(make_engine(threads=threads), subject(greedy=False))
    assert whole["matrix 0"].tobytes() != exact["matrix 0"].tobytes()
    engine = make_engine(**options, max_num_seqs=6, chunk_rows=lambda request, done: 5, padding=1)
    engine.submit(neighbour(2))
    engine.submit(subject(greedy=False))
    engine.submit(neighbour(3))
    engine.run()
    assert_same(whole, engine.trace("subject"))


@pytest.mark.parametrize("extra", [1, 3])
def test_padding(make_engine: MakeEngine, threads: int, extra: int) -> None:
    """Padded rows, labelled rows and streams touch the null slot and the null page alone."""
    requests = [neighbour(2), subject(greedy=False)]
    engine = make_engine(threads=threads, max_num_seqs=6, padding=extra)
    for request in requests:
        engine.submit(request)
    engine.run()
    for request in requests:
        assert_same(alone(make_engine(threads=threads), request), engine.trace(request.id))


def numpy_state() -> bytes:
    """The words of numpy's global generator."""
    return pickle.dumps(np.random.get_state())


def test_tiny_among_others(checkpoint: Callable[[str], Path], threads: int) -> None:
    """Widths that are no multiple of a vector, and longer context, alone and in a batch."""

    def tiny(name: str, seed: int, rows: int) -> FrameRequest:
        return request_of(name, rows=rows, seed=seed, frames=4, codebooks=10, first=512, width=256)

    engines = [
        PoisonedEngine(checkpoint("tiny"), threads=threads, **options)
        for options in (
            {"max_num_seqs": 1},
            {"max_num_seqs": 3, "chunk_rows": lambda request, done: 31},
        )
    ]
    whole = alone(engines[0], tiny("subject", 7, 150))
    for index in range(2):
        engines[1].submit(tiny(f"n{index}", index, 40 + 50 * index))
    assert_same(whole, alone(engines[1], tiny("subject", 7, 150)))


def test_two_unseeded_requests_differ(make_engine: MakeEngine) -> None:
    from declaim.engine.frames import fresh_seed

    first, second = fresh_seed(), fresh_seed()
    assert first != second
    engine = make_engine()
    for name, seed in (("a", first), ("b", second)):
        engine.submit(request_of(name, rows=20, seed=seed, frames=8))
    engine.run()
    assert engine.trace("a")["frames"].tobytes() != engine.trace("b")["frames"].tobytes()


def test_no_global_generator_is_touched(make_engine: MakeEngine) -> None:
    engine = make_engine()
    before, numpy_before, python_before = torch.get_rng_state(), numpy_state(), random.getstate()
    alone(engine, subject(greedy=False))
    assert torch.equal(before, torch.get_rng_state())
    assert numpy_state() == numpy_before
    assert random.getstate() == python_before


def test_seed_reaches_every_draw(make_engine: MakeEngine) -> None:
    """Two seeds give other main tokens and other codes in every column."""
    first = alone(make_engine(), request_of("a", rows=20, seed=1, frames=20))
    second = alone(make_engine(), request_of("a", rows=20, seed=2, frames=20))
    for column in range(first["frames"].shape[1]):
        assert first["frames"][:, column].tolist() != second["frames"][:, column].tolist()
