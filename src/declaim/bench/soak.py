"""Hours of random traffic through one frame engine, every request held against its lone run.

Requests come, are held, aborted and preempted at random, by a seed. What finishes must have the
frames and the logits of its lone run, bit for bit; what is aborted, the first of its frames. The
books are checked after every step, and memory must be flat once the engine is warm.
"""

import hashlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declaim.bench.report import environment
from declaim.config.checkpoint import load_model_config
from declaim.config.model import ModelConfig
from declaim.config.schema import FrameStage
from declaim.contracts.request import FinishReason, FrameRequest, Prompt, SamplingParams
from declaim.engine.frames import FrameEngine, StepReport, load_frame_engine

POOL = 60
"""Distinct requests that the traffic is made of."""

STAGE = FrameStage(
    max_num_seqs=8,
    max_num_batched_tokens=48,
    max_model_len=192,
    kv_pages=32,
    prefix_cache_bytes=2**17,
)
"""Pages for about three of eight long requests, so that some are always preempted."""

PREEMPT_EVERY = 11
"""Frames after which a request is preempted even where pages are left."""

MOST_UNFINISHED = 40
LOADS = (0.03, 0.1, 0.3, 1.0)
"""Requests that arrive in a step, on average; the load changes every `LOAD_STEPS` steps."""

LOAD_STEPS = 300

WARM_SHARE, WARM_MOST = 0.25, 300.0
"""The first part of the time, and at most so many seconds, is warm-up."""

GROWTH_ALLOWED = 8.0
"""MiB by which resident memory may differ between the end of the warm-up and the end."""

TREND_ALLOWED = 1.0
"""MiB by which each quarter of the time after the warm-up may rise over the one before."""


@dataclass(frozen=True)
class Lone:
    """What a request gives when it runs alone and whole."""

    frames: NDArray[np.int32]
    logits: bytes
    reason: FinishReason


@dataclass
class SoakReport:
    """What happened. failures: empty if everything held. memory: resident MiB by second."""

    minutes: float
    seed: int
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    warm: int = 0

    @property
    def growth(self) -> float:
        """MiB between the first and the last tenth of the time after the warm-up."""
        after = self.memory[self.warm :]
        part = max(len(after) // 10, 1)
        return float(np.median(after[-part:]) - np.median(after[:part])) if after else 0.0

    @property
    def quarters(self) -> list[float]:
        """Median resident MiB of each quarter of the time after the warm-up."""
        after = np.array(self.memory[self.warm :])
        return [float(np.median(part)) for part in np.array_split(after, 4) if len(part)]

    def judge_memory(self) -> None:
        """Add a failure if memory has grown, at once or steadily."""
        if self.growth > GROWTH_ALLOWED:
            self.failures.append(f"memory grew by {self.growth:.1f} MiB, over {GROWTH_ALLOWED}")
        rises = np.diff(self.quarters)
        if len(rises) == 3 and bool((rises > TREND_ALLOWED).all()):
            self.failures.append(f"memory rises in every quarter: {self.quarters}")

    def as_json(self) -> dict[str, Any]:
        """Everything but the memory's own course, ready for JSON."""
        return {
            "minutes": self.minutes,
            "seed": self.seed,
            "steps": self.steps,
            **self.counts,
            "failures": self.failures,
            "memory_mib": round(self.memory[-1], 1),
            "memory_growth_mib": round(self.growth, 2),
            "memory_quarters_mib": [round(value, 2) for value in self.quarters],
            "stage": STAGE.model_dump(mode="json"),
            "environment": environment(threads=STAGE.threads),
        }


def resident() -> float:
    """Resident memory of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def request_pool(config: ModelConfig, seed: int, count: int) -> list[FrameRequest]:
    """Distinct requests: text and speech rows, three voices' prefixes, all kinds of sampling."""
    generator = np.random.default_rng(seed)
    voices = [_rows(config, generator, length) for length in (17, 32, 41)]
    samplings = (
        config.generation.sampling,
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.4, top_p=1.0, repetition_aware=False),
        SamplingParams(temperature=0.7, top_p=0.6, top_k=9, codebook_top_k=4),
    )
    pool = []
    for index in range(count):
        rows, prefix = _rows(config, generator, int(generator.integers(1, 100))), 0
        if index % 3 == 0:
            voice = voices[index // 3 % 3]
            text = np.zeros_like(rows)
            text[:, 0] = generator.integers(0, 256, len(text))
            rows, prefix = np.concatenate([voice, text]), len(voice)
        pool.append(
            FrameRequest(
                id=str(index),
                prompt=Prompt(rows, prefix),
                sampling=samplings[index % len(samplings)],
                seed=int(generator.integers(0, 2**62)),
                max_frames=int(generator.integers(1, 45)),
            )
        )
    return pool


def _rows(config: ModelConfig, generator: np.random.Generator, count: int) -> NDArray[np.int32]:
    """Text rows with a stretch of speech in the middle."""
    rows = np.zeros((count, config.row_width), dtype=np.int32)
    rows[:, 0] = generator.integers(0, 256, count)
    speech = slice(count // 4, count // 2)
    codes = generator.integers(0, config.tower.codebook_size, rows[speech, 1:].shape)
    rows[speech, 1:], rows[speech, 0] = codes, config.band[0] + codes[:, 0]
    return rows


class Digests:
    """A running digest of the logits drawn from, by request id."""

    def __init__(self, engine: FrameEngine) -> None:
        self.engine = engine
        self.by_id: dict[str, Any] = {}

    def note(self, report: StepReport) -> None:
        """Take in the logits of a step's sampled rows."""
        tensors = self.engine.runner.tensors
        assert tensors is not None
        main, codes = tensors.main_logits.cpu().numpy(), tensors.code_logits.cpu().numpy()
        for stream, span in enumerate(report.plan.sampled):
            digest = self.by_id.setdefault(span.request_id, hashlib.sha256())
            digest.update(main[stream].tobytes())
            digest.update(codes[:, stream].tobytes())

    def take(self, request_id: str) -> bytes:
        """The digest of a request that is over."""
        digest = self.by_id.pop(request_id, None)
        return b"" if digest is None else bytes(digest.digest())


def lone_runs(directory: Path, pool: Sequence[FrameRequest]) -> list[Lone]:
    """Every request alone, whole, eager, without prefixes."""
    config = load_model_config(directory)
    stage = STAGE.replaced(
        max_num_seqs=1,
        max_num_batched_tokens=STAGE.max_model_len,
        prefix_cache_bytes=0,
        cudagraph_mode="NONE",
    )
    engine = load_frame_engine(directory, stage, config)
    digests, made = Digests(engine), []
    for request in pool:
        engine.submit(request)
        for report in engine.steps():
            digests.note(report)
        outcome = engine.outcome(request.id)
        made.append(Lone(outcome.frames, digests.take(request.id), outcome.reason))
    return made


class Traffic:
    """Random arrivals, holds and aborts on one engine, and what must be true of their ends.

    most_unfinished: no more arrive while there are so many.
    """

    def __init__(
        self, engine: FrameEngine, pool: Sequence[FrameRequest], lone: Sequence[Lone], seed: int
    ) -> None:
        self.engine = engine
        self.pool = pool
        self.lone = lone
        self.chooser = random.Random(seed)
        self.digests = Digests(engine)
        self.unfinished: dict[str, int] = {}
        self.held: set[str] = set()
        self.load = LOADS[-1]
        self.most_unfinished = MOST_UNFINISHED
        self.report = SoakReport(0.0, seed)

    def step(self, *, arriving: bool) -> None:
        """Arrivals, holds and aborts, then a step, its ends and the books."""
        report, chooser = self.report, self.chooser
        if report.steps % LOAD_STEPS == LOAD_STEPS - 1:
            self.load = chooser.choice(LOADS)
        if arriving:
            self._arrive()
            self._disturb()
        else:
            self._release()
        made = self.engine.step()
        self.engine.scheduler.check()
        report.steps += 1
        if made is None:
            report.counts["idle_steps"] += 1
            self._release()
            return
        report.counts[f"{made.plan.kind}_steps"] += 1
        report.counts["rows"] += made.plan.rows
        self.digests.note(made)
        for update in made.updates:
            report.counts["frames"] += update.frame is not None
            if update.outcome is not None:
                self._ended(update.request_id, aborted=False)

    def _arrive(self) -> None:
        more = self.load / (1.0 + self.load)
        while len(self.unfinished) < self.most_unfinished and self.chooser.random() < more:
            index = self.chooser.randrange(len(self.pool))
            name = str(self.report.counts["submitted"])
            request = replace(self.pool[index], id=name, priority=self.chooser.randint(0, 1))
            self.report.counts["submitted"] += 1
            self.unfinished[name] = index
            self.engine.submit(request)

    def _disturb(self) -> None:
        draw = self.chooser.random()
        if self.unfinished and draw < 0.02:
            name = self.chooser.choice(list(self.unfinished))
            if draw < 0.01:
                assert self.engine.abort(name), f"{name} could not be aborted"
                self._ended(name, aborted=True)
            else:
                self.held.add(name)
                self.engine.scheduler.hold(name, True)
                self.report.counts["holds"] += 1
        elif draw > 0.97:
            self._release()

    def _release(self) -> None:
        for name in self.held:
            self.engine.scheduler.hold(name, False)
        self.held.clear()

    def _ended(self, name: str, *, aborted: bool) -> None:
        index = self.unfinished.pop(name)
        self.held.discard(name)
        outcome, lone = self.engine.outcome(name), self.lone[index]
        logits = self.digests.take(name)
        frames = lone.frames[: len(outcome.frames)] if aborted else lone.frames
        same = outcome.frames.tobytes() == frames.tobytes()
        if not aborted:
            same = same and logits == lone.logits and outcome.reason is lone.reason
        self.report.counts["aborted" if aborted else "finished"] += 1
        if not same:
            self.report.failures.append(f"request {name}, of the pool's {index}, differs")


def soak(
    directory: Path,
    *,
    minutes: float,
    seed: int,
    requests: int = POOL,
    graph_mode: str = "FULL_AND_PIECEWISE",
    on_minute: Callable[[SoakReport], None] = lambda report: None,
) -> SoakReport:
    """Traffic for so many minutes, then until all that came is over; stops at a failure.

    requests: how many distinct ones there are.
    """
    config = load_model_config(directory)
    pool = request_pool(config, seed, requests)
    lone = lone_runs(directory, pool)
    cutter = random.Random(seed + 1)
    engine = load_frame_engine(
        directory,
        STAGE.replaced(cudagraph_mode=graph_mode),
        config,
        chunk_rows=lambda request, done: cutter.randint(1, 64),
        preempt_every=PREEMPT_EVERY,
    )
    traffic = Traffic(engine, pool, lone, seed)
    report = traffic.report
    report.minutes = minutes
    seconds = minutes * 60.0
    start = time.monotonic()
    while (elapsed := time.monotonic() - start) < seconds and not report.failures:
        traffic.step(arriving=True)
        if elapsed >= len(report.memory):
            report.memory.append(resident())
            if elapsed < min(seconds * WARM_SHARE, WARM_MOST):
                report.warm = len(report.memory)
            if len(report.memory) % 60 == 0:
                on_minute(report)
    while traffic.unfinished and not report.failures:
        traffic.step(arriving=False)
    _finish(engine, report)
    return report


def _finish(engine: FrameEngine, report: SoakReport) -> None:
    """Counts of the whole run, and what must hold when nothing runs."""
    statistics = engine.scheduler.statistics()
    graphs = engine.runner.graphs
    counts: Mapping[str, int] = {
        "preemptions": statistics.preemptions,
        "prefix_hits": statistics.prefix_hits,
        "prefix_evictions": statistics.prefix_evictions,
        "graph_replays": graphs.replays.total(),
        "graph_misses": graphs.misses.total(),
    }
    report.counts.update(counts)
    if not report.failures and (statistics.pages_in_use or engine.scheduler.has_work):
        report.failures.append(f"pages in use without requests: {statistics.pages_in_use}")
    report.judge_memory()
