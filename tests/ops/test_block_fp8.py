"""Block-FP8: the value is weight * scale, blocks at the edges may be short."""

import numpy as np
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


@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
def test_decode_at_block_edges_is_exact(scale_dtype: torch.dtype) -> None:
    """Against Python's floats, rounded to float32 once, where blocks meet and where they end."""
    rows, columns = 259, 387
    generator = torch.Generator().manual_seed(4)
    weight = (torch.randn(rows, columns, generator=generator) * 100).to(torch.float8_e4m3fn)
    scale = (torch.rand(3, 4, generator=generator) * 1e-3).to(scale_dtype)
    found = decode(BlockFP8(weight, scale))
    edges = [0, 1, 127, 128, 129, 255, 256, 257, 258]
    for row in edges:
        for column in [*edges, 383, 384, 386]:
            product = float(weight[row, column]) * float(scale[row // 128, column // 128])
            assert float(found[row, column]) == float(np.float32(product))


def test_every_float8_value_decodes_to_itself() -> None:
    values = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).view(2, 128)
    found = decode(BlockFP8(values, torch.ones(1, 1)))
    finite = values.float().isfinite()
    assert int(finite.sum()) == 254
    assert torch.equal(found[finite], values.float()[finite])


@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
def test_encode_is_off_by_half_a_step_at_most(scale_dtype: torch.dtype) -> None:
    """Half of the gap between neighbours of float8 (2^-4 of a value, 2^-10 below 2^-6).

    A scale in bfloat16 may be rounded down, so that the largest values of a block are clipped.
    """
    generator = torch.Generator().manual_seed(6)
    dense = torch.randn(200, 260, generator=generator) * torch.logspace(-3, 3, 260)
    packed = encode(dense, scale_dtype)
    scale = packed.scale.double().repeat_interleave(128, 0)[:200]
    scale = scale.repeat_interleave(128, 1)[:, :260]
    scaled = dense.double() / scale
    clipped = scaled.clamp(-448.0, 448.0)
    assert float((scaled - clipped).abs().max()) <= 448.0 * 2**-8
    error = (packed.weight.double() - clipped).abs()
    assert bool((error <= (clipped.abs() * 2**-4).clamp(min=2**-10) * (1 + 1e-6)).all())
