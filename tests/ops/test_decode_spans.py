"""A decode step's spans (span i is row i) give the bytes of the same rows in a mixed step."""

from collections.abc import Callable, Sequence

import pytest
import torch
from op_memory import Memory, Part, same_bytes
from torch import Tensor

from declaim.ops.reference import ReferenceOps
from declaim.state.pages import Pages
from declaim.state.step import Spans

Normal = Callable[..., Tensor]
Run = Callable[[Tensor, Spans], Tensor]

LENGTHS = (1, 16, 64, 65, 200)
"""Rows of context of each stream after the step."""


def as_decode(memory: Memory, mixed: Spans, padding: int) -> Spans:
    """The rows of a mixed step, each as a span of its own, and padding streams behind them."""
    assert mixed.slot is not None and mixed.length is not None and mixed.table is not None
    rows = len(mixed.position) - padding

    def column(values: Tensor, value: int) -> Tensor:
        return torch.cat([values[:rows], torch.full((padding,), value, dtype=torch.int32)])

    null = torch.full((padding, mixed.table.shape[1]), memory.pages, dtype=torch.int32)
    return Spans(
        start=torch.arange(rows + padding + 1, dtype=torch.int32),
        position=mixed.position,
        index=mixed.index,
        page=mixed.page,
        offset=mixed.offset,
        slot=column(mixed.slot, memory.slots),
        length=column(mixed.length, 0),
        table=torch.cat([mixed.table[:rows], null]),
    )


@pytest.fixture
def memory() -> Memory:
    return Memory(slots=6, pages=61)


@pytest.fixture
def parts(memory: Memory) -> list[Part]:
    """Slots out of order, each with the pages of its context."""
    return [
        Part((3 * i + 1) % memory.slots, length - 1, 1, memory.stream_pages(10 * i, length))
        for i, length in enumerate(LENGTHS)
    ]


def both_ways(
    memory: Memory, parts: Sequence[Part], states: Sequence[Tensor], run: Run, rows: Tensor
) -> None:
    """Run rows as a mixed step and as a decode step with two padding streams."""
    before = [state.clone() for state in states]
    mixed = memory.spans(parts)
    wanted = run(rows, mixed)
    after = [state.clone() for state in states]
    for state, old in zip(states, before, strict=True):
        state.copy_(old)
    padded = torch.cat([rows, torch.ones(2, rows.shape[1])])
    found = run(padded, as_decode(memory, memory.spans(parts, 2), 2))
    assert same_bytes(found[: len(rows)], wanted)
    assert torch.isfinite(found).all()
    for state, new in zip(states, after, strict=True):
        assert same_bytes(state[:-1], new[:-1])
        assert torch.isfinite(state[-1]).all()


def test_convolution(
    ops: ReferenceOps, normal: Normal, threads: int, memory: Memory, parts: list[Part]
) -> None:
    weight = ops.prepare_conv(normal(40, 4))
    tail = memory.slot_state(3, 40)
    for part in parts:
        tail[part.slot] = normal(3, 40)

    def run(rows: Tensor, spans: Spans) -> Tensor:
        return ops.causal_conv(rows, weight, spans, tail)

    both_ways(memory, parts, [tail], run, normal(len(parts), 40))


def test_delta_rule(
    ops: ReferenceOps, normal: Normal, threads: int, memory: Memory, parts: list[Part]
) -> None:
    a_log, dt_bias = ops.prepare_vector(normal(4)), ops.prepare_vector(normal(4))
    state = memory.slot_state(4, 8, 12)
    for part in parts:
        state[part.slot] = normal(4, 8, 12)

    def run(rows: Tensor, spans: Spans) -> Tensor:
        qkv, b, a = rows.split([2 * 2 * 8 + 4 * 12, 4, 4], dim=1)
        return ops.delta_rule(qkv, b, a, a_log, dt_bias, spans, state, heads=(2, 4), widths=(8, 12))

    both_ways(memory, parts, [state], run, normal(len(parts), 88))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 1)])
def test_attention(
    ops: ReferenceOps,
    normal: Normal,
    threads: int,
    memory: Memory,
    parts: list[Part],
    heads: int,
    kv_heads: int,
) -> None:
    """Also: the step alone gives each stream what it gives among the others."""
    width = 24
    pages: Pages = memory.page_state(kv_heads, width)
    for part in parts:
        for position in range(part.first):
            page = part.pages[position // memory.page_size]
            pages.k[page, :, position % memory.page_size] = normal(kv_heads, width)
            pages.v[page, :, position % memory.page_size] = normal(kv_heads, width)

    def run(rows: Tensor, spans: Spans) -> Tensor:
        sizes = [heads * width, kv_heads * width, kv_heads * width, heads * width]
        q, k, v, gate = rows.split(sizes, dim=1)
        q, k = q.reshape(-1, heads, width), k.reshape(-1, kv_heads, width)
        return ops.attend(q, k, v, gate, spans, pages)

    rows = normal(len(parts), 2 * (heads + kv_heads) * width)
    both_ways(memory, parts, [pages.k, pages.v], run, rows)
    together = run(rows, memory.spans(parts))
    for i, part in enumerate(parts):
        assert same_bytes(run(rows[i : i + 1], memory.spans([part])), together[i : i + 1])
