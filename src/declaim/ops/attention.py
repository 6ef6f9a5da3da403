"""Causal attention over blocks of 64 context rows, aligned to position.

Scores, weights and values of every block go through products of one fixed size. Positions past a
row are dropped by selection, whatever they hold; weights are exp(score - the row's largest score),
and blocks are added one after another from the first, so that blocks behind a row add nothing.

Values past a row meet a weight of 0, and 0 times a finite value adds nothing. Those that are not
written are set to zero by selection; where a span's own values are not all finite, its rows are
taken one by one, with everything behind each set to zero.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from declaim.ops.delta_rule import live_spans
from declaim.ops.tiles import COLUMN_STEP, TILE_ROWS, batch_product
from declaim.state.pages import Pages
from declaim.state.step import Spans

BLOCK = 64
"""Context rows of a block."""


def store(k: Tensor, v: Tensor, spans: Spans, pages: Pages) -> None:
    """Write K and V of the rows, [n, kv heads, width], at their (page, offset)."""
    assert spans.page is not None and spans.offset is not None
    page, offset = spans.page.long(), spans.offset.long()
    pages.k[page, :, offset] = k.to(pages.k.dtype)
    pages.v[page, :, offset] = v.to(pages.v.dtype)


def whole_blocks(length: int) -> int:
    """Rows of the blocks that hold a context."""
    return -(-length // BLOCK) * BLOCK


class ContextReader:
    """Reads K and V back from pages, into memory that it keeps.

    Fresh memory of a megabyte costs more in page faults than the copy itself. What is read holds
    until the next read, by one thread.
    """

    def __init__(self) -> None:
        self._kept = torch.empty(0)

    def read(self, table: Tensor, pages: Pages, rows: int) -> tuple[Tensor, Tensor]:
        """K and V of the pages in `table` int32 [spans, pages]: float32 [spans, K, rows, D].

        Where a table ends early, the rest is the null page's.
        """
        count, heads, size, width = pages.k.shape
        needed = -(-rows // size)
        table = table[:, :needed].long()
        if table.shape[1] < needed:
            table = F.pad(table, (0, needed - table.shape[1]), value=count - 1)
        head = torch.arange(heads, device=table.device)[:, None]
        index = (table[:, None] * heads + head).flatten()
        both = self._space((2, len(index), size, width), pages.k)
        for source, target in zip((pages.k, pages.v), both, strict=True):
            torch.index_select(source.view(count * heads, size, width), 0, index, out=target)
        both = both.view(2, len(table), heads, needed * size, width)
        k, v = both[:, :, :, :rows].float().contiguous()
        return k, v

    def _space(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        size = torch.Size(shape).numel()
        kept = self._kept
        if kept.numel() < size or kept.dtype != like.dtype or kept.device != like.device:
            with torch.inference_mode(False):
                self._kept = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._kept[:size].view(shape)


def attend(
    q: Tensor, k: Tensor, v: Tensor, spans: Spans, pages: Pages | None, reader: ContextReader
) -> Tensor:
    """q [n, H, D], k and v [n, K, D] -> float32 [n, H * D]; rows of length-0 spans give 0."""
    rows, heads, width = q.shape
    query = (q.float() * width**-0.5).view(rows, k.shape[1], -1, width)
    if pages is None:
        return _attend_within(query, k.float(), v.float(), spans).reshape(rows, heads * width)
    assert spans.length is not None and spans.table is not None
    store(k, v, spans, pages)
    length = spans.length.tolist()
    live = [span for span in zip(*live_spans(spans), strict=True) if length[span[0]]]
    single = [(number, first) for number, first, count in live if count == 1]
    out = torch.zeros_like(query)
    if single:
        numbers, places = (list(part) for part in zip(*single, strict=True))
        ends = [length[number] for number in numbers]
        kept = reader.read(spans.table[numbers], pages, whole_blocks(max(ends)))
        out[places] = attend_rows(query[places], ends, *kept)
    for number, first, count in live:
        if count == 1:
            continue
        end = length[number]
        keys, values = reader.read(spans.table[number : number + 1], pages, whole_blocks(end))
        values[:, :, end:] = 0.0
        own = query[first : first + count]
        out[first : first + count] = attend_context(own, end - count, keys[0], values[0])
    return out.view(rows, heads * width)


def _attend_within(query: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
    """Spans that start from nothing, from their own K and V [n, K, D]."""
    made = [query[:0]]
    for _, first, count in zip(*live_spans(spans), strict=True):
        keys, values = (
            F.pad(part[first : first + count].transpose(0, 1), (0, 0, 0, -count % BLOCK))
            for part in (k, v)
        )
        made.append(attend_context(query[first : first + count], 0, keys, values))
    return torch.cat(made)


def attend_context(query: Tensor, first: int, k: Tensor, v: Tensor) -> Tensor:
    """Rows of one context, query [r, K, group, D], the first at position `first`.

    k, v [K, rows, D], whole blocks; v is zero behind the last row of the query.
    """
    rows = query.shape[0]
    if rows > 1 and bool(torch.isfinite(v[:, first : first + rows]).all()):
        return attend_span(query, first, k, v)
    each = [
        attend_rows(query[i : i + 1], [first + i + 1], k[None], v[None].clone())
        for i in range(rows)
    ]
    return torch.cat(each)


def attend_rows(query: Tensor, ends: list[int], k: Tensor, v: Tensor) -> Tensor:
    """Rows that end a context each: query [s, K, group, D], k, v [s, K, rows, D], whole blocks.

    Writes zeros into v behind the ends.
    """
    spans, heads, group, width = query.shape
    for span, end in enumerate(ends):
        v[span, :, end:] = 0.0
    keys, values = _blocks(k), _blocks(_columns(v))
    # Products of the batch: spans, kv heads, tiles of query heads, blocks.
    batch = (spans, heads, -(-group // TILE_ROWS), keys.shape[2])
    padded = F.pad(query, (0, 0, 0, -group % TILE_ROWS)).view(*batch[:3], 1, TILE_ROWS, width)

    def flat(part: Tensor) -> Tensor:
        return part.expand(*batch, *part.shape[4:]).reshape(-1, *part.shape[4:])

    scores = batch_product(flat(padded), flat(keys[:, :, None]).mT).view(*batch, TILE_ROWS, BLOCK)
    for span, end in enumerate(ends):
        full, rest = divmod(end, BLOCK)
        if rest:
            scores[span, :, :, full, :, rest:] = -torch.inf
            full += 1
        if full < batch[3]:
            scores[span, :, :, full:] = -torch.inf
    weights = (scores - scores.amax((3, 5), keepdim=True)).exp_()
    value = batch_product(weights.flatten(0, 3), flat(values[:, :, None]))
    value = _added(value.view(*batch, TILE_ROWS, -1), 3)
    made = value / _added(weights.sum(-1, keepdim=True), 3)
    return made.flatten(2, 3)[:, :, :group, :width]


def attend_span(query: Tensor, first: int, k: Tensor, v: Tensor) -> Tensor:
    """`attend_context` where the span's values are finite: tiles of rows share each block."""
    rows, heads, group, width = query.shape
    keys, values = _blocks(k), _blocks(_columns(v))
    blocks, height = keys.shape[1], -(-rows * group // TILE_ROWS) * TILE_ROWS
    tiled = query.transpose(0, 1).reshape(heads, rows * group, width)
    tiled = F.pad(tiled, (0, 0, 0, height - rows * group))
    # Line m of the tiles stands at position first + m // group; the tiles ahead of a block skip it.
    skipped = [
        max(block * BLOCK - first, 0) * group // TILE_ROWS * TILE_ROWS for block in range(blocks)
    ]
    scores = query.new_full((heads, blocks, height, BLOCK), -torch.inf)
    for head in range(heads):
        for block, skip in enumerate(skipped):
            scores[head, block, skip:] = _tiled(tiled[head, skip:], keys[head, block].T)
    place = torch.arange(blocks * BLOCK, device=query.device).view(blocks, 1, BLOCK)
    own = first + torch.arange(height, device=query.device) // group
    scores = scores.masked_fill(place > own[:, None], -torch.inf)
    weights = (scores - scores.amax((1, 3), keepdim=True)).exp_()
    value = query.new_zeros(heads, height, values.shape[-1])
    for head in range(heads):
        for block, skip in enumerate(skipped):
            value[head, skip:] += _tiled(weights[head, block, skip:], values[head, block])
    made = value / _added(weights.sum(-1, keepdim=True), 1)
    return made[:, : rows * group, :width].reshape(heads, rows, group, width).transpose(0, 1)


def _blocks(part: Tensor) -> Tensor:
    """[..., rows, D] -> [..., blocks, 64, D]."""
    return part.view(*part.shape[:-2], -1, BLOCK, part.shape[-1])


def _columns(part: Tensor) -> Tensor:
    """The last dimension padded to whole columns of a product."""
    extra = -part.shape[-1] % COLUMN_STEP
    return F.pad(part, (0, extra)) if extra else part


def _tiled(lines: Tensor, matrix: Tensor) -> Tensor:
    """Lines [tiles * 4, k] times one matrix [k, n]."""
    tiles = lines.view(-1, TILE_ROWS, lines.shape[-1])
    return batch_product(tiles, matrix.expand(len(tiles), *matrix.shape)).flatten(0, 1)


def _added(parts: Tensor, dimension: int) -> Tensor:
    """Sum over blocks, from 0 and one after another."""
    total = torch.zeros_like(parts.select(dimension, 0))
    for part in parts.unbind(dimension):
        total = total.add_(part)
    return total
