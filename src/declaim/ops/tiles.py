"""Matrix products in row tiles of one fixed height: a row's bytes depend on the row alone.

Every product has the same shape whatever the number of rows, so the library takes the same
path for each of them. Output columns are padded to a multiple of 16, and with more than one
thread a batch never has a single tile, for which another path would be taken.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

TILE = 4
"""Rows of a tile; the same in every product of the table."""

COLUMNS = 16
"""Output columns are padded to a multiple of this."""


@dataclass(frozen=True)
class TiledWeight:
    """A linear weight, transposed: matrix float32 [columns, rows padded to 16].

    shape: (rows, columns) as stored.
    """

    matrix: Tensor
    shape: tuple[int, int]


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple that is not below the number."""
    return -(-number // multiple) * multiple


def tile_weight(weight: Tensor) -> TiledWeight:
    """A weight [rows, columns] of any float dtype, ready for `tiled_linear`."""
    rows, columns = weight.shape
    matrix = weight.new_zeros(columns, round_up(rows, COLUMNS), dtype=torch.float32)
    matrix[:, :rows] = weight.t()
    return TiledWeight(matrix, (rows, columns))


def tiles_of(rows: int) -> int:
    """How many tiles hold so many rows."""
    return max(-(-rows // TILE), 2 if torch.get_num_threads() > 1 else 1)


def multiply_tiles(x: Tensor, matrix: Tensor) -> Tensor:
    """x [tiles * 4, K] times a matrix [K, N], N a multiple of 16; [tiles * 4, N].

    x must have `tiles_of` tiles or more.
    """
    tiles, (inner, columns) = x.shape[0] // TILE, matrix.shape
    y = torch.bmm(x.view(tiles, TILE, inner), matrix.expand(tiles, inner, columns))
    return y.view(tiles * TILE, columns)


def multiply_batch(left: Tensor, right: Tensor) -> Tensor:
    """[batch, 4, K] times [batch, K, N], N a multiple of 16, each with its own matrix."""
    if left.shape[0] == 1 and torch.get_num_threads() > 1:
        return torch.bmm(left.expand(2, -1, -1), right.expand(2, -1, -1))[:1]
    return torch.bmm(left, right)


def tiled_linear(x: Tensor, weight: TiledWeight) -> Tensor:
    """x W^T in float32: x [n, columns] of any float dtype, [n, rows] (maybe a strided view)."""
    rows = x.shape[0]
    padded = functional.pad(x.float(), (0, 0, 0, tiles_of(rows) * TILE - rows))
    return multiply_tiles(padded, weight.matrix)[:rows, : weight.shape[0]]
