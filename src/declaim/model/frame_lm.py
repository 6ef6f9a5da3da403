"""The whole network as the three passes of a step: backbone, tower fill, frame.

Knows no request, platform or file. What it computes with (the op table, the weights, the sampler)
comes by constructor; what it computes on (step tensors, state) by argument.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from declaim.config.model import ModelConfig
from declaim.model.backbone import Backbone
from declaim.model.tower import Tower
from declaim.ops.table import Handle, OpTable
from declaim.state.device import DeviceState
from declaim.state.frames import FrameState
from declaim.state.step import Spans, StepTensors


class Sampler(Protocol):
    """How the draws of a frame are made; every method works on all streams at once.

    slot int32 [streams] says whose parameters, seed, counter and window count.
    """

    def noise(self, state: FrameState, slot: Tensor) -> Tensor:
        """The noise of all draws of the frame, made before any of them."""
        ...

    def main(
        self, logits: Tensor, noise: Tensor, state: FrameState, slot: Tensor, out: Tensor
    ) -> None:
        """Draw main token and code 0 into out int32 [streams, 2]."""
        ...

    def code(
        self,
        index: int,
        logits: Tensor,
        noise: Tensor,
        state: FrameState,
        slot: Tensor,
        out: Tensor,
    ) -> None:
        """Draw code index + 1 from residual head `index` into out int32 [streams]."""
        ...


class FrameLM:
    """Backbone, tower and heads of one checkpoint."""

    def __init__(
        self,
        config: ModelConfig,
        ops: OpTable,
        weights: Mapping[str, Handle],
        sampler: Sampler,
    ) -> None:
        self.config = config
        self.ops = ops
        self.sampler = sampler
        self.lm_head = weights["lm_head"]
        self.backbone = Backbone(config, ops, weights)
        self.tower = Tower(config, ops, weights)

    def run_backbone(self, step: StepTensors, state: DeviceState) -> None:
        """All rows through the backbone, into step.hidden; decode rows are gathered first."""
        self.ops.gather_rows(state.frames.last, step.last_slot, keep=True, out=step.rows)
        self.backbone(step.rows, step.every, state, out=step.hidden)

    def run_fill(self, step: StepTensors, state: DeviceState) -> None:
        """The labelled rows through the tower, teacher-forced, for their K and V alone."""
        spans = step.fill
        assert spans.index is not None
        h = self.ops.gather_rows(step.hidden, spans.index)
        rows = self.ops.gather_rows(step.rows, spans.index)
        labels = self.ops.gather_rows(step.labels, spans.index)
        self.tower.known_frames(h, rows, labels, spans, state)

    def known_logits(self, rows: Tensor, labels: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
        """Logits of whole sequences whose frames are known; differentiable if the op table is.

        rows int32 [n, 1 + Q] and labels, the frame after each -> main [n, candidates] and codes
        [Q - 1, n, V]. spans: of every sequence, without state.
        """
        hidden = self.backbone(rows, spans, None)
        main = self.ops.linear(hidden, self.lm_head)
        outputs = self.tower.known_frames(hidden, rows, labels, spans, None)
        heads = [layer.head for layer in self.tower.layers if layer.head is not None]
        codes = [self.ops.linear(h, head) for h, head in zip(outputs, heads, strict=True)]
        return main, torch.stack(codes)

    def run_frame(self, step: StepTensors, state: DeviceState) -> None:
        """One frame for each sampled row, into step.frames, then into the slots' state."""
        ops, spans = self.ops, step.sampled
        slot, index = spans.slot, spans.index
        assert slot is not None and index is not None
        noise = self.sampler.noise(state.frames, slot)
        h = ops.gather_rows(step.hidden, index)
        ops.linear(h, self.lm_head, out=step.main_logits)
        self.sampler.main(step.main_logits, noise, state.frames, slot, step.frames[:, :2])
        extra: Tensor | None = self.tower.extra(ops.gather_rows(step.rows, index))
        for layer, pages in zip(self.tower.layers, self.tower.layer_pages(state), strict=True):
            h = layer(h, step.frames, extra, spans, pages)
            extra = None
            if layer.head is not None:
                logits = step.code_logits[layer.code]
                ops.linear(h, layer.head, out=logits)
                out = step.frames[:, 2 + layer.code]
                self.sampler.code(layer.code, logits, noise, state.frames, slot, out)
        ops.write_frame(step.frames, slot, state.frames)
