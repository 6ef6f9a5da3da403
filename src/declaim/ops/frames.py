"""Embeddings of frame rows, the tower's input, row gathers and the write-back of frames."""

import math

import torch
from torch import Tensor

from declaim.ops.dense import VectorHandle, centred
from declaim.ops.elementwise import norm_rows, store, zero_where
from declaim.ops.table import Band
from declaim.state.frames import FrameState


def is_semantic(main: Tensor, band: Band) -> Tensor:
    """Where a main token stands in the band."""
    return (main >= band[0]) & (main <= band[1])


def code_rows(rows: Tensor, codebooks: Tensor, first: int, last: int) -> list[Tensor]:
    """Rows of the codebook table for codes first..last of frame rows: float32 [n, dim] each.

    The table [Q * V, dim] holds Q codebooks; codes are clamped to their codebook.
    """
    entries = codebooks.shape[0] // (rows.shape[1] - 1)
    codes = rows[:, 1 + first : 2 + last].clamp(0, entries - 1).long()
    index = codes + torch.arange(first, last + 1, device=rows.device) * entries
    found = codebooks.index_select(0, index.flatten()).float()
    return list(found.view(*index.shape, codebooks.shape[1]).unbind(1))


class FrameOps:
    """The ops on frame rows and per-slot frame state."""

    def prepare_table(self, weight: Tensor) -> Tensor:
        """See OpTable; kept in its stored dtype and widened after a gather."""
        return weight

    def embed(
        self,
        rows: Tensor,
        table: Tensor,
        codebooks: Tensor,
        *,
        band: Band,
        codes: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable; float32."""
        main = rows[:, 0]
        text = table.index_select(0, main).float()
        if codes == 0:
            return store(text, out)
        mixed = text
        for part in code_rows(rows, codebooks, 1, codes):
            mixed = mixed + part
        mixed = mixed / math.sqrt(1 + codes)
        return store(torch.where(is_semantic(main, band)[:, None], mixed, text), out)

    def extra_codes(
        self,
        rows: Tensor,
        codebooks: Tensor,
        *,
        band: Band,
        first: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable; float32."""
        total = torch.zeros(rows.shape[0], codebooks.shape[1], device=rows.device)
        last = rows.shape[1] - 2
        if first <= last:
            for part in code_rows(rows, codebooks, first, last):
                total = total + part
        return store(zero_where(~is_semantic(rows[:, 0], band)[:, None], total), out)

    def tower_input(
        self,
        h: Tensor,
        frames: Tensor,
        table: Tensor,
        extra: Tensor | None,
        enorm: VectorHandle,
        hnorm: VectorHandle,
        *,
        column: int,
        band: Band,
        eps: float,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable; computes in float32."""
        codes = frames[:, column].clamp(0, table.shape[0] - 1)
        found = table.index_select(0, codes).float()
        e = zero_where(~is_semantic(frames[:, 0], band)[:, None], found)
        if extra is not None:
            e = e + extra
        both = norm_rows(torch.stack((e, h.float()), dim=1), eps)
        y = both * torch.stack((centred(enorm), centred(hnorm)))
        return store(y.view(h.shape[0], 2 * h.shape[1]).to(h.dtype), out)

    def gather_rows(
        self, source: Tensor, index: Tensor, *, keep: bool = False, out: Tensor | None = None
    ) -> Tensor:
        """See OpTable; `keep` needs `out`."""
        assert out is not None or not keep, "keep needs out"
        found = source.index_select(0, index.clamp(min=0))
        absent = (index < 0).view(-1, *(1,) * (source.dim() - 1))
        if keep and out is not None:
            return out.copy_(torch.where(absent, out, found))
        return store(zero_where(absent, found), out)

    def write_frame(self, frames: Tensor, slot: Tensor, state: FrameState) -> None:
        """See OpTable."""
        index = slot.long()
        window = state.window.index_select(0, index)
        shifted = torch.cat((window[:, 1:], frames[:, :1]), dim=1)
        state.last.index_copy_(0, index, frames)
        state.window.index_copy_(0, index, shifted)
        state.counter.index_copy_(0, index, state.counter.index_select(0, index) + 1)
