"""The delta-net layer's stateful ops: causal convolution and gated delta rule.

Both run over spans: rows of one slot, whose state is read before the span and written after it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from declaim.ops.activations import sigmoid, silu, softplus
from declaim.state.step import Spans

CHUNK = 64
"""Rows of a chunk of the chunked form."""


def live_spans(spans: Spans) -> tuple[list[int], list[int], list[int]]:
    """Of every span that has rows, in order: its number, its first row, its row count."""
    start = spans.start.tolist()
    numbers = [i for i in range(len(start) - 1) if start[i + 1] > start[i]]
    return numbers, [start[i] for i in numbers], [start[i + 1] - start[i] for i in numbers]


def span_slots(spans: Spans, numbers: list[int]) -> Tensor:
    """The slots of some spans, int64."""
    assert spans.slot is not None, "state needs spans with slots"
    slot = spans.slot.tolist()
    return torch.tensor([slot[number] for number in numbers])


def causal_conv(x: Tensor, weight: Tensor, spans: Spans, tail: Tensor | None) -> Tensor:
    """silu of the depthwise convolution, x [n, channels], weight [channels, kernel].

    Every row gathers its own taps, from the span's rows or from the slot's tail, and adds them
    oldest first.
    """
    numbers, first, count = live_spans(spans)
    assert sum(count) == len(x), "every row belongs to a span"
    keep = weight.shape[1] - 1
    if tail is None:
        history = x.new_zeros(len(numbers), keep, x.shape[1])
    else:
        slots = span_slots(spans, numbers)
        history = tail.index_select(0, slots).to(x.dtype)
    met, held = _taps(x, history, first, count)
    y = met[0] * weight[:, 0]
    for tap in range(1, keep + 1):
        y = y + met[tap] * weight[:, tap]
    if tail is not None:
        tail[slots] = held.to(tail.dtype)
    return silu(y)


def _taps(x: Tensor, history: Tensor, first: list[int], count: list[int]) -> tuple[Tensor, Tensor]:
    """What each tap meets [kernel, n, channels], oldest first, and what each span leaves behind.

    x [n, channels]; history and what is left [spans, kernel - 1, channels].
    """
    spans, keep, channels = history.shape
    if len(count) == len(x):  # one row a span
        met = torch.cat([history.transpose(0, 1), x.unsqueeze(0)])
        return met, met[1:].transpose(0, 1)
    source = torch.cat([history.flatten(0, 1), x])
    taps: list[list[int]] = [[] for _ in range(keep + 1)]
    last: list[int] = []
    for span, (start, length) in enumerate(zip(first, count, strict=True)):
        place = [*range(span * keep, (span + 1) * keep)]
        place += range(spans * keep + start, spans * keep + start + length)
        for tap in range(keep + 1):
            taps[tap] += place[tap : tap + length]
        last += place[length:]
    met = source.index_select(0, torch.tensor(taps).flatten()).view(keep + 1, *x.shape)
    held = source.index_select(0, torch.tensor(last, dtype=torch.int64))
    return met, held.view(history.shape)


@dataclass(frozen=True)
class DeltaInputs:
    """What a row brings to the delta rule, float32; value heads share keys by groups.

    q, k [n, value heads, key width]; v [n, value heads, value width]; beta, g [n, value heads],
    g the logarithm of the decay.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    g: Tensor


def delta_inputs(
    qkv: Tensor,
    b: Tensor,
    a: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    *,
    heads: tuple[int, int],
    widths: tuple[int, int],
) -> DeltaInputs:
    """Split, normalise and scale the rows of a layer."""
    rows, (key_heads, value_heads), (key_width, value_width) = qkv.shape[0], heads, widths
    keys = key_heads * key_width
    both = qkv[:, : 2 * keys].float().reshape(rows, 2, key_heads, key_width)
    both = both * torch.rsqrt((both * both).sum(-1, keepdim=True) + 1e-6)
    both = both.unsqueeze(3).expand(-1, -1, -1, value_heads // key_heads, -1).flatten(2, 3)
    v = qkv[:, 2 * keys :].float().reshape(rows, value_heads, value_width)
    g = -torch.exp(a_log) * softplus(a.float() + dt_bias)
    return DeltaInputs(both[:, 0] * key_width**-0.5, both[:, 1], v, sigmoid(b.float()), g)


def delta_rule(inputs: DeltaInputs, spans: Spans, state: Tensor | None) -> Tensor:
    """Row by row, all spans side by side; o float32 [n, value heads, value width].

    The n-th rows of all spans make one turn; spans are ordered longest first, so that those
    which still have rows are the leading ones.
    """
    numbers, first, count = live_spans(spans)
    order = sorted(range(len(numbers)), key=lambda i: -count[i])
    turns = [sum(length > turn for length in count) for turn in range(max(count, default=0))]
    rows = [first[i] + turn for turn, width in enumerate(turns) for i in order[:width]]
    assert len(rows) == len(inputs.v), "every row belongs to a span"
    in_order = rows == list(range(len(rows)))
    index = torch.tensor(rows)
    heads, key_width, value_width = *inputs.k.shape[1:], inputs.v.shape[-1]
    if state is None:
        s = torch.zeros(len(numbers), heads, key_width, value_width)
    else:
        slots = span_slots(spans, [numbers[i] for i in order])
        s = state.index_select(0, slots).float()

    def by_turn(part: Tensor) -> tuple[Tensor, ...]:
        ordered = part if in_order else part.index_select(0, index)
        return tuple(ordered.split(turns))

    each = (
        by_turn(inputs.q.unsqueeze(-1)),
        by_turn(inputs.k.unsqueeze(-1)),
        by_turn(inputs.v),
        by_turn(inputs.beta.unsqueeze(-1)),
        by_turn(torch.exp(inputs.g)[..., None, None]),
    )
    made: list[Tensor] = []
    over: list[Tensor] = []
    for q, k, v, beta, decay in zip(*each, strict=True):
        if len(q) < len(s):
            over.append(s[len(q) :])
        s = s[: len(q)] * decay
        error = beta * (v - (s * k).sum(-2))
        s = s + k * error.unsqueeze(-2)
        if state is not None and state.dtype != torch.float32:
            s = s.to(state.dtype).float()
        made.append((s * q).sum(-2))
    out = torch.cat(made)
    if not in_order:
        out = torch.empty_like(out).index_copy(0, index, out)
    if state is not None:
        state[slots] = torch.cat([s, *reversed(over)]).to(state.dtype)
    return out


def delta_rule_chunked(inputs: DeltaInputs, spans: Spans, state: Tensor | None) -> Tensor:
    """The same recurrence in chunks of 64 rows, by two triangular solves each.

    Within a chunk, with c the running sum of g and D[i, j] = exp(c_i - c_j) for j <= i:
    A = I + tril(beta K K^T * D, -1), U = A^-1 (beta V), W = A^-1 (beta K exp(c)),
    N = U - W S, o = (Q exp(c)) S + (Q K^T * D) N, S' = exp(c_last) S + (K exp(c_last - c))^T N.
    """
    numbers, _, count = live_spans(spans)
    parts = tuple(
        padded(part, count).transpose(1, 2)
        for part in (inputs.q, inputs.k, inputs.v, inputs.beta, inputs.g)
    )
    if state is None:
        shape = (len(numbers), *inputs.k.shape[1:], inputs.v.shape[-1])
        s = inputs.v.new_zeros(shape)
    else:
        slots = span_slots(spans, numbers)
        s = state[slots].float()
    made = []
    for chunk in zip(*(part.split(CHUNK, 2) for part in parts), strict=True):
        o, s = _chunk(chunk, s)
        made.append(o)
    if state is not None:
        state[slots] = s.to(state.dtype)
    return joined(torch.cat(made, 2).transpose(1, 2), count)


def padded(rows: Tensor, count: list[int]) -> Tensor:
    """Rows [n, ...] of spans of `count` rows each -> [spans, longest, ...], filled up with 0."""
    return pad_sequence(rows.split(count), batch_first=True)


def joined(batch: Tensor, count: list[int]) -> Tensor:
    """What `padded` made, back to rows [n, ...]."""
    return torch.cat([rows[:length] for rows, length in zip(batch, count, strict=True)])


def _chunk(chunk: tuple[Tensor, ...], s: Tensor) -> tuple[Tensor, Tensor]:
    """q, k, v, beta, g [spans, heads, rows(, width)] and s -> o [spans, heads, rows, width], s.

    Rows that only fill up (q, k, v, beta and g are 0) leave s as it is.
    """
    q, k, v, beta, g = chunk
    beta = beta.unsqueeze(-1)
    c = g.cumsum(-1)
    size = c.shape[-1]
    above = torch.ones(size, size, dtype=torch.bool, device=c.device).triu(1)
    decay = (c[..., :, None] - c[..., None, :]).masked_fill(above, -torch.inf).exp()
    lower = (beta * k @ k.mT * decay).tril(-1)
    grown = c.exp().unsqueeze(-1)
    right = torch.cat([beta * v, beta * k * grown], -1)
    solved = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
    u, w = solved.split([v.shape[-1], k.shape[-1]], -1)
    new = u - w @ s
    o = (q * grown) @ s + (q @ k.mT * decay) @ new
    left = (c[..., -1:] - c).exp().unsqueeze(-1)
    return o, grown[..., -1:, :] * s + (k * left).mT @ new
