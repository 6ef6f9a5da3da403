"""A request that starts behind a kept prefix is the request that computes it, bit for bit."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from poisoned import PoisonedEngine, request_of

from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import FrameRequest, Prompt

MakeEngine = Callable[..., PoisonedEngine]
Trace = Mapping[str, NDArray[Any]]


def speaking(
    name: str, *, voice: int = 1, prefix: int = 41, own: int = 9, seed: int = 7, frames: int = 12
) -> FrameRequest:
    """A request whose first rows, with speech among them, come from the voice."""
    voiced = request_of("voice", rows=prefix, seed=900 + voice, frames=1).prompt.rows
    request = request_of(name, rows=own, seed=seed, frames=frames)
    text = request.prompt.rows.copy()
    text[:, 1:] = 0
    text[:, 0] %= 256
    return replace(request, prompt=Prompt(np.concatenate([voiced, text]), prefix))


def alone(engine: PoisonedEngine, request: FrameRequest) -> Trace:
    engine.submit(request)
    engine.run()
    return engine.trace(request.id)


def missed(make_engine: MakeEngine, request: FrameRequest) -> Trace:
    """What the request leaves behind without a prefix in its prompt."""
    plain = replace(request, prompt=replace(request.prompt, prefix_rows=0))
    return alone(make_engine(prefix_cache_bytes=0), plain)


def assert_same(left: Trace, right: Trace) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.shape == right[name].shape, name
        assert value.tobytes() == right[name].tobytes(), f"{name} differs"


@pytest.mark.parametrize("prefix", [1, 2, 3, 16, 17, 32, 41, 47])
def test_hit_and_miss_are_the_same(make_engine: MakeEngine, prefix: int) -> None:
    """Prefixes shorter than the convolution, within a page, and of whole pages."""
    engine = make_engine()
    first = alone(engine, speaking("first", prefix=prefix))
    second = alone(engine, speaking("second", prefix=prefix, own=14, seed=8))
    statistics = engine.engine.scheduler.statistics()
    assert (statistics.prefix_hits, statistics.prefix_misses) == (1, 1)
    assert_same(missed(make_engine, speaking("a", prefix=prefix)), first)
    assert_same(missed(make_engine, speaking("b", prefix=prefix, own=14, seed=8)), second)
    rows = [span for report in engine.reports for span in report.plan.spans]
    assert min(span.first for span in rows if span.request_id == "second") == prefix


@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_any_cut(make_engine: MakeEngine, chunk: int) -> None:
    engine = make_engine(chunk_rows=lambda request, at: chunk, padding=1)
    for index in range(3):
        request = speaking(str(index), seed=index)
        assert_same(missed(make_engine, request), alone(engine, request))
    assert engine.engine.scheduler.statistics().prefix_hits == 2


def test_shared_by_three_while_one_finishes(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=64)
    requests = [
        speaking("owner", frames=3),
        *(speaking(f"r{index}", own=4 + index, seed=index, frames=16) for index in range(3)),
    ]
    engine.submit(requests[0])
    engine.step()
    for request in requests[1:]:
        engine.submit(request)
    engine.step()
    shared = engine.books.prefixes[0][:2]
    owners = [name for name, slot in engine.running.items() if engine.pages[slot][:2] == [*shared]]
    assert len(owners) == 4
    while "owner" not in engine.outcomes:
        engine.step()
    engine.abort("r0")
    engine.submit(request_of("other", rows=90, seed=3, frames=5))
    engine.run()
    for request in (requests[0], *requests[2:]):
        assert_same(missed(make_engine, request), engine.trace(request.id))


@pytest.mark.parametrize("every", [1, 4])
def test_preempted_requests_start_behind_their_prefix(make_engine: MakeEngine, every: int) -> None:
    engine = make_engine(preempt_every=every, max_num_seqs=3, max_num_batched_tokens=60)
    requests = [
        speaking(f"r{index}", voice=index % 2, own=3 + 5 * index, seed=index) for index in range(5)
    ]
    for request in requests:
        engine.submit(request)
    engine.run()
    assert engine.engine.scheduler.statistics().prefix_hits > len(engine.preempted) > 5
    for request in requests:
        assert_same(missed(make_engine, request), engine.trace(request.id))


def test_page_shortage_with_more_voices_than_are_kept(make_engine: MakeEngine) -> None:
    config = make_engine().config
    one = make_engine().state.layout.recurrent_bytes(config)
    engine = make_engine(kv_pages=9, max_num_batched_tokens=24, prefix_cache_bytes=2 * one)
    requests = [
        speaking(f"r{index}", voice=index * index % 3, own=2 + index, seed=index, frames=30)
        for index in range(10)
    ]
    for request in requests:
        engine.submit(request)
        engine.step()
    engine.run()
    statistics = engine.engine.scheduler.statistics()
    assert min(statistics.prefix_hits, statistics.prefix_evictions, len(engine.preempted)) > 0
    for request in requests:
        assert_same(missed(make_engine, request), engine.trace(request.id))


def test_bytes_decide_how_many_are_kept(make_engine: MakeEngine) -> None:
    layout = make_engine().state.layout
    one = layout.recurrent_bytes(make_engine().config)
    for size, kept in ((0, 0), (one - 1, 0), (one, 1), (3 * one, 3), (2**40, 64)):
        engine = make_engine(prefix_cache_bytes=size)
        assert engine.state.layout.prefixes == engine.engine.scheduler.limits.prefixes == kept
        assert len(engine.state.prefixes.recurrent[0].tail) == kept


def test_a_semantic_row_behind_the_prefix_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    request = request_of("a", rows=40, seed=1, frames=2)
    for prefix_rows, message in ((12, "row 12.*semantic"), (41, "prefix of 41"), (-1, "of -1")):
        wrong = replace(request, prompt=Prompt(request.prompt.rows, prefix_rows))
        with pytest.raises(InvalidRequest, match=message):
            engine.submit(wrong)
    assert not engine.engine.scheduler.has_work
