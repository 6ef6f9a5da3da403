"""Causal attention over blocks of 16 context rows, aligned to position.

For a row at position p, block p // 16 is its diagonal block and the earlier ones are full; which
is which depends on the position alone. Blocks meet tiles of query rows in products of one fixed
size. What a row does not see is dropped from the results by selection, whatever it holds, and
sums over blocks are such that dropped blocks add nothing. Only V of the diagonal block meets each
row by itself, with everything behind the row replaced by zero first.
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
    """K and V of some spans as float32 blocks; rows that are not written hold anything.

    k, v [spans, pages, kv heads, blocks of a page, 16, width].
    """

    k: Tensor
    v: Tensor


def read_context(table: Tensor, pages: Pages) -> Context:
    """The blocks of the pages in `table` int32 [spans, pages], read back as stored."""

    def blocks(part: Tensor) -> Tensor:
        kept = part.index_select(0, table.flatten()).float()
        _, heads, size, width = kept.shape
        return kept.view(*table.shape, heads, size // BLOCK, BLOCK, width)

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
        whole = whole.view(len(rows), blocks, BLOCK, *whole.shape[2:]).transpose(2, 3)
        return whole.unsqueeze(3)

    return Context(shaped(k), shaped(v))


def attend(q: Tensor, k: Tensor, v: Tensor, spans: Spans, pages: Pages | None) -> Tensor:
    """q [n, H, D], k and v [n, K, D] -> float32 [n, H * D]; rows of length-0 spans give 0."""
    numbers, first, count = live_spans(spans)
    out = q.new_zeros(q.shape[0], q.shape[1] * q.shape[2], dtype=torch.float32)
    if pages is None:
        context = span_context(k, v, first, count)
    else:
        assert spans.length is not None and spans.table is not None
        store(k, v, spans, pages)
        length = spans.length.tolist()
        live = [index for index, number in enumerate(numbers) if length[number]]
        if not live:
            return out
        numbers, first, count = ([part[i] for i in live] for part in (numbers, first, count))
        used = -(-max(length[number] for number in numbers) // pages.k.shape[2])
        context = read_context(spans.table[numbers, :used], pages)
    rows, tiles, owner = _tiles(first, count)
    position = spans.position[tiles]
    parts = [
        _attend(q.float()[tiles[begin:end]], context, position[begin:end], owner[begin:end])
        for begin, end in ((i, i + TILES_AT_ONCE) for i in range(0, len(tiles), TILES_AT_ONCE))
    ]
    out[tiles.flatten()[rows]] = torch.cat(parts).flatten(0, 1)[rows]
    return out


def _tiles(first: list[int], count: list[int]) -> tuple[Tensor, Tensor, list[int]]:
    """Tiles of the spans' rows [tiles, 4], and each tile's span.

    A tile that is not full repeats its last row; the first result [m] says which places of the
    tiles, counted through, are rows of their own.
    """
    kept: list[int] = []
    rows: list[int] = []
    owner: list[int] = []
    for span, (start, length) in enumerate(zip(first, count, strict=True)):
        kept += range(len(rows), len(rows) + length)
        rows += range(start, start + length)
        rows += rows[-1:] * (-length % TILE_ROWS)
        owner += [span] * -(-length // TILE_ROWS)
    return torch.tensor(kept), torch.tensor(rows).view(-1, TILE_ROWS), owner


def _tile_blocks(part: Tensor, owner: list[int], used: int) -> Tensor:
    """The first pages of each tile's span."""
    if owner == list(range(part.shape[0])):
        return part[:, :used]
    return part[:, :used].index_select(0, torch.tensor(owner))


def _attend(q: Tensor, context: Context, position: Tensor, owner: list[int]) -> Tensor:
    """Tiles q [tiles, 4, H, D], position [tiles, 4] -> [tiles, 4, H * D].

    With B blocks of a page, scores, weights and values of blocks are
    [tiles, pages, kv heads, B, 4, group, 16 or D].
    """
    tiles, _, heads, width = q.shape
    kv_heads, inside = context.k.shape[2:4]
    used = int(position.max()) // (inside * BLOCK) + 1
    shared = int(position.min()) // (inside * BLOCK)  # pages that every row sees whole
    k, v = (_tile_blocks(part, owner, used) for part in (context.k, context.v))
    place = position.long().view(tiles, 1, 1, 1, TILE_ROWS, 1, 1)
    own = place.div(BLOCK, rounding_mode="floor")
    block = torch.arange(shared * inside, used * inside).view(-1, 1, inside, 1, 1, 1)
    ahead = block * BLOCK + torch.arange(BLOCK) > place

    q = (q * width**-0.5).view(tiles, 1, TILE_ROWS, kv_heads, 1, -1, width).transpose(2, 3)
    q = q.transpose(3, 4).expand(-1, used, -1, inside, -1, -1, -1)
    scores = _product(q, k.mT, 2)
    scores[:, shared:].masked_fill_(ahead, -torch.inf)
    top = scores.amax(-1, keepdim=True).amax((1, 3), keepdim=True)
    weights = torch.exp(scores - top)
    values = _product(weights, v, 2)
    values[:, shared:].masked_fill_(block >= own, 0.0)
    value = _added(values) + _own_values(weights, v, position.long())
    value = value / _added(weights.sum(-1, keepdim=True))
    return value.transpose(1, 2).reshape(tiles, TILE_ROWS, heads * width)


def _own_values(weights: Tensor, v: Tensor, position: Tensor) -> Tensor:
    """The diagonal blocks' part [tiles, kv heads, 4, group, D].

    Each row meets a V of its own, which is zero in what is ahead of the row.
    """
    tiles, _, heads, inside = v.shape[:4]
    own = position.unsqueeze(1).div(BLOCK, rounding_mode="floor")
    ahead = torch.arange(BLOCK) > (position - own.squeeze(1) * BLOCK).unsqueeze(-1)
    block = (
        torch.arange(tiles).view(-1, 1, 1),
        own.div(inside, rounding_mode="floor"),
        torch.arange(heads).view(1, -1, 1),
        own.remainder(inside),
    )
    weight = weights[(*block, torch.arange(TILE_ROWS))]
    return _product(weight, v[block].masked_fill(ahead[:, None, ..., None], 0.0), 1)


def _product(a: Tensor, b: Tensor, rows: int) -> Tensor:
    """Products of a [..., rows..., k] and b [..., k, n], where so many dimensions of a are rows."""
    width = b.shape[-1]
    padding = -width % COLUMN_STEP
    if padding:
        b = F.pad(b, (0, padding))
    made = batch_product(a.flatten(0, -2 - rows).flatten(1, -2), b.flatten(0, -3))
    if padding:
        made = made[..., :width]
    return made.reshape(*a.shape[:-1], width)


def _added(parts: Tensor) -> Tensor:
    """Sum over pages and their blocks: [tiles, pages, kv heads, B, ...] -> [tiles, kv heads, ...].

    Neighbours are added, then pairs of them, and so on, so that zeros behind the others change
    nothing; the last zero keeps that true of a sum of -0.
    """
    parts = parts.movedim((1, 3), (0, 1)).flatten(0, 1)
    blocks = parts.shape[0]
    levels = (blocks - 1).bit_length()
    parts = F.pad(parts, (0, 0) * (parts.dim() - 1) + (0, 2**levels - blocks))
    for _ in range(levels):
        parts = parts[::2] + parts[1::2]
    return parts[0] + 0.0
