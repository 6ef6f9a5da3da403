"""Checkpoints, runners and engines that many tests share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # read when torch loads: threads sleep, not spin

import torch
from poisoned import PoisonedEngine
from torch import Tensor

from declaim.config.checkpoint import load_model_config
from declaim.config.schema import FrameStage
from declaim.contracts.request import SamplingParams
from declaim.contracts.step import Admission, PageGrant, Span, StepKind, StepPlan
from declaim.nano.make import make_checkpoint
from declaim.platforms.cpu.platform import CpuPlatform
from declaim.runner.runner import Runner
from declaim.runner.worker import build_runner


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Every test starts with one torch thread and leaves the number as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A random checkpoint of a shape, codec included, made once a run."""
    made: dict[str, Path] = {}

    def get(shape: str) -> Path:
        if shape not in made:
            made[shape] = tmp_path_factory.mktemp("checkpoints") / shape
            make_checkpoint(shape, 0, made[shape])
        return made[shape]

    return get


@pytest.fixture(scope="session")
def build() -> Callable[..., Runner]:
    """A runner on the CPU, without graphs unless asked; options are the stage's."""

    def get(directory: Path, **options: object) -> Runner:
        defaults = {"max_num_seqs": 4, "max_model_len": 256, "cudagraph_mode": "NONE"}
        stage = FrameStage(**{**defaults, **options})  # type: ignore[arg-type]
        return build_runner(directory, load_model_config(directory), stage, CpuPlatform())

    return get


@pytest.fixture(scope="session")
def run_rows() -> Callable[[Runner, Tensor, list[int]], Tensor]:
    """Hidden rows of one request's known rows, computed in the given cuts, in slot 0."""

    def get(runner: Runner, rows: Tensor, cuts: list[int]) -> Tensor:
        assert sum(cuts) == len(rows)
        array = rows.to(torch.int32).numpy()
        pages = tuple(range(-(-len(rows) // runner.state.layout.page_size)))
        hidden, done = [], 0
        for cut in cuts:
            end = done + cut
            last = end == len(rows)
            span = Span(
                request_id="a",
                slot=0,
                first=done,
                count=cut,
                sampled=last,
                rows=array[done:end],
                next_row=None if last else array[end],
            )
            first = done == 0
            runner.step(
                StepPlan(
                    kind=StepKind.PREFILL,
                    spans=(span,),
                    admissions=(Admission(0, SamplingParams(), 0, 0, ()),) if first else (),
                    page_grants=(PageGrant(0, pages),) if first else (),
                )
            )
            assert runner.tensors is not None
            hidden.append(runner.tensors.hidden.clone())
            done = end
        return torch.cat(hidden)

    return get


@pytest.fixture
def make_engine(checkpoint: Callable[[str], Path]) -> Callable[..., PoisonedEngine]:
    """A poisoned engine on `micro`; options are the stage's and PoisonedEngine's."""

    def get(**options: Any) -> PoisonedEngine:
        return PoisonedEngine(checkpoint("micro"), **options)

    return get
