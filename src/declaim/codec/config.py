"""The codec's codec_config.json as frozen values, each refusal by name.

Knows the published keys and their limits; knows no tensor and no other file. A directory without
a codec_config.json holds the S2-Pro codec, whose values are the defaults here.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from declaim.contracts.errors import InvalidCheckpoint

CONFIG_NAME = "codec_config.json"
MODEL_TYPE = "fish_dac"
ENCODER_HEAD_DIM = 64
"""Width of a head of the encoder's transformer, whatever the codec's size."""

TABLE_DTYPES = ("bfloat16", "float32")

_MAX_SIZE = 2**31 - 1
_HIGHEST: Mapping[str, int] = {"n_layer": 1024, "n_residual_codebooks": 1024, "window": 65536}
"""Of what takes memory before any stored tensor's shape could contradict it."""

_MAX_NUMBER = 1e30


@dataclass(frozen=True)
class WindowTransformerConfig:
    """The transformers before and after the quantizers (`pre_post`); names as published.

    window: frames that a frame sees, itself included. rope_table_dtype: what the cosines and
    sines of the rotary embedding are rounded to.
    """

    n_layer: int = 8
    n_head: int = 16
    head_dim: int = 64
    intermediate_size: int = 3072
    window: int = 128
    rope_base: float = 10000.0
    norm_eps: float = 1e-5
    rope_table_dtype: str = "bfloat16"


@dataclass(frozen=True)
class EncoderTransformerConfig:
    """The transformer in the encoder's last stage; n_layer 0 means that there is none."""

    n_layer: int = 4
    window: int = 512


@dataclass(frozen=True)
class CodecConfig:
    """One codec, names as published; the defaults are S2-Pro's.

    semantic_codebook_size, codebook_size: entries of the first and of each residual codebook.
    downsample_factor: strides after the encoder; the decode side undoes them last to first.
    """

    sample_rate: int = 44100
    encoder_dim: int = 64
    encoder_rates: tuple[int, ...] = (2, 4, 8, 8)
    decoder_dim: int = 1536
    decoder_rates: tuple[int, ...] = (8, 8, 4, 2)
    latent_dim: int = 1024
    downsample_factor: tuple[int, ...] = (2, 2)
    codebook_dim: int = 8
    semantic_codebook_size: int = 4096
    codebook_size: int = 1024
    n_residual_codebooks: int = 9
    pre_post: WindowTransformerConfig = field(default_factory=WindowTransformerConfig)
    encoder_transformer: EncoderTransformerConfig = field(default_factory=EncoderTransformerConfig)

    @property
    def hop(self) -> int:
        """Samples a frame."""
        return math.prod((*self.decoder_rates, *self.downsample_factor))

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return self.sample_rate / self.hop

    @property
    def num_codebooks(self) -> int:
        """Q: the semantic codebook and the residual ones."""
        return 1 + self.n_residual_codebooks

    @property
    def upsample_factor(self) -> tuple[int, ...]:
        """Strides before the decoder, in the order in which they run."""
        return self.downsample_factor[::-1]

    @property
    def encoder_width(self) -> int:
        """Channels of the encoder's last stage."""
        return self.encoder_dim << len(self.encoder_rates)

    def to_json(self) -> dict[str, Any]:
        """The mapping that codec_config.json holds; `parse_codec_config` reads it back."""
        values: dict[str, Any] = {"model_type": MODEL_TYPE, "causal": True}
        for key in _SIZES:
            values[key] = getattr(self, key)
        for key in _RATES:
            values[key] = list(getattr(self, key))
        for key in ("pre_post", "encoder_transformer"):
            values[key] = dict(vars(getattr(self, key)))
        return values


_SIZES = (
    "sample_rate",
    "encoder_dim",
    "decoder_dim",
    "latent_dim",
    "codebook_dim",
    "semantic_codebook_size",
    "codebook_size",
    "n_residual_codebooks",
)
_RATES = ("encoder_rates", "decoder_rates", "downsample_factor")


def load_codec_config(directory: Path) -> CodecConfig:
    """Read a directory's codec_config.json; without one, S2-Pro's values.

    Raises InvalidCheckpoint for a file that is no JSON object or holds a refused value.
    """
    path = directory / CONFIG_NAME
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return CodecConfig()
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidCheckpoint(
            f"{path} cannot be read as JSON: {error}", param=CONFIG_NAME, value=str(path)
        ) from error
    if not isinstance(raw, dict):
        raise InvalidCheckpoint(
            f"{path} must hold a JSON object, not {type(raw).__name__}",
            param=CONFIG_NAME,
            limit="object",
            value=type(raw).__name__,
        )
    return parse_codec_config(raw)


def parse_codec_config(raw: Mapping[str, object]) -> CodecConfig:
    """The configuration that a codec_config.json holds; unknown keys are ignored.

    Keys of `pre_post` and `encoder_transformer` that are absent are S2-Pro's; every other key
    must be given. Raises InvalidCheckpoint naming key, limit and value.
    """
    _fixed(raw, "model_type", MODEL_TYPE)
    _fixed(raw, "causal", True)
    sizes: dict[str, Any] = {key: _integer(key, _given(raw, key)) for key in _SIZES}
    rates: dict[str, Any] = {key: _integers(key, _given(raw, key)) for key in _RATES}
    config = CodecConfig(
        **sizes,
        **rates,
        pre_post=_pre_post(_section(raw, "pre_post")),
        encoder_transformer=_encoder_transformer(_section(raw, "encoder_transformer")),
    )
    _check_geometry(config)
    return config


def require_codebooks(config: CodecConfig, model_codebooks: int) -> None:
    """Raise InvalidCheckpoint unless codec and model have the same number of codebooks."""
    if config.num_codebooks != model_codebooks:
        raise _refusal(
            "n_residual_codebooks",
            f"{model_codebooks - 1}, because the model's num_codebooks is {model_codebooks}",
            config.n_residual_codebooks,
        )


def _check_geometry(config: CodecConfig) -> None:
    block, latent = config.pre_post, config.latent_dim
    if block.n_head * block.head_dim != latent:
        raise _refusal(
            "pre_post.n_head",
            f"latent_dim / head_dim ({latent} / {block.head_dim})",
            block.n_head,
        )
    if block.head_dim % 2:
        raise _refusal("pre_post.head_dim", "even", block.head_dim)
    encoder, decoder = math.prod(config.encoder_rates), math.prod(config.decoder_rates)
    if encoder != decoder:
        raise _refusal(
            "encoder_rates",
            f"numbers with the product of decoder_rates ({decoder})",
            list(config.encoder_rates),
        )
    if config.encoder_transformer.n_layer and config.encoder_width % ENCODER_HEAD_DIM:
        raise _refusal(
            "encoder_dim",
            f"such that encoder_dim x 2^{len(config.encoder_rates)} is a multiple of "
            f"{ENCODER_HEAD_DIM} (the encoder has a transformer)",
            config.encoder_dim,
        )
    if config.decoder_dim % (1 << len(config.decoder_rates)):
        raise _refusal(
            "decoder_dim",
            f"divisible by 2^{len(config.decoder_rates)} (one halving for each of decoder_rates)",
            config.decoder_dim,
        )


def _pre_post(raw: Mapping[str, object]) -> WindowTransformerConfig:
    default, prefix = WindowTransformerConfig(), "pre_post."
    values: dict[str, Any] = {}
    for key in ("n_layer", "n_head", "head_dim", "intermediate_size", "window"):
        values[key] = _integer(prefix + key, raw.get(key, getattr(default, key)))
    for key in ("rope_base", "norm_eps"):
        values[key] = _positive(prefix + key, raw.get(key, getattr(default, key)))
    name = raw.get("rope_table_dtype", default.rope_table_dtype)
    if not isinstance(name, str) or name not in TABLE_DTYPES:
        raise _refusal(f"{prefix}rope_table_dtype", " or ".join(TABLE_DTYPES), name)
    return WindowTransformerConfig(**values, rope_table_dtype=name)


def _encoder_transformer(raw: Mapping[str, object]) -> EncoderTransformerConfig:
    default, prefix = EncoderTransformerConfig(), "encoder_transformer."
    return EncoderTransformerConfig(
        n_layer=_integer(f"{prefix}n_layer", raw.get("n_layer", default.n_layer), low=0),
        window=_integer(f"{prefix}window", raw.get("window", default.window)),
    )


def _refusal(key: str, limit: str, value: object) -> InvalidCheckpoint:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return InvalidCheckpoint(
        f"{CONFIG_NAME}: {key} must be {limit}, not {shown}",
        param=key,
        limit=limit,
        value=value,
    )


def _given(raw: Mapping[str, object], key: str) -> object:
    if key not in raw:
        raise InvalidCheckpoint(f"{CONFIG_NAME}: {key} is missing", param=key, limit="given")
    return raw[key]


def _section(raw: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = raw.get(key, {})
    if not isinstance(value, Mapping):
        raise _refusal(key, "an object", value)
    return value


def _fixed(raw: Mapping[str, object], key: str, accepted: str | bool) -> None:
    value = _given(raw, key)
    if type(value) is not type(accepted) or value != accepted:
        raise _refusal(key, json.dumps(accepted), value)


def _integer(key: str, value: object, low: int = 1) -> int:
    high = _HIGHEST.get(key.rpartition(".")[2], _MAX_SIZE)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _refusal(key, f"an integer in [{low}, {high}]", value)
    return value


def _integers(key: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise _refusal(key, "a list of at least one integer", value)
    return tuple(_integer(f"{key}[{index}]", entry) for index, entry in enumerate(value))


def _positive(key: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < _MAX_NUMBER:
        raise _refusal(key, f"a number between 0 and {_MAX_NUMBER:g}", value)
    return float(value)
