"""Block-FP8 weights: float8_e4m3fn values with one scale for each 128 x 128 block.

The value is weight * scale, in float32; blocks at the right and lower edge may be short.
"""

import torch
from torch import Tensor

from declaim.ops.table import BlockFP8

BLOCK = 128
LARGEST = 448.0
"""Largest finite float8_e4m3fn."""


def decode(weight: BlockFP8) -> Tensor:
    """float32(weight) * float32(scale) [rows, columns], exactly rounded once."""
    rows, columns = weight.weight.shape
    return weight.weight.to(torch.float32) * _spread(weight.scale, rows, columns)


def encode(dense: Tensor, scale_dtype: torch.dtype = torch.bfloat16) -> BlockFP8:
    """The nearest block-FP8 weight of dense [rows, columns]: a block's largest value meets 448.

    A block of zeros gets scale 1.
    """
    rows, columns = dense.shape
    values = dense.to(torch.float32)
    down, right = -rows % BLOCK, -columns % BLOCK
    padded = torch.nn.functional.pad(values.abs(), (0, right, 0, down))
    tall, wide = padded.shape
    blocks = padded.view(tall // BLOCK, BLOCK, wide // BLOCK, BLOCK)
    scale = blocks.amax(dim=(1, 3)) / LARGEST
    scale = torch.where(scale > 0, scale, 1.0).to(scale_dtype)
    scaled = values / _spread(scale, rows, columns)
    return BlockFP8(scaled.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale)


def _spread(scale: Tensor, rows: int, columns: int) -> Tensor:
    """Block scales as float32 [rows, columns]."""
    tall = scale.to(torch.float32).repeat_interleave(BLOCK, 0)[:rows]
    return tall.repeat_interleave(BLOCK, 1)[:, :columns]
