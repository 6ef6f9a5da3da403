"""Frame rows: embeddings, the tower's input, and what a slot keeps of a frame."""

import math

import torch
from torch import Tensor

from declaim.ops.table import Band
from declaim.state.frames import FrameState


def is_semantic(rows: Tensor, band: Band) -> Tensor:
    """Which rows int32 [n, 1 + Q] are speech: bool [n, 1]."""
    main = rows[:, :1]
    return (main >= band[0]) & (main <= band[1])


def code_sum(rows: Tensor, codebooks: Tensor, band: Band, first: int, last: int) -> Tensor:
    """Sum of the codebook rows of codes first..last, in this order: float32 [n, dim].

    codebooks [Q * V, dim], V the band's width; codes are clamped to the codebook.
    """
    width = band[1] - band[0] + 1
    total = torch.zeros(rows.shape[0], codebooks.shape[1], device=rows.device)
    for book in range(first, last + 1):
        code = rows[:, 1 + book].long().clamp(0, width - 1)
        total = total + codebooks[code + book * width].float()
    return total


def embed(rows: Tensor, table: Tensor, codebooks: Tensor, band: Band, codes: int) -> Tensor:
    """The backbone's input, float32 [n, hidden]."""
    text = table[rows[:, 0].long()].float()
    speech = (text + code_sum(rows, codebooks, band, 1, codes)) * (1.0 / math.sqrt(1 + codes))
    return torch.where(is_semantic(rows, band), speech, text)


def extra_codes(rows: Tensor, codebooks: Tensor, band: Band, first: int) -> Tensor:
    """Codes first..Q-1 of speech rows, float32 [n, dim]; 0 on other rows."""
    total = code_sum(rows, codebooks, band, first, rows.shape[1] - 2)
    return torch.where(is_semantic(rows, band), total, 0.0)


def code_embedding(frames: Tensor, table: Tensor, band: Band, column: int) -> Tensor:
    """table[frames[:, column]] of speech frames, float32 [n, dim]; 0 on other rows."""
    code = frames[:, column].long().clamp(0, table.shape[0] - 1)
    return torch.where(is_semantic(frames, band), table[code].float(), 0.0)


def gather_rows(source: Tensor, index: Tensor, held: Tensor | None) -> Tensor:
    """source[index]; negative indices give the row of `held`, or zeros."""
    place = index.long()
    rows = source[place.clamp(min=0)]
    absent = (place < 0).view(-1, *[1] * (source.dim() - 1))
    return torch.where(absent, rows.new_zeros(()) if held is None else held, rows)


def write_frame(frames: Tensor, slot: Tensor, state: FrameState) -> None:
    """Last frame, window and counter of the slots, for frames int32 [streams, 1 + Q]."""
    place = slot.long()
    state.last[place] = frames
    state.window[place] = torch.cat([state.window[place, 1:], frames[:, :1]], 1)
    state.counter[place] = state.counter[place] + 1
