"""Step tensors of literal plans: what padding holds, whatever stood there a step before."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from declaim.contracts.request import SamplingParams
from declaim.contracts.step import Admission, PageGrant, Span, StepKind, StepPlan
from declaim.runner.batch import Batch, StepSize
from declaim.runner.runner import Runner
from declaim.state.step import Spans, StepTensors

SLOTS = 4
NULL_SLOT = SLOTS


@pytest.fixture
def batch(checkpoint: Callable[[str], Path], build: Callable[..., Runner]) -> Batch:
    """Buffers in which a full step of every kind has stood."""
    made = build(checkpoint("micro"), max_num_seqs=SLOTS, max_num_batched_tokens=24).batch
    full = tuple(prompt(slot, first=0, count=6, sampled=True) for slot in range(SLOTS))
    made.apply(granted(*range(SLOTS)))
    made.fill(StepPlan(StepKind.MIXED, full), StepSize(24, 20, SLOTS))
    decodes = tuple(decode(slot, 6) for slot in range(SLOTS))
    made.fill(StepPlan(StepKind.DECODE, decodes), StepSize(SLOTS, 0, SLOTS))
    return made


def granted(*slots: int) -> StepPlan:
    """A plan that admits slots with pages 2 slot and 2 slot + 1."""
    return StepPlan(
        StepKind.PREFILL,
        (),
        admissions=tuple(Admission(slot, SamplingParams(), 0, 0, ()) for slot in slots),
        page_grants=tuple(PageGrant(slot, (2 * slot, 2 * slot + 1)) for slot in slots),
    )


def prompt(slot: int, *, first: int, count: int, sampled: bool) -> Span:
    """Row at position p of a slot is [10 slot + p, ...]."""
    rows = np.full((count + 1, 5), 10 * slot, dtype=np.int32) + first
    rows += np.arange(count + 1, dtype=np.int32)[:, None]
    return Span(
        str(slot), slot, first, count, sampled, rows[:count], None if sampled else rows[count]
    )


def decode(slot: int, first: int) -> Span:
    return Span(str(slot), slot, first, 1, True, None, None)


def values(tensor: Tensor | None) -> list[int]:
    """The numbers; of wider tensors their first column."""
    assert tensor is not None
    return [int(value) for value in (tensor if tensor.dim() == 1 else tensor[:, 0])]


def rows_of(spans: Spans) -> list[tuple[int, ...]]:
    """Every row as (index, position, page, offset)."""
    parts = (spans.index, spans.position, spans.page, spans.offset)
    return list(zip(*(values(part) for part in parts), strict=True))


def spans_of(spans: Spans) -> list[tuple[int, ...]]:
    """Every span as (start, slot, length, first page)."""
    return list(
        zip(
            values(spans.start)[:-1],
            values(spans.slot),
            values(spans.length),
            values(spans.table),
            strict=True,
        )
    )


def test_a_mixed_step(batch: Batch) -> None:
    """A decode row, a chunk within a prompt, one that ends it, and padding in all three spans."""
    null_page = batch.layout.pages
    plan = StepPlan(
        StepKind.MIXED,
        (
            decode(2, 15),
            prompt(1, first=14, count=4, sampled=False),
            prompt(3, first=0, count=2, sampled=True),
        ),
    )
    step: StepTensors = batch.fill(plan, StepSize(rows=9, labelled=7, streams=4))
    assert values(step.last_slot) == [2, *[-1] * 8]
    assert values(step.rows) == [0, 24, 25, 26, 27, 30, 31, 0, 0]
    assert values(step.labels) == [0, 25, 26, 27, 28, 31, 0, 0, 0]
    padding = (-1, 0, null_page, 0)
    chunk = [(1, 14, 2, 14), (2, 15, 2, 15), (3, 16, 3, 0), (4, 17, 3, 1)]
    assert rows_of(step.every) == [
        (0, 15, 4, 15),
        *chunk,
        (5, 0, 6, 0),
        (6, 1, 6, 1),
        padding,
        padding,
    ]
    assert rows_of(step.fill) == [*chunk, (5, 0, 6, 0), padding, padding]
    assert rows_of(step.sampled) == [(0, 15, 4, 15), (6, 1, 6, 1), padding, padding]
    empty = (NULL_SLOT, 0, null_page)
    assert spans_of(step.every) == [
        (0, 2, 16, 4),
        (1, 1, 18, 2),
        (5, 3, 2, 6),
        (7, *empty),
        (7, *empty),
    ]
    assert spans_of(step.fill) == [(0, 1, 18, 2), (4, 3, 1, 6), *[(5, *empty)] * 3]
    assert spans_of(step.sampled) == [(0, 2, 16, 4), (1, 3, 2, 6), (2, *empty), (3, *empty)]
    assert [values(spans.start)[-1] for spans in (step.every, step.fill, step.sampled)] == [9, 7, 4]


def test_a_decode_step(batch: Batch) -> None:
    """Each padding row is a span of its own on the null slot."""
    null_page = batch.layout.pages
    plan = StepPlan(StepKind.DECODE, (decode(3, 16), decode(0, 6)))
    step = batch.fill(plan, StepSize(rows=4, labelled=0, streams=4))
    assert values(step.last_slot) == [3, 0, -1, -1]
    for spans in (step.every, step.sampled):
        padding = (-1, 0, null_page, 0)
        assert rows_of(spans) == [(0, 16, 7, 0), (1, 6, 0, 6), padding, padding]
        empty = (NULL_SLOT, 0, null_page)
        assert spans_of(spans) == [(0, 3, 17, 6), (1, 0, 7, 0), (2, *empty), (3, *empty)]


def test_block_tables_follow_the_plan(batch: Batch) -> None:
    null_page = batch.layout.pages
    batch.apply(StepPlan(StepKind.DECODE, (), page_grants=(PageGrant(1, (9,)),)))
    assert batch.tables[1, :4].tolist() == [2, 3, 9, null_page]
    batch.apply(StepPlan(StepKind.DECODE, (), releases=(1,)))
    assert (batch.tables[1] == null_page).all() and batch.granted[1] == 0
    batch.apply(granted(1))
    assert batch.tables[1, :3].tolist() == [2, 3, null_page]
    batch.apply(granted(1))
    assert batch.tables[1, :3].tolist() == [2, 3, null_page], "admission starts a new table"
    assert (batch.tables[NULL_SLOT] == null_page).all()
