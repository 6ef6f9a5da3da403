"""The op table in ordinary differentiable torch, for training; no promise of equal bytes.

Handles are the tensors themselves, so gradients reach the parameters they were made from. Its
main use is whole sequences: spans with `start` and `position` only, and no tail, state or pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from declaim.ops.attention import ContextReader, write_pages
from declaim.ops.convolution import read_taps
from declaim.ops.delta_chunked import chunked_rule
from declaim.ops.delta_rule import delta_rows
from declaim.ops.dense import NormOps
from declaim.ops.draws import DrawOps
from declaim.ops.elementwise import norm_rows, store
from declaim.ops.experts import decoded
from declaim.ops.frames import FrameOps
from declaim.ops.host_spans import read_spans
from declaim.ops.ranks import RankOps
from declaim.ops.rope import RopeOps
from declaim.ops.table import Collectives, ExpertWeight
from declaim.state.pages import Pages
from declaim.state.step import Spans


@dataclass(frozen=True)
class PlainExperts:
    """Every expert's weights as given: gate_up [2 * width, hidden], down [hidden, width]."""

    gate_up: tuple[Tensor, ...]
    down: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(experts, hidden, width)."""
        hidden, width = self.down[0].shape
        return len(self.down), hidden, width


class PlainDenseOps(NormOps):
    """Linear layers, norms, router and experts."""

    def prepare_linear(self, weight: Tensor) -> Tensor:
        """The weight itself, in float32."""
        return weight.float()

    def prepare_vector(self, weight: Tensor) -> Tensor:
        """The weight itself, in float32."""
        return weight.float()

    def prepare_experts(
        self, gate_up: Sequence[ExpertWeight], down: Sequence[ExpertWeight]
    ) -> PlainExperts:
        """The weights themselves, in float32."""
        return PlainExperts(
            tuple(decoded(weight).float() for weight in gate_up),
            tuple(decoded(weight).float() for weight in down),
        )

    def linear(
        self,
        x: Tensor,
        w: Tensor,
        base: Tensor | None = None,
        scale: Tensor | None = None,
        *,
        epilogue: str = "store",
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable."""
        y = functional.linear(x, w.to(x.dtype))
        if epilogue == "silu_mul":
            gate, up = y.chunk(2, dim=1)
            y = functional.silu(gate) * up
        elif epilogue == "add":
            assert base is not None
            y = base + y
        elif epilogue == "scaled_add":
            assert base is not None and scale is not None
            y = base + scale.sigmoid() * y
        else:
            assert epilogue == "store", epilogue
        return store(y, out)

    def router(
        self,
        x: Tensor,
        w: Tensor,
        *,
        top_k: int,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See OpTable."""
        probabilities = functional.linear(x.float(), w).softmax(-1)
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        weights = ordered[:, :top_k] / ordered[:, :top_k].sum(-1, keepdim=True)
        ids = order[:, :top_k].to(torch.int32)
        if out is None:
            return weights, ids
        return out[0].copy_(weights), out[1].copy_(ids)

    def experts(
        self,
        x: Tensor,
        weights: Tensor,
        ids: Tensor,
        w: PlainExperts,
        base: Tensor,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable."""
        total = base
        for expert in sorted(set(ids.flatten().tolist())):
            rows, choices = torch.where(ids == expert)
            inner = functional.linear(x[rows], w.gate_up[expert].to(x.dtype))
            gate, up = inner.chunk(2, dim=1)
            part = functional.linear(functional.silu(gate) * up, w.down[expert].to(x.dtype))
            factor = weights[rows, choices][:, None].to(x.dtype)
            total = total.index_add(0, rows, part * factor)
        return store(total, out)


class PlainDeltaOps:
    """The delta-net layers; the delta rule is always chunked."""

    def prepare_conv(self, weight: Tensor) -> Tensor:
        """The weight itself, in float32."""
        return weight.float()

    def causal_conv(
        self,
        x: Tensor,
        weight: Tensor,
        spans: Spans,
        tail: Tensor | None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable."""
        taps = read_taps(x, weight.shape[1], spans, tail)
        y = torch.einsum("nkc,ck->nc", taps.float(), weight)
        return store(functional.silu(y).to(x.dtype), out)

    def delta_rule(
        self,
        qkv: Tensor,
        b: Tensor,
        a: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        spans: Spans,
        state: Tensor | None,
        *,
        heads: tuple[int, int],
        widths: tuple[int, int],
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable."""
        log_decay = -a_log.exp() * functional.softplus(a.float() + dt_bias)
        rows = delta_rows(qkv, b.float().sigmoid(), log_decay, heads, widths)
        return store(chunked_rule(rows, spans, state).to(qkv.dtype), out)

    delta_rule_chunked = delta_rule

    def gated_norm(
        self, o: Tensor, z: Tensor, weight: Tensor, *, eps: float, out: Tensor | None = None
    ) -> Tensor:
        """See OpTable."""
        normed = (norm_rows(o.float(), eps) * weight).reshape(z.shape)
        return store((normed * functional.silu(z.float())).to(o.dtype), out)


class PlainOps(PlainDenseOps, PlainDeltaOps, RopeOps, FrameOps, DrawOps, RankOps):
    """OpTable in ordinary torch: what is not here or above is the reference's own."""

    name = "plain"
    exact = False

    def __init__(self, collectives: Collectives) -> None:
        super().__init__()
        self.collectives = collectives

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor,
        spans: Spans,
        pages: Pages | None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable."""
        v = v.view(k.shape)
        if pages is not None:
            write_pages(k, v, spans, pages)
        host = read_spans(spans, q.shape[0])
        results = [q.new_empty(0, *q.shape[1:])]
        for number, first, count in zip(host.numbers, host.starts, host.counts, strict=True):
            own = q[first : first + count]
            if pages is None:
                keys, values = (x[first : first + count].transpose(0, 1) for x in (k, v))
                results.append(_causal(own, 0, keys, values))
                continue
            assert spans.length is not None and spans.table is not None
            length = int(spans.length[number])
            if length == 0:
                results.append(torch.zeros_like(own))
                continue
            keys, values = ContextReader().read(pages, spans.table[number : number + 1], length)
            results.append(_causal(own, length - count, keys[0], values[0]))
        y = torch.cat(results).reshape(gate.shape)
        return store(y * gate.sigmoid(), out)


def _causal(q: Tensor, first: int, k: Tensor, v: Tensor) -> Tensor:
    """Rows at positions from `first` over one context: q [r, H, D]; k, v [K, T, D]."""
    rows, context = q.shape[0], k.shape[1]
    own = torch.arange(first, first + rows, device=q.device)[:, None]
    mask = torch.arange(context, device=q.device) <= own
    k, v = k.to(q.dtype)[None], v.to(q.dtype)[None]
    y = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k, v, attn_mask=mask, enable_gqa=True
    )
    return y[0].transpose(0, 1)
