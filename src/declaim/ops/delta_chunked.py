"""The gated delta rule in chunks of 64 rows: faster over long spans, other bytes under cuts.

Within a chunk the rows' changes to the state depend on each other through a unit lower
triangular system, which is solved at once. All chunks of all spans are solved together; only the
state goes from chunk to chunk. Differentiable.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.ops.delta_rule import DeltaRows, delta_rows, gates
from declaim.ops.dense import VectorWeight
from declaim.ops.elementwise import store
from declaim.ops.host_spans import HostSpans, read_spans
from declaim.state.step import Spans

CHUNK = 64
"""Most rows of a chunk."""


@dataclass(frozen=True)
class Chunks:
    """What one chunk does to any state, for all chunks: [chunks, spans, heads, ...].

    results = q S + inside (values - keys S); S' = decay S + last^T (values - keys S).
    """

    q: Tensor
    inside: Tensor
    values: Tensor
    keys: Tensor
    decay: Tensor
    last: Tensor


def solve_chunks(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor) -> Chunks:
    """q, k, v [chunks, spans, heads, rows, width]; beta, log_decay [..., rows]."""
    rows = q.shape[-2]
    total = log_decay.cumsum(-1)
    above = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
    # Masked before exp: the exponents above the diagonal are positive and may overflow.
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(above, float("-inf")).exp()
    weighted = k * beta[..., None]
    grown = total.exp()[..., None]
    system = ((weighted @ k.mT) * decay).tril(-1)
    right = torch.cat((v * beta[..., None], weighted * grown), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, keys = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    end = total[..., -1:]
    return Chunks(
        q=q * grown,
        inside=(q @ k.mT) * decay,
        values=values,
        keys=keys,
        decay=end.exp()[..., None],
        last=k * (end - total).exp()[..., None],
    )


def run_chunks(chunks: Chunks, state: Tensor) -> tuple[Tensor, Tensor]:
    """Results [chunks, spans, heads, rows, value width] and the last state; writes nothing.

    state [spans, heads, key width, value width].
    """
    results = []
    for number in range(chunks.q.shape[0]):
        change = chunks.values[number] - chunks.keys[number] @ state
        results.append(chunks.q[number] @ state + chunks.inside[number] @ change)
        state = chunks.decay[number] * state + chunks.last[number].mT @ change
    return torch.stack(results), state


def run_spans(rows: DeltaRows, host: HostSpans, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """All spans: results [n, value heads, value width] and states float32.

    state [spans, value heads, key width, value width], or None: zeros. Rows beyond a span's end
    are filled with zeros, which leave a state as it is.
    """
    count, (spans, longest) = rows.v.shape[0], (len(host.counts), max(host.counts))
    length = min(CHUNK, longest)
    chunks = -(-longest // length)
    value_heads, repeat = rows.v.shape[1], rows.v.shape[1] // rows.k.shape[1]
    starts, counts = (
        torch.tensor(x, device=rows.v.device)[:, None] for x in (host.starts, host.counts)
    )
    local = torch.arange(chunks * length, device=rows.v.device)
    # Row `count` is the row of zeros.
    index = torch.where(local < counts, starts + local, count)

    def arrange(x: Tensor) -> Tensor:
        """[n, heads, ...] as [chunks, spans, value heads, rows, ...]."""
        if x.shape[1] != value_heads:
            x = x.repeat_interleave(repeat, dim=1)
        filled = torch.cat((x, torch.zeros_like(x[:1])))[index]
        shape = (spans, chunks, length, *x.shape[1:])
        return filled.view(shape).transpose(0, 1).transpose(2, 3)

    solved = solve_chunks(*(arrange(x) for x in vars(rows).values()))
    if state is None:
        state = rows.v.new_zeros(spans, value_heads, rows.k.shape[2], rows.v.shape[2])
    results, state = run_chunks(solved, state)
    # [spans, chunks * rows, value heads, value width]
    results = results.transpose(0, 1).transpose(2, 3).flatten(1, 2)
    return results[local < counts], state


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
        beta, log_decay = gates(b, a, a_log.value, dt_bias.value)
        rows = delta_rows(qkv, beta, log_decay, heads, widths)
        return store(chunked_rule(rows, spans, state).to(qkv.dtype), out)


def chunked_rule(rows: DeltaRows, spans: Spans, state: Tensor | None) -> Tensor:
    """`run_spans` on a step's spans; writes the state where there is one."""
    if rows.v.shape[0] == 0:
        return rows.v
    host = read_spans(spans, rows.v.shape[0])
    if state is None:
        return run_spans(rows, host, None)[0]
    assert spans.slot is not None
    slots = spans.slot[list(host.numbers)].long()
    results, matrix = run_spans(rows, host, state.index_select(0, slots).float())
    state.index_copy_(0, slots, matrix.to(state.dtype))
    return results
