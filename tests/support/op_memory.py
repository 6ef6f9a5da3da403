"""Slots, pages and spans for tests of the stateful ops, with NaN wherever nothing was written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.state.pages import Pages
from declaim.state.step import Spans


@dataclass(frozen=True)
class Part:
    """Rows first .. first + count - 1 of the stream in a slot, whose pages are in order."""

    slot: int
    first: int
    count: int
    pages: tuple[int, ...] = ()


@dataclass(frozen=True)
class Memory:
    """How many slots and pages there are, and the page size; the null ones come last."""

    slots: int = 4
    pages: int = 1
    page_size: int = 16

    def slot_state(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Poisoned state [slots + 1, ...] whose null slot is zero."""
        state = torch.full((self.slots + 1, *shape), torch.nan, dtype=dtype)
        state[-1] = 0.0
        return state

    def page_state(self, heads: int, width: int, dtype: torch.dtype = torch.float32) -> Pages:
        """Poisoned pages whose null page is zero."""
        shape = (self.pages + 1, heads, self.page_size, width)
        pages = Pages(torch.full(shape, torch.nan, dtype=dtype), torch.zeros(0))
        pages = Pages(pages.k, pages.k.clone())
        pages.k[-1] = pages.v[-1] = 0.0
        return pages

    def stream_pages(self, start: int, rows: int) -> tuple[int, ...]:
        """Pages for a stream of so many rows: every third page, not in ascending order."""
        count = -(-rows // self.page_size)
        return tuple((start + 3 * index) % self.pages for index in reversed(range(count)))

    def spans(self, parts: Sequence[Part], padding: int = 0) -> Spans:
        """Spans of the parts in order, an unused one, and one of padding rows."""
        table_width = max([1, *(len(part.pages) for part in parts)])
        null = [self.pages] * table_width
        counts = [*(part.count for part in parts), 0, padding]
        position = [part.first + i for part in parts for i in range(part.count)]
        places = [
            (part.pages[row // self.page_size], row % self.page_size)
            if part.pages
            else (self.pages, 0)
            for part in parts
            for row in range(part.first, part.first + part.count)
        ] + [(self.pages, 0)] * padding

        def integers(values: Sequence[object]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32)

        return Spans(
            start=integers([0, *counts]).cumsum(0).int(),
            position=integers([*position, *[0] * padding]),
            index=integers([*range(len(position)), *[-1] * padding]),
            page=integers([page for page, _ in places]),
            offset=integers([offset for _, offset in places]),
            slot=integers([*(part.slot for part in parts), self.slots, self.slots]),
            length=integers([*(part.first + part.count for part in parts), 0, 0]),
            table=integers([*([*part.pages, *null][:table_width] for part in parts), null, null]),
        )


def same_bytes(found: Tensor, wanted: Tensor) -> bool:
    """Equality of bytes, so that NaN equals itself."""
    return torch.equal(found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))


CUTS: tuple[tuple[int, ...], ...] = (
    (97,),
    (1,) * 97,
    (2,) * 48 + (1,),
    (3,) * 32 + (1,),
    (7,) * 13 + (6,),
    (17, 3, 40, 30, 7),
    (1, 96),
    (96, 1),
)
"""Ways to cut a sequence of 97 rows."""


@dataclass(frozen=True)
class Stream:
    """Rows [T, columns] of one request, and where its state lives."""

    rows: Tensor
    slot: int
    pages: tuple[int, ...] = ()


StepCounts = Sequence[tuple[int, int]]
"""The spans of one step: stream number and row count."""


def beside(cuts: Sequence[int], others: Sequence[int]) -> list[StepCounts]:
    """Stream 0 in these cuts; streams 1, 2, ... of `others` rows before and behind it by turns.

    The others take one to three rows a step, until they have none left.
    """
    left = list(others)
    steps: list[StepCounts] = []
    for turn, cut in enumerate(cuts):
        spans = [(0, cut)]
        for number in range(len(left)):
            taken = min(left[number], 1 + (turn + number) % 3)
            left[number] -= taken
            if taken:
                spans.insert(0 if (turn + number) % 2 else len(spans), (1 + number, taken))
        steps.append(spans)
    return steps


def drive(
    memory: Memory,
    streams: Sequence[Stream],
    steps: Sequence[StepCounts],
    op: Callable[[Tensor, Spans], Tensor],
    padding: int = 0,
) -> list[Tensor]:
    """Run streams through an op with state, step by step; each stream's results in row order.

    op(rows, spans); padding rows hold 3 in every column.
    """
    done = [0] * len(streams)
    made: list[list[Tensor]] = [[] for _ in streams]
    for step in steps:
        parts, rows = [], []
        for number, count in step:
            stream, first = streams[number], done[number]
            parts.append(Part(stream.slot, first, count, stream.pages))
            rows.append(stream.rows[first : first + count])
            done[number] += count
        rows.append(torch.full((padding, rows[0].shape[1]), 3.0))
        found = op(torch.cat(rows), memory.spans(parts, padding))
        counts = [part.count for part in parts]
        for (number, _), piece in zip(step, found[: sum(counts)].split(counts), strict=True):
            made[number].append(piece)
    return [torch.cat(pieces) for pieces in made]
