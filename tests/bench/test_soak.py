"""Random traffic: clean on an engine that is right, and loud about each thing that is not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from declaim.bench.soak import (
    GROWTH_ALLOWED,
    STAGE,
    SoakReport,
    Traffic,
    lone_runs,
    request_pool,
    soak,
)
from declaim.config.checkpoint import load_model_config
from declaim.contracts.step import StepPlan, StepResult
from declaim.engine.frames import FrameEngine, load_frame_engine

Checkpoints = Callable[[str], Path]


def traffic_on(checkpoint: Checkpoints, seed: int = 3) -> tuple[FrameEngine, Traffic]:
    """Traffic of ten requests on an eager engine."""
    directory = checkpoint("micro")
    config = load_model_config(directory)
    pool = request_pool(config, seed, count=6)
    engine = load_frame_engine(
        directory, STAGE.replaced(cudagraph_mode="NONE"), config, preempt_every=7
    )
    traffic = Traffic(engine, pool, lone_runs(directory, pool), seed)
    traffic.most_unfinished = 5
    return engine, traffic


def run(traffic: Traffic, steps: int) -> SoakReport:
    for _ in range(steps):
        traffic.step(arriving=True)
    while traffic.unfinished:
        traffic.step(arriving=False)
    return traffic.report


def test_a_run_of_seconds(checkpoint: Checkpoints) -> None:
    minutes: list[int] = []
    report = soak(
        checkpoint("micro"),
        minutes=0.05,
        seed=1,
        requests=5,
        on_minute=lambda made: minutes.append(made.steps),
    )
    assert report.failures == []
    counts = report.counts
    assert counts["submitted"] == counts["finished"] + counts["aborted"] > 0
    assert counts["graph_replays"] > 0 and counts["graph_misses"] == 0
    assert len(report.memory) in (3, 4) and minutes == []
    facts = report.as_json()
    assert facts["finished"] == counts["finished"] and facts["seed"] == 1
    assert facts["stage"]["max_num_seqs"] == STAGE.max_num_seqs


def test_everything_happens(checkpoint: Checkpoints) -> None:
    """The traffic of a seed is the same each time; it aborts, holds, preempts and shares."""
    first, second = (run(traffic_on(checkpoint, seed=5)[1], 80) for _ in range(2))
    assert first.failures == second.failures == []
    assert first.counts == second.counts
    for name in ("finished", "aborted", "holds", "mixed_steps", "decode_steps"):
        assert first.counts[name] > 0, name


def test_a_wrong_code_is_found(checkpoint: Checkpoints) -> None:
    engine, traffic = traffic_on(checkpoint)
    inner, steps = engine.runner.step, iter(range(10_000))

    def step(plan: StepPlan) -> StepResult:
        result = inner(plan)
        if next(steps) == 20:
            next(iter(result.frames.values())).row[-1] ^= 1
        return result

    engine.runner.step = step  # type: ignore[method-assign]
    report = run(traffic, 60)
    assert len(report.failures) == 1 and "differs" in report.failures[0]


def test_books_that_do_not_balance_are_found(checkpoint: Checkpoints) -> None:
    engine, traffic = traffic_on(checkpoint)
    run(traffic, 5)
    engine.scheduler._memory._free_pages.pop()
    with pytest.raises(AssertionError, match="pages do not balance"):
        traffic.step(arriving=True)


@pytest.mark.parametrize(
    ("memory", "found"),
    [
        (np.zeros(400), []),
        (np.where(np.arange(400) < 100, 0.0, 500.0), []),
        (np.where(np.arange(400) < 300, 0.0, GROWTH_ALLOWED + 1), ["memory grew"]),
        (np.linspace(0.0, GROWTH_ALLOWED - 1, 400), ["memory rises"]),
        (np.linspace(0.0, 100.0, 400), ["memory grew", "memory rises"]),
        (np.linspace(100.0, 0.0, 400), []),
        (np.arange(400) % 7 * 3.0, []),
    ],
)
def test_memory_after_the_warm_up(memory: np.ndarray, found: list[str]) -> None:
    report = SoakReport(7.0, 0, memory=[float(value) for value in memory], warm=100)
    report.judge_memory()
    assert [
        failure[: len(start)] for failure, start in zip(report.failures, found, strict=True)
    ] == (found)
