"""The control code of steps without weights: counters, misses, addresses, and no work in replay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from step_cases import StepCases, memory_of
from torch.utils._python_dispatch import TorchDispatchMode

from declaim.config.checkpoint import parse_model_config
from declaim.config.schema import FrameStage
from declaim.contracts.errors import InvalidConfig
from declaim.nano.shapes import GENERATION, SHAPES
from declaim.platforms.null import NullPlatform
from declaim.runner.batch import exact_size
from declaim.runner.runner import Runner
from declaim.runner.worker import build_runner

NullRunner = Callable[..., Runner]


@pytest.fixture
def null_runner() -> NullRunner:
    """A captured runner of `micro`'s shape on the null platform; options are the stage's."""

    def get(platform: NullPlatform | None = None, **options: Any) -> Runner:
        config = parse_model_config(SHAPES["micro"].config, GENERATION)
        sizes = {"max_num_seqs": 6, "max_num_batched_tokens": 40, "max_model_len": 64}
        stage = FrameStage(**{**sizes, "load_format": "random", **options})
        runner = build_runner(Path("absent"), config, stage, platform or NullPlatform())
        runner.capture()
        return runner

    return get


def test_every_step_is_replayed_and_counted(null_runner: NullRunner) -> None:
    runner = null_runner()
    cases = StepCases(runner, 0)
    assert runner.graphs.replays.total() == 0
    for plan in (cases.decode(3), cases.decode(6), cases.mixed(20), cases.mixed(7, 0, 1)):
        runner.step(plan)
    assert runner.graphs.replays == {"decode": 2, "backbone": 2, "fill": 2, "frame": 2}
    assert not runner.graphs.misses and not runner.graphs.eager


def test_a_miss_is_eager_and_counted_and_never_captured(null_runner: NullRunner) -> None:
    runner = null_runner(cudagraph_mode="PIECEWISE", cudagraph_capture_sizes=(2, 4))
    graphs, cases = runner.graphs, StepCases(runner, 0)
    keys = set(graphs.programs)
    for _ in range(3):
        result = runner.step(cases.decode(5))
        assert len(result.frames) == 5
    assert graphs.misses == graphs.eager == {"decode_backbone": 3}
    assert graphs.replays == {"frame": 3}
    assert set(graphs.programs) == keys


def test_without_capture_everything_is_a_miss(null_runner: NullRunner) -> None:
    runner = null_runner()
    runner.graphs.programs.clear()
    runner.step(StepCases(runner, 0).decode(2))
    assert runner.graphs.misses == {"decode": 1}


def test_none_replays_and_misses_nothing(null_runner: NullRunner) -> None:
    runner = null_runner(cudagraph_mode="NONE")
    assert runner.graphs.programs == {} and runner.graphs.bytes == 0
    runner.step(StepCases(runner, 0).mixed(20))
    assert not runner.graphs.replays and not runner.graphs.misses
    assert runner.graphs.eager == {"backbone": 1, "fill": 1, "frame": 1}


def test_captured_keys_are_all_a_step_can_ask_for(null_runner: NullRunner) -> None:
    """Capture without a request, then every size of decode and mixed step: no miss, no new key."""
    for mode in ("PIECEWISE", "FULL", "FULL_AND_PIECEWISE"):
        runner = null_runner(cudagraph_mode=mode)
        cases = StepCases(runner, 0)
        used = set()
        for plan in (
            *(cases.decode(count) for count in range(1, 7)),
            *(cases.mixed(rows, 0, 1) for rows in range(1, 41)),
            *(cases.mixed(6, decodes, 1) for decodes in range(1, 6)),
        ):
            route = runner.graphs.route(plan.kind, exact_size(plan))
            used |= {each.key for each in route.passes if each.key is not None}
            runner.step(plan)
        assert not runner.graphs.misses
        assert set(runner.graphs.programs) == used, mode


def test_addresses_stay_for_two_hundred_steps(null_runner: NullRunner) -> None:
    runner = null_runner()
    cases = StepCases(runner, 0)
    before = runner.state.addresses() | runner.batch.addresses()
    handed_over = 4
    assert len(runner.state.addresses()) == len(memory_of(runner)) - handed_over
    for step in range(200):
        plan = cases.decode(1 + step % 6) if step % 3 else cases.mixed(2 + step % 38, step % 2)
        runner.step(plan)
        assert runner.state.addresses() | runner.batch.addresses() == before
        assert runner.tensors is not None
        assert runner.tensors.frames.data_ptr() == before["frames"]
        assert runner.tensors.every.slot is not None
        assert runner.tensors.every.slot.data_ptr() == before["every.slot"]


class Operators(TorchDispatchMode):
    """Lists every tensor operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_replay_itself_does_nothing_with_tensors(null_runner: NullRunner) -> None:
    """No buffer is made, no view is taken: the ops have everything in place."""
    runner = null_runner()
    programs = runner.graphs.programs
    backbones = [graph for key, graph in programs.items() if key.program == "backbone"]
    assert len(backbones) == 8
    with torch.inference_mode(), Operators() as operators:
        for graph in backbones:
            graph.replay()
    assert operators.seen == []


def test_a_platform_without_a_mode_says_so(null_runner: NullRunner) -> None:
    runner = null_runner(platform=NullPlatform(graph_modes=frozenset({"PIECEWISE"})))
    assert runner.graphs.mode == "PIECEWISE"
    assert runner.graphs.warning is not None and "FULL_AND_PIECEWISE" in runner.graphs.warning
    runner.step(StepCases(runner, 0).decode(2))
    assert runner.graphs.replays == {"decode_backbone": 1, "frame": 1}


def test_bad_sizes_are_refused_before_weights_are_made(null_runner: NullRunner) -> None:
    with pytest.raises(InvalidConfig, match="41, over max_num_batched_tokens 40"):
        null_runner(cudagraph_capture_sizes=(41,))
