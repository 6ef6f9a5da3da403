"""Attention over pages: against float64, under every cut of a stream, and amid poison."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from op_memory import CUTS, Memory, Part, StepCounts, Stream, beside, drive, same_bytes
from row_checks import near
from torch import Tensor

from declaim.ops.reference import ReferenceOps
from declaim.state.pages import Pages
from declaim.state.step import Spans, training_spans

Normal = Callable[..., Tensor]


@dataclass(frozen=True)
class Attention:
    """The op on rows of [q | k | v | gate]."""

    ops: ReferenceOps
    heads: int
    kv_heads: int
    width: int

    @property
    def columns(self) -> int:
        return 2 * (self.heads + self.kv_heads) * self.width

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        queries, keys = self.heads * self.width, self.kv_heads * self.width
        q, k, v, gate = rows.split([queries, keys, keys, queries], -1)
        count = len(rows)
        return (
            q.reshape(count, self.heads, self.width),
            k.reshape(count, self.kv_heads, self.width),
            v,
            gate,
        )

    def __call__(self, rows: Tensor, spans: Spans, pages: Pages | None) -> Tensor:
        q, k, v, gate = self.split(rows)
        return self.ops.attend(q, k, v, gate, spans, pages)

    def naive(self, rows: Tensor) -> Tensor:
        """One stream from its first row, head by head in float64."""
        q, k, v, gate = self.split(rows.double())
        v = v.reshape(k.shape)
        outputs = []
        for head in range(self.heads):
            source = head * self.kv_heads // self.heads
            scores = q[:, head] @ k[:, source].T / self.width**0.5
            later = torch.ones(len(rows), len(rows)).triu(1).bool()
            weights = torch.exp(scores.masked_fill(later, -torch.inf))
            outputs.append(weights @ v[:, source] / weights.sum(-1, keepdim=True))
        return torch.cat(outputs, -1) * torch.sigmoid(gate)


GEOMETRIES = [(1, 1, 24), (8, 1, 24), (2, 2, 32), (4, 2, 33), (8, 1, 256)]


@pytest.mark.parametrize(("heads", "kv_heads", "width"), GEOMETRIES)
@pytest.mark.parametrize("page_size", [16, 32, 128])
def test_attend(
    ops: ReferenceOps, normal: Normal, heads: int, kv_heads: int, width: int, page_size: int
) -> None:
    """Spans of many lengths in one call, pages out of order; rows are stored as they came."""
    attention = Attention(ops, heads, kv_heads, width)
    memory = Memory(slots=7, pages=40, page_size=page_size)
    counts = [1, 2, 3, 5, 8, 17, 33]
    rows = [normal(count, attention.columns) for count in counts]
    parts = [Part(i, 0, n, memory.stream_pages(5 * i, n)) for i, n in enumerate(counts)]
    pages = memory.page_state(kv_heads, width)
    found = attention(torch.cat(rows), memory.spans(parts), pages)
    near(found, torch.cat([attention.naive(x) for x in rows]))
    for x, part in zip(rows, parts, strict=True):
        _, k, v, _ = attention.split(x)
        for kept, wanted in ((pages.k, k), (pages.v, v.reshape(k.shape))):
            whole = kept[list(part.pages)].transpose(1, 2).flatten(0, 1)
            assert torch.equal(whole[: len(x)], wanted)
            assert whole[len(x) :].isnan().all(), "an unwritten row was written"


@pytest.mark.parametrize("length", [200, 700])
def test_attend_over_a_long_context(ops: ReferenceOps, normal: Normal, length: int) -> None:
    """Also far from the running maximum: one key in every block is much larger."""
    attention = Attention(ops, 4, 2, 24)
    memory = Memory(pages=64)
    rows = normal(length, attention.columns)
    rows[3::16, 4 * 24 : 6 * 24] *= 8.0
    spans = memory.spans([Part(0, 0, length, memory.stream_pages(2, length))])
    found = attention(rows, spans, memory.page_state(2, 24))
    near(found, attention.naive(rows), 1e-4)


def read(pages: Pages, stream: Stream, rows: int) -> list[Tensor]:
    """K and V of a stream's first rows, [rows, kv heads, width] each."""
    chosen = list(stream.pages)
    return [part[chosen].transpose(1, 2).flatten(0, 1)[:rows] for part in (pages.k, pages.v)]


def check_cuts(
    attention: Attention,
    memory: Memory,
    rows: Sequence[Tensor],
    schedules: Sequence[Sequence[StepCounts]],
    dtype: torch.dtype,
) -> None:
    """Outputs and pages of each stream under each schedule are those of the stream alone."""
    assert memory.pages % 3 == 0 and len(rows) <= 3, "so that no two streams share a page"

    def streams(turn: int) -> list[Stream]:
        return [
            Stream(x, (turn + i) % memory.slots, memory.stream_pages(turn + i, len(x)))
            for i, x in enumerate(rows)
        ]

    def fresh() -> Pages:
        return memory.page_state(attention.kv_heads, attention.width, dtype)

    alone = []
    for number, stream in enumerate(streams(0)):
        pages = fresh()
        (outputs,) = drive(
            memory, [stream], [[(0, len(rows[number]))]], partial(attention, pages=pages)
        )
        alone.append((outputs, read(pages, stream, len(outputs))))
    for turn, steps in enumerate(schedules):
        pages, placed = fresh(), streams(turn)
        op = partial(attention, pages=pages)
        found = drive(memory, placed, steps, op, padding=turn % 3)
        for stream, made, (outputs, kept) in zip(placed, found, alone, strict=True):
            assert torch.equal(made, outputs[: len(made)])
            for part, wanted in zip(read(pages, stream, len(made)), kept, strict=True):
                assert torch.equal(part, wanted[: len(made)])
        owned = {page for stream in placed for page in stream.pages}
        free = [page for page in range(memory.pages) if page not in owned]
        assert pages.k[free].isnan().all() and pages.v[free].isnan().all()
        assert pages.k[-1].isfinite().all() and pages.v[-1].isfinite().all()


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 24), (8, 1, 32), (2, 2, 33)])
@pytest.mark.parametrize("page_size", [16, 128])
def test_attend_under_every_cut(
    ops: ReferenceOps,
    normal: Normal,
    threads: int,
    heads: int,
    kv_heads: int,
    width: int,
    page_size: int,
) -> None:
    attention = Attention(ops, heads, kv_heads, width)
    memory = Memory(slots=4, pages=30, page_size=page_size)
    rows = [normal(count, attention.columns) for count in (97, 60, 31)]
    schedules = [beside(cuts, (60, 31)) for cuts in CUTS]
    check_cuts(attention, memory, rows, schedules, torch.float32)


def test_attend_under_cuts_with_bfloat16_pages(
    ops: ReferenceOps, normal: Normal, threads: int
) -> None:
    """K and V of the running rows are read back as stored, too."""
    attention = Attention(ops, 4, 2, 24)
    memory = Memory(slots=4, pages=30)
    rows = [normal(count, attention.columns) for count in (97, 60, 31)]
    schedules = [beside(cuts, (60, 31)) for cuts in CUTS]
    check_cuts(attention, memory, rows, schedules, torch.bfloat16)


@pytest.mark.parametrize("length", [200, 700])
def test_attend_under_cuts_of_a_long_context(
    ops: ReferenceOps, normal: Normal, threads: int, length: int
) -> None:
    attention = Attention(ops, 4, 2, 24)
    memory = Memory(slots=3, pages=150)
    rows = [normal(count, attention.columns) for count in (length, 90)]
    cuts = [
        (length - 6, *(1,) * 6),
        (1, 77, length - 81, 3),
        (*(64,) * (length // 64), length % 64),
    ]
    check_cuts(attention, memory, rows, [beside(each, (90,)) for each in cuts], torch.float32)


def test_later_rows_of_the_span_may_hold_anything(
    ops: ReferenceOps, normal: Normal, threads: int
) -> None:
    attention = Attention(ops, 4, 2, 24)
    memory = Memory(pages=12)
    rows = normal(40, attention.columns)
    spans = memory.spans([Part(0, 0, 40, memory.stream_pages(0, 40))])
    clean = attention(rows, spans, memory.page_state(2, 24))
    for first, value in ((39, torch.nan), (33, torch.inf), (17, torch.nan), (1, -torch.inf)):
        wild = rows.clone()
        wild[first:] = value
        found = attention(wild, spans, memory.page_state(2, 24))
        assert torch.equal(found[:first], clean[:first]), (first, value)
        free = attention(wild, training_spans([40]), None)
        assert torch.equal(free[:first], clean[:first]), (first, value)


def test_padding_rows_give_zero_and_touch_only_the_null_page(
    ops: ReferenceOps, normal: Normal, threads: int
) -> None:
    """Both layouts of padding: one span of many rows, and one-row spans among live ones."""
    attention = Attention(ops, 4, 2, 24)
    memory = Memory(slots=3, pages=12)
    rows = normal(6, attention.columns)
    lone = [memory.stream_pages(i, 20) for i in range(2)]
    pages = memory.page_state(2, 24)
    for table in lone:
        pages.k[list(table)], pages.v[list(table)] = 0.5, 0.25
    before = Pages(pages.k.clone(), pages.v.clone())
    spans = memory.spans([Part(0, 18, 1, lone[0]), Part(1, 3, 1, lone[1])], padding=4)
    found = attention(rows, spans, pages)
    assert found[2:].eq(0.0).all() and found[:2].ne(0.0).all()
    written = [(lone[0][1], 2), (lone[1][0], 3)]
    for part, old in ((pages.k, before.k), (pages.v, before.v)):
        for page, offset in written:
            old[page, :, offset] = part[page, :, offset]
        assert same_bytes(part[:-1], old[:-1])
        assert part[-1].isfinite().all()

    null = [memory.pages, memory.pages]
    one_row = Spans(
        start=torch.arange(7, dtype=torch.int32),
        position=torch.tensor([0, 18, 0, 0, 3, 0], dtype=torch.int32),
        index=torch.tensor([-1, 1, -1, -1, 4, -1], dtype=torch.int32),
        page=torch.tensor([12, lone[0][1], 12, 12, lone[1][0], 12], dtype=torch.int32),
        offset=torch.tensor([0, 2, 0, 0, 3, 0], dtype=torch.int32),
        slot=torch.tensor([3, 0, 3, 3, 1, 3], dtype=torch.int32),
        length=torch.tensor([0, 19, 0, 0, 4, 0], dtype=torch.int32),
        table=torch.tensor([null, lone[0], null, null, lone[1], null], dtype=torch.int32),
    )
    again = attention(rows[[2, 0, 3, 4, 1, 5]], one_row, pages)
    assert torch.equal(again[[1, 4]], found[:2])
    assert again[[0, 2, 3, 5]].eq(0.0).all()


def test_a_step_of_padding_alone_gives_zero(ops: ReferenceOps, normal: Normal) -> None:
    attention = Attention(ops, 2, 1, 24)
    memory = Memory(pages=2)
    pages = memory.page_state(1, 24)
    found = attention(normal(5, attention.columns), memory.spans([], padding=5), pages)
    assert found.eq(0.0).all()
    assert pages.k[:-1].isnan().all() and pages.k[-1].isfinite().all()


def test_spans_without_pages_start_from_nothing(ops: ReferenceOps, normal: Normal) -> None:
    """As through pages, and gradients flow within a sequence."""
    attention = Attention(ops, 4, 2, 24)
    memory = Memory(pages=12)
    rows = normal(57, attention.columns)
    parts = [
        Part(0, 0, 40, memory.stream_pages(0, 40)),
        Part(1, 0, 17, memory.stream_pages(1, 17)),
    ]
    paged = attention(rows, memory.spans(parts), memory.page_state(2, 24))
    free = training_spans([40, 17])
    assert torch.equal(attention(rows, free, None), paged)
    leaf = rows.clone().requires_grad_()
    attention(leaf, free, None)[40:50].sum().backward()
    assert leaf.grad is not None
    assert leaf.grad[40:50].abs().sum() > 0
    assert leaf.grad[:40].eq(0.0).all() and leaf.grad[50:].eq(0.0).all()


def test_bfloat16_rows_give_bfloat16_results(ops: ReferenceOps, normal: Normal) -> None:
    """The attended value is rounded before the gate, the result after it."""
    attention = Attention(ops, 4, 2, 24)
    rows = normal(20, attention.columns).bfloat16()
    found = attention(rows, training_spans([20]), None)
    assert found.dtype == torch.bfloat16
    near(found.float(), attention.naive(rows), 1e-2)
