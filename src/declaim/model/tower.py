"""The codebook tower: one pass through its layers makes the codes of a frame, one by one.

The tower attends over the whole stream: every layer keeps K and V of all rows.
"""

from collections.abc import Mapping

from torch import Tensor

from declaim.config.model import ModelConfig
from declaim.model.full_attention import AttentionGeometry, GatedAttention
from declaim.ops.table import Handle, OpTable
from declaim.state.device import DeviceState
from declaim.state.pages import Pages
from declaim.state.step import Spans


class TowerLayer:
    """One layer. Layer i reads code max(0, i - shared layers) of the frame being made."""

    def __init__(
        self, config: ModelConfig, ops: OpTable, weights: Mapping[str, Handle], index: int
    ) -> None:
        backbone, tower = config.backbone, config.tower
        norms = ("enorm", "hnorm", "attention_norm", "ffn_norm", "final_norm")
        names = ("table", "eh", "ffn_gate_up", "ffn_down", *norms)
        prefix = f"tower.{index}"
        self.ops = ops
        self.band = config.band
        self.eps = tower.norm_eps
        self.weights = {name: weights[f"{prefix}.{name}"] for name in names}
        self.code = max(0, index - tower.shared_layers)
        self.head: Handle | None = weights.get(f"{prefix}.head")
        geometry = AttentionGeometry(
            heads=backbone.num_attention_heads,
            kv_heads=backbone.num_key_value_heads,
            head_dim=backbone.head_dim,
            rotary=tower.rotary_dim,
            theta=tower.rope_base,
            interleaved=True,
            eps=tower.norm_eps,
        )
        self.attention = GatedAttention(geometry, ops, weights, f"{prefix}.attention")

    def norm(self, x: Tensor, name: str) -> Tensor:
        """The layer's zero-centred norm of that name."""
        return self.ops.rms_norm(x, self.weights[name], eps=self.eps, zero_centred=True)

    def __call__(
        self, h: Tensor, frames: Tensor, extra: Tensor | None, spans: Spans, pages: Pages | None
    ) -> Tensor:
        """h [n, dim], frames int32 [n, 1 + Q] being made or known -> [n, dim]."""
        ops, w = self.ops, self.weights
        x = ops.tower_input(
            h,
            frames,
            w["table"],
            extra,
            w["enorm"],
            w["hnorm"],
            column=1 + self.code,
            band=self.band,
            eps=self.eps,
        )
        x = ops.linear(x, w["eh"])
        x = self.attention(self.norm(x, "attention_norm"), x, spans, pages)
        inner = ops.linear(self.norm(x, "ffn_norm"), w["ffn_gate_up"], epilogue="silu_mul")
        x = ops.all_reduce(ops.linear(inner, w["ffn_down"], x, epilogue="add"))
        return self.norm(x, "final_norm")


class Tower:
    """Shared layers, then one residual layer with a head for each code but the first."""

    def __init__(self, config: ModelConfig, ops: OpTable, weights: Mapping[str, Handle]) -> None:
        self.config = config
        self.ops = ops
        self.codebooks = weights["codebooks"]
        count = config.tower.layers
        self.layers = tuple(TowerLayer(config, ops, weights, index) for index in range(count))

    def extra(self, rows: Tensor) -> Tensor:
        """The input rows' codes that the backbone did not take, for shared layer 0. [n, dim]"""
        first = self.config.tower.backbone_codebooks + 1
        return self.ops.extra_codes(rows, self.codebooks, band=self.config.band, first=first)

    def layer_pages(self, state: DeviceState | None) -> tuple[Pages | None, ...]:
        """Each layer's pages, in layer order."""
        if state is None:
            return (None,) * len(self.layers)
        return state.pages[-len(self.layers) :]

    def known_frames(
        self, h: Tensor, rows: Tensor, labels: Tensor, spans: Spans, state: DeviceState | None
    ) -> list[Tensor]:
        """Rows whose next frame is known: each residual layer's output [n, dim], in layer order.

        h [n, dim] backbone rows, rows and labels int32 [n, 1 + Q]. Writes K and V into the state.
        """
        extra: Tensor | None = self.extra(rows)
        outputs = []
        for layer, pages in zip(self.layers, self.layer_pages(state), strict=True):
            h = layer(h, labels, extra, spans, pages)
            extra = None
            if layer.head is not None:
                outputs.append(h)
        return outputs
