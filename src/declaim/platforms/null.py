"""The null platform: no arithmetic, scripted frames; for tests of all control code.

State, step tensors, recorder, graphs and runner are the real ones. Outputs of ops stay unwritten
but for the draws: `noise` writes what the script says of every draw, the draws read it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from declaim.ops.frames import write_frame
from declaim.ops.specs import op_specs
from declaim.ops.table import Band, Collectives, ExpertWeight, OpSpec, OpTable
from declaim.platforms.cpu.platform import CpuPlatform
from declaim.state.frames import FrameState, SamplingTensors

END = -1
"""What a script answers to draw 0 where the stream ends."""

Script = Callable[[int, int, int], int]
"""(seed, frame index, draw) to a code, taken modulo the codebook, or END; below 2**24."""


def default_script(seed: int, frame: int, draw: int) -> int:
    """Codes that differ by seed, frame and draw; a stream of 4 to 16 frames."""
    if draw == 0 and frame >= 4 + seed % 13:
        return END
    return (seed * 1000003 + frame * 8191 + draw * 131) % 2**20


@dataclass(frozen=True)
class ShapeHandle:
    """A weight of which only the shape is kept."""

    shape: tuple[int, ...]


class NullOps:
    """An op table that computes nothing; the ops that it does not name leave outputs unwritten."""

    name = "null"
    exact = True

    def __init__(self, collectives: Collectives, script: Script) -> None:
        self.collectives = collectives
        self.script = script
        self._specs = op_specs(collectives.size)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("prepare_"):
            return _shape_of
        if name in vars(self).get("_specs", ()):
            return partial(_unwritten, self._specs[name])
        raise AttributeError(name)

    def prepare_experts(
        self, gate_up: Sequence[ExpertWeight], down: Sequence[ExpertWeight]
    ) -> ShapeHandle:
        """Asks for no expert."""
        return ShapeHandle((len(gate_up), len(down)))

    def noise(
        self,
        seed: Tensor,
        counter: Tensor,
        slot: Tensor,
        *,
        draws: int,
        width: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """The script's answers, as float32, in the first column."""
        place = slot.long()
        streams = zip(seed[place].tolist(), counter[place].tolist(), strict=True)
        said = [[self.script(*stream, draw) for draw in range(draws)] for stream in streams]
        u = torch.empty(draws, len(said), width) if out is None else out
        u[:, :, 0] = torch.tensor(said, dtype=torch.float32).reshape(len(said), draws).T
        return u

    def draw_main(
        self,
        logits: Tensor,
        u: Tensor,
        parameters: SamplingTensors,
        window: Tensor,
        candidates: Tensor,
        slot: Tensor,
        *,
        band: Band,
        out: Tensor | None = None,
    ) -> Tensor:
        """A semantic token and its code, or the end and code 0."""
        said = u[0, :, 0].long()
        code = said.clamp(min=0) % (band[1] - band[0] + 1)
        end = candidates[(candidates < band[0]) | (candidates > band[1])][0]
        main = torch.where(said == END, end, band[0] + code)
        made = torch.stack([main, code], 1).int()
        return made if out is None else out.copy_(made)

    def draw_code(
        self,
        logits: Tensor,
        u: Tensor,
        parameters: SamplingTensors,
        slot: Tensor,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """The script's code."""
        made = (u[:, 0].long() % logits.shape[1]).int()
        return made if out is None else out.copy_(made)

    def write_frame(self, frames: Tensor, slot: Tensor, state: FrameState) -> None:
        """As every table: last frame, window and counter."""
        write_frame(frames, slot, state)


def _shape_of(weight: Tensor) -> ShapeHandle:
    return ShapeHandle(tuple(weight.shape))


def _unwritten(spec: OpSpec, *arguments: Any, out: Any = None, **keywords: Any) -> Any:
    """`out`, or new tensors by the op's spec."""
    if out is not None:
        return out
    device = arguments[0].device
    made = tuple(
        torch.empty(shape, dtype=dtype, device=device)
        for shape, dtype in spec.outputs(*arguments, **keywords)
    )
    return made[0] if len(made) == 1 else made


class NullPlatform(CpuPlatform):
    """Memory, recorder and page size of the CPU. graph_modes: those that it says it can."""

    name = "null"

    def __init__(
        self,
        script: Script = default_script,
        graph_modes: frozenset[str] = CpuPlatform.graph_modes,
    ) -> None:
        self.script = script
        self.graph_modes = graph_modes

    def op_table(self, collectives: Collectives) -> OpTable:
        """No arithmetic."""
        return cast(OpTable, NullOps(collectives, self.script))
