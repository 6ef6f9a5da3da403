"""Spans as Python integers, for ops whose loops follow the spans' lengths."""

from dataclasses import dataclass

from declaim.state.step import Spans


@dataclass(frozen=True)
class HostSpans:
    """The spans of a step that hold rows, in order.

    numbers: their places among all spans. starts: their first rows. counts: their rows.
    single: span i is row i, for every row (a decode step).
    """

    numbers: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    single: bool


def read_spans(spans: Spans, rows: int) -> HostSpans:
    """Read a step's spans; empty ones are left out."""
    edges = spans.start.tolist()
    if len(edges) == rows + 1 and edges[rows] == rows and edges == list(range(rows + 1)):
        every = tuple(range(rows))
        return HostSpans(every, every, (1,) * rows, True)
    numbers = tuple(i for i in range(len(edges) - 1) if edges[i + 1] > edges[i])
    starts = tuple(edges[i] for i in numbers)
    counts = tuple(edges[i + 1] - edges[i] for i in numbers)
    assert sum(counts) == rows, f"spans hold {sum(counts)} rows of {rows}"
    return HostSpans(numbers, starts, counts, False)
