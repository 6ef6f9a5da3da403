"""Every key of config.json that is refused: by name, with what is accepted and what was found."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from declaim.config.checkpoint import parse_model_config
from declaim.config.model import FULL, LINEAR
from declaim.contracts.errors import InvalidCheckpoint

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
    ({f"{T}mamba_ssm_dtype": "float16"}, f"{T}mamba_ssm_dtype", "'float16'"),
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
    ({f"{D}num_codebooks": 1025}, f"{D}num_codebooks", "[2, 1024]"),
    ({f"{D}shared_enrichment_layers": 1025}, f"{D}shared_enrichment_layers", "[1, 1024]"),
    ({f"{T}num_experts": 65537}, f"{T}num_experts", "[1, 65536]"),
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
