"""The op table in ordinary differentiable PyTorch, for training; no promise of exactness.

Handles are the weights themselves as float tensors, never copied or detached when they are
float32 already: a handle that requires a gradient gets it. Where state is given, stateful ops are
the reference's, so that the same model also serves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from declaim.ops.block_fp8 import decode
from declaim.ops.delta_rule import joined, live_spans, padded
from declaim.ops.reference import ReferenceOps, stored
from declaim.ops.table import BlockFP8, ExpertWeight, Handle
from declaim.state.pages import Pages
from declaim.state.step import Spans


@dataclass(frozen=True)
class StackedExperts:
    """A layer's experts by id: gate_up [experts, 2 * width, hidden], down [experts, hidden, width].

    An expert that no row chose has a gradient of zeros.
    """

    gate_up: Tensor
    down: Tensor


class PlainOps(ReferenceOps):
    """What the reference does, by PyTorch's own products, attention and the chunked delta rule."""

    name = "plain"
    exact = False

    def prepare_linear(self, weight: Tensor) -> Tensor:
        """The weight, in float32."""
        return weight.float()

    def prepare_vector(self, weight: Tensor) -> Tensor:
        """The weight, in float32."""
        return weight.float()

    def prepare_table(self, weight: Tensor) -> Tensor:
        """The weight, in float32."""
        return weight.float()

    def prepare_experts(
        self, gate_up: Sequence[ExpertWeight], down: Sequence[ExpertWeight]
    ) -> StackedExperts:
        """Stacked, in float32: to train, the stacked tensors are the parameters."""
        return StackedExperts(_stacked(gate_up), _stacked(down))

    def _product(self, x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x.to(w.dtype), w)

    def _vector(self, weight: Tensor, *, centred: bool = False) -> Tensor:
        return 1.0 + weight if centred else weight

    def _attended(
        self, q: Tensor, k: Tensor, v: Tensor, spans: Spans, pages: Pages | None
    ) -> Tensor:
        if pages is not None:
            return super()._attended(q, k, v, spans, pages)
        _, _, count = live_spans(spans)
        return causal_attention(q.float(), k.float(), v.float(), count)

    def delta_rule(
        self,
        qkv: Tensor,
        b: Tensor,
        a: Tensor,
        a_log: Handle,
        dt_bias: Handle,
        spans: Spans,
        state: Tensor | None,
        *,
        heads: tuple[int, int],
        widths: tuple[int, int],
        out: Tensor | None = None,
    ) -> Tensor:
        """Row by row with state, in chunks without."""
        rule = self.delta_rule_chunked if state is None else super().delta_rule
        return rule(qkv, b, a, a_log, dt_bias, spans, state, heads=heads, widths=widths, out=out)

    def experts(
        self,
        x: Tensor,
        weights: Tensor,
        ids: Tensor,
        w: Handle,
        base: Tensor,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """One product an expert over the rows that chose it."""
        y = mixed_experts(x.float(), weights, ids, w)
        return stored((base.float() + y).to(base.dtype), out)


def trainable(weights: Mapping[str, Handle]) -> dict[str, Tensor]:
    """The tensors of PlainOps' handles, to optimise in place, by the network's names.

    Experts stand as NAME.gate_up and NAME.down.
    """
    tensors = {}
    for name, handle in weights.items():
        if isinstance(handle, StackedExperts):
            tensors[f"{name}.gate_up"] = handle.gate_up
            tensors[f"{name}.down"] = handle.down
        else:
            tensors[name] = handle
    return tensors


def causal_attention(q: Tensor, k: Tensor, v: Tensor, count: list[int]) -> Tensor:
    """Attention within sequences of `count` rows each, in any float dtype.

    q [n, H, D], k and v [n, K, D] -> [n, H * D].
    """
    queries, keys, values = (padded(rows, count).transpose(1, 2) for rows in (q, k, v))
    y = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    return joined(y.transpose(1, 2), count).flatten(1)


def mixed_experts(x: Tensor, weights: Tensor, ids: Tensor, experts: StackedExperts) -> Tensor:
    """Weighted sum of the chosen experts' SwiGLU [n, hidden]; weights and ids [n, top_k]."""
    chosen = ids.flatten().long()
    order = chosen.argsort(stable=True)
    row = order // ids.shape[1]
    count = chosen.bincount(minlength=len(experts.gate_up)).tolist()
    groups = zip(
        x.index_select(0, row).split(count),
        experts.gate_up.unbind(),
        experts.down.unbind(),
        strict=True,
    )
    made = []
    for rows, gate_up, down in groups:
        gate, up = F.linear(rows, gate_up).chunk(2, -1)
        made.append(F.linear(F.silu(gate) * up, down))
    share = weights.flatten().index_select(0, order).unsqueeze(-1)
    return torch.zeros_like(x).index_add(0, row, torch.cat(made) * share)


def _stacked(weights: Sequence[ExpertWeight]) -> Tensor:
    return torch.stack(
        [decode(each) if isinstance(each, BlockFP8) else each.float() for each in weights]
    )
