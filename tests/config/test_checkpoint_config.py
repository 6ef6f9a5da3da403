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

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    # edits, the key that the error names, what the message must show
    ({"model_type": "qwen3_5_moe"}, "model_type", "'qwen3_5_moe'"),
    ({"model_type": "qwen3_next"}, "model_type", "Qwen3-Next"),
    ({"model_type": "dual_ar"}, "model_type", "dual_ar"),
    ({"model_type": ABSENT}, "model_type", "missing"),
    ({"model_type": 3}, "model_type", "found 3"),
    ({"fish_schema_version": 2}, "fish_schema_version", "found 2"),
    ({"fish_schema_version": True}, "fish_schema_version", "found true"),
    ({"fish_schema_version": "1"}, "fish_schema_version", "found '1'"),
    ({"speech_template_version": "v2"}, "speech_template_version", "reference-bracket-v1"),
    ({"speech_template_version": ABSENT}, "speech_template_version", "missing"),
    ({"text_config": ABSENT}, "text_config", "missing"),
    ({"text_config": [1]}, "text_config", "a JSON object"),
    ({"audio_decoder_config": None}, "audio_decoder_config", "missing"),
    ({f"{T}model_type": "qwen3_next"}, f"{T}model_type", "Qwen3-Next"),
    ({f"{T}model_type": "qwen3_5_text"}, f"{T}model_type", "'qwen3_5_text'"),
    ({f"{T}model_type": ABSENT}, f"{T}model_type", "missing"),
    (
        {f"{T}layernorm_zero_centered_gamma": False},
        f"{T}layernorm_zero_centered_gamma",
        "found false",
    ),
    (
        {f"{T}layernorm_zero_centered_gamma": ABSENT},
        f"{T}layernorm_zero_centered_gamma",
        "missing",
    ),
    ({f"{T}use_qk_norm": False}, f"{T}use_qk_norm", "found false"),
    ({f"{T}use_qk_norm": 1}, f"{T}use_qk_norm", "found 1"),
    ({f"{T}attn_output_gate": False}, f"{T}attn_output_gate", "found false"),
    ({f"{T}shared_expert_gate": False}, f"{T}shared_expert_gate", "found false"),
    ({f"{T}rotary_interleaved": True}, f"{T}rotary_interleaved", "found true"),
    ({f"{T}attention_bias": True}, f"{T}attention_bias", "found true"),
    ({f"{T}hidden_act": "gelu"}, f"{T}hidden_act", "'gelu'"),
    ({f"{T}rope_parameters": ABSENT}, f"{T}rope_parameters", "missing"),
    ({f"{R}mrope_section": [1, 1, 2]}, f"{R}mrope_section", "absent"),
    ({f"{R}rope_type": "yarn"}, f"{R}rope_type", "'yarn'"),
    ({f"{R}type": "linear"}, f"{R}type", "'linear'"),
    ({f"{R}rope_theta": 0}, f"{R}rope_theta", "found 0"),
    ({f"{R}rope_theta": -1.0}, f"{R}rope_theta", "found -1.0"),
    ({f"{R}rope_theta": float("nan")}, f"{R}rope_theta", "found nan"),
    ({f"{R}rope_theta": float("inf")}, f"{R}rope_theta", "found inf"),
    ({f"{R}rope_theta": 10**400}, f"{R}rope_theta", "256 bits"),
    ({f"{R}rope_theta": "1e4"}, f"{R}rope_theta", "found '1e4'"),
    ({f"{R}rope_theta": True}, f"{R}rope_theta", "found true"),
    ({f"{R}rope_theta": ABSENT}, f"{R}rope_theta", "missing"),
    ({f"{R}partial_rotary_factor": 1.5}, f"{R}partial_rotary_factor", "(0, 1]"),
    ({f"{R}partial_rotary_factor": 0}, f"{R}partial_rotary_factor", "(0, 1]"),
    ({f"{R}partial_rotary_factor": 0.1}, f"{R}partial_rotary_factor", "even"),
    ({f"{R}partial_rotary_factor": 0.01}, f"{R}partial_rotary_factor", "positive"),
    ({f"{T}rope_theta": 1e6}, f"{T}rope_theta", "found 1000000.0"),
    ({f"{T}partial_rotary_factor": 0.5}, f"{T}partial_rotary_factor", "found 0.5"),
    ({f"{T}rope_scaling": {**ROPE, "rope_theta": 2.0}}, f"{T}rope_scaling.rope_theta", "found 2.0"),
    (
        {f"{T}rope_scaling": {**ROPE, "partial_rotary_factor": 1.0}},
        f"{T}rope_scaling.partial_rotary_factor",
        "found 1.0",
    ),
    (
        {f"{T}rope_scaling": {**ROPE, "rope_type": "linear"}},
        f"{T}rope_scaling.rope_type",
        "'linear'",
    ),
    (
        {f"{T}rope_scaling": {**ROPE, "mrope_section": [1]}},
        f"{T}rope_scaling.mrope_section",
        "[1]",
    ),
    ({f"{T}layer_types": [LINEAR] * 4}, f"{T}layer_types", "at least one"),
    ({f"{T}layer_types": [LINEAR] * 3}, f"{T}layer_types", "list of 3"),
    ({f"{T}layer_types": [*[LINEAR] * 3, "mamba"]}, f"{T}layer_types[3]", "'mamba'"),
    ({f"{T}layer_types": ABSENT}, f"{T}layer_types", "missing"),
    ({f"{T}layer_types": FULL}, f"{T}layer_types", "found 'full_attention'"),
    ({f"{T}layer_types": [[], 1, 2, 3]}, f"{T}layer_types[0]", "found []"),
    ({f"{T}mlp_layer_types": ["moe", "moe", "moe", "dense"]}, f"{T}mlp_layer_types[3]", "'dense'"),
    ({f"{T}mlp_layer_types": ["moe"]}, f"{T}mlp_layer_types", "list of 1"),
    ({f"{T}mlp_layer_types": ABSENT}, f"{T}mlp_layer_types", "missing"),
    ({**QWEN, f"{T}mlp_layer_types": ["dense"] * 4}, f"{T}mlp_layer_types[0]", "'dense'"),
    ({**QWEN, f"{T}layernorm_zero_centered_gamma": False}, f"{T}layernorm_zero_centered_gamma", ""),
    ({f"{T}num_attention_heads": 3, f"{T}num_key_value_heads": 2}, f"{T}num_attention_heads", "3"),
    ({f"{T}linear_num_value_heads": 5}, f"{T}linear_num_value_heads", "a multiple of"),
    ({f"{T}num_experts_per_tok": 9}, f"{T}num_experts_per_tok", "[1, 8]"),
    ({f"{T}shared_expert_intermediate_size": -1}, f"{T}shared_expert_intermediate_size", "-1"),
    ({f"{T}shared_expert_intermediate_size": 1.5}, f"{T}shared_expert_intermediate_size", "1.5"),
    ({f"{T}tie_word_embeddings": True}, f"{T}tie_word_embeddings", "found true"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings", "found true"),
    ({f"{T}max_position_embeddings": 0}, f"{T}max_position_embeddings", "found 0"),
    ({f"{T}max_position_embeddings": ABSENT}, f"{T}max_position_embeddings", "missing"),
    ({f"{T}rms_norm_eps": 0.0}, f"{T}rms_norm_eps", "found 0.0"),
    ({f"{T}mamba_ssm_dtype": "int8"}, f"{T}mamba_ssm_dtype", "'int8'"),
    ({"dtype": "int8"}, "dtype", "'int8'"),
    ({"eos_token_id": 512}, "eos_token_id", "[0, 511]"),
    ({"eos_token_id": -1}, "eos_token_id", "found -1"),
    ({"eos_token_id": [257]}, "eos_token_id", "found [257]"),
    ({"eos_token_id": 320}, "eos_token_id", "[320, 383]"),
    ({"eos_token_id": 383}, "eos_token_id", "[320, 383]"),
    ({"eos_token_id": ABSENT}, "eos_token_id", "missing"),
    ({"semantic_start_token_id": 319}, "semantic_end_token_id", "must be 382"),
    ({"semantic_end_token_id": 384}, "semantic_end_token_id", "must be 383"),
    ({"semantic_end_token_id": 512}, "semantic_end_token_id", "[0, 511]"),
    ({"semantic_start_token_id": 383, "semantic_end_token_id": 320}, "semantic_end_token_id", ""),
    ({f"{D}vocab_size": 65}, "semantic_end_token_id", "must be 384"),
    ({f"{D}model_type": "dual_ar"}, f"{D}model_type", "dual_ar"),
    ({f"{D}decoder_type": "dual_ar"}, f"{D}decoder_type", "dual_ar"),
    ({f"{D}decoder_type": ABSENT}, f"{D}decoder_type", "missing"),
    ({f"{D}vq_feature_scope": "last"}, f"{D}vq_feature_scope", "'last'"),
    ({f"{D}vq_feature_placement": "none"}, f"{D}vq_feature_placement", "'none'"),
    ({f"{D}vq_backbone_codebooks": 0}, f"{D}vq_backbone_codebooks", "[1, 3]"),
    ({f"{D}vq_backbone_codebooks": 4}, f"{D}vq_backbone_codebooks", "[1, 3]"),
    ({f"{D}vq_feature_placement": "mtp_shared_pre"}, f"{D}vq_backbone_codebooks", "[0, 0]"),
    ({f"{D}n_layer": 2}, f"{D}n_layer", "must be 1"),
    ({f"{D}shared_enrichment_layers": 0}, f"{D}shared_enrichment_layers", "found 0"),
    ({f"{D}num_codebooks": 1}, f"{D}num_codebooks", "found 1"),
    ({f"{D}max_seq_len": 4}, f"{D}max_seq_len", "must be 5"),
    ({f"{D}dim": 32}, f"{D}dim", "must be 64"),
    ({f"{D}text_dim": 32}, f"{D}text_dim", "must be 64"),
    ({f"{D}n_head": 4}, f"{D}n_head", "must be 2"),
    ({f"{D}n_local_heads": 2}, f"{D}n_local_heads", "must be 1"),
    ({f"{D}head_dim": 16}, f"{D}head_dim", "must be 32"),
    ({f"{D}rotary_percent": 0.1}, f"{D}rotary_percent", "even"),
    ({f"{D}rotary_percent": 1.01}, f"{D}rotary_percent", "(0, 1]"),
    ({f"{D}rotary_percent": ABSENT}, f"{D}rotary_percent", "missing"),
    ({f"{D}attention_output_gate": False}, f"{D}attention_output_gate", "found false"),
    ({f"{D}attention_output_gate": ABSENT}, f"{D}attention_output_gate", "missing"),
    (
        {f"{D}layernorm_zero_centered_gamma": False},
        f"{D}layernorm_zero_centered_gamma",
        "found false",
    ),
    (
        {f"{D}layernorm_zero_centered_gamma": ABSENT},
        f"{D}layernorm_zero_centered_gamma",
        "missing",
    ),
    ({f"{D}use_moe": True}, f"{D}use_moe", "absent"),
    ({f"{D}num_experts": 8}, f"{D}num_experts", "found 8"),
    ({f"{D}sliding_window": 128}, f"{D}sliding_window", "found 128"),
    ({f"{D}attention_qkv_bias": True}, f"{D}attention_qkv_bias", "found true"),
    ({f"{D}attention_o_bias": True}, f"{D}attention_o_bias", "found true"),
    ({f"{D}dropout": 0.1}, f"{D}dropout", "found 0.1"),
    ({f"{D}mtp_spec": {"attention_variant": "x"}}, f"{D}mtp_spec.attention_variant", "'x'"),
    ({f"{D}mtp_spec": 3}, f"{D}mtp_spec", "a JSON object"),
    ({"extra_samplable_token_ids": [3]}, "extra_samplable_token_ids", "[3]"),
    ({"audio_encoder_config": {"a": 1}}, "audio_encoder_config", "an object"),
    (
        {"quantization_config": {**FP8, "quant_method": "gptq"}},
        "quantization_config.quant_method",
        "",
    ),
    (
        {"quantization_config": {"quant_method": "drama3-int4"}},
        "quantization_config.quant_method",
        "'drama3-int4'",
    ),
    (
        {"quantization_config": {**FP8, "weight_block_size": [64, 64]}},
        "quantization_config.weight_block_size",
        "[64, 64]",
    ),
    (
        {"quantization_config": {**FP8, "activation_scheme": "static"}},
        "quantization_config.activation_scheme",
        "'static'",
    ),
    ({"quantization_config": {**FP8, "fmt": "e5m2"}}, "quantization_config.fmt", "'e5m2'"),
    ({"quantization_config": "fp8"}, "quantization_config", "found 'fp8'"),
]

POSITIVE_SIZES = [
    *(f"{T}{key}" for key in ("hidden_size", "num_hidden_layers", "vocab_size", "head_dim")),
    *(f"{T}{key}" for key in ("num_attention_heads", "num_key_value_heads", "num_experts")),
    *(f"{T}{key}" for key in ("num_experts_per_tok", "moe_intermediate_size")),
    *(f"{T}{key}" for key in ("linear_conv_kernel_dim", "linear_num_key_heads")),
    *(f"{T}{key}" for key in ("linear_num_value_heads", "linear_key_head_dim")),
    f"{T}linear_value_head_dim",
    *(f"{D}{key}" for key in ("vocab_size", "intermediate_size", "num_codebooks", "n_layer")),
    *(f"{D}{key}" for key in ("dim", "text_dim", "n_head", "n_local_heads", "max_seq_len")),
]


@pytest.mark.parametrize(("edits", "key", "shown"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused_by_name(edited: Edit, edits: dict[str, Any], key: str, shown: str) -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        parse_model_config(edited(edits))
    assert caught.value.param == key
    assert caught.value.message.startswith(f"{key} must be ")
    assert shown in caught.value.message


@pytest.mark.parametrize("key", POSITIVE_SIZES)
@pytest.mark.parametrize("value", [0, -1, True, "64", 64.0, 2**31, None, ABSENT])
def test_a_size_is_a_positive_integer(edited: Edit, key: str, value: object) -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        parse_model_config(edited({key: value}))
    assert caught.value.param == key
    assert "an integer in [" in caught.value.message


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
