"""StepPlan to step tensors: fixed buffers, filled on the host and handed out as views.

Knows which rows, positions and pages belong to which slot; computes nothing of the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from declaim.config.model import ModelConfig
from declaim.contracts.step import Span, StepKind, StepPlan
from declaim.platforms.base import Platform, Staging
from declaim.state.layout import StateLayout
from declaim.state.step import Spans, StepTensors

Int32Array = NDArray[np.int32]


@dataclass(frozen=True)
class StepSize:
    """Padded sizes of one step: rows of the backbone, labelled rows, streams of the frame pass."""

    rows: int
    labelled: int
    streams: int


def exact_size(plan: StepPlan) -> StepSize:
    """The plan's own sizes, without padding."""
    labelled = sum(span.labelled for span in plan.spans)
    return StepSize(rows=plan.rows, labelled=labelled, streams=len(plan.sampled))


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of one slot: first row of the step, first position, count."""

    slot: int
    row: int
    first: int
    count: int


class SpansBuffer:
    """One Spans at fixed addresses."""

    def __init__(
        self, platform: Platform, layout: StateLayout, rows: int, table_width: int
    ) -> None:
        def staging(*shape: int) -> Staging:
            return platform.staging(shape)

        spans = max(layout.slots + 1, rows)
        self.layout = layout
        self.index = staging(rows)
        self.position = staging(rows)
        self.page = staging(rows)
        self.offset = staging(rows)
        self.start = staging(spans + 1)
        self.slot = staging(spans)
        self.length = staging(spans)
        self.table = staging(spans, table_width)

    def fill(
        self, ranges: Sequence[RowRange], padded: int, tables: Int32Array, *, single: bool
    ) -> Spans:
        """Write the ranges and padding up to `padded` rows; view them as Spans.

        tables [slots + 1, pages]: every slot's pages, the null slot's last.
        single: every range is one row and every padding row a span of its own.
        """
        layout = self.layout
        null_slot = layout.slots
        row = 0
        for rows in ranges:
            part = slice(row, row + rows.count)
            positions = np.arange(rows.first, rows.first + rows.count, dtype=np.int32)
            self.index.host[part] = np.arange(rows.row, rows.row + rows.count, dtype=np.int32)
            self.position.host[part] = positions
            self.page.host[part] = tables[rows.slot, positions // layout.page_size]
            self.offset.host[part] = positions % layout.page_size
            row += rows.count
        self.index.host[row:padded] = -1
        self.position.host[row:padded] = 0
        self.page.host[row:padded] = layout.pages
        self.offset.host[row:padded] = 0
        count = padded if single else layout.slots + 1
        used = len(ranges)
        self.start.host[0] = 0
        self.start.host[1 : used + 1] = np.cumsum([rows.count for rows in ranges], dtype=np.int32)
        self.slot.host[:used] = [rows.slot for rows in ranges]
        self.length.host[:used] = [rows.first + rows.count if rows.count else 0 for rows in ranges]
        self.table.host[:used] = tables[self.slot.host[:used]]
        if single:
            self.start.host[: count + 1] = np.arange(count + 1, dtype=np.int32)
        else:
            self.start.host[used + 1 : count] = row
            self.start.host[count] = padded
        self.slot.host[used:count] = null_slot
        self.length.host[used:count] = 0
        self.table.host[used:count] = layout.pages
        return self._view(padded, count)

    def _view(self, rows: int, spans: int) -> Spans:
        for staging in (self.index, self.position, self.page, self.offset):
            staging.upload(rows)
        for staging in (self.slot, self.length, self.table):
            staging.upload(spans)
        self.start.upload(spans + 1)
        return Spans(
            start=self.start.device[: spans + 1],
            position=self.position.device[:rows],
            index=self.index.device[:rows],
            page=self.page.device[:rows],
            offset=self.offset.device[:rows],
            slot=self.slot.device[:spans],
            length=self.length.device[:spans],
            table=self.table.device[:spans],
        )


class Batch:
    """All step tensors of one runner, and the host's mirror of the block tables."""

    def __init__(
        self, config: ModelConfig, platform: Platform, layout: StateLayout, rows: int, context: int
    ) -> None:
        """rows: most rows of a step. context: most rows of a stream."""
        tower = config.tower
        self.most_rows = rows
        self.layout = layout
        width = -(-context // layout.page_size)
        self.tables = np.full((layout.slots + 1, width), layout.pages, dtype=np.int32)
        self.granted = np.zeros(layout.slots, dtype=np.int64)
        self.rows = platform.staging((rows, config.row_width))
        self.labels = platform.staging((rows, config.row_width))
        self.last_slot = platform.staging((rows,))
        self.every = SpansBuffer(platform, layout, rows, width)
        self.fill_spans = SpansBuffer(platform, layout, rows, width)
        self.sampled = SpansBuffer(platform, layout, layout.slots, width)
        hidden, streams = config.backbone.hidden_size, layout.slots
        candidates = len(config.candidates)
        device = platform.device
        self.hidden = torch.zeros(rows, hidden, dtype=platform.dtype, device=device)
        self.frames = torch.zeros(streams, config.row_width, dtype=torch.int32, device=device)
        self.main_logits = torch.zeros(streams, candidates, dtype=torch.float32, device=device)
        heads = tower.num_codebooks - 1
        self.code_logits = torch.zeros(
            heads, streams, tower.codebook_size, dtype=torch.float32, device=device
        )

    def addresses(self) -> dict[str, int]:
        """Where every step tensor lies, by its path; constant, whatever the step's size."""
        spans = {"every": self.every, "fill": self.fill_spans, "sampled": self.sampled}
        found: dict[str, int] = {}
        for path, holder in {"": self, **spans}.items():
            for name, value in vars(holder).items():
                tensor = getattr(value, "device", None) if not isinstance(value, Tensor) else value
                if isinstance(tensor, Tensor):
                    found[f"{path}.{name}".lstrip(".")] = tensor.data_ptr()
        return found

    def apply(self, plan: StepPlan) -> None:
        """Releases, admissions and page grants of a plan, in this order, on the block tables."""
        for slot in plan.releases:
            self._clear(slot)
        for admission in plan.admissions:
            self._clear(admission.slot)
        for grant in plan.page_grants:
            start = self.granted[grant.slot]
            self.tables[grant.slot, start : start + len(grant.pages)] = grant.pages
            self.granted[grant.slot] += len(grant.pages)

    def _clear(self, slot: int) -> None:
        self.tables[slot] = self.layout.pages
        self.granted[slot] = 0

    def fill(self, plan: StepPlan, size: StepSize) -> StepTensors:
        """Write a plan into the buffers, padded to `size`."""
        every, labelled, sampled = _ranges(plan.spans)
        single = plan.kind is StepKind.DECODE
        row = 0
        for span in plan.spans:
            self._fill_rows(span, row)
            row += span.count
        for staging, null in ((self.rows, 0), (self.labels, 0), (self.last_slot, -1)):
            staging.host[row : size.rows] = null
            staging.upload(size.rows)
        return StepTensors(
            rows=self.rows.device[: size.rows],
            labels=self.labels.device[: size.rows],
            last_slot=self.last_slot.device[: size.rows],
            every=self.every.fill(every, size.rows, self.tables, single=single),
            fill=self.fill_spans.fill(labelled, size.labelled, self.tables, single=False),
            sampled=self.sampled.fill(sampled, size.streams, self.tables, single=True),
            hidden=self.hidden[: size.rows],
            frames=self.frames[: size.streams],
            main_logits=self.main_logits[: size.streams],
            code_logits=self.code_logits[:, : size.streams],
        )

    def _fill_rows(self, span: Span, row: int) -> None:
        part = slice(row, row + span.count)
        if span.rows is None:
            self.rows.host[part] = 0
            self.labels.host[part] = 0
            self.last_slot.host[part] = span.slot
            return
        self.rows.host[part] = span.rows
        self.labels.host[row : row + span.count - 1] = span.rows[1:]
        self.labels.host[row + span.count - 1] = 0 if span.next_row is None else span.next_row
        self.last_slot.host[part] = -1


def _ranges(
    spans: Sequence[Span],
) -> tuple[list[RowRange], list[RowRange], list[RowRange]]:
    """All rows, labelled rows and sampled rows of each span."""
    every, labelled, sampled = [], [], []
    row = 0
    for span in spans:
        every.append(RowRange(span.slot, row, span.first, span.count))
        if span.labelled:
            labelled.append(RowRange(span.slot, row, span.first, span.labelled))
        if span.sampled:
            last = span.count - 1
            sampled.append(RowRange(span.slot, row + last, span.first + last, 1))
        row += span.count
    return every, labelled, sampled
