"""Replay equivalence: the same requests through every mode, cut, batch and interruption.

Each request's lone, whole, eager run is the reference; every other way to run it must give the
same frames and the same logits: bit for bit where the op table is exact, else within a stated
tolerance. Any model directory, any platform that the engine takes.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declaim.config.model import ModelConfig
from declaim.contracts.request import FrameRequest, Prompt
from declaim.engine.frames import FrameEngine

Floats = NDArray[np.float32]

MODES = ("NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE")
CUTS: Mapping[str, tuple[int, ...]] = {
    "ones": (1,),
    "twos": (2,),
    "threes": (3,),
    "sevens": (7,),
    "17, 3, 40, 30": (17, 3, 40, 30),
}
TOLERANCE: Mapping[str, float] = {"float32": 1e-3, "bfloat16": 5e-2}
"""Largest absolute difference of a logit where a table does not promise bytes, by dtype."""


@dataclass(frozen=True)
class RequestSet:
    """How many requests there are and how large: (least, most) prompt rows and frames."""

    requests: int
    prompt_rows: tuple[int, int]
    frames: tuple[int, int]
    streams: int


SETS: Mapping[str, RequestSet] = {
    "short": RequestSet(requests=6, prompt_rows=(1, 60), frames=(4, 12), streams=3),
    "long": RequestSet(requests=24, prompt_rows=(1, 200), frames=(8, 80), streams=8),
}


@dataclass
class Trace:
    """What one request gave: frames int32 [n, 1 + Q], and the logits of every draw made for it.

    main: one float32 [candidates] a draw; codes: one float32 [Q - 1, V] a draw.
    """

    frames: list[NDArray[np.int32]] = field(default_factory=list)
    main: list[Floats] = field(default_factory=list)
    codes: list[Floats] = field(default_factory=list)


@dataclass(frozen=True)
class Difference:
    """The first draw in which two runs of a request differ; logits as (reference, found)."""

    request_id: str
    draw: int
    what: str
    largest: float
    reference: tuple[float, ...]
    found: tuple[float, ...]


@dataclass(frozen=True)
class CaseResult:
    """One way to run the set. draws: compared draws. replays, misses: of graphs."""

    name: str
    mode: str
    requests: int
    draws: int
    largest: float
    replays: int
    misses: int
    difference: Difference | None


@dataclass(frozen=True)
class Case:
    """A way to run requests: options of the stage, forced cuts and preemption, arrivals.

    arrivals: steps before the next request is submitted; 0 submits all at once.
    """

    name: str
    streams: int
    cut: tuple[int, ...] | None = None
    preempt_every: int | None = None
    prefixes: bool = False
    arrivals: int = 0


def request_set(config: ModelConfig, chosen: RequestSet, seed: int) -> list[FrameRequest]:
    """The set's requests: text, speech and text rows; every third one shares a voice prefix."""
    generator = np.random.default_rng(seed)
    shared = _rows(config, generator, chosen.prompt_rows[1] // 3 or 1)
    requests = []
    for index in range(chosen.requests):
        span = generator.integers(chosen.prompt_rows[0], chosen.prompt_rows[1] + 1)
        own = _rows(config, generator, int(span))
        prefix = 0
        if index % 3 == 0 and len(own) > 1:
            own = np.concatenate([shared, own])[: max(chosen.prompt_rows[1], len(shared) + 1)]
            prefix = len(shared)
        frames = int(generator.integers(chosen.frames[0], chosen.frames[1] + 1))
        sampling = config.generation.sampling
        if index % 4 == 3:
            sampling = replace(sampling, temperature=0.0)
        requests.append(
            FrameRequest(
                id=str(index),
                prompt=Prompt(np.ascontiguousarray(own), prefix),
                sampling=sampling,
                seed=seed * 1000 + index,
                max_frames=frames,
            )
        )
    return requests


def _rows(config: ModelConfig, generator: np.random.Generator, count: int) -> NDArray[np.int32]:
    """Text rows with a stretch of speech in the middle; the first and the last row are text."""
    tower, first = config.tower, config.band[0]
    rows = np.zeros((count, config.row_width), dtype=np.int32)
    rows[:, 0] = generator.integers(0, min(first, 256), count)
    speech = slice(max(1, count // 4), count // 2)
    shape = rows[speech, 1:].shape
    rows[speech, 1:] = generator.integers(0, tower.codebook_size, shape)
    rows[speech, 0] = first + rows[speech, 1]
    return rows


def run_case(
    engine: FrameEngine, requests: Sequence[FrameRequest], arrivals: int = 0
) -> dict[str, Trace]:
    """Run requests to their ends on an engine; traces by request id."""
    traces = {request.id: Trace() for request in requests}
    waiting = list(requests)
    steps = 0
    while waiting or engine.scheduler.has_work:
        while waiting and (arrivals == 0 or steps % arrivals == 0):
            engine.submit(waiting.pop(0))
            if arrivals:
                break
        report = engine.step()
        steps += 1
        if report is None:
            continue
        tensors = engine.runner.tensors
        assert tensors is not None
        main, codes = tensors.main_logits.cpu().numpy(), tensors.code_logits.cpu().numpy()
        for stream, span in enumerate(report.plan.sampled):
            traces[span.request_id].main.append(main[stream].copy())
            traces[span.request_id].codes.append(codes[:, stream].copy())
        for update in report.updates:
            if update.frame is not None:
                traces[update.request_id].frames.append(update.frame.row)
            if update.outcome is not None:
                engine.outcome(update.request_id)
    return traces


def compare(
    request_id: str, reference: Trace, found: Trace, tolerance: float
) -> tuple[float, Difference | None]:
    """The largest difference of any logit, and the first draw that is out of bounds.

    tolerance 0: every bit must agree. Draws after the first difference are not compared: they
    have another history.
    """
    largest = 0.0
    if len(reference.main) != len(found.main):
        draw = min(len(reference.main), len(found.main))
        counts = (float(len(reference.main)),), (float(len(found.main)),)
        return largest, Difference(request_id, draw, "count of draws", 0.0, *counts)
    for draw in range(len(reference.main)):
        for what, ours, theirs in _parts(reference, found, draw):
            if ours.tobytes() == theirs.tobytes():
                continue
            gap = float(np.abs(ours.astype(np.float64) - theirs).max())
            largest = max(largest, gap)
            if not gap <= tolerance or (what == "frame" and gap):
                worst = int(np.abs(ours.astype(np.float64) - theirs).argmax())
                part = slice(max(0, worst - 2), worst + 3)
                left, right = ours.ravel()[part].tolist(), theirs.ravel()[part].tolist()
                difference = Difference(request_id, draw, what, gap, tuple(left), tuple(right))
                return largest, difference
    return largest, None


def _parts(
    reference: Trace, found: Trace, draw: int
) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    yield "main logits", reference.main[draw], found.main[draw]
    yield "code logits", reference.codes[draw], found.codes[draw]
    if draw < len(reference.frames) and draw < len(found.frames):
        yield "frame", reference.frames[draw], found.frames[draw]


def cases(chosen: RequestSet) -> Iterator[Case]:
    """Every way to run the set, but for the mode."""
    for streams in range(1, chosen.streams + 1):
        yield Case(f"{streams} at once", streams)
    for name, cut in CUTS.items():
        yield Case(f"cut {name}", chosen.streams, cut=cut)
    yield Case("arriving one by one", chosen.streams, arrivals=3)
    yield Case("preempted at every frame", chosen.streams, preempt_every=1)
    yield Case("preempted every 9 frames", chosen.streams, preempt_every=9, arrivals=2)
    yield Case("prefix kept and loaded", chosen.streams, prefixes=True, arrivals=5)


def chunker(cut: tuple[int, ...] | None) -> Callable[[FrameRequest, int], int] | None:
    """Chunk sizes that repeat, by computed position."""
    if cut is None:
        return None
    ends = np.cumsum(cut)

    def rows(request: FrameRequest, done: int) -> int:
        inside = done % int(ends[-1])
        return int(ends[np.searchsorted(ends, inside, side="right")]) - inside

    return rows


def set_fingerprint(requests: Sequence[FrameRequest]) -> str:
    """sha256 of all prompts, seeds and parameters: two runs that print it ran the same set."""
    digest = hashlib.sha256()
    for request in requests:
        facts = [request.id, request.seed, request.max_frames, repr(request.sampling)]
        digest.update(json.dumps(facts).encode())
        digest.update(request.prompt.rows.tobytes())
    return digest.hexdigest()
