"""Drives the equivalence sets: one loaded engine a mode, one scheduler a case."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from declaim.bench.equivalence import (
    MODES,
    SETS,
    TOLERANCE,
    Case,
    CaseResult,
    Trace,
    cases,
    chunker,
    compare,
    request_set,
    run_case,
    set_fingerprint,
)
from declaim.bench.report import environment
from declaim.checkpoint.files import fingerprint
from declaim.config.checkpoint import load_model_config
from declaim.config.model import ModelConfig
from declaim.config.schema import FrameStage
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import FrameRequest
from declaim.engine.frames import FrameEngine, load_frame_engine
from declaim.scheduler.scheduler import Scheduler

REFERENCE = Case("alone, whole", streams=1)


@dataclass(frozen=True)
class Verification:
    """All results, and everything that they depend on."""

    results: tuple[CaseResult, ...]
    facts: Mapping[str, Any]

    @property
    def equal(self) -> bool:
        """Whether no case differs."""
        return all(result.difference is None for result in self.results)

    def as_json(self) -> dict[str, Any]:
        """Facts, verdict and one object a case."""
        rows = [asdict(result) for result in self.results]
        return {**self.facts, "equal": self.equal, "results": rows}


def verify(
    directory: Path,
    *,
    set_name: str,
    modes: Sequence[str],
    seed: int,
    on_result: Callable[[CaseResult], None],
) -> Verification:
    """Run a set in every mode and case against each request's lone eager run.

    Raises InvalidRequest for an unknown set or mode, and whatever loading the model raises.
    """
    for name, value, known in (
        ("set", set_name, tuple(SETS)),
        *(("modes", m, MODES) for m in modes),
    ):
        if value not in known:
            raise InvalidRequest(
                f"{name} must be one of {', '.join(known)}, not {value!r}",
                param=name,
                limit=known,
                value=value,
            )
    config = load_model_config(directory)
    requests = request_set(config, SETS[set_name], seed)
    bench = _Bench(directory, config, set_name, requests)
    engine = bench.load("NONE")
    tolerance = 0.0 if engine.runner.model.ops.exact else TOLERANCE["float32"]
    reference = bench.run(engine, REFERENCE)
    results = []
    for mode in modes:
        engine = bench.load(mode)
        for case in cases(SETS[set_name]):
            results.append(bench.compared(engine, case, mode, reference, tolerance))
            on_result(results[-1])
    facts = {
        "environment": environment(threads=bench.stage.threads),
        "checkpoint": fingerprint(directory),
        "set": set_name,
        "set_sha256": set_fingerprint(requests),
        "seed": seed,
        "requests": len(requests),
        "modes": list(modes),
        "tolerance": tolerance,
        "stage": bench.stage.model_dump(mode="json"),
    }
    return Verification(tuple(results), facts)


class _Bench:
    """One set on one checkpoint."""

    def __init__(
        self, directory: Path, config: ModelConfig, set_name: str, requests: list[FrameRequest]
    ) -> None:
        longest = max(len(request.prompt.rows) + request.max_frames for request in requests)
        self.directory = directory
        self.config = config
        self.requests = requests
        self.stage = FrameStage(
            max_num_seqs=SETS[set_name].streams,
            max_num_batched_tokens=64,
            max_model_len=min(longest, config.context),
        )

    def load(self, mode: str) -> FrameEngine:
        """An engine in a graph mode, captured."""
        stage = self.stage.replaced(cudagraph_mode=mode)
        return load_frame_engine(self.directory, stage, self.config)

    def run(self, engine: FrameEngine, case: Case) -> dict[str, Trace]:
        """All requests through one case, on a scheduler of its own."""
        limits = replace(
            engine.scheduler.limits,
            max_num_seqs=case.streams,
            prefixes=engine.scheduler.limits.prefixes if case.prefixes else 0,
        )
        engine.scheduler = Scheduler(
            limits,
            self.config.row_width,
            chunker(case.cut),
            preempt_every=case.preempt_every,
        )
        return run_case(engine, self.requests, case.arrivals)

    def compared(
        self,
        engine: FrameEngine,
        case: Case,
        mode: str,
        reference: Mapping[str, Trace],
        tolerance: float,
    ) -> CaseResult:
        """One case against the reference; the first difference of any request."""
        graphs = engine.runner.graphs
        before = (graphs.replays.total(), graphs.misses.total())
        found = self.run(engine, case)
        replays, misses = graphs.replays.total() - before[0], graphs.misses.total() - before[1]
        largest, difference = 0.0, None
        for request in self.requests:
            gap, wrong = compare(request.id, reference[request.id], found[request.id], tolerance)
            largest = max(largest, gap)
            difference = difference or wrong
        return CaseResult(
            name=case.name,
            mode=mode,
            requests=len(self.requests),
            draws=sum(len(trace.main) for trace in found.values()),
            largest=largest,
            replays=replays,
            misses=misses,
            difference=difference,
        )
