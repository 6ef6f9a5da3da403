"""Where the time of a step goes: an op table that clocks every op, by phase of the network.

The clock costs about a microsecond an op and is in the numbers.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

from declaim.model.frame_lm import FrameLM
from declaim.ops.table import Collectives, Handle, OpTable
from declaim.platforms.cpu.platform import CpuPlatform

PHASES = ("embed", "backbone", "tower", "heads and draws", "noise", "scheduler", "other")

FRAME_OPS = frozenset({"draw_main", "draw_code", "write_frame"})


class PhaseClock:
    """Seconds by phase since the last `take`."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, phase: str, seconds: float) -> None:
        """Count seconds to a phase."""
        self.seconds[phase] += seconds

    def take(self) -> dict[str, float]:
        """The seconds so far; starts again from nothing."""
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken


class ClockedOps:
    """An op table that passes every call on and counts its time to a phase.

    `embed` begins the backbone and `extra_codes` the tower; linear products with a head's weight
    and the draws count apart.
    """

    def __init__(self, ops: OpTable, clock: PhaseClock, heads: Sequence[Handle]) -> None:
        self.ops = ops
        self.clock = clock
        self.heads = heads
        self.phase = "backbone"

    def __getattr__(self, name: str) -> Any:
        op = getattr(self.ops, name)
        if name.startswith("prepare_") or not callable(op):
            return op
        return self._clocked(name, op)

    def _clocked(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            phase = self._phase(name, arguments)
            start = time.perf_counter()
            result = op(*arguments, **options)
            self.clock.add(phase, time.perf_counter() - start)
            return result

        return call

    def _phase(self, name: str, arguments: tuple[Any, ...]) -> str:
        if name == "embed":
            self.phase = "backbone"
            return "embed"
        if name == "noise":
            return "noise"
        if name == "extra_codes":
            self.phase = "tower"
        if name in FRAME_OPS or (
            name == "linear" and any(arguments[1] is head for head in self.heads)
        ):
            return "heads and draws"
        return self.phase


class ClockedPlatform(CpuPlatform):
    """The CPU platform with clocked ops."""

    def __init__(self, clock: PhaseClock) -> None:
        self.clock = clock
        self.heads: list[Handle] = []

    def op_table(self, collectives: Collectives) -> OpTable:
        """The platform's own table behind the clock."""
        return cast(OpTable, ClockedOps(super().op_table(collectives), self.clock, self.heads))

    def mark_heads(self, model: FrameLM) -> None:
        """Tell the clock which products are heads."""
        self.heads.append(model.lm_head)
        self.heads.extend(layer.head for layer in model.tower.layers if layer.head is not None)
