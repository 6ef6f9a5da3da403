"""Matrix products whose bytes do not depend on how many rows there are, or where a row stands.

A library product changes its order of additions with the number of rows. Here rows go through in
tiles of one fixed height, as one batched product; K is never split and N is whole vectors.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

TILE_ROWS = 4
"""Rows of a tile, for every row count: two heights give two results."""

COLUMN_STEP = 16
"""Columns are padded to a multiple: with fewer, a row's place in its tile changes its bytes."""


@dataclass(frozen=True)
class TiledWeight:
    """A weight for `tile_product`: matrix float32 [K, N padded to 16]; columns: N."""

    matrix: Tensor
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K], of the weight as stored."""
        return self.columns, self.matrix.shape[0]


def tiled_weight(weight: Tensor) -> TiledWeight:
    """[N, K] as stored -> float32, transposed and padded."""
    rows = weight.shape[0]
    padded = F.pad(weight.float(), (0, 0, 0, -rows % COLUMN_STEP))
    return TiledWeight(padded.T.contiguous(), rows)


def least_batch() -> int:
    """Fewest products in a batch.

    With several threads a lone product is split inside, a batch is split between its products.
    """
    return 1 if torch.get_num_threads() == 1 else 2


def tile_product(x: Tensor, weight: TiledWeight) -> Tensor:
    """x [n, K] times the weight: float32 [n, N]."""
    rows = x.shape[0]
    tiles = max(-(-rows // TILE_ROWS), least_batch())
    padded = F.pad(x.float(), (0, 0, 0, tiles * TILE_ROWS - rows)).contiguous()
    matrix = weight.matrix.expand(tiles, *weight.matrix.shape)
    y = torch.bmm(padded.view(tiles, TILE_ROWS, -1), matrix)
    return y.view(tiles * TILE_ROWS, -1)[:rows, : weight.columns]


def batch_product(a: Tensor, b: Tensor) -> Tensor:
    """a [batch, m, k] times b [batch, k, n], n a multiple of 16; m and k fixed by the caller."""
    batch = a.shape[0]
    if batch >= least_batch():
        return torch.bmm(a, b)
    return torch.bmm(a.expand(2, -1, -1), b.expand(2, -1, -1))[:batch]
