"""Causal attention over blocks of 16 context rows, aligned to position.

For a row at position p, block p // 16 is its diagonal block and the earlier ones are full; which
is which depends on the position alone. Full blocks are computed for tiles of query rows together,
the diagonal block for each row by itself, with everything behind the row replaced by zero first.
Partial sums of blocks are added one after another, in ascending order, so that blocks which a row
does not see add nothing, whatever they hold.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from declaim.ops.delta_rule import live_spans
from declaim.ops.tiles import COLUMN_STEP, TILE_ROWS, batch_product
from declaim.state.pages import Pages
from declaim.state.step import Spans

BLOCK = 16
"""Context rows of a block."""

TILES_AT_ONCE = 64
"""Query tiles of one batched product: bounds the copies of K and V blocks that it needs."""


def store(k: Tensor, v: Tensor, spans: Spans, pages: Pages) -> None:
    """Write K and V of the rows, [n, kv heads, width], at their (page, offset)."""
    assert spans.page is not None and spans.offset is not None
    page, offset = spans.page.long(), spans.offset.long()
    pages.k[page, :, offset] = k.to(pages.k.dtype)
    pages.v[page, :, offset] = v.to(pages.v.dtype)


@dataclass(frozen=True)
class Context:
    """K and V of some spans as float32 blocks; rows that are not written are zero.

    k, v [spans, blocks, kv heads, 16, width].
    """

    k: Tensor
    v: Tensor


def read_context(spans: Spans, numbers: list[int], length: Tensor, pages: Pages) -> Context:
    """The blocks of some spans, `length` int64 [spans] rows each, read back as stored."""
    assert spans.table is not None
    page_size = pages.k.shape[2]
    used = -(-int(length.max()) // page_size)
    table = spans.table[numbers, :used].long()
    written = torch.arange(used * page_size).view(1, -1, 1, BLOCK, 1) < length.view(-1, 1, 1, 1, 1)

    def blocks(part: Tensor) -> Tensor:
        kept = part[table].float()  # [spans, pages, kv heads, page size, width]
        heads, width = kept.shape[2], kept.shape[4]
        kept = kept.view(len(numbers), used, heads, -1, BLOCK, width).transpose(2, 3)
        kept = kept.reshape(len(numbers), -1, heads, BLOCK, width)
        return torch.where(written, kept, 0.0)

    return Context(blocks(pages.k), blocks(pages.v))


def span_context(k: Tensor, v: Tensor, first: list[int], count: list[int]) -> Context:
    """The blocks of spans that start from nothing, from their own K and V [n, heads, width]."""
    blocks = -(-max(count) // BLOCK)

    def shaped(part: Tensor) -> Tensor:
        rows = [
            F.pad(part[start : start + length].float(), (0, 0, 0, 0, 0, blocks * BLOCK - length))
            for start, length in zip(first, count, strict=True)
        ]
        whole = torch.stack(rows)
        return whole.view(len(rows), blocks, BLOCK, *whole.shape[2:]).transpose(2, 3)

    return Context(shaped(k), shaped(v))


def attend(q: Tensor, k: Tensor, v: Tensor, spans: Spans, pages: Pages | None) -> Tensor:
    """q [n, H, D], k and v [n, K, D] -> float32 [n, H * D]; rows of length-0 spans give 0."""
    numbers, first, count = live_spans(spans)
    if pages is None:
        live = list(range(len(numbers)))
        context = span_context(k, v, first, count)
    else:
        assert spans.length is not None
        store(k, v, spans, pages)
        lengths = spans.length[numbers].tolist()
        live = [index for index, length in enumerate(lengths) if length]
        if not live:
            return q.new_zeros(q.shape[0], q.shape[1] * q.shape[2], dtype=torch.float32)
        chosen = [numbers[index] for index in live]
        length = torch.tensor([lengths[index] for index in live])
        context = read_context(spans, chosen, length, pages)
    rows, tiles, owner = _tiles([first[i] for i in live], [count[i] for i in live])
    return _attend(q.float(), context, spans.position.long(), rows, tiles, owner)


def _tiles(first: list[int], count: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the spans [m], tiles of them [tiles, 4] (-1: none), each tile's span [tiles]."""
    rows: list[int] = []
    tiles: list[list[int]] = []
    owner: list[int] = []
    for span, (start, length) in enumerate(zip(first, count, strict=True)):
        rows += range(start, start + length)
        for begin in range(start, start + length, TILE_ROWS):
            tile = list(range(begin, min(begin + TILE_ROWS, start + length)))
            tiles.append(tile + [-1] * (TILE_ROWS - len(tile)))
            owner.append(span)
    return torch.tensor(rows), torch.tensor(tiles), torch.tensor(owner)


def _attend(
    q: Tensor, context: Context, position: Tensor, rows: Tensor, tiles: Tensor, owner: Tensor
) -> Tensor:
    out = q.new_zeros(q.shape[0], q.shape[1] * q.shape[2])
    blocks = max(int(position[rows].max()) // BLOCK, 1)  # one at least, seen or not
    for begin in range(0, len(tiles), TILES_AT_ONCE):
        part = slice(begin, begin + TILES_AT_ONCE)
        tile = tiles[part]
        full = _full_blocks(q, context, tile, owner[part], blocks)
        place = tile.flatten()
        kept = torch.nonzero(place >= 0).flatten()
        index = place[kept]
        span = owner[part].repeat_interleave(TILE_ROWS)[kept]
        out[index] = _combine(q[index], context, position[index], span, full, kept)
    return out


@dataclass(frozen=True)
class FullBlocks:
    """Tiles against the blocks before any diagonal.

    scores [tiles * 4, kv heads, group, blocks, 16]; v [tiles, blocks, kv heads, 16, width].
    """

    scores: Tensor
    v: Tensor


def _full_blocks(
    q: Tensor, context: Context, tile: Tensor, owner: Tensor, blocks: int
) -> FullBlocks:
    tiles, (heads, width) = len(tile), q.shape[1:]
    kv_heads = context.k.shape[2]
    group = heads // kv_heads
    queries = q[tile.clamp(min=0)].view(tiles, TILE_ROWS, kv_heads, group, width)
    queries = queries.transpose(1, 2).reshape(tiles, 1, kv_heads, TILE_ROWS * group, width)
    queries = queries.expand(-1, blocks, -1, -1, -1).reshape(-1, TILE_ROWS * group, width)
    keys = context.k[owner, :blocks].reshape(-1, BLOCK, width)
    scores = batch_product(queries, keys.transpose(1, 2))
    scores = scores.view(tiles, blocks, kv_heads, TILE_ROWS, group, BLOCK)
    scores = scores.permute(0, 3, 2, 4, 1, 5).reshape(-1, kv_heads, group, blocks, BLOCK)
    return FullBlocks(scores, context.v[owner, :blocks])


def _combine(
    q: Tensor, context: Context, position: Tensor, span: Tensor, full: FullBlocks, kept: Tensor
) -> Tensor:
    """Softmax and weighted values of rows `kept` of the tiles, q [m, H, D] -> [m, H * D]."""
    count, heads, width = q.shape
    kv_heads, group, blocks = full.scores.shape[1:4]
    scale = width**-0.5
    own = position // BLOCK
    ahead = torch.arange(BLOCK) > (position % BLOCK)[:, None]  # [m, 16]
    k = context.k[span, own].masked_fill(ahead[:, None, :, None], 0.0)
    v = context.v[span, own].masked_fill(ahead[:, None, :, None], 0.0)
    queries = q.reshape(count * kv_heads, group, width)
    diagonal = batch_product(queries, k.flatten(0, 1).transpose(1, 2)) * scale
    diagonal = diagonal.view(count, kv_heads, group, BLOCK)
    diagonal = diagonal.masked_fill(ahead[:, None, None], -torch.inf)
    top = diagonal.amax(-1, keepdim=True)
    unseen = (torch.arange(blocks) >= own[:, None])[:, None, None, :, None]
    scores = (full.scores[kept] * scale).masked_fill(unseen, -torch.inf)
    top = torch.maximum(top, scores.flatten(3).amax(-1, keepdim=True))
    weights = torch.exp(scores - top.unsqueeze(-1))
    weight = torch.exp(diagonal - top)
    sums = weights.sum(-1)
    values = _full_values(weights, full, kept).masked_fill(unseen, 0.0)
    total = q.new_zeros(count, kv_heads, group)
    value = q.new_zeros(count, kv_heads, group, width)
    for block in range(blocks):
        total += sums[..., block]
        value += values[:, :, :, block]
    total = total + weight.sum(-1)
    own_value = _values(weight.view(-1, group, BLOCK), v.flatten(0, 1))
    value = value + own_value.view(count, kv_heads, group, width)
    return (value / total.unsqueeze(-1)).reshape(count, heads * width)


def _full_values(weights: Tensor, full: FullBlocks, kept: Tensor) -> Tensor:
    """weights [m, kv heads, group, blocks, 16] of rows `kept` -> [m, kv, group, blocks, width]."""
    tiles, blocks, kv_heads, _, width = full.v.shape
    group = weights.shape[2]
    whole = weights.new_zeros(tiles * TILE_ROWS, kv_heads, group, blocks, BLOCK)
    whole[kept] = weights
    whole = whole.view(tiles, TILE_ROWS, kv_heads, group, blocks, BLOCK)
    whole = whole.permute(0, 4, 2, 1, 3, 5).reshape(-1, TILE_ROWS * group, BLOCK)
    made = _values(whole, full.v.flatten(0, 2))
    made = made.view(tiles, blocks, kv_heads, TILE_ROWS, group, width)
    return made.permute(0, 3, 2, 4, 1, 5).reshape(-1, kv_heads, group, blocks, width)[kept]


def _values(weights: Tensor, v: Tensor) -> Tensor:
    """[batch, m, 16] times [batch, 16, width], with the width padded to whole vectors."""
    width = v.shape[-1]
    return batch_product(weights, F.pad(v, (0, -width % COLUMN_STEP)))[..., :width]
