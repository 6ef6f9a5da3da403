"""The codec's encode side as a network: samples to latent frames, in plain float32 torch.

Structure only: causal encoder with its optional transformer, downsampling, transformer. What it
remembers between calls comes by argument, so it knows neither streams nor codes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.codec.config import ENCODER_HEAD_DIM, CodecConfig, WindowTransformerConfig
from declaim.codec.dac import pre_post_shape
from declaim.codec.layers import (
    CausalConvolution,
    ConvNextBlock,
    ResidualUnit,
    Tails,
    Weights,
    snake,
)
from declaim.codec.names import (
    CONVNEXT_KERNEL,
    DILATIONS,
    EDGE_KERNEL,
    ENCODER_LAST_KERNEL,
    PRE_MODULE,
    UNIT_KERNEL,
)
from declaim.codec.transformer import TransformerShape, WindowTransformer


@dataclass(frozen=True)
class EncoderMemory:
    """What an encoder remembers of one stream; fixed buffers, which a call moves on.

    inner, outer: keys and values of the encoder's own transformer and of the one before the
    quantizers, each [layers, 1, window - 1, heads, head_dim]. tails: layer name ->
    [1, channels, columns], its last input columns.
    """

    inner: tuple[Tensor, Tensor]
    outer: tuple[Tensor, Tensor]
    tails: Tails

    @classmethod
    def allocate(cls, config: CodecConfig, device: torch.device) -> "EncoderMemory":
        """Memory of a stream that has not begun."""
        return cls(
            inner=_cache(encoder_transformer_shape(config), device),
            outer=_cache(pre_post_shape(config), device),
            tails={
                name: torch.zeros(1, *shape, device=device)
                for name, shape in encoder_tail_shapes(config).items()
            },
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(t.nbytes for t in (*self.inner, *self.outer, *self.tails.values()))


class EncoderNetwork:
    """Sound to latent frames."""

    def __init__(self, config: CodecConfig, weights: Weights) -> None:
        last = len(config.encoder_rates)
        self.first = CausalConvolution(weights, "encoder.block.0.conv")
        self.stages = [
            _EncoderStage(weights, stage, rate)
            for stage, rate in enumerate(config.encoder_rates, 1)
        ]
        self.inner = (
            WindowTransformer(
                encoder_transformer_shape(config), weights, f"encoder.block.{last}.block.5."
            )
            if config.encoder_transformer.n_layer
            else None
        )
        self.alpha = weights[f"encoder.block.{last + 1}.alpha"]
        self.last = CausalConvolution(weights, f"encoder.block.{last + 2}.conv")
        self.downsampling = [
            _DownsamplingStage(weights, stage, factor)
            for stage, factor in enumerate(config.downsample_factor)
        ]
        self.outer = WindowTransformer(pre_post_shape(config), weights, PRE_MODULE)
        self.inner_rate = math.prod(config.downsample_factor)

    def __call__(self, samples: Tensor, position: Tensor, memory: EncoderMemory) -> Tensor:
        """Samples [1, frames * hop] -> latent [1, frames, latent_dim]; memory is moved on.

        position int64 [1]: frames of the stream before these.
        """
        x = self.first(samples[:, None], memory.tails)
        for stage in self.stages:
            x = stage(x, memory.tails)
        if self.inner is not None:
            at = position * self.inner_rate
            x = self.inner(x.transpose(1, 2), at, *memory.inner).transpose(1, 2)
        x = self.last(snake(x, self.alpha), memory.tails)
        for downsample in self.downsampling:
            x = downsample(x, memory.tails)
        return self.outer(x.transpose(1, 2), position, *memory.outer)


def encoder_transformer_shape(config: CodecConfig) -> TransformerShape:
    """Shape of the transformer in the encoder's last stage; only depth and window are settings."""
    fixed, chosen = WindowTransformerConfig(), config.encoder_transformer
    return TransformerShape(
        layers=chosen.n_layer,
        heads=config.encoder_width // ENCODER_HEAD_DIM,
        head_dim=ENCODER_HEAD_DIM,
        window=chosen.window,
        rope_base=fixed.rope_base,
        norm_eps=fixed.norm_eps,
        table_dtype=torch.bfloat16,
    )


def encoder_tail_shapes(config: CodecConfig) -> dict[str, tuple[int, int]]:
    """Name of each layer that looks back -> (channels, columns) of what it keeps."""
    width, last = config.encoder_dim, len(config.encoder_rates)
    tails = {"encoder.block.0.conv": (1, EDGE_KERNEL - 1)}
    for stage, rate in enumerate(config.encoder_rates, 1):
        prefix = f"encoder.block.{stage}.block."
        for unit, dilation in enumerate(DILATIONS):
            tails[f"{prefix}{unit}.block.1.conv"] = (width, (UNIT_KERNEL - 1) * dilation)
        tails[f"{prefix}4.conv"] = (width, rate)
        width *= 2
    tails[f"encoder.block.{last + 2}.conv"] = (width, ENCODER_LAST_KERNEL - 1)
    for stage in range(len(config.downsample_factor)):
        name = f"quantizer.downsample.{stage}.1.dwconv.conv"
        tails[name] = (config.latent_dim, CONVNEXT_KERNEL - 1)
    return tails


def _cache(shape: TransformerShape, device: torch.device) -> tuple[Tensor, Tensor]:
    size = (shape.layers, 1, shape.window - 1, shape.heads, shape.head_dim)
    return torch.zeros(size, device=device), torch.zeros(size, device=device)


class _EncoderStage:
    def __init__(self, weights: Weights, stage: int, rate: int) -> None:
        prefix = f"encoder.block.{stage}.block."
        self.units = [
            ResidualUnit(weights, f"{prefix}{unit}.", dilation)
            for unit, dilation in enumerate(DILATIONS)
        ]
        self.alpha = weights[f"{prefix}3.alpha"]
        self.down = CausalConvolution(weights, f"{prefix}4.conv", stride=rate)

    def __call__(self, x: Tensor, tails: Tails) -> Tensor:
        """[1, channels, columns] -> [1, channels * 2, columns / rate]."""
        for unit in self.units:
            x = unit(x, tails)
        return self.down(snake(x, self.alpha), tails)


class _DownsamplingStage:
    def __init__(self, weights: Weights, stage: int, factor: int) -> None:
        prefix = f"quantizer.downsample.{stage}."
        self.down = CausalConvolution(weights, f"{prefix}0.conv", stride=factor)
        self.block = ConvNextBlock(weights, f"{prefix}1.")

    def __call__(self, x: Tensor, tails: Tails) -> Tensor:
        """[1, channels, columns] -> [1, channels, columns / factor]."""
        return self.block(self.down(x, tails), tails)
