"""Causal attention in fixed blocks of context rows, aligned to position.

For a row at position p the scores of all positions are computed block by block with products of
one shape; positions past p are replaced by selection. Weights are exp(score - the row's largest
score), and blocks are summed one after another from the first. So neither the rows beside it nor
the blocks behind it reach a row's bytes.

Values at positions past a row have weight 0, and 0 times a finite value adds nothing. Unwritten
positions are set to zero by selection; where a span's own values are not all finite, its rows are
taken one by one, each with everything past it set to zero.
"""

import torch
from torch import Tensor
from torch.nn import functional

from declaim.ops.elementwise import ordered_sum, sigmoid, store
from declaim.ops.host_spans import read_spans
from declaim.ops.tiles import COLUMNS, TILE, multiply_batch, multiply_tiles, round_up, tiles_of
from declaim.state.pages import Pages
from declaim.state.step import Spans

CONTEXT_BLOCK = 64
"""Context rows of one product."""


def blocked(x: Tensor) -> Tensor:
    """[..., T, D] as [..., blocks, CONTEXT_BLOCK, D]; T a multiple of CONTEXT_BLOCK."""
    return x.view(*x.shape[:-2], x.shape[-2] // CONTEXT_BLOCK, CONTEXT_BLOCK, x.shape[-1])


def pad_width(v: Tensor) -> Tensor:
    """The last dimension padded to whole columns of a product."""
    extra = -v.shape[-1] % COLUMNS
    return functional.pad(v, (0, extra)) if extra else v


def attend_rows(q: Tensor, lengths: list[int], k: Tensor, v: Tensor) -> Tensor:
    """Rows that each have a context of their own, and stand at its end.

    q [s, K, G, D], scaled; lengths [s]; k, v [s, K, T, D], T a multiple of CONTEXT_BLOCK; v is
    set to zero behind the lengths. Returns [s, K, G, D].
    """
    spans, key_heads, group, width = q.shape
    for span, length in enumerate(lengths):
        v[span, :, length:] = 0.0
    v = blocked(pad_width(v))
    k = blocked(k)
    blocks, tiles = k.shape[2], -(-group // TILE)
    shape = (spans, key_heads, tiles, blocks)
    padded = functional.pad(q, (0, 0, 0, tiles * TILE - group))
    query = padded.view(spans, key_heads, tiles, 1, TILE, width).expand(*shape, TILE, width)

    def flat(x: Tensor) -> Tensor:
        """[s, K, blocks, rows, columns] as one batch, repeated for each tile."""
        return x[:, :, None].expand(*shape, *x.shape[3:]).reshape(-1, *x.shape[3:])

    scores = multiply_batch(query.reshape(-1, TILE, width), flat(k).transpose(1, 2))
    scores = scores.view(*shape, TILE, CONTEXT_BLOCK)
    for span, length in enumerate(lengths):
        whole, rest = divmod(length, CONTEXT_BLOCK)
        if rest:
            scores[span, :, :, whole, :, rest:] = float("-inf")
            whole += 1
        if whole < blocks:
            scores[span, :, :, whole:] = float("-inf")
    weights = (scores - scores.amax(dim=(3, 5), keepdim=True)).exp_()
    sums = weights.sum(-1, keepdim=True)
    parts = multiply_batch(weights.view(-1, TILE, CONTEXT_BLOCK), flat(v))
    parts = parts.view(*shape, TILE, v.shape[-1])
    total = ordered_sum(parts.unbind(3), torch.zeros_like(parts[:, :, :, 0]))
    total = total / ordered_sum(sums.unbind(3), torch.zeros_like(sums[:, :, :, 0]))
    return total.view(spans, key_heads, tiles * TILE, -1)[:, :, :group, :width]


def attend_span(q: Tensor, first: int, k: Tensor, v: Tensor) -> Tensor:
    """Consecutive rows of one context.

    q [r, K, G, D], scaled, its first row at position `first`; k, v [K, T, D], T a multiple of
    CONTEXT_BLOCK, all of v finite. Returns [r, K, G, D].
    """
    rows, key_heads, group, width = q.shape
    v = blocked(pad_width(v))
    k = blocked(k)
    blocks, height = k.shape[1], tiles_of(rows * group) * TILE
    query = q.new_zeros(key_heads, height, width)
    query[:, : rows * group] = q.transpose(0, 1).reshape(key_heads, rows * group, width)
    # Query row m stands at position first + m // group; tiles before a block need none of it.
    least = height - tiles_of(1) * TILE
    skipped = [
        min(max(block * CONTEXT_BLOCK - first, 0) * group // TILE * TILE, least)
        for block in range(blocks)
    ]
    scores = q.new_full((key_heads, blocks, height, CONTEXT_BLOCK), float("-inf"))
    for head in range(key_heads):
        for block, skip in enumerate(skipped):
            scores[head, block, skip:] = multiply_tiles(query[head, skip:], k[head, block].t())
    context = torch.arange(blocks * CONTEXT_BLOCK, device=q.device).view(blocks, 1, -1)
    own = first + torch.arange(height, device=q.device) // group
    scores.masked_fill_(context > own[:, None], float("-inf"))
    weights = (scores - scores.amax(dim=(1, 3), keepdim=True)).exp_()
    sums = weights.sum(-1, keepdim=True)
    total = q.new_zeros(key_heads, height, v.shape[-1])
    for head in range(key_heads):
        for block, skip in enumerate(skipped):
            total[head, skip:] += multiply_tiles(weights[head, block, skip:], v[head, block])
    total = total / ordered_sum(sums.unbind(1), torch.zeros_like(sums[:, 0]))
    used = total[:, : rows * group, :width]
    return used.reshape(key_heads, rows, group, width).transpose(0, 1)


def attend_context(q: Tensor, first: int, k: Tensor, v: Tensor) -> Tensor:
    """`attend_span` for any values: k, v [K, T, D] hold the span's rows and zeros after them."""
    rows = q.shape[0]
    if rows > 1 and bool(torch.isfinite(v[:, first : first + rows]).all()):
        return attend_span(q, first, k, v)
    results = [
        attend_rows(q[i : i + 1], [first + i + 1], k[None], v[None].clone()) for i in range(rows)
    ]
    return torch.cat(results)


def write_pages(k: Tensor, v: Tensor, spans: Spans, pages: Pages) -> None:
    """Store k and v [n, K, D] of the rows at (page, offset)."""
    assert spans.page is not None and spans.offset is not None
    page, offset = spans.page.long(), spans.offset.long()
    pages.k.transpose(1, 2)[page, offset] = k.to(pages.k.dtype)
    pages.v.transpose(1, 2)[page, offset] = v.to(pages.v.dtype)


class ContextReader:
    """Reads K and V of pages into buffers that it keeps: fresh ones of a megabyte cost more in
    page faults than the copy itself. What it returns holds until the next read; one thread.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(0)

    def read(self, pages: Pages, table: Tensor, context: int) -> tuple[Tensor, Tensor]:
        """K and V float32 [s, K, context, D] of the pages in table [s, pages], in order.

        Where a table ends early, the rest is the null page's.
        """
        count, key_heads, page_size, width = pages.k.shape
        needed = -(-context // page_size)
        table = table[:, :needed].long()
        if table.shape[1] < needed:
            table = functional.pad(table, (0, needed - table.shape[1]), value=count - 1)
        head = torch.arange(key_heads, device=table.device)[:, None]
        index = (table[:, None] * key_heads + head).flatten()
        buffer = self._space(2 * index.shape[0] * page_size * width, pages.k)
        found = buffer.view(2, index.shape[0], page_size, width)
        for source, target in zip((pages.k, pages.v), found, strict=True):
            blocks = source.view(count * key_heads, page_size, width)
            torch.index_select(blocks, 0, index, out=target)
        found = found.view(2, table.shape[0], key_heads, needed * page_size, width)
        k, v = found[:, :, :, :context].float().contiguous()
        return k, v

    def _space(self, elements: int, like: Tensor) -> Tensor:
        kept = self._buffer
        if kept.numel() < elements or kept.dtype != like.dtype or kept.device != like.device:
            with torch.inference_mode(False):
                self._buffer = torch.empty(elements, dtype=like.dtype, device=like.device)
        return self._buffer[:elements]


class AttentionOps:
    """`attend`."""

    def __init__(self) -> None:
        super().__init__()
        self._reader = ContextReader()

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor,
        spans: Spans,
        pages: Pages | None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable; computes in float32."""
        rows, heads, width = q.shape
        key_heads = k.shape[1]
        grouped = (q.float() * width**-0.5).view(rows, key_heads, heads // key_heads, width)
        v = v.view(rows, key_heads, width)
        if pages is None:
            y = _attend_within(grouped, k, v, spans)
        else:
            write_pages(k, v, spans, pages)
            y = _attend_pages(grouped, spans, pages, self._reader)
        return store((y.view(gate.shape) * sigmoid(gate.float())).to(q.dtype), out)


def _attend_within(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
    host = read_spans(spans, q.shape[0])
    results = [q.new_empty(0, *q.shape[1:])]
    for first, count in zip(host.starts, host.counts, strict=True):
        extra = round_up(count, CONTEXT_BLOCK) - count
        own, keys, values = (x[first : first + count].float() for x in (q, k, v))
        keys, values = (
            functional.pad(x.transpose(0, 1), (0, 0, 0, extra)).contiguous() for x in (keys, values)
        )
        results.append(attend_context(own, 0, keys, values))
    return torch.cat(results)


def _attend_pages(q: Tensor, spans: Spans, pages: Pages, reader: ContextReader) -> Tensor:
    assert spans.length is not None and spans.table is not None
    host = read_spans(spans, q.shape[0])
    lengths = spans.length.tolist()
    live = [i for i, number in enumerate(host.numbers) if lengths[number] > 0]
    y = torch.zeros_like(q)
    single = [i for i in live if host.counts[i] == 1]
    if single:
        rows, numbers = [host.starts[i] for i in single], [host.numbers[i] for i in single]
        own_lengths = [lengths[number] for number in numbers]
        context = round_up(max(own_lengths), CONTEXT_BLOCK)
        everything = len(single) == q.shape[0]
        table = spans.table if everything and host.single else spans.table[numbers]
        keys, values = reader.read(pages, table, context)
        if everything:
            return attend_rows(q, own_lengths, keys, values).contiguous()
        y[rows] = attend_rows(q[rows], own_lengths, keys, values)
    for i in live:
        first, count, number = host.starts[i], host.counts[i], host.numbers[i]
        if count == 1:
            continue
        length = lengths[number]
        context = round_up(length, CONTEXT_BLOCK)
        keys, values = reader.read(pages, spans.table[number : number + 1], context)
        values[:, :, length:] = 0.0
        own = q[first : first + count]
        y[first : first + count] = attend_context(own, length - count, keys[0], values[0])
    return y
