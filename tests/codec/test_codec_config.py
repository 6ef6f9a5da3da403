"""codec_config.json: the published values, and every refusal by key, limit and value."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from declaim.codec.config import (
    CONFIG_NAME,
    CodecConfig,
    load_codec_config,
    parse_codec_config,
    require_codebooks,
)
from declaim.contracts.errors import InvalidCheckpoint

PUBLISHED: dict[str, Any] = {
    "model_type": "fish_dac",
    "sample_rate": 44100,
    "encoder_dim": 64,
    "encoder_rates": [2, 4, 8, 8],
    "decoder_dim": 1536,
    "decoder_rates": [8, 8, 4, 2],
    "latent_dim": 1024,
    "downsample_factor": [2, 2],
    "codebook_dim": 8,
    "semantic_codebook_size": 4096,
    "codebook_size": 1024,
    "n_residual_codebooks": 9,
    "causal": True,
    "pre_post": {
        "n_layer": 8,
        "n_head": 16,
        "head_dim": 64,
        "intermediate_size": 3072,
        "window": 128,
        "rope_base": 10000,
        "norm_eps": 1e-5,
        "rope_table_dtype": "bfloat16",
    },
    "encoder_transformer": {"n_layer": 4, "window": 512},
}


def changed(**values: object) -> dict[str, Any]:
    """The published object with some keys set; `pre_post__x` is key x of pre_post."""
    raw = copy.deepcopy(PUBLISHED)
    for key, value in values.items():
        section, _, inner = key.rpartition("__")
        (raw[section] if section else raw)[inner] = value
    return raw


def test_published_values_are_the_defaults() -> None:
    config = parse_codec_config(PUBLISHED)
    assert config == CodecConfig()
    assert (config.hop, config.num_codebooks) == (2048, 10)
    assert config.frame_rate == pytest.approx(21.533, abs=1e-3)
    assert config.pre_post.rope_base == 10000.0


def test_a_directory_without_the_file_is_the_published_codec(tmp_path: Path) -> None:
    assert load_codec_config(tmp_path) == CodecConfig()


def test_a_written_configuration_is_read_back(tmp_path: Path, config: CodecConfig) -> None:
    (tmp_path / CONFIG_NAME).write_text(json.dumps(config.to_json()))
    assert load_codec_config(tmp_path) == config
    assert parse_codec_config(PUBLISHED).to_json() == PUBLISHED


def test_properties_follow_the_values(micro: CodecConfig) -> None:
    assert micro.hop == 1024
    assert micro.num_codebooks == 4
    assert micro.frame_rate == pytest.approx(22050 / 1024)
    uneven = parse_codec_config(changed(downsample_factor=[2, 3]))
    assert uneven.upsample_factor == (3, 2)
    assert uneven.hop == 512 * 6


def test_absent_nested_keys_are_the_published_ones() -> None:
    raw = changed(pre_post={"window": 64}, encoder_transformer={})
    config = parse_codec_config(raw)
    assert config.pre_post.window == 64
    assert config.pre_post.n_layer == 8
    assert config.encoder_transformer.window == 512
    del raw["pre_post"], raw["encoder_transformer"]
    assert parse_codec_config(raw) == CodecConfig()


def test_unknown_keys_are_ignored() -> None:
    raw = changed(pre_post__dropout=0.1, note="made elsewhere")
    assert parse_codec_config(raw) == CodecConfig()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another model type": (changed(model_type="dac"), "model_type"),
    "not causal": (changed(causal=False), "causal"),
    "causal as a number": (changed(causal=1), "causal"),
    "heads that do not fill the latent": (changed(pre_post__n_head=8), "pre_post.n_head"),
    "an odd head": (
        changed(latent_dim=15, pre_post__head_dim=15, pre_post__n_head=1),
        "pre_post.head_dim",
    ),
    "rates of unequal product": (changed(encoder_rates=[2, 4, 8, 4]), "encoder_rates"),
    "an encoder no multiple of 64": (changed(encoder_dim=6), "encoder_dim"),
    "a decoder that cannot be halved": (changed(decoder_dim=1544), "decoder_dim"),
    "a rate of zero": (changed(decoder_rates=[8, 8, 0, 2]), "decoder_rates[2]"),
    "no rates": (changed(encoder_rates=[]), "encoder_rates"),
    "rates as text": (changed(downsample_factor="22"), "downsample_factor"),
    "a float size": (changed(latent_dim=1024.0), "latent_dim"),
    "a boolean size": (changed(codebook_dim=True), "codebook_dim"),
    "a text size": (changed(sample_rate="44100"), "sample_rate"),
    "a null size": (changed(n_residual_codebooks=None), "n_residual_codebooks"),
    "a huge size": (changed(codebook_size=2**40), "codebook_size"),
    "a negative size": (changed(semantic_codebook_size=-1), "semantic_codebook_size"),
    "no layers": (changed(pre_post__n_layer=0), "pre_post.n_layer"),
    "no window": (changed(pre_post__window=0), "pre_post.window"),
    "a negative rope base": (changed(pre_post__rope_base=-1), "pre_post.rope_base"),
    "an infinite rope base": (changed(pre_post__rope_base=float("inf")), "pre_post.rope_base"),
    "a rope base past floats": (changed(pre_post__rope_base=10**400), "pre_post.rope_base"),
    "an epsilon that is no number": (
        changed(pre_post__norm_eps=float("nan")),
        "pre_post.norm_eps",
    ),
    "an unknown table dtype": (
        changed(pre_post__rope_table_dtype="int8"),
        "pre_post.rope_table_dtype",
    ),
    "a list as table dtype": (
        changed(pre_post__rope_table_dtype=[]),
        "pre_post.rope_table_dtype",
    ),
    "pre_post as a list": (changed(pre_post=[8]), "pre_post"),
    "an encoder transformer of -1 layers": (
        changed(encoder_transformer__n_layer=-1),
        "encoder_transformer.n_layer",
    ),
    "an encoder transformer without window": (
        changed(encoder_transformer__window=0),
        "encoder_transformer.window",
    ),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_a_refusal_names_key_limit_and_value(case: str) -> None:
    raw, key = REFUSED[case]
    with pytest.raises(InvalidCheckpoint) as caught:
        parse_codec_config(raw)
    error = caught.value
    assert error.param == key
    assert key in error.message
    assert error.limit and str(error.limit) in error.message
    assert repr(error.value)[:60] in error.message
    assert "\n" not in error.message and len(error.message) < 300


@pytest.mark.parametrize(
    "key", [key for key in PUBLISHED if key not in ("pre_post", "encoder_transformer")]
)
def test_a_missing_key_is_refused(key: str) -> None:
    raw = changed()
    del raw[key]
    with pytest.raises(InvalidCheckpoint, match=f"{key} is missing") as caught:
        parse_codec_config(raw)
    assert caught.value.param == key


def test_an_encoder_without_transformer_may_have_any_width() -> None:
    raw = changed(encoder_dim=6, encoder_transformer={"n_layer": 0})
    assert parse_codec_config(raw).encoder_dim == 6


def test_the_models_codebooks_must_be_the_codecs() -> None:
    require_codebooks(CodecConfig(), 10)
    with pytest.raises(InvalidCheckpoint) as caught:
        require_codebooks(CodecConfig(), 4)
    assert caught.value.param == "n_residual_codebooks"
    assert caught.value.value == 9
    assert "num_codebooks is 4" in caught.value.message
    assert "not 9" in caught.value.message


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b"\xff\xfe{}", b"[" * 100_000, b'{"sample_rate": ' + b"9" * 5000 + b"}"],
    ids=["empty", "cut", "list", "bytes", "deep", "digits"],
)
def test_a_file_that_is_no_object_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CONFIG_NAME).write_bytes(content)
    with pytest.raises(InvalidCheckpoint) as caught:
        load_codec_config(tmp_path)
    assert caught.value.param == CONFIG_NAME
    assert str(tmp_path / CONFIG_NAME) in caught.value.message
