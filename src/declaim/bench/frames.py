"""Step times of the frame stage by phase, and frames a second of one long request.

Runs in process on a random checkpoint; the numbers are of this machine and this moment.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from declaim.bench.phases import PHASES, ClockedPlatform, PhaseClock
from declaim.config.model import ModelConfig
from declaim.config.schema import FrameStage
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import FrameRequest, Prompt, SamplingParams
from declaim.contracts.step import StepKind
from declaim.engine.frames import FrameEngine, StepReport, load_frame_engine

TRIES = 100
"""Most requests to try for each one that runs to its last frame."""


@dataclass(frozen=True)
class Spread:
    """Milliseconds of many steps."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Spread":
        """The spread of step times given in seconds."""
        cuts = statistics.quantiles(seconds, n=10)
        return cls(1e3 * statistics.median(seconds), 1e3 * cuts[0], 1e3 * cuts[-1])


def bench_request(
    config: ModelConfig, name: str, *, rows: int, frames: int, seed: int
) -> FrameRequest:
    """A request of text rows that runs to its last frame unless it draws an end."""
    prompt = np.zeros((rows, config.row_width), dtype=np.int32)
    prompt[:, 0] = np.random.default_rng(seed).integers(0, 256, rows)
    return FrameRequest(
        id=name,
        prompt=Prompt(rows=prompt, prefix_rows=0),
        sampling=SamplingParams(),
        seed=seed,
        max_frames=frames,
    )


def long_seeds(engine: FrameEngine, *, rows: int, frames: int, count: int) -> list[int]:
    """Seeds, from 0 on, whose requests run for all their frames: the first `count`.

    Raises InvalidRequest where hardly any does: a small codebook draws its end early.
    """
    found: list[int] = []
    seed = 0
    while len(found) < count:
        if seed == TRIES * count:
            raise InvalidRequest(
                f"--frames: {len(found)} of {seed} requests ran for {frames} frames, the others "
                "ended before; ask for fewer",
                param="--frames",
                value=frames,
            )
        name = f"try {seed}"
        engine.submit(bench_request(engine.config, name, rows=rows, frames=frames, seed=seed))
        for _ in engine.steps():
            pass
        if len(engine.outcome(name).frames) == frames:
            found.append(seed)
        seed += 1
    return found


def step_phases(
    directory: Path, config: ModelConfig, *, streams: int, rows: int, steps: int
) -> dict[str, Any]:
    """Median decode step of `streams` requests, whole and by phase, in milliseconds.

    A closed loop: a request that ends is followed by another, so that all steps but those with
    prompt rows hold `streams` decode rows; `steps` of them are measured.
    """
    clock = PhaseClock()
    platform = ClockedPlatform(clock)
    stage = FrameStage(max_num_seqs=streams)
    engine = load_frame_engine(directory, stage, config, platform=platform)
    platform.mark_heads(engine.runner.model)
    whole: list[float] = []
    phases: dict[str, list[float]] = {phase: [] for phase in PHASES}
    asked = 0
    while len(whole) < steps:
        statistics_now = engine.scheduler.statistics()
        for _ in range(streams - statistics_now.running - statistics_now.waiting):
            engine.submit(bench_request(config, str(asked), rows=rows, frames=steps, seed=asked))
            asked += 1
        clock.take()
        report = engine.step()
        assert report is not None
        for update in report.updates:
            if update.outcome is not None:
                engine.outcome(update.request_id)
        if report.plan.kind is StepKind.DECODE:
            parts = phase_seconds(report, clock)
            whole.append(sum(report.seconds))
            for phase in PHASES:
                phases[phase].append(parts.get(phase, 0.0))
    medians = {phase: 1e3 * statistics.median(times) for phase, times in phases.items()}
    return {"streams": streams, "steps": len(whole), "step": Spread.of(whole), "phases": medians}


def phase_seconds(report: StepReport, clock: PhaseClock) -> dict[str, float]:
    """Seconds of one step by phase; `other` is what no op accounts for."""
    scheduling, running = report.seconds
    parts = clock.take()
    return {**parts, "scheduler": scheduling, "other": running - sum(parts.values())}


def long_request(
    directory: Path, config: ModelConfig, *, rows: int, frames: int, repeats: int
) -> dict[str, Any]:
    """One request of `rows` prompt rows and `frames` frames: frames a second, median of steps."""
    engine = load_frame_engine(directory, FrameStage(max_num_seqs=1), config)
    seeds = long_seeds(engine, rows=rows, frames=frames, count=repeats)
    decode: list[float] = []
    prefill: list[float] = []
    for seed in seeds:
        engine.submit(bench_request(config, f"run {seed}", rows=rows, frames=frames, seed=seed))
        start, first = time.perf_counter(), 0.0
        for report in engine.steps():
            if report.plan.kind is StepKind.DECODE:
                decode.append(sum(report.seconds))
            elif report.plan.sampled:
                first = time.perf_counter() - start
        prefill.append(first)
    step = Spread.of(decode)
    return {
        "prompt_rows": rows,
        "frames": frames,
        "seeds": seeds,
        "step": step,
        "frames_per_second": 1e3 / step.median,
        "prefill_seconds": statistics.median(prefill),
    }
