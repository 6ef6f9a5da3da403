"""Embeddings, the tower's input, gathered rows and what a slot keeps of a frame."""

from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from row_checks import near, same_rows
from torch import Tensor

from declaim.ops.reference import ReferenceOps
from declaim.state.frames import FrameState, SamplingTensors

Normal = Callable[..., Tensor]

BAND = (40, 71)
BOOKS, ENTRIES = 5, 32


def frame_rows(count: int) -> Tensor:
    """int32 [count, 1 + Q]: text and speech rows, both ends of the band, codes out of range."""
    generator = torch.Generator().manual_seed(7)
    rows = torch.randint(0, ENTRIES, (count, 1 + BOOKS), generator=generator, dtype=torch.int32)
    rows[:, 0] = torch.randint(0, 100, (count,), generator=generator)
    ends = torch.tensor([BAND[0] - 1, BAND[0], BAND[1], BAND[1] + 1, 50, 50])
    rows[:6, 0] = ends[:count]
    rows[4:5, 1:], rows[5:6, 1:] = -7, 10_000
    return rows


def code_sum(row: list[int], codebooks: Tensor, first: int, last: int) -> Tensor:
    """Sum of one row's codes first..last, float64 [dim]."""
    total = torch.zeros(codebooks.shape[1], dtype=torch.float64)
    for book in range(first, last + 1):
        code = min(max(row[1 + book], 0), ENTRIES - 1)
        total += codebooks[book * ENTRIES + code].double()
    return total


def speaks(row: list[int]) -> bool:
    return BAND[0] <= row[0] <= BAND[1]


@pytest.mark.parametrize("codes", [0, 1, BOOKS - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embed(
    ops: ReferenceOps, normal: Normal, threads: int, codes: int, dtype: torch.dtype
) -> None:
    table, books = normal(100, 33).to(dtype), normal(BOOKS * ENTRIES, 33).to(dtype)
    handles = ops.prepare_table(table), ops.prepare_table(books)
    rows = frame_rows(44)
    wanted = []
    for row in rows.tolist():
        e = table[row[0]].double()
        if speaks(row):
            e = (e + code_sum(row, books, 1, codes)) / (1 + codes) ** 0.5
        wanted.append(e)

    def op(part: Tensor) -> tuple[Tensor, ...]:
        tokens = part.nan_to_num(0.0).clamp(0, 99).int()
        return (ops.embed(tokens, *handles, band=BAND, codes=codes),)

    near(ops.embed(rows, *handles, band=BAND, codes=codes), torch.stack(wanted))
    same_rows(op, rows.float())


@pytest.mark.parametrize("first", [1, 2, BOOKS - 1])
def test_extra_codes(ops: ReferenceOps, normal: Normal, first: int) -> None:
    books = normal(BOOKS * ENTRIES, 24)
    rows = frame_rows(33)
    zero = torch.zeros(24, dtype=torch.float64)
    wanted = [
        code_sum(row, books, first, BOOKS - 1) if speaks(row) else zero for row in rows.tolist()
    ]
    handle = ops.prepare_table(books)
    found = ops.extra_codes(rows, handle, band=BAND, first=first)
    near(found, torch.stack(wanted))
    for part in (slice(0, 1), slice(4, 7), slice(32, 33)):
        alone = ops.extra_codes(rows[part], handle, band=BAND, first=first)
        assert torch.equal(alone, found[part])


@pytest.mark.parametrize("with_extra", [False, True])
@pytest.mark.parametrize("column", [1, 3])
def test_tower_input(
    ops: ReferenceOps, normal: Normal, threads: int, with_extra: bool, column: int
) -> None:
    dim = 33
    table, enorm, hnorm = normal(ENTRIES, dim), normal(dim), normal(dim)
    handles = ops.prepare_vector(enorm), ops.prepare_vector(hnorm)
    columns = torch.cat([normal(44, 2 * dim), frame_rows(44).float()], -1)

    def op(part: Tensor) -> tuple[Tensor, ...]:
        h, extra, frames = part.split([dim, dim, 1 + BOOKS], -1)
        rows = frames.nan_to_num(0.0).clamp(-100, 20_000).int()
        return (
            ops.tower_input(
                h,
                rows,
                ops.prepare_table(table),
                extra if with_extra else None,
                *handles,
                column=column,
                band=BAND,
                eps=1e-6,
            ),
        )

    h, extra, frames = columns.double().split([dim, dim, 1 + BOOKS], -1)
    e = table[frames[:, column].long().clamp(0, ENTRIES - 1)].double()
    spoken = [[speaks([int(row[0])])] for row in frames.tolist()]
    e = e * torch.tensor(spoken) + (extra if with_extra else 0.0)
    both = [
        x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + weight.double())
        for x, weight in ((e, enorm), (h, hnorm))
    ]
    found = op(columns)[0]
    near(found, torch.cat(both, -1))
    if not with_extra:
        assert torch.equal(found[0, :dim], torch.zeros(dim)), "a row without label stays zero"
    same_rows(op, columns)


@pytest.mark.parametrize("shape", [(6,), (6, 3), (6, 2, 5)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_gather_rows(ops: ReferenceOps, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    source = torch.arange(1, 1 + int(torch.tensor(shape).prod())).view(shape).to(dtype)
    index = torch.tensor([5, -1, 0, 5, -3], dtype=torch.int32)
    kept = torch.full((5, *shape[1:]), 77).to(dtype)
    zeros = kept.new_zeros(shape[1:])
    for keep, absent in ((False, zeros), (True, kept[0])):
        out = kept.clone()
        wanted = torch.stack([source[5], absent, source[0], source[5], absent])
        assert ops.gather_rows(source, index, keep=keep, out=out) is out
        assert torch.equal(out, wanted)
    without = torch.stack([source[5], zeros, source[0], source[5], zeros])
    assert torch.equal(ops.gather_rows(source, index), without)


def test_rows_that_are_not_gathered_may_hold_anything(ops: ReferenceOps) -> None:
    """Row 0 is what a negative index reads before it is dropped."""
    source = torch.full((3, 2), torch.nan)
    source[2] = 4.0
    found = ops.gather_rows(source, torch.tensor([-1, 2], dtype=torch.int32))
    assert found.tolist() == [[0.0, 0.0], [4.0, 4.0]]


def frame_state(slots: int, window: int) -> FrameState:
    """A state in which every entry of every slot is told apart."""
    rows = slots + 1
    zeros = [torch.zeros(rows) for _ in fields(SamplingTensors)]
    return FrameState(
        last=torch.arange(rows * 4, dtype=torch.int32).view(rows, 4),
        window=torch.arange(rows * window, dtype=torch.int32).view(rows, window) + 1000,
        counter=torch.arange(rows) * 10,
        seed=torch.arange(rows),
        sampling=SamplingTensors(*zeros),
    )


def test_write_frame(ops: ReferenceOps) -> None:
    state, before = frame_state(5, 3), frame_state(5, 3)
    frames = torch.tensor([[7, 1, 2, 3], [8, 4, 5, 6], [9, 0, 0, 0]], dtype=torch.int32)
    slots = [4, 1, 5]
    ops.write_frame(frames, torch.tensor(slots, dtype=torch.int32), state)
    for row, slot in enumerate(slots):
        assert torch.equal(state.last[slot], frames[row])
        window = [*before.window[slot, 1:].tolist(), int(frames[row, 0])]
        assert state.window[slot].tolist() == window
        assert state.counter[slot] == before.counter[slot] + 1
    for slot in (0, 2, 3):
        for name in ("last", "window", "counter"):
            assert torch.equal(getattr(state, name)[slot], getattr(before, name)[slot])
    assert torch.equal(state.seed, before.seed)


def test_frames_of_padding_streams_meet_on_the_null_slot(ops: ReferenceOps) -> None:
    state, before = frame_state(2, 3), frame_state(2, 3)
    frames = torch.tensor([[7, 1, 2, 3], [8, 4, 5, 6], [9, 0, 0, 0]], dtype=torch.int32)
    ops.write_frame(frames, torch.tensor([2, 0, 2], dtype=torch.int32), state)
    assert torch.equal(state.last[0], frames[1])
    assert torch.equal(state.last[1], before.last[1])
    assert state.counter.tolist() == [1, 10, 21]
