"""A recording of one step replays any other of its key, bit for bit, without the model."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
import torch
from step_cases import StepCases, copied, differences, memory_of, restore

import declaim
from declaim.config.checkpoint import load_model_config
from declaim.config.schema import FrameStage
from declaim.contracts.step import StepPlan
from declaim.ops.table import Collectives, OpTable
from declaim.platforms.cpu.platform import CpuPlatform
from declaim.platforms.recorder import Program
from declaim.runner.batch import exact_size
from declaim.runner.graphs import GraphKey, Pass, ProgramName
from declaim.runner.runner import Runner
from declaim.runner.worker import build_runner

MakeRunner = Callable[..., Runner]

MODES = ["PIECEWISE", "FULL", "FULL_AND_PIECEWISE"]
SIZES = {"max_num_seqs": 6, "max_num_batched_tokens": 40, "max_model_len": 64}


class SpyOps:
    """An op table that lists the ops it is asked for."""

    def __init__(self, ops: OpTable) -> None:
        self.ops = ops
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.ops, name)
        if name.startswith("prepare_") or not callable(method):
            return method

        def call(*arguments: Any, **keywords: Any) -> Any:
            self.asked.append(name)
            return method(*arguments, **keywords)

        return call


class SpyPlatform(CpuPlatform):
    """The CPU with a table that lists its calls."""

    def op_table(self, collectives: Collectives) -> OpTable:
        self.spy = SpyOps(super().op_table(collectives))
        return cast(OpTable, self.spy)


@pytest.fixture
def make(build: MakeRunner, checkpoint: Callable[[str], Path]) -> MakeRunner:
    """A captured runner on `micro`; options are the stage's."""

    def get(**options: Any) -> Runner:
        runner = build(checkpoint("micro"), **{**SIZES, **options})
        runner.capture()
        return runner

    return get


def run(runner: Runner, plan: StepPlan, *, eager: bool) -> dict[str, torch.Tensor]:
    """One step from the memory as it stands, padded as by its graphs; what it leaves, copied."""
    route = runner.graphs.route(plan.kind, exact_size(plan))
    step = runner.batch.fill(plan, route.size)
    passes = tuple(Pass(each.program) for each in route.passes) if eager else route.passes
    with torch.inference_mode():
        runner.graphs.run(type(route)(route.kind, route.size, passes), step)
    return copied(memory_of(runner))


def plans_of(runner: Runner, cases: StepCases) -> list[StepPlan]:
    return [
        cases.decode(1),
        cases.mixed(13, decodes=2),
        cases.decode(5),
        cases.mixed(1, decodes=0, chunks=1),
        cases.mixed(40, decodes=0, chunks=3),
        cases.decode(3),
        cases.mixed(33, decodes=3),
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_replay_equals_eager(make: MakeRunner, mode: str, seed: int) -> None:
    """Captured on null rows, replayed on random steps over random memory."""
    runner = make(cudagraph_mode=mode)
    memory = memory_of(runner)
    for plan in plans_of(runner, StepCases(runner, seed)):
        before = copied(memory)
        eager = run(runner, plan, eager=True)
        restore(memory, before)
        assert differences(run(runner, plan, eager=False), eager) == []
        assert differences(before, eager) != []
    assert runner.graphs.replays.total() > 0 and not runner.graphs.misses


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL"])
def test_recorded_on_one_step_replayed_on_another(make: MakeRunner, mode: str) -> None:
    """Programs recorded on live rows A, all names, replayed on B of the same key."""
    runner = make(cudagraph_mode=mode)
    graphs, memory = runner.graphs, memory_of(runner)
    cases = StepCases(runner, 7)
    pairs = [(cases.decode(3), cases.decode(4)), (cases.mixed(13, 2), cases.mixed(14, 2))]
    for first, second in pairs:
        before = copied(memory)
        wanted = run(runner, second, eager=True)
        restore(memory, before)
        route = graphs.route(first.kind, exact_size(first))
        assert route.passes == graphs.route(second.kind, exact_size(second)).passes
        with torch.inference_mode():
            recorded = {
                each.key: graphs.record(each.program, first, route.size, runner.batch)
                for each in route.passes
                if each.key is not None
            }
            graphs.recorder.finish()
        assert differences(memory, before) == [], "recording computed something"
        graphs.programs.update(recorded)
        before_replays = graphs.replays.total()
        assert differences(run(runner, second, eager=False), wanted) == []
        assert graphs.replays.total() - before_replays == len(recorded) > 0
        restore(memory, before)


@pytest.mark.parametrize("mode", MODES)
def test_two_captures_give_equal_programs(make: MakeRunner, mode: str) -> None:
    runner = make(cudagraph_mode=mode)
    first = dict(runner.graphs.programs)
    StepCases(runner, 3)
    runner.graphs.programs.clear()
    runner.capture()
    assert first.keys() == runner.graphs.programs.keys()
    for key, program in runner.graphs.programs.items():
        assert program == first[key] and program is not first[key], key
    by_size = sorted((key for key in first if key.program is ProgramName.FRAME), key=str)
    assert first[by_size[0]] != first[by_size[1]]


def test_the_model_is_silent_in_replay(make: MakeRunner) -> None:
    """No function of model or sampling is called in a replayed step, decode or mixed."""
    runner = make(cudagraph_mode="FULL_AND_PIECEWISE")
    cases = StepCases(runner, 0)
    root = Path(declaim.__file__).parent
    called: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(root):
            called.add(path.relative_to(root).parts[0])

    for plan in (cases.decode(3), cases.mixed(13)):
        called.clear()
        sys.setprofile(note)
        try:
            runner.step(plan)
        finally:
            sys.setprofile(None)
        assert "ops" in called and not called & {"model", "sampling"}


def test_programs_list_every_op(checkpoint: Callable[[str], Path]) -> None:
    """In the order of the eager step, but for what joins ranks: there is one."""
    directory, platform = checkpoint("micro"), SpyPlatform()
    stage = FrameStage(**SIZES, cudagraph_mode="FULL_AND_PIECEWISE")  # type: ignore[arg-type]
    runner = build_runner(directory, load_model_config(directory), stage, platform)
    runner.capture()
    cases = StepCases(runner, 0)
    for plan in (cases.decode(3), cases.mixed(13)):
        platform.spy.asked.clear()
        run(runner, plan, eager=True)
        asked = [name for name in platform.spy.asked if name != "all_reduce"]
        route = runner.graphs.route(plan.kind, exact_size(plan))
        keys = [each.key for each in route.passes]
        listed = [call.name for key in keys for call in program_of(runner, key).calls]
        assert listed == asked
        platform.spy.asked.clear()
        run(runner, plan, eager=False)
        assert platform.spy.asked == asked


def program_of(runner: Runner, key: GraphKey | None) -> Program:
    assert key is not None
    program = runner.graphs.programs[key]
    assert isinstance(program, Program)
    return program


def test_pieces_stand_between_stateful_ops(make: MakeRunner) -> None:
    runner = make(cudagraph_mode="PIECEWISE")
    stateful = {"causal_conv", "delta_rule", "attend"}
    backbone = program_of(runner, GraphKey(ProgramName.BACKBONE, 8))
    between = [piece.calls[0].name for piece in backbone.pieces if piece.stateful]
    layers = runner.config.backbone.layer_types
    assert set(between) == stateful
    assert len(between) == sum(1 if kind == "full_attention" else 2 for kind in layers)
    for piece in backbone.pieces:
        assert {call.name for call in piece.calls} & stateful == (
            {piece.calls[0].name} if piece.stateful else set()
        )
    assert tuple(call for piece in backbone.pieces for call in piece.calls) == backbone.calls
    frame = program_of(runner, GraphKey(ProgramName.FRAME, 2))
    assert len(frame.pieces) == 1
    assert str(frame.calls[1]).startswith("gather_rows [40, 64] [2] -> [2, 64]")
