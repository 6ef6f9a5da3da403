"""The gated delta-net layer: convolution and recurrent state in place of K and V."""

from collections.abc import Mapping

from torch import Tensor

from declaim.config.model import BackboneConfig
from declaim.ops.table import Handle, OpTable
from declaim.state.recurrent import RecurrentState
from declaim.state.step import Spans


class DeltaAttention:
    """q, k, v through a causal convolution, the delta rule, then a norm gated by z."""

    def __init__(
        self, config: BackboneConfig, ops: OpTable, weights: Mapping[str, Handle], prefix: str
    ) -> None:
        self.ops = ops
        self.weights = {
            name: weights[f"{prefix}.{name}"]
            for name in ("qkvz", "ba", "conv", "a_log", "dt_bias", "norm", "out")
        }
        self.widths = (config.convolution_channels, config.linear_value_width)
        self.heads = (config.linear_num_key_heads, config.linear_num_value_heads)
        self.head_widths = (config.linear_key_head_dim, config.linear_value_head_dim)
        self.eps = config.rms_norm_eps

    def __call__(
        self, x: Tensor, base: Tensor, spans: Spans, state: RecurrentState | None
    ) -> Tensor:
        """base + the layer's output for the normed rows x [n, hidden]; updates the slots' state."""
        ops, w = self.ops, self.weights
        qkv, z = ops.linear(x, w["qkvz"]).split(self.widths, dim=-1)
        b, a = ops.linear(x, w["ba"]).chunk(2, dim=-1)
        tail, matrix = (None, None) if state is None else (state.tail, state.matrix)
        o = ops.delta_rule(
            ops.causal_conv(qkv, w["conv"], spans, tail),
            b,
            a,
            w["a_log"],
            w["dt_bias"],
            spans,
            matrix,
            heads=self.heads,
            widths=self.head_widths,
        )
        y = ops.gated_norm(o, z, w["norm"], eps=self.eps)
        return ops.all_reduce(ops.linear(y, w["out"], base, epilogue="add"))
