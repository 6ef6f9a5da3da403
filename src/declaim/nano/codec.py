"""Random codec weights, encoder included: audible noise that neither clips nor vanishes."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from declaim.checkpoint.random import named_generator
from declaim.codec.config import parse_codec_config
from declaim.codec.names import codec_shapes
from declaim.codec.writer import write_codec

RESIDUAL_GAIN = 0.3
"""Of the convolutions that end a residual unit, so that a chain of units does not blow up."""

OUTPUT_GAIN = 0.1
"""Of the last convolution before the tanh."""


def write_random_codec(directory: Path, config: Mapping[str, Any], seed: int) -> None:
    """Write codec.safetensors and codec_config.json of a codec_config.json's object."""
    parsed = parse_codec_config(config)
    write_codec(directory, parsed, dict(random_codec(codec_shapes(parsed), seed)))


def random_codec(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Iterator[tuple[str, Tensor]]:
    """A bfloat16 value for every codec tensor; each depends on the seed and its name alone."""
    output = _output_convolution(shapes)
    for name, shape in shapes.items():
        value = _value(name, shape, seed) * (OUTPUT_GAIN if name == output else 1.0)
        yield name, value.to(torch.bfloat16)


def _output_convolution(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The decoder's convolution to one channel."""
    names = [n for n, s in shapes.items() if n.startswith("decoder.") and len(s) == 3 and s[0] == 1]
    return next(name for name in names if name.endswith("conv.weight"))


def _value(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    generator = named_generator(seed, f"codec.{name}")
    last = name.rpartition(".")[2]
    if last == "alpha":
        return torch.empty(shape).uniform_(0.5, 1.5, generator=generator)
    if last == "gamma":
        return torch.empty(shape).uniform_(0.1, 1.0, generator=generator)
    noise = torch.randn(shape, generator=generator)
    if last == "bias":
        return 0.01 * noise
    if name.endswith("codebook.weight"):
        return noise
    if len(shape) == 1:
        return 1.0 + 0.1 * noise
    return noise * (_gain(name) / math.sqrt(_fan_in(name, shape)))


def _gain(name: str) -> float:
    """Residual units hold [snake, convolution, snake, convolution] as block.0 to block.3."""
    return RESIDUAL_GAIN if name.endswith("block.3.conv.weight") else 1.0


def _fan_in(name: str, shape: tuple[int, ...]) -> float:
    """Inputs that one output sums; shape is [out, in, ...], of a transposed convolution [in, out,
    kernel]: there the decoder's kernels are two strides long, the quantizer's one."""
    if name.startswith("quantizer.upsample.") and name.endswith(".0.conv.weight"):
        return shape[0]
    if name.startswith("decoder.") and name.endswith(".block.1.conv.weight"):
        # A residual unit's own second entry is an ordinary convolution and lies one block deeper.
        return 2 * shape[0] if name.count("block.") == 1 else math.prod(shape[1:])
    return math.prod(shape[1:])
