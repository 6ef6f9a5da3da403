"""The codec's tensors: published names and shapes, weight norm folded away.

Knows what the whole codec holds, encoder included, and which part each direction needs; knows no
file and no arithmetic. Shapes are torch's: convolutions [out, in / groups, kernel], transposed
convolutions [in, out, kernel], linear layers [out, in].
"""

from declaim.codec.config import ENCODER_HEAD_DIM, CodecConfig

Shapes = dict[str, tuple[int, ...]]

DILATIONS = (1, 3, 9)
"""Of the three residual units of every encoder and decoder stage."""

UNIT_KERNEL = 7
EDGE_KERNEL = 7
ENCODER_LAST_KERNEL = 3
CONVNEXT_KERNEL = 7
CONVNEXT_EXPANSION = 4
ENCODER_MLP = 3
"""Width of the encoder transformer's feed-forward, in units of its own width."""

IGNORED_SUFFIXES = ("freqs_cis", "causal_mask")
"""Buffers that some published files hold and that nothing needs."""

SEMANTIC = "quantizer.semantic_quantizer.quantizers.0."
PRE_MODULE = "quantizer.pre_module."
POST_MODULE = "quantizer.post_module."


def quantizer_prefixes(config: CodecConfig) -> tuple[str, ...]:
    """Name prefixes of the Q quantizers in the order of the codes: semantic, then residual."""
    residual = (f"quantizer.quantizer.quantizers.{i}." for i in range(config.n_residual_codebooks))
    return (SEMANTIC, *residual)


def codec_shapes(config: CodecConfig) -> Shapes:
    """Name -> shape of every tensor of the codec, both sides."""
    shapes: Shapes = {}
    _encoder(shapes, config)
    _quantizer(shapes, config)
    _decoder(shapes, config)
    return shapes


def needed_to_decode(name: str) -> bool:
    """Whether codes -> sound needs the tensor of this (folded) name."""
    if name.startswith(("encoder.", "quantizer.downsample.", PRE_MODULE)):
        return False
    return ".in_proj." not in name


def needed_to_encode(name: str) -> bool:
    """Whether sound -> codes needs the tensor of this (folded) name."""
    return not name.startswith(("decoder.", "quantizer.upsample.", POST_MODULE))


def decode_shapes(config: CodecConfig) -> Shapes:
    """Name -> shape of the tensors that codes -> sound needs."""
    shapes = codec_shapes(config)
    return {name: shape for name, shape in shapes.items() if needed_to_decode(name)}


def encode_shapes(config: CodecConfig) -> Shapes:
    """Name -> shape of the tensors that sound -> codes needs."""
    shapes = codec_shapes(config)
    return {name: shape for name, shape in shapes.items() if needed_to_encode(name)}


def _convolution(shapes: Shapes, name: str, shape: tuple[int, int, int]) -> None:
    shapes[f"{name}.weight"] = shape
    shapes[f"{name}.bias"] = (shape[0],)


def _transposed(shapes: Shapes, name: str, shape: tuple[int, int, int]) -> None:
    shapes[f"{name}.weight"] = shape
    shapes[f"{name}.bias"] = (shape[1],)


def _snake(shapes: Shapes, name: str, channels: int) -> None:
    shapes[f"{name}.alpha"] = (1, channels, 1)


def _residual_unit(shapes: Shapes, prefix: str, channels: int) -> None:
    _snake(shapes, f"{prefix}block.0", channels)
    _convolution(shapes, f"{prefix}block.1.conv", (channels, channels, UNIT_KERNEL))
    _snake(shapes, f"{prefix}block.2", channels)
    _convolution(shapes, f"{prefix}block.3.conv", (channels, channels, 1))


def _transformer(shapes: Shapes, prefix: str, layers: int, width: int, hidden: int) -> None:
    for layer in range(layers):
        p = f"{prefix}layers.{layer}."
        shapes[f"{p}attention.wqkv.weight"] = (3 * width, width)
        shapes[f"{p}attention.wo.weight"] = (width, width)
        shapes[f"{p}feed_forward.w1.weight"] = (hidden, width)
        shapes[f"{p}feed_forward.w2.weight"] = (width, hidden)
        shapes[f"{p}feed_forward.w3.weight"] = (hidden, width)
        for vector in ("attention_norm.weight", "ffn_norm.weight"):
            shapes[p + vector] = (width,)
        for vector in ("attention_layer_scale.gamma", "ffn_layer_scale.gamma"):
            shapes[p + vector] = (width,)
    shapes[f"{prefix}norm.weight"] = (width,)


def _convnext(shapes: Shapes, prefix: str, width: int) -> None:
    _convolution(shapes, f"{prefix}dwconv.conv", (width, 1, CONVNEXT_KERNEL))
    shapes[f"{prefix}norm.weight"] = (width,)
    shapes[f"{prefix}norm.bias"] = (width,)
    wide = CONVNEXT_EXPANSION * width
    shapes[f"{prefix}pwconv1.weight"] = (wide, width)
    shapes[f"{prefix}pwconv1.bias"] = (wide,)
    shapes[f"{prefix}pwconv2.weight"] = (width, wide)
    shapes[f"{prefix}pwconv2.bias"] = (width,)
    shapes[f"{prefix}gamma"] = (width,)


def _encoder(shapes: Shapes, config: CodecConfig) -> None:
    width, last = config.encoder_dim, len(config.encoder_rates)
    _convolution(shapes, "encoder.block.0.conv", (width, 1, EDGE_KERNEL))
    for stage, rate in enumerate(config.encoder_rates, 1):
        p = f"encoder.block.{stage}.block."
        for unit in range(len(DILATIONS)):
            _residual_unit(shapes, f"{p}{unit}.", width)
        _snake(shapes, f"{p}3", width)
        _convolution(shapes, f"{p}4.conv", (2 * width, width, 2 * rate))
        width *= 2
        if stage == last and config.encoder_transformer.n_layer:
            layers = config.encoder_transformer.n_layer
            assert width % ENCODER_HEAD_DIM == 0
            _transformer(shapes, f"{p}5.", layers, width, ENCODER_MLP * width)
    _snake(shapes, f"encoder.block.{last + 1}", width)
    name = f"encoder.block.{last + 2}.conv"
    _convolution(shapes, name, (config.latent_dim, width, ENCODER_LAST_KERNEL))


def _quantizer(shapes: Shapes, config: CodecConfig) -> None:
    latent, narrow, block = config.latent_dim, config.codebook_dim, config.pre_post
    for stage, factor in enumerate(config.downsample_factor):
        p = f"quantizer.downsample.{stage}."
        _convolution(shapes, f"{p}0.conv", (latent, latent, factor))
        _convnext(shapes, f"{p}1.", latent)
    for side in (PRE_MODULE, POST_MODULE):
        _transformer(shapes, side, block.n_layer, latent, block.intermediate_size)
    for index, p in enumerate(quantizer_prefixes(config)):
        entries = config.codebook_size if index else config.semantic_codebook_size
        _convolution(shapes, f"{p}in_proj", (narrow, latent, 1))
        _convolution(shapes, f"{p}out_proj", (latent, narrow, 1))
        shapes[f"{p}codebook.weight"] = (entries, narrow)
    for stage, factor in enumerate(config.upsample_factor):
        p = f"quantizer.upsample.{stage}."
        _transposed(shapes, f"{p}0.conv", (latent, latent, factor))
        _convnext(shapes, f"{p}1.", latent)


def _decoder(shapes: Shapes, config: CodecConfig) -> None:
    width, last = config.decoder_dim, len(config.decoder_rates)
    _convolution(shapes, "decoder.model.0.conv", (width, config.latent_dim, EDGE_KERNEL))
    for stage, rate in enumerate(config.decoder_rates, 1):
        p = f"decoder.model.{stage}.block."
        _snake(shapes, f"{p}0", width)
        _transposed(shapes, f"{p}1.conv", (width, width // 2, 2 * rate))
        width //= 2
        for unit in range(len(DILATIONS)):
            _residual_unit(shapes, f"{p}{unit + 2}.", width)
    _snake(shapes, f"decoder.model.{last + 1}", width)
    _convolution(shapes, f"decoder.model.{last + 2}.conv", (1, width, EDGE_KERNEL))
