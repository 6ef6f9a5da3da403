"""The tensors of one step: fixed buffers, filled by runner/batch, read by model and ops.

Row indices, positions and table entries are int32. `n` rows, `S` spans, `R` rows of the step.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spans:
    """Which rows belong to which request, and where their state lives.

    Per row: index [n] (row of the step, -1 for padding), position [n], page [n] and offset [n]
    (where this row's K and V are stored).
    Per span: start [S + 1] (row ranges), slot [S], length [S] (rows of context after the span,
    0 for padding), table [S, pages] (the slot's pages in order, then the null page).

    Either S = n and span i is row i (all spans of one row), or S = max_num_seqs + 1, where
    unused spans are empty and the last one holds all padding rows on the null slot and page.
    Training builds spans with `start` and `position` only; the other fields are None there.
    """

    start: Tensor
    position: Tensor
    index: Tensor | None = None
    page: Tensor | None = None
    offset: Tensor | None = None
    slot: Tensor | None = None
    length: Tensor | None = None
    table: Tensor | None = None


@dataclass(frozen=True)
class StepTensors:
    """One step's inputs and its hand-over buffers, as views of fixed buffers.

    rows int32 [R, 1 + Q]: input rows (a decode row's are gathered from its slot's last frame).
    labels int32 [R, 1 + Q]: the frame after each labelled row.
    last_slot int32 [R]: a decode row's slot, else -1.
    every: spans of all rows (backbone). fill: spans of the labelled rows. sampled: one-row spans.
    hidden [R, hidden], frames int32 [streams, 1 + Q], main_logits float32 [streams, candidates],
    code_logits float32 [Q - 1, streams, V]: written by the model, readable after any step.
    """

    rows: Tensor
    labels: Tensor
    last_slot: Tensor
    every: Spans
    fill: Spans
    sampled: Spans
    hidden: Tensor
    frames: Tensor
    main_logits: Tensor
    code_logits: Tensor


def tensor_addresses(holder: Any, path: str = "") -> dict[str, int]:
    """Addresses of all tensors in nested dataclasses and tuples, by dotted path."""
    if isinstance(holder, Tensor):
        return {path: holder.data_ptr()}
    if isinstance(holder, tuple):
        parts: Iterable[tuple[str, Any]] = ((str(i), item) for i, item in enumerate(holder))
    elif is_dataclass(holder):
        parts = ((field.name, getattr(holder, field.name)) for field in fields(holder))
    else:
        return {}
    found: dict[str, int] = {}
    for name, item in parts:
        found |= tensor_addresses(item, f"{path}.{name}" if path else name)
    return found


def training_spans(lengths: list[int]) -> Spans:
    """Spans of whole sequences without state: `start` and `position` only.

    lengths: rows of each sequence, in order.
    """
    start = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    position = torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
    return Spans(start=start, position=position)
