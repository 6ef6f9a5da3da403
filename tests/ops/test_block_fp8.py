"""Block-FP8: the value is weight * scale, blocks at the edges may be short."""

import pytest
import torch

from declaim.ops.block_fp8 import decode, encode
from declaim.ops.table import BlockFP8

SHAPES = [(1, 1), (5, 300), (128, 128), (129, 127), (256, 384), (300, 200)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
def test_decode_is_the_product_entry_by_entry(
    shape: tuple[int, int], scale_dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    blocks = (-(-shape[0] // 128), -(-shape[1] // 128))
    scale = torch.rand(blocks, generator=generator).to(scale_dtype)
    found = decode(BlockFP8(weight, scale))
    assert found.dtype == torch.float32
    for row in {0, shape[0] // 2, shape[0] - 1}:
        for column in range(shape[1]):
            factor = scale[row // 128, column // 128].float()
            assert found[row, column] == weight[row, column].float() * factor


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
def test_encode_is_near(shape: tuple[int, int], scale_dtype: torch.dtype) -> None:
    dense = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    quantised = encode(dense, scale_dtype)
    assert quantised.weight.dtype == torch.float8_e4m3fn
    assert quantised.scale.dtype == scale_dtype
    assert quantised.scale.shape == (-(-shape[0] // 128), -(-shape[1] // 128))
    error = (decode(quantised) - dense).abs()
    assert bool((error <= dense.abs() * 2**-4 + dense.abs().max() * 2**-9).all())


def test_encode_keeps_what_the_format_holds_exactly() -> None:
    generator = torch.Generator().manual_seed(3)
    grid = torch.randn(200, 300, generator=generator).to(torch.float8_e4m3fn).float()
    grid[::32, ::32] = 448.0
    assert torch.equal(decode(encode(grid / 64)), grid / 64)


def test_zeros_and_the_largest_value() -> None:
    zeros = encode(torch.zeros(130, 3))
    assert torch.equal(zeros.scale, torch.ones(2, 1, dtype=torch.bfloat16))
    assert torch.equal(decode(zeros), torch.zeros(130, 3))
    for value in torch.linspace(0.9, 1.1, 41).tolist():
        assert bool(decode(encode(torch.full((2, 2), value))).isfinite().all())
