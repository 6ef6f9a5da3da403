"""The table of codec tensors: published names, shapes and parameter counts."""

import math
from collections.abc import Iterator

import pytest
from torch import Tensor

from declaim.codec.config import CodecConfig
from declaim.codec.encoder import Encoder
from declaim.codec.names import (
    codec_shapes,
    decode_shapes,
    encode_shapes,
    needed_to_decode,
    needed_to_encode,
    quantizer_prefixes,
)
from declaim.codec.stream import Decoder

PUBLISHED_MILLIONS = {
    "encoder.": 76.9,
    "quantizer.pre_module.": 109.1,
    "quantizer.post_module.": 109.1,
    "quantizer.downsample.": 21.0,
    "quantizer.upsample.": 21.0,
    "quantizer.semantic_quantizer.": 0.05,
    "quantizer.quantizer.": 0.23,
    "decoder.": 54.1,
    "": 391.4,
}

PUBLISHED_SHAPES = {
    "encoder.block.0.conv.weight": (64, 1, 7),
    "encoder.block.1.block.0.block.0.alpha": (1, 64, 1),
    "encoder.block.2.block.2.block.1.conv.weight": (128, 128, 7),
    "encoder.block.4.block.2.block.3.conv.weight": (512, 512, 1),
    "encoder.block.4.block.4.conv.weight": (1024, 512, 16),
    "encoder.block.4.block.5.layers.3.attention.wqkv.weight": (3072, 1024),
    "encoder.block.4.block.5.norm.weight": (1024,),
    "encoder.block.5.alpha": (1, 1024, 1),
    "encoder.block.6.conv.weight": (1024, 1024, 3),
    "quantizer.downsample.1.0.conv.weight": (1024, 1024, 2),
    "quantizer.downsample.0.1.pwconv1.weight": (4096, 1024),
    "quantizer.pre_module.layers.7.feed_forward.w2.weight": (1024, 3072),
    "quantizer.post_module.layers.0.attention_layer_scale.gamma": (1024,),
    "quantizer.semantic_quantizer.quantizers.0.codebook.weight": (4096, 8),
    "quantizer.quantizer.quantizers.8.codebook.weight": (1024, 8),
    "quantizer.quantizer.quantizers.0.in_proj.weight": (8, 1024, 1),
    "quantizer.quantizer.quantizers.0.out_proj.weight": (1024, 8, 1),
    "quantizer.upsample.0.0.conv.weight": (1024, 1024, 2),
    "quantizer.upsample.1.1.dwconv.conv.weight": (1024, 1, 7),
    "decoder.model.0.conv.weight": (1536, 1024, 7),
    "decoder.model.1.block.1.conv.weight": (1536, 768, 16),
    "decoder.model.1.block.1.conv.bias": (768,),
    "decoder.model.4.block.4.block.1.conv.weight": (96, 96, 7),
    "decoder.model.5.alpha": (1, 96, 1),
    "decoder.model.6.conv.weight": (1, 96, 7),
}


@pytest.mark.parametrize("prefix", list(PUBLISHED_MILLIONS))
def test_published_parameter_counts(prefix: str) -> None:
    shapes = codec_shapes(CodecConfig())
    count = sum(math.prod(shape) for name, shape in shapes.items() if name.startswith(prefix))
    wanted = PUBLISHED_MILLIONS[prefix]
    assert count / 1e6 == pytest.approx(wanted, abs=0.06 if wanted > 1 else 0.006)


def test_published_shapes() -> None:
    shapes = codec_shapes(CodecConfig())
    assert {name: shapes[name] for name in PUBLISHED_SHAPES} == PUBLISHED_SHAPES


def test_upsampling_undoes_downsampling_in_reverse() -> None:
    shapes = codec_shapes(CodecConfig(downsample_factor=(2, 3)))
    assert shapes["quantizer.downsample.0.0.conv.weight"][-1] == 2
    assert shapes["quantizer.upsample.0.0.conv.weight"][-1] == 3


def test_an_encoder_transformer_is_there_only_if_it_has_layers(config: CodecConfig) -> None:
    stage = len(config.encoder_rates)
    names = [n for n in codec_shapes(config) if n.startswith(f"encoder.block.{stage}.block.5.")]
    assert bool(names) == bool(config.encoder_transformer.n_layer)


def test_quantizers_are_in_the_order_of_the_codes(config: CodecConfig) -> None:
    prefixes = quantizer_prefixes(config)
    assert len(prefixes) == config.num_codebooks
    assert prefixes[0] == "quantizer.semantic_quantizer.quantizers.0."
    assert prefixes[-1] == f"quantizer.quantizer.quantizers.{config.n_residual_codebooks - 1}."


class Recorded(dict[str, Tensor]):
    """A mapping that remembers which of its names were read."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.read.add(name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a side asks for the names it needs")


def test_decoding_needs_exactly_the_decode_side(
    config: CodecConfig, weights: dict[str, Tensor]
) -> None:
    recorded = Recorded(weights)
    Decoder(config, recorded)
    assert recorded.read == decode_shapes(config).keys()
    left = [name for name in codec_shapes(config) if not needed_to_decode(name)]
    assert {name.split(".")[0] for name in left} == {"encoder", "quantizer"}


def test_encoding_needs_exactly_the_encode_side(
    config: CodecConfig, weights: dict[str, Tensor]
) -> None:
    recorded = Recorded(weights)
    Encoder(config, recorded)
    assert recorded.read == encode_shapes(config).keys()
    left = [name for name in codec_shapes(config) if not needed_to_encode(name)]
    assert {name.split(".")[0] for name in left} == {"decoder", "quantizer"}
    assert (
        encode_shapes(config).keys() | decode_shapes(config).keys() == codec_shapes(config).keys()
    )
