"""Block-FP8 weights: float8_e4m3fn with one scale a 128 x 128 block; decode is exact.

Knows no file and no tensor name.
"""

import torch
from torch import Tensor
from torch.nn import functional

from declaim.ops.table import BlockFP8

__all__ = ["BLOCK", "MAX_FP8", "BlockFP8", "decode", "encode"]

BLOCK = 128
"""Rows and columns of a block."""

MAX_FP8 = 448.0
"""Largest finite float8_e4m3fn number."""


def _spread(scale: Tensor, rows: int, columns: int) -> Tensor:
    """float32 scale of every element, [rows, columns]."""
    wide = scale.float().repeat_interleave(BLOCK, 0)[:rows]
    return wide.repeat_interleave(BLOCK, 1)[:, :columns]


def decode(weight: BlockFP8) -> Tensor:
    """float32(weight) * float32(scale), [rows, columns]; edge blocks may be short."""
    rows, columns = weight.weight.shape
    blocks = (-(-rows // BLOCK), -(-columns // BLOCK))
    assert tuple(weight.scale.shape) == blocks, f"scale {tuple(weight.scale.shape)}, not {blocks}"
    return weight.weight.float() * _spread(weight.scale, rows, columns)


def encode(weight: Tensor, scale_dtype: torch.dtype = torch.float32) -> BlockFP8:
    """Quantise [rows, columns]: scale = largest magnitude of the block / 448.

    The scale is rounded to its dtype (float32 or bfloat16) before the weights are divided by
    it, so that decoding multiplies by the number that was divided by. A block of zeros has
    scale 1.
    """
    rows, columns = weight.shape
    short = (-rows % BLOCK, -columns % BLOCK)
    padded = functional.pad(weight.float(), (0, short[1], 0, short[0]))
    blocks = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    largest = blocks.abs().amax(dim=(1, 3))
    scale = torch.where(largest == 0, 1.0, largest / MAX_FP8).to(scale_dtype)
    quotient = weight.float() / _spread(scale, rows, columns)
    return BlockFP8(quotient.clamp(-MAX_FP8, MAX_FP8).to(torch.float8_e4m3fn), scale)
