"""Every graph mode gives what NONE gives, bit for bit, through whole engines on poisoned memory."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from poisoned import PoisonedEngine, request_of

from declaim.contracts.request import FrameRequest, SpeechRequest
from declaim.contracts.step import StepKind
from declaim.engine.engine import Engine

MakeEngine = Callable[..., PoisonedEngine]
RunningEngine = Callable[..., AbstractAsyncContextManager[Engine]]
Traces = dict[str, dict[str, Any]]

MODES = ["PIECEWISE", "FULL", "FULL_AND_PIECEWISE"]
STREAMS = 9


def requests() -> list[FrameRequest]:
    """Prompts of 1 to 61 rows, greedy ones among them; with these seeds none ends early."""
    lengths = (17, 1, 40, 2, 61, 5, 33, 8, 24)
    seeds = (40, 41, 42, 43, 44, 45, 166, 47, 48)
    return [
        request_of(f"r{index}", rows=rows, seed=seed, frames=24, greedy=index % 3 == 1)
        for index, (rows, seed) in enumerate(zip(lengths, seeds, strict=True))
    ]


def traces(engine: PoisonedEngine, steps_between: int = 2) -> Traces:
    """What requests leave behind that come one by one, some decode steps apart."""
    asked = requests()
    for request in asked:
        engine.submit(request)
        for _ in range(steps_between):
            engine.step()
    engine.run()
    return {request.id: engine.trace(request.id) for request in asked}


def assert_same(left: Traces, right: Traces) -> None:
    assert left.keys() == right.keys()
    for name, parts in left.items():
        assert parts.keys() == right[name].keys()
        for part, value in parts.items():
            assert value.tobytes() == right[name][part].tobytes(), f"{name}: {part} differs"


def transitions(engine: PoisonedEngine) -> list[StepKind]:
    """Kinds of the steps, runs of one kind as one."""
    kinds = [report.plan.kind for report in engine.reports]
    return [kind for place, kind in enumerate(kinds) if place == 0 or kind != kinds[place - 1]]


@pytest.fixture(scope="module")
def eager(checkpoint: Callable[[str], Path]) -> Traces:
    engine = PoisonedEngine(checkpoint("micro"), max_num_seqs=STREAMS, max_num_batched_tokens=40)
    return traces(engine)


@pytest.mark.parametrize("mode", MODES)
def test_every_batch_size_and_transition(make_engine: MakeEngine, eager: Traces, mode: str) -> None:
    engine = make_engine(max_num_seqs=STREAMS, max_num_batched_tokens=40, cudagraph_mode=mode)
    assert_same(traces(engine), eager)
    decode = {len(r.plan.sampled) for r in engine.reports if r.plan.kind is StepKind.DECODE}
    assert decode == set(range(1, STREAMS + 1))
    turns = [StepKind.DECODE, StepKind.MIXED, StepKind.DECODE]
    found = transitions(engine)
    assert any(found[place : place + 3] == turns for place in range(len(found)))
    graphs = engine.engine.runner.graphs
    assert not graphs.misses
    assert set(graphs.eager) == ({"backbone", "fill"} if mode == "FULL" else set())


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize("sizes", [(4,), (2, 8, 16), (3, 5, 7, 40)], ids=str)
def test_sizes_that_never_fit(
    make_engine: MakeEngine, eager: Traces, sizes: tuple[int, ...], mode: str
) -> None:
    """Streams of 1, 3 and 5 padded to the next size; what is over the largest runs eagerly."""
    engine = make_engine(
        max_num_seqs=STREAMS,
        max_num_batched_tokens=40,
        cudagraph_mode=mode,
        cudagraph_capture_sizes=sizes,
    )
    assert_same(traces(engine), eager)
    graphs = engine.engine.runner.graphs
    missed = {"backbone", "fill"} | ({"decode_backbone"} if mode == "PIECEWISE" else set())
    largest = {(4,): missed, (2, 8, 16): {"backbone", "fill"}, (3, 5, 7, 40): set[str]()}
    assert set(graphs.misses) == set(graphs.eager) == largest[sizes]


def test_two_threads(make_engine: MakeEngine) -> None:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 40, "threads": 2}
    found = traces(make_engine(cudagraph_mode="FULL_AND_PIECEWISE", **options))
    assert_same(found, traces(make_engine(**options)))


def test_three_streams_after_four_in_a_graph_of_four(make_engine: MakeEngine) -> None:
    """The padding row of a graph must not carry the slot that stood there a step before."""

    def run(mode: str) -> Traces:
        engine = make_engine(
            max_num_seqs=4, cudagraph_mode=mode, cudagraph_capture_sizes=(4,), max_model_len=128
        )
        asked = [
            request_of(f"r{index}", rows=9, seed=index + 3, frames=6 + 9 * (index != 1))
            for index in range(4)
        ]
        for request in asked:
            engine.submit(request)
        engine.run()
        return {request.id: engine.trace(request.id) for request in asked}

    assert_same(run("FULL"), run("NONE"))


def test_nothing_is_captured_after_the_start(make_engine: MakeEngine) -> None:
    engine = make_engine(cudagraph_mode="FULL_AND_PIECEWISE", cudagraph_capture_sizes=(4, 8))
    graphs = engine.engine.runner.graphs
    before = set(graphs.programs)
    engine.submit(request_of("long", rows=60, seed=1, frames=5))
    engine.run()
    assert set(graphs.programs) == before
    assert graphs.misses == {"backbone": 1, "fill": 1}


def test_an_engine_counts_what_it_replays(running: RunningEngine) -> None:
    """Everything is captured before the start: a stream in the default mode misses nothing."""

    async def speak() -> tuple[float, float, float]:
        async with running(cudagraph_mode="FULL_AND_PIECEWISE") as engine:
            request = SpeechRequest(id="a", text="Hello there.", seed=1, max_frames=8)
            stream = engine.speak(request)
            async for _ in stream:
                pass
            await stream.outcome()
            counts = engine.statistics()
            return counts["steps"], counts["graph_replays"], counts["graph_misses"]

    steps, replays, misses = asyncio.run(speak())
    assert misses == 0 and replays >= steps > 0
