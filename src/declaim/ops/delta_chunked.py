"""The gated delta rule in chunks of 64 rows: faster over long spans, other bytes under cuts.

Within a chunk the rows' changes to the state depend on each other through a unit lower
triangular system, which is solved at once.
"""

import torch
from torch import Tensor

from declaim.ops.delta_rule import DeltaRows, delta_rows
from declaim.ops.dense import VectorWeight
from declaim.ops.elementwise import store
from declaim.ops.host_spans import read_spans
from declaim.state.step import Spans

CHUNK = 64
"""Rows of a chunk."""


def chunk_step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor
) -> tuple[Tensor, Tensor]:
    """One chunk of one span: results and the new state; writes nothing.

    state [heads, key width, value width]; q, k, v [heads, rows, width]; beta, log_decay
    [heads, rows].
    """
    rows = q.shape[1]
    total = log_decay.cumsum(-1)
    above = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
    # Masked before exp: the exponents above the diagonal are positive and may overflow.
    decay = (total[:, :, None] - total[:, None, :]).masked_fill(above, float("-inf")).exp()
    weighted = k * beta[..., None]
    system = ((weighted @ k.transpose(1, 2)) * decay).tril(-1)
    right = torch.cat((v * beta[..., None], weighted * total.exp()[..., None]), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, keys = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    change = values - keys @ state
    inside = ((q @ k.transpose(1, 2)) * decay) @ change
    result = (q * total.exp()[..., None]) @ state + inside
    last = total[:, -1:]
    kept = (k * (last - total).exp()[..., None]).transpose(1, 2) @ change
    return result, state * last.exp()[..., None] + kept


def run_span(state: Tensor, rows: DeltaRows, first: int, last: int) -> tuple[Tensor, Tensor]:
    """All chunks of one span: [rows, value heads, value width] and the new state."""
    repeat = state.shape[0] // rows.q.shape[1]
    results = []
    for begin in range(first, last, CHUNK):
        end = min(begin + CHUNK, last)
        q = rows.q[begin:end].repeat_interleave(repeat, 1).transpose(0, 1)
        k = rows.k[begin:end].repeat_interleave(repeat, 1).transpose(0, 1)
        v, beta = rows.v[begin:end].transpose(0, 1), rows.beta[begin:end].t()
        result, state = chunk_step(state, q, k, v, beta, rows.log_decay[begin:end].t())
        results.append(result.transpose(0, 1))
    return torch.cat(results), state


class ChunkedDeltaRuleOps:
    """`delta_rule_chunked`."""

    def delta_rule_chunked(
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
        """See OpTable; a state of another dtype is rounded at the end of a span."""
        rows = delta_rows(qkv, b, a, a_log.value, dt_bias.value, heads, widths)
        host = read_spans(spans, qkv.shape[0])
        results = []
        for number, first, count in zip(host.numbers, host.starts, host.counts, strict=True):
            if state is None:
                matrix = rows.q.new_zeros(heads[1], *widths)
            else:
                assert spans.slot is not None
                slot = int(spans.slot[number])
                matrix = state[slot].float()
            result, matrix = run_span(matrix, rows, first, first + count)
            results.append(result)
            if state is not None:
                state[slot] = matrix
        result = torch.cat(results) if results else rows.v.new_empty(0, heads[1], widths[1])
        return store(result.to(qkv.dtype), out)
