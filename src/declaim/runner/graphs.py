"""Which part of a step is replayed, at which padded size; the only place that acts on a mode.

A key is a program and a padded size, built from the kind of the plan by one function, which
capture and steps both use. All programs are captured before the first request, by driving the
passes of the real step with an empty plan: every row is a null row. What was not captured runs
eagerly and is counted.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from declaim.config.schema import FrameStage
from declaim.contracts.errors import InvalidConfig
from declaim.contracts.step import StepKind, StepPlan
from declaim.model.frame_lm import FrameLM
from declaim.platforms.base import Graph, GraphRecorder
from declaim.runner.batch import Batch, StepSize
from declaim.state.device import DeviceState
from declaim.state.step import StepTensors


class GraphMode(StrEnum):
    """What is replayed; otherwise a pass runs eagerly.

    PIECEWISE: pieces of backbone and fill between stateful ops, and the frame pass, of any step.
    FULL: a decode step whole, and the frame pass of other steps.
    FULL_AND_PIECEWISE: a decode step whole, other steps as PIECEWISE.
    """

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"


FALLBACKS: Mapping[GraphMode, tuple[GraphMode, ...]] = {
    GraphMode.NONE: (),
    GraphMode.PIECEWISE: (),
    GraphMode.FULL: (GraphMode.PIECEWISE,),
    GraphMode.FULL_AND_PIECEWISE: (GraphMode.FULL, GraphMode.PIECEWISE),
}
"""What is tried in turn where a platform cannot do a mode, before NONE."""


class ProgramName(StrEnum):
    """A pass of the step, and so what a graph is of.

    DECODE: a decode step whole, by streams. DECODE_BACKBONE: its backbone, whose spans are one row
    each, by rows. BACKBONE: that of a step with prompt rows, by rows. FILL: by labelled rows.
    FRAME: by streams.
    """

    DECODE = "decode"
    DECODE_BACKBONE = "decode_backbone"
    BACKBONE = "backbone"
    FILL = "fill"
    FRAME = "frame"


WHOLE = frozenset({ProgramName.DECODE, ProgramName.FRAME})
"""Programs that hold their stateful ops; the others are pieces between them."""


GATHERED = frozenset({ProgramName.FILL, ProgramName.FRAME})
"""Programs that serve steps of any number of rows and gather those they are about."""


@dataclass(frozen=True)
class GraphKey:
    """Which graph: a program and its padded size, in rows or in streams."""

    program: ProgramName
    size: int


@dataclass(frozen=True)
class CaptureSizes:
    """Padded sizes, ascending. rows: of backbone and fill. streams: of decode and frame."""

    rows: tuple[int, ...]
    streams: tuple[int, ...]


@dataclass(frozen=True)
class Pass:
    """One pass of a step. key: the graph to replay, if any. missed: none is large enough."""

    program: ProgramName
    key: GraphKey | None = None
    missed: bool = False


@dataclass(frozen=True)
class Route:
    """How a step of a kind runs: its padded sizes and its passes, in order."""

    kind: StepKind
    size: StepSize
    passes: tuple[Pass, ...]


def resolve_mode(
    asked: GraphMode, possible: frozenset[str], platform: str, *, strict: bool = False
) -> tuple[GraphMode, str | None]:
    """The mode that a platform can do, and a warning if it is not the one asked for.

    strict: raises InvalidConfig instead.
    """
    if asked is GraphMode.NONE or asked in possible:
        return asked, None
    chosen = next((mode for mode in FALLBACKS[asked] if mode in possible), GraphMode.NONE)
    message = f"cudagraph_mode {asked} is not available on platform {platform}"
    if strict:
        able = ", ".join(sorted({*possible, GraphMode.NONE}))
        raise InvalidConfig(
            f"{message}, which can do {able}", param="cudagraph_mode", limit=able, value=str(asked)
        )
    return chosen, f"{message}: {chosen} is used"


def capture_sizes(stage: FrameStage) -> CaptureSizes:
    """The sizes that a stage's graphs are captured at.

    Raises InvalidConfig for a size over max_num_batched_tokens.
    """
    most = stage.max_num_batched_tokens
    streams = min(stage.max_num_seqs, most)
    given = stage.cudagraph_capture_sizes
    if given is None:
        return CaptureSizes(
            rows=_up_to(most, [1, 2, 4, *range(8, 65, 8), *range(128, most, 64)]),
            streams=_up_to(streams, [1, 2, 4, *range(8, streams, 8)]),
        )
    if max(given) > most:
        raise InvalidConfig(
            f"cudagraph_capture_sizes holds {max(given)}, over max_num_batched_tokens {most}",
            param="cudagraph_capture_sizes",
            limit=most,
            value=max(given),
        )
    return CaptureSizes(rows=tuple(sorted(given)), streams=_up_to(streams, given))


def _up_to(most: int, sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({*(size for size in sizes if size < most), most}))


def _padded(sizes: tuple[int, ...], count: int) -> int | None:
    """The smallest size that holds so many, if one does."""
    place = bisect_left(sizes, count)
    return sizes[place] if place < len(sizes) else None


def route_step(kind: StepKind, exact: StepSize, mode: GraphMode, sizes: CaptureSizes) -> Route:
    """The passes, keys and padded sizes of a step of a kind and of exact sizes."""
    decode = kind is StepKind.DECODE
    whole = mode in (GraphMode.FULL, GraphMode.FULL_AND_PIECEWISE)
    pieces = mode is GraphMode.PIECEWISE or (mode is GraphMode.FULL_AND_PIECEWISE and not decode)
    padded = {"rows": exact.rows, "labelled": exact.labelled, "streams": exact.streams}
    passes: list[Pass] = []

    def add(program: ProgramName, *counts: str, replayed: bool) -> None:
        listed = sizes.streams if program in WHOLE else sizes.rows
        size = _padded(listed, padded[counts[0]]) if replayed else None
        if size is None:
            passes.append(Pass(program, missed=replayed))
            return
        passes.append(Pass(program, GraphKey(program, size)))
        for count in counts:
            padded[count] = size

    if decode and whole:
        add(ProgramName.DECODE, "streams", "rows", replayed=True)
    else:
        backbone = ProgramName.DECODE_BACKBONE if decode else ProgramName.BACKBONE
        add(backbone, "rows", replayed=pieces)
        if exact.labelled:
            add(ProgramName.FILL, "labelled", replayed=pieces)
        if exact.streams:
            add(ProgramName.FRAME, "streams", replayed=mode is not GraphMode.NONE)
    return Route(kind, StepSize(**padded), tuple(passes))


class Graphs:
    """Captures and replays the passes of a model's step.

    replays, eager: passes so far by program. misses: eager ones that the mode would replay.
    bytes: of the buffers that all graphs share. warning: why the mode is not the one asked for.
    """

    def __init__(
        self,
        model: FrameLM,
        state: DeviceState,
        recorder: GraphRecorder,
        mode: GraphMode,
        sizes: CaptureSizes,
        warning: str | None = None,
    ) -> None:
        self.model = model
        self.state = state
        self.recorder = recorder
        self.mode = mode
        self.sizes = sizes
        self.warning = warning
        self.programs: dict[GraphKey, Graph] = {}
        self.bytes = 0
        self.replays: Counter[ProgramName] = Counter()
        self.eager: Counter[ProgramName] = Counter()
        self.misses: Counter[ProgramName] = Counter()

    def route(self, kind: StepKind, exact: StepSize) -> Route:
        """How a step of so many rows, labelled rows and streams runs."""
        return route_step(kind, exact, self.mode, self.sizes)

    def run(self, route: Route, step: StepTensors) -> None:
        """All passes of a step whose tensors were filled to the route's sizes."""
        for each in route.passes:
            program = None if each.key is None else self.programs.get(each.key)
            if program is not None:
                self.replays[each.program] += 1
                program.replay()
                continue
            self.eager[each.program] += 1
            if each.missed or each.key is not None:
                self.misses[each.program] += 1
            self._compute(each.program, step)

    def capture(self, batch: Batch) -> None:
        """Capture every program that a step can ask for, then replay the smallest of each.

        Nothing live may be in the state: null rows are computed.
        """
        smallest: dict[ProgramName, Route] = {}
        with torch.inference_mode():
            for kind, exact in self._reachable():
                route = self.route(kind, exact)
                for each in route.passes:
                    if each.key is not None and each.key not in self.programs:
                        self.programs[each.key] = self.record(
                            each.program, StepPlan(kind, ()), route.size, batch
                        )
                        smallest.setdefault(each.program, route)
            self.bytes = self.recorder.finish()
            for route in smallest.values():
                self.run(route, batch.fill(StepPlan(route.kind, ()), route.size))
        for counter in (self.replays, self.eager, self.misses):
            counter.clear()

    def record(self, program: ProgramName, plan: StepPlan, size: StepSize, batch: Batch) -> Graph:
        """One pass of a plan as a graph, not ready yet.

        Fill and frame pass gather from the whole buffers, however many rows a step has.
        """
        if program in GATHERED:
            size = replace(size, rows=batch.most_rows)
        step = batch.fill(plan, size)
        return self.recorder.record(lambda: self._compute(program, step), whole=program in WHOLE)

    def _reachable(self) -> Iterator[tuple[StepKind, StepSize]]:
        """Sizes of steps that together ask for every key, the smallest first."""
        for count in range(1, self.sizes.streams[-1] + 1):
            yield StepKind.DECODE, StepSize(rows=count, labelled=0, streams=count)
            yield StepKind.MIXED, StepSize(rows=count, labelled=0, streams=count)
        for count in self.sizes.rows:
            yield StepKind.MIXED, StepSize(rows=count, labelled=count, streams=0)

    def _compute(self, program: ProgramName, step: StepTensors) -> None:
        """One pass, eagerly or while it is recorded."""
        model, state = self.model, self.state
        if program is ProgramName.FILL:
            model.run_fill(step, state)
            return
        if program is not ProgramName.FRAME:
            model.run_backbone(step, state)
        if program in WHOLE:
            model.run_frame(step, state)
