"""The gated delta rule, row by row, and the gated norm after it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.ops.dense import VectorWeight
from declaim.ops.elementwise import norm_rows, sigmoid, silu, softplus, store
from declaim.ops.host_spans import HostSpans, read_spans
from declaim.state.step import Spans

NORM_EPS = 1e-6
"""Under the root of the l2 norm of q and k."""


@dataclass(frozen=True)
class DeltaRows:
    """The rows' part of the rule, float32.

    q, k [n, key heads, key width], normalised, q scaled. v [n, value heads, value width].
    beta, log_decay [n, value heads].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    log_decay: Tensor


def delta_rows(
    qkv: Tensor,
    beta: Tensor,
    log_decay: Tensor,
    heads: tuple[int, int],
    widths: tuple[int, int],
) -> DeltaRows:
    """Split qkv [n, q | k | v blocks] into heads; normalise q and k, scale q. Differentiable."""
    rows = qkv.shape[0]
    keys = heads[0] * widths[0]
    qkv = qkv.float()
    qk = qkv[:, : 2 * keys].reshape(rows, 2 * heads[0], widths[0])
    qk = qk * (qk * qk).sum(-1, keepdim=True).add_(NORM_EPS).rsqrt_()
    return DeltaRows(
        q=qk[:, : heads[0]] * widths[0] ** -0.5,
        k=qk[:, heads[0] :],
        v=qkv[:, 2 * keys :].reshape(rows, heads[1], widths[1]),
        beta=beta,
        log_decay=log_decay,
    )


def gates(b: Tensor, a: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """beta = sigmoid(b) and log decay = -exp(a_log) softplus(a + dt_bias), [n, value heads]."""
    rate = softplus(a.float() + dt_bias)
    return sigmoid(b.float()), rate.mul_(a_log.exp()).neg_()


def time_order(host: HostSpans) -> tuple[list[int], list[int], list[int]]:
    """Order for going through all spans at once, one row of each a step.

    Returns the order of spans (longest first), the rows in time order (all first rows, then all
    second rows, ...) and the number of rows of each step: the spans that still run lead.
    """
    spans = sorted(range(len(host.counts)), key=lambda i: -host.counts[i])
    rows: list[int] = []
    widths: list[int] = []
    for time in range(host.counts[spans[0]] if spans else 0):
        running = [host.starts[i] + time for i in spans if host.counts[i] > time]
        rows.extend(running)
        widths.append(len(running))
    return spans, rows, widths


def advance(state: Tensor, rows: DeltaRows, first: int, last: int) -> tuple[Tensor, Tensor]:
    """One row of each running span: state [spans, value heads, key width, value width].

    Returns the result [spans, value heads, value width] and the new state; writes nothing.
    """
    spans, value_heads, key_width, value_width = state.shape
    key_heads = rows.k.shape[1]
    # [spans, key heads, value heads a key head, key width, value width]
    grouped = state.view(spans, key_heads, value_heads // key_heads, key_width, value_width)
    q = rows.q[first:last, :, None, :, None]
    k = rows.k[first:last, :, None, :, None]
    v = rows.v[first:last].reshape(spans, key_heads, -1, value_width)
    beta = rows.beta[first:last].reshape(spans, key_heads, -1, 1)
    decay = rows.log_decay[first:last].exp().reshape(spans, key_heads, -1, 1, 1)
    decayed = grouped * decay
    change = (v - (decayed * k).sum(-2)) * beta
    changed = (k * change.unsqueeze(-2)).add_(decayed)
    result = (changed * q).sum(-2)
    return result.view(spans, value_heads, value_width), changed.view(state.shape)


def run_rows(
    rows: DeltaRows, steps: list[int], state: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """All steps of `time_order`: results in its order of rows, and the last states.

    state [spans, ...] float32 in its order of spans, rounded to dtype after every row.
    """
    results: list[Tensor] = [rows.v[:0]]
    ended: list[Tensor] = []
    first = 0
    for running in steps:
        if running < state.shape[0]:
            ended.append(state[running:])
            state = state[:running]
        result, state = advance(state, rows, first, first + running)
        if dtype != torch.float32:
            state = state.to(dtype).float()
        results.append(result)
        first += running
    return torch.cat(results), torch.cat([state, *reversed(ended)])


class DeltaRuleOps:
    """`delta_rule` and `gated_norm`."""

    def delta_rule(
        self,
        qkv: Tensor,
        b: Tensor,
        a: Tensor,
        a_log: VectorWeight,
        dt_bias: VectorWeight,
        spans: Spans,
        state: Tensor | None,
        *,
        heads: tuple[int, int],
        widths: tuple[int, int],
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable; a state of another dtype is rounded after every row."""
        beta, log_decay = gates(b, a, a_log.value, dt_bias.value)
        rows = delta_rows(qkv, beta, log_decay, heads, widths)
        host = read_spans(spans, qkv.shape[0])
        order, places, steps = time_order(host)
        moved = places != list(range(len(places)))
        if moved:
            index = torch.tensor(places, device=qkv.device)
            rows = DeltaRows(*(x.index_select(0, index) for x in vars(rows).values()))
        slots = None
        if state is None:
            matrix = rows.q.new_zeros(len(order), heads[1], *widths)
        else:
            assert spans.slot is not None
            slots = spans.slot.long()
            if not host.single:
                slots = slots[[host.numbers[i] for i in order]]
            matrix = state.index_select(0, slots).float()
        dtype = torch.float32 if state is None else state.dtype
        result, matrix = run_rows(rows, steps, matrix, dtype)
        if state is not None and slots is not None:
            state.index_copy_(0, slots, matrix.to(state.dtype))
        if moved:
            result = torch.empty_like(result).index_copy_(0, index, result)
        return store(result.to(qkv.dtype), out)

    def gated_norm(
        self,
        o: Tensor,
        z: Tensor,
        weight: VectorWeight,
        *,
        eps: float,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable; computes in float32."""
        normed = norm_rows(o.float().contiguous(), eps).mul_(weight.value)
        return store(normed.view(z.shape).mul_(silu(z.float())).to(o.dtype), out)
