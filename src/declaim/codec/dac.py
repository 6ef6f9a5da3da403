"""The codec's decode side as a network: latent frames to samples, in plain float32 torch.

Structure only: transformer, upsampling, causal decoder. What it remembers between calls comes by
argument, so it knows neither streams nor codes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from declaim.codec.config import CodecConfig
from declaim.codec.layers import (
    CausalConvolution,
    CausalUpsampling,
    ConvNextBlock,
    ResidualUnit,
    Tails,
    Weights,
    snake,
)
from declaim.codec.names import DILATIONS, POST_MODULE
from declaim.codec.transformer import TransformerShape, WindowTransformer


class DecoderNetwork:
    """Latent frames to sound."""

    def __init__(self, config: CodecConfig, weights: Weights) -> None:
        self.transformer = WindowTransformer(pre_post_shape(config), weights, POST_MODULE)
        self.upsampling = [
            _UpsamplingStage(weights, stage, factor)
            for stage, factor in enumerate(config.upsample_factor)
        ]
        self.first = CausalConvolution(weights, "decoder.model.0.conv")
        self.stages = [
            _DecoderStage(weights, stage, rate)
            for stage, rate in enumerate(config.decoder_rates, 1)
        ]
        last = len(config.decoder_rates)
        self.alpha = weights[f"decoder.model.{last + 1}.alpha"]
        self.last = CausalConvolution(weights, f"decoder.model.{last + 2}.conv")

    def __call__(
        self, latent: Tensor, position: Tensor, cache: tuple[Tensor, Tensor], tails: Tails
    ) -> Tensor:
        """Latent [batch, frames, latent_dim] at position int64 [batch] -> [batch, samples].

        cache (keys and values, as WindowTransformer takes them) and tails are moved on by the
        frames of this call. Samples are in [-1, 1].
        """
        x = self.transformer(latent, position, *cache).transpose(1, 2)
        for upsample in self.upsampling:
            x = upsample(x, tails)
        x = self.first(x, tails)
        for stage in self.stages:
            x = stage(x, tails)
        return torch.tanh(self.last(snake(x, self.alpha), tails))[:, 0]


def pre_post_shape(config: CodecConfig) -> TransformerShape:
    """Shape of the transformers before and after the quantizers."""
    block = config.pre_post
    return TransformerShape(
        layers=block.n_layer,
        heads=block.n_head,
        head_dim=block.head_dim,
        window=block.window,
        rope_base=block.rope_base,
        norm_eps=block.norm_eps,
        table_dtype=_TABLE_DTYPES[block.rope_table_dtype],
    )


_TABLE_DTYPES: Mapping[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class _UpsamplingStage:
    def __init__(self, weights: Weights, stage: int, factor: int) -> None:
        prefix = f"quantizer.upsample.{stage}."
        self.up = CausalUpsampling(weights, f"{prefix}0.conv", factor)
        self.block = ConvNextBlock(weights, f"{prefix}1.")

    def __call__(self, x: Tensor, tails: Tails) -> Tensor:
        """[batch, channels, columns] -> [batch, channels, columns * factor]."""
        return self.block(self.up(x, tails), tails)


class _DecoderStage:
    def __init__(self, weights: Weights, stage: int, rate: int) -> None:
        prefix = f"decoder.model.{stage}.block."
        self.alpha = weights[f"{prefix}0.alpha"]
        self.up = CausalUpsampling(weights, f"{prefix}1.conv", rate)
        self.units = [
            ResidualUnit(weights, f"{prefix}{unit}.", dilation)
            for unit, dilation in enumerate(DILATIONS, 2)
        ]

    def __call__(self, x: Tensor, tails: Tails) -> Tensor:
        """[batch, channels, columns] -> [batch, channels / 2, columns * rate]."""
        x = self.up(snake(x, self.alpha), tails)
        for unit in self.units:
            x = unit(x, tails)
        return x
