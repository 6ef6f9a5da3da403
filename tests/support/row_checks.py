"""Checks of one op's rows: against float64, and a row's bytes whatever stands beside it."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

RowOp = Callable[[Tensor], tuple[Tensor, ...]]
"""Rows in, rows out; whatever an op takes for each row travels as columns of x."""


def near(found: Tensor, wanted: Tensor, tolerance: float = 2e-5) -> None:
    """float32 results against float64 ones."""
    assert wanted.dtype == torch.float64
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


def parts(rows: int, most: int) -> Iterator[slice]:
    """Every count of rows up to `most`, at the first, a middle and the last place."""
    for count in range(1, most + 1):
        for first in {0, (rows - count) // 2 | 1, rows - count}:
            yield slice(first, first + count)


def same_rows(op: RowOp, x: Tensor, most: int = 40) -> None:
    """op of any part of x gives the bytes that it gives each row alone."""
    alone = [torch.cat(each) for each in zip(*(op(row[None]) for row in x), strict=True)]
    for part in parts(len(x), min(most, len(x) - 1)):
        for found, wanted in zip(op(x[part]), alone, strict=True):
            assert torch.equal(found, wanted[part]), part
    wild = x.clone()
    wild[::2] = torch.nan
    wild[1::4] *= 1e30
    kept = torch.arange(3, len(x), 4)
    for found, wanted in zip(op(wild), alone, strict=True):
        assert torch.equal(found[kept], wanted[kept])
