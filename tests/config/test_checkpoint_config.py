"""Every rule of config.json and generation_config.json: what is accepted and what is refused."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declaim.config.checkpoint import load_model_config, parse_model_config
from declaim.config.model import FULL, LINEAR, Quantization
from declaim.contracts.errors import InvalidCheckpoint, NotFound
from declaim.contracts.request import SamplingParams
from declaim.nano.shapes import GENERATION, SHAPES

Edit = Callable[[Mapping[str, Any]], dict[str, Any]]

T, D, R = "text_config.", "audio_decoder_config.", "text_config.rope_parameters."
ABSENT = "<absent>"
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
QWEN = {
    f"{T}model_type": "qwen3_5_moe_text",
    f"{T}layernorm_zero_centered_gamma": ABSENT,
    f"{T}mlp_layer_types": ABSENT,
    f"{T}use_qk_norm": ABSENT,
    f"{T}shared_expert_gate": ABSENT,
    f"{T}rotary_interleaved": ABSENT,
}

ACCEPTED: list[dict[str, Any]] = [
    {"fish_schema_version": ABSENT},
    {f"{T}use_qk_norm": ABSENT, f"{T}attn_output_gate": ABSENT, f"{T}shared_expert_gate": ABSENT},
    {f"{T}rotary_interleaved": ABSENT},
    {f"{R}rope_type": ABSENT},
    {f"{T}rope_theta": 10000, f"{T}partial_rotary_factor": 0.25},
    {f"{T}rope_scaling": ROPE},
    {f"{T}rope_scaling": None, f"{T}rope_theta": None},
    {f"{T}tie_word_embeddings": ABSENT},
    {f"{T}attention_bias": False, f"{T}hidden_act": "silu"},
    {f"{D}model_type": ABSENT},
    {f"{D}attention_qk_norm": False, f"{D}rotary_interleaved": "any"},
    {f"{D}use_moe": False, f"{D}dropout": 0.0, f"{D}sliding_window": None, f"{D}bias": False},
    {f"{D}mtp_spec": {"attention_variant": "full_attention"}},
    {f"{D}mtp_spec": None},
    {"extra_samplable_token_ids": ABSENT, "audio_encoder_config": ABSENT},
    {"quantization_config": None},
    {"dtype": ABSENT, "torch_dtype": "bfloat16"},
    {"engine": {"anything": [1]}},
]


@pytest.mark.parametrize("edits", ACCEPTED, ids=lambda value: str(value)[:60])
def test_accepted_spellings_change_nothing(edited: Edit, edits: dict[str, Any]) -> None:
    assert parse_model_config(edited(edits)) == parse_model_config(edited({}))


def test_the_values_of_a_good_config(edited: Edit) -> None:
    config = parse_model_config(edited({}))
    backbone, tower = config.backbone, config.tower
    assert (backbone.hidden_size, backbone.num_hidden_layers, backbone.vocab_size) == (64, 4, 512)
    assert backbone.layer_types == (LINEAR, LINEAR, LINEAR, FULL)
    assert (backbone.rotary_dim, backbone.rope_theta) == (8, 1e4)
    assert (backbone.num_experts, backbone.num_experts_per_tok) == (8, 2)
    assert (backbone.convolution_channels, backbone.linear_value_width) == (128, 64)
    assert backbone.mamba_ssm_dtype == "float32"
    assert (tower.shared_layers, tower.layers, tower.codebook_size) == (1, 4, 64)
    assert (tower.rotary_dim, tower.rope_base, tower.backbone_codebooks) == (8, 1e4, 1)
    assert (config.eos_token_id, config.band, config.context) == (257, (320, 383), 16384)
    assert config.candidates == (257, *range(320, 384))
    assert config.quantization is None
    assert not config.plain_text_model
    assert config.unknown_keys == ()


def test_values_that_differ(edited: Edit) -> None:
    for method in ("fp8", "bsgemm-moe"):
        raw = edited({"quantization_config": {**FP8, "quant_method": method, "fmt": "e4m3"}})
        assert parse_model_config(raw).quantization == Quantization(method)
    config = parse_model_config(edited({f"{R}partial_rotary_factor": ABSENT}))
    assert config.backbone.rotary_dim == 32
    config = parse_model_config(edited({f"{T}max_position_embeddings": 262144}))
    assert (config.context, config.backbone.max_position_embeddings) == (16384, 262144)
    assert parse_model_config(edited({f"{T}max_position_embeddings": 100})).context == 100
    pre = {f"{D}vq_feature_placement": "mtp_shared_pre", f"{D}vq_backbone_codebooks": 0}
    assert parse_model_config(edited(pre)).tower.backbone_codebooks == 0
    mixed = parse_model_config(edited({f"{T}layer_types": [FULL, LINEAR, FULL, FULL]}))
    assert (mixed.linear_layers, mixed.attention_layers) == (1, 7)
    assert parse_model_config(edited({"dtype": "float32"})).dtype == "float32"
    assert (
        parse_model_config(edited({f"{T}mamba_ssm_dtype": None})).backbone.mamba_ssm_dtype is None
    )


@pytest.mark.parametrize("width", [0, None, ABSENT])
@pytest.mark.parametrize("gate", [False, True, ABSENT])
def test_no_shared_expert(edited: Edit, width: object, gate: object) -> None:
    edits = {f"{T}shared_expert_intermediate_size": width, f"{T}shared_expert_gate": gate}
    config = parse_model_config(edited(edits))
    assert config.backbone.shared_expert_intermediate_size == 0


def test_a_plain_text_model_implies_the_keys_of_its_own(edited: Edit) -> None:
    config = parse_model_config(edited(QWEN))
    assert config.plain_text_model
    assert config.backbone == parse_model_config(edited({})).backbone


def test_unknown_keys_are_listed(edited: Edit) -> None:
    edits = {
        "vision_config": {},
        f"{T}full_attention_interval": 4,
        f"{R}mrope_interleaved": True,
        f"{D}mtp_spec": {"note": 1},
        f"{D}extra": None,
        "quantization_config": {**FP8, "modules_to_not_convert": [], "note": 1},
        "engine": {"x": 1},
    }
    config = parse_model_config(edited(edits), {**GENERATION, "num_beams": 1})
    assert sorted(config.unknown_keys) == [
        "audio_decoder_config.extra",
        "audio_decoder_config.mtp_spec.note",
        "generation_config.num_beams",
        "quantization_config.note",
        "text_config.full_attention_interval",
        "text_config.rope_parameters.mrope_interleaved",
        "vision_config",
    ]


def test_generation_defaults(edited: Edit) -> None:
    config = parse_model_config(edited({}))
    assert config.generation.sampling == SamplingParams()
    assert (config.generation.ras_window, config.generation.max_new_tokens) == (16, 2048)
    given_values = {
        "temperature": 0.5,
        "top_p": 1,
        "top_k": 7,
        "codebook_top_k": 5,
        "ras_window": 3,
        "ras_temperature": 2,
        "ras_top_k": 9,
        "ras_top_p": 0.5,
        "max_new_tokens": 12,
        "eos_token_id": 257,
    }
    generation = parse_model_config(edited({}), given_values).generation
    assert generation.sampling == SamplingParams(0.5, 1, 7, 5, 2, 9, 0.5)
    assert (generation.ras_window, generation.max_new_tokens) == (3, 12)
    assert parse_model_config(edited({}), {"top_k": None, "temperature": None}) == config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", 2.5),
        ("temperature", "1"),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", 0),
        ("top_k", 1.0),
        ("codebook_top_k", 0),
        ("codebook_top_k", True),
        ("ras_window", 0),
        ("ras_window", "16"),
        ("ras_window", 16385),
        ("ras_temperature", -0.1),
        ("ras_top_k", -3),
        ("ras_top_p", 2),
        ("max_new_tokens", 0),
        ("max_new_tokens", 2049),
    ],
)
def test_generation_refusals(edited: Edit, key: str, value: object) -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        parse_model_config(edited({}), {key: value})
    assert caught.value.param == f"generation_config.{key}"
    assert "must be" in caught.value.message


def test_loading_from_a_directory(tmp_path: Path, edited: Edit) -> None:
    (tmp_path / "config.json").write_text(json.dumps(edited({})))
    assert load_model_config(tmp_path) == parse_model_config(edited({}))
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.5}')
    assert load_model_config(tmp_path).generation.sampling.top_p == 0.5
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(InvalidCheckpoint, match=r"generation_config\.json cannot be read"):
        load_model_config(tmp_path)


def test_paths_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no checkpoint at"):
        load_model_config(tmp_path / "absent")
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(InvalidCheckpoint, match="is a file"):
        load_model_config(file)
    with pytest.raises(InvalidCheckpoint, match=r"no config\.json"):
        load_model_config(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b"[]", b"null", b'"x"']
)
def test_a_config_that_is_no_json_object(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InvalidCheckpoint, match=r"config\.json"):
        load_model_config(tmp_path)


def _paths(value: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    paths = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            paths += _paths(inner, (*path, key))
    return paths


BASE = {**SHAPES["micro"].config, "quantization_config": FP8}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
EDITS = st.lists(
    st.tuples(st.sampled_from(_paths(BASE)), st.just(ABSENT) | JSON), min_size=1, max_size=3
)


@settings(max_examples=300, deadline=None)
@given(EDITS, st.none() | st.dictionaries(st.sampled_from(list(GENERATION)), JSON))
def test_no_edit_raises_anything_but_a_refusal(
    edits: list[tuple[tuple[str, ...], object]], generation: dict[str, Any] | None
) -> None:
    config: Any = copy.deepcopy(BASE)
    for (*path, key), value in edits:
        target = config
        for part in path:
            target = target.get(part) if isinstance(target, dict) else None
        if isinstance(target, dict):
            target[key] = value
    try:
        parsed = parse_model_config(config, generation)
    except InvalidCheckpoint as error:
        assert error.param
        assert len(error.message) < 400
    else:
        assert parsed.backbone.num_hidden_layers >= 1
