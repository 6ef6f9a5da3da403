"""Two small codecs of different geometry, with random weights that keep the sound audible."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from declaim.codec.config import (
    CodecConfig,
    EncoderTransformerConfig,
    WindowTransformerConfig,
)
from declaim.codec.names import codec_shapes
from declaim.codec.stream import Decoder

MICRO = CodecConfig(
    sample_rate=22050,
    encoder_dim=4,
    encoder_rates=(2, 4, 4, 8),
    decoder_dim=64,
    decoder_rates=(8, 4, 4, 2),
    latent_dim=64,
    downsample_factor=(2, 2),
    codebook_dim=8,
    semantic_codebook_size=64,
    codebook_size=64,
    n_residual_codebooks=3,
    pre_post=WindowTransformerConfig(
        n_layer=1, n_head=1, head_dim=64, intermediate_size=192, window=128
    ),
    encoder_transformer=EncoderTransformerConfig(n_layer=1, window=512),
)
"""Hop 1024; one layer of one head; every codebook of one size."""

ODD = CodecConfig(
    sample_rate=8000,
    encoder_dim=6,
    encoder_rates=(2, 5),
    decoder_dim=20,
    decoder_rates=(5, 2),
    latent_dim=24,
    downsample_factor=(3, 2),
    codebook_dim=4,
    semantic_codebook_size=48,
    codebook_size=16,
    n_residual_codebooks=2,
    pre_post=WindowTransformerConfig(
        n_layer=2,
        n_head=4,
        head_dim=6,
        intermediate_size=40,
        window=5,
        rope_base=50.0,
        norm_eps=1e-4,
        rope_table_dtype="float32",
    ),
    encoder_transformer=EncoderTransformerConfig(n_layer=0, window=8),
)
"""Hop 60; a narrow window; unequal strides and codebooks; no encoder transformer."""

CONFIGS = {"micro": MICRO, "odd": ODD}


def random_weights(config: CodecConfig, seed: int) -> dict[str, Tensor]:
    """float32 weights of every tensor of a codec; no bias, scale or norm is neutral."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in codec_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith((".alpha", "norm.weight")):
            weights[name] = noise.abs() * 0.3 + 0.7
        elif name.endswith(("gamma", ".bias")):
            weights[name] = noise * 0.2
        elif name.endswith("codebook.weight"):
            weights[name] = noise
        else:
            weights[name] = noise * (0.6 / math.sqrt(math.prod(shape[1:])))
    return weights


@pytest.fixture(params=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> CodecConfig:
    """Each of the small codecs."""
    return CONFIGS[request.param]


@pytest.fixture(scope="session")
def make_weights() -> Callable[[CodecConfig], dict[str, Tensor]]:
    """The whole codec's random weights, made once for each configuration."""
    made: dict[CodecConfig, dict[str, Tensor]] = {}

    def get(config: CodecConfig) -> dict[str, Tensor]:
        if config not in made:
            made[config] = random_weights(config, 7)
        return dict(made[config])

    return get


@pytest.fixture
def weights(
    config: CodecConfig, make_weights: Callable[[CodecConfig], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Random weights of `config`."""
    return make_weights(config)


@pytest.fixture
def decoder(config: CodecConfig, weights: dict[str, Tensor]) -> Decoder:
    """A decoder of `config`."""
    return Decoder(config, weights)


@pytest.fixture
def small_codecs() -> dict[str, CodecConfig]:
    """The small codecs by name."""
    return dict(CONFIGS)


@pytest.fixture
def micro() -> CodecConfig:
    """The small codec of the random checkpoints' geometry."""
    return MICRO


@pytest.fixture
def make_codes(config: CodecConfig) -> Callable[..., Tensor]:
    """Random int64 codes [Q, frames] of `config`, by seed."""

    def get(frames: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (config.num_codebooks, frames)
        return torch.randint(0, config.semantic_codebook_size, shape, generator=generator)

    return get
