"""Gated attention over pages, in the backbone and in the tower: one structure, two RoPE layouts."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from declaim.ops.table import Handle, OpTable
from declaim.state.pages import Pages
from declaim.state.step import Spans


@dataclass(frozen=True)
class AttentionGeometry:
    """Heads and rotation of one kind of attention layer."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    theta: float
    interleaved: bool
    eps: float


class GatedAttention:
    """q, gate, k and v from one product; norm and RoPE on q and k; sigmoid gate on the result."""

    def __init__(
        self,
        geometry: AttentionGeometry,
        ops: OpTable,
        weights: Mapping[str, Handle],
        prefix: str,
    ) -> None:
        self.geometry = geometry
        self.ops = ops
        self.qgkv = weights[f"{prefix}.qgkv"]
        self.q_norm = weights[f"{prefix}.q_norm"]
        self.k_norm = weights[f"{prefix}.k_norm"]
        self.out = weights[f"{prefix}.out"]
        queries = geometry.heads * geometry.head_dim
        keys = geometry.kv_heads * geometry.head_dim
        self.widths = (queries, queries, keys, keys)

    def __call__(self, x: Tensor, base: Tensor, spans: Spans, pages: Pages | None) -> Tensor:
        """base + attention of the normed rows x [n, hidden]; writes K and V into pages."""
        geometry, ops = self.geometry, self.ops
        q, gate, k, v = ops.linear(x, self.qgkv).split(self.widths, dim=-1)
        q, k = ops.qk_norm_rope(
            q,
            k,
            self.q_norm,
            self.k_norm,
            spans.position,
            eps=geometry.eps,
            rotary=geometry.rotary,
            theta=geometry.theta,
            interleaved=geometry.interleaved,
        )
        attended = ops.attend(q, k, v, gate, spans, pages)
        return ops.all_reduce(ops.linear(attended, self.out, base, epilogue="add"))
