"""Reading a checkpoint's config.json and generation_config.json into a ModelConfig.

Refuses by name whatever the engine cannot serve exactly; knows no tensor and no other file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from declaim.config.model import (
    FULL,
    LINEAR,
    BackboneConfig,
    GenerationDefaults,
    ModelConfig,
    Quantization,
    TowerConfig,
)
from declaim.config.section import Section, refusal
from declaim.contracts.errors import InvalidCheckpoint, InvalidRequest, NotFound
from declaim.contracts.request import MAX_FRAMES, SamplingParams

MODEL_TYPE = "fish_omni"
FISH_TEXT = "fish_omni_text"
QWEN_TEXT = "qwen3_5_moe_text"
MAX_CONTEXT = 16384
MOST_EXPERTS = 65536
MOST_TOWER_LAYERS = 1024
"""Far over any network's: what has names of its own is listed one by one before a file is read."""

_REFUSED_TYPES: Mapping[str, str] = {
    "dual_ar": "the dual_ar network",
    "fish_qwen3_omni": "the dual_ar network",
    "qwen3_next": "Qwen3-Next",
    "qwen3_5_moe": "a plain text model without the codebook tower",
    "qwen3_5_moe_text": "a plain text model without the codebook tower",
}
_DTYPES = ("bfloat16", "float16", "float32")
_STATE_DTYPES = ("bfloat16", "float32")
_SAMPLING_KEYS = (
    "temperature",
    "top_p",
    "top_k",
    "codebook_top_k",
    "ras_temperature",
    "ras_top_k",
    "ras_top_p",
)
_TOWER_REFUSED = ("moe", "expert", "window", "bias", "dropout")


def load_model_config(directory: Path) -> ModelConfig:
    """Read config.json and, if there, generation_config.json of a checkpoint directory.

    Raises NotFound if the path does not exist, InvalidCheckpoint for everything else.
    """
    if not directory.exists():
        raise NotFound(
            f"there is no checkpoint at {directory}", param="model", value=str(directory)
        )
    if not directory.is_dir():
        raise InvalidCheckpoint(
            f"a checkpoint is a directory, but {directory} is a file",
            param="model",
            value=str(directory),
        )
    config = directory / "config.json"
    if not config.is_file():
        raise InvalidCheckpoint(
            f"{directory} has no config.json, so it is not a checkpoint",
            param="config.json",
            value=str(directory),
        )
    generation = directory / "generation_config.json"
    return parse_model_config(
        read_json_object(config),
        read_json_object(generation) if generation.is_file() else None,
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint; InvalidCheckpoint if it holds anything else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidCheckpoint(
            f"{path.name} cannot be read as JSON: {error}", param=path.name, value=str(path)
        ) from error
    if not isinstance(value, dict):
        raise refusal(path.name, "a JSON object", value if value is not None else "null")
    return value


def parse_model_config(
    raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None
) -> ModelConfig:
    """The frozen configuration of what config.json says; InvalidCheckpoint names a wrong key.

    Unknown keys are ignored and listed in `unknown_keys`; `engine` is ours and never listed.
    """
    top = Section(raw)
    _check_model_type(top)
    text = top.section("text_config")
    text_type = _text_type(text)
    decoder = top.section("audio_decoder_config")
    backbone, text_sections = _backbone(text, fish=text_type == FISH_TEXT)
    tower, decoder_sections = _tower(decoder, backbone)
    eos, band = _token_ids(top, backbone, tower)
    quantization, quantization_sections = _quantization(top)
    _check_absent(top)
    defaults, generation_sections = _generation(generation)
    sections = [top, *text_sections, *decoder_sections]
    sections += [*quantization_sections, *generation_sections]
    return ModelConfig(
        backbone=backbone,
        tower=tower,
        eos_token_id=eos,
        band=band,
        context=min(MAX_CONTEXT, backbone.max_position_embeddings),
        dtype=_dtype(top),
        quantization=quantization,
        generation=defaults,
        plain_text_model=text_type == QWEN_TEXT,
        unknown_keys=tuple(name for section in sections for name in section.unknown()),
    )


def _check_model_type(top: Section) -> None:
    top.ignore("architectures", "transformers_version", "engine")
    value = top.get("model_type")
    known = _REFUSED_TYPES.get(value) if isinstance(value, str) else None
    if known is not None:
        raise top.refuse("model_type", f"{MODEL_TYPE} ({known} is not served)", value)
    top.choice("model_type", (MODEL_TYPE,))
    top.integer("fish_schema_version", 1, 1, default=1)
    top.choice("speech_template_version", ("reference-bracket-v1",))


def _text_type(text: Section) -> str:
    value = text.get("model_type")
    if value in ("qwen3_next", "dual_ar"):
        known = _REFUSED_TYPES[value]
        accepted = f"{FISH_TEXT} or {QWEN_TEXT} ({known} is not served)"
        raise text.refuse("model_type", accepted, value)
    return text.choice("model_type", (FISH_TEXT, QWEN_TEXT))


def _backbone(text: Section, *, fish: bool) -> tuple[BackboneConfig, list[Section]]:
    layers = text.integer("num_hidden_layers")
    layer_types = text.choices("layer_types", (LINEAR, FULL), layers)
    if FULL not in layer_types:
        raise text.refuse("layer_types", f"a list with at least one {FULL}", "none")
    if fish or text.get("mlp_layer_types") is not None:
        text.choices("mlp_layer_types", ("moe",), layers)
    shared = text.integer("shared_expert_intermediate_size", 0, default=0)
    _text_flags(text, fish=fish, shared=shared > 0)
    head_dim = text.integer("head_dim")
    theta, factor, sections = _rope(text)
    experts = text.integer("num_experts", 1, MOST_EXPERTS)
    mamba = text.get("mamba_ssm_dtype")
    config = BackboneConfig(
        hidden_size=text.integer("hidden_size"),
        layer_types=layer_types,
        vocab_size=text.integer("vocab_size"),
        rms_norm_eps=text.positive("rms_norm_eps"),
        max_position_embeddings=text.integer("max_position_embeddings"),
        num_attention_heads=text.integer("num_attention_heads"),
        num_key_value_heads=text.integer("num_key_value_heads"),
        head_dim=head_dim,
        rotary_dim=_rotary_dim(sections[1], "partial_rotary_factor", head_dim, factor),
        rope_theta=theta,
        num_experts=experts,
        num_experts_per_tok=text.integer("num_experts_per_tok", 1, experts),
        moe_intermediate_size=text.integer("moe_intermediate_size"),
        shared_expert_intermediate_size=shared,
        linear_conv_kernel_dim=text.integer("linear_conv_kernel_dim"),
        linear_num_key_heads=text.integer("linear_num_key_heads"),
        linear_num_value_heads=text.integer("linear_num_value_heads"),
        linear_key_head_dim=text.integer("linear_key_head_dim"),
        linear_value_head_dim=text.integer("linear_value_head_dim"),
        mamba_ssm_dtype=None if mamba is None else text.choice("mamba_ssm_dtype", _STATE_DTYPES),
    )
    _multiple(text, "num_attention_heads", "num_key_value_heads")
    _multiple(text, "linear_num_value_heads", "linear_num_key_heads")
    return config, sections


def _text_flags(text: Section, *, fish: bool, shared: bool) -> None:
    text.flag("layernorm_zero_centered_gamma", True, required=fish)
    text.flag("use_qk_norm", True)
    text.flag("attn_output_gate", True)
    if shared or text.get("shared_expert_gate") is not False:
        text.flag("shared_expert_gate", True)
    text.flag("rotary_interleaved", False)
    text.flag("tie_word_embeddings", False)
    text.flag("attention_bias", False)
    text.choice("hidden_act", ("silu",), default="silu")
    text.ignore("dtype", "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id")


def _multiple(section: Section, many: str, few: str) -> None:
    count, groups = section.integer(many), section.integer(few)
    if count % groups:
        name = section.dotted(few)
        raise section.refuse(many, f"a multiple of {name} = {groups}", count)


def _rope(text: Section) -> tuple[float, float, list[Section]]:
    """(theta, factor, the sections read: text_config, rope_parameters, any rope_scaling)."""
    rope = text.section("rope_parameters")
    _plain_rope(rope)
    theta = rope.positive("rope_theta")
    factor = rope.positive("partial_rotary_factor", 1.0, default=1.0)
    wanted = {"rope_theta": theta, "partial_rotary_factor": factor}
    sections = [text, rope]
    scaling = text.optional_section("rope_scaling")
    if scaling is not None:
        _plain_rope(scaling)
        sections.append(scaling)
    for section in (text, scaling):
        for key, value in wanted.items():
            if section is not None and section.positive(key, default=value) != value:
                accepted = f"{value:g} as {rope.dotted(key)} says"
                raise section.refuse(key, accepted, section.get(key))
    return theta, factor, sections


def _plain_rope(rope: Section) -> None:
    for key in ("rope_type", "type"):
        rope.choice(key, ("default",), default="default")
    if rope.get("mrope_section") is not None:
        raise rope.refuse("mrope_section", "absent", rope.get("mrope_section"))


def _rotary_dim(section: Section, key: str, head_dim: int, factor: float) -> int:
    rotary = int(head_dim * factor)
    if rotary < 2 or rotary % 2:
        accepted = f"such that int(head_dim {head_dim} x factor) is even and positive"
        raise section.refuse(key, accepted, factor)
    return rotary


def _tower(decoder: Section, backbone: BackboneConfig) -> tuple[TowerConfig, list[Section]]:
    decoder.choice("model_type", ("fish_qwen3_audio_decoder",), default="fish_qwen3_audio_decoder")
    decoder.choice("decoder_type", ("codebook_mtp_shared",))
    decoder.choice("vq_feature_scope", ("all_vq",))
    codebooks = decoder.integer("num_codebooks", 2, MOST_TOWER_LAYERS)
    shared = decoder.integer("shared_enrichment_layers", 1, MOST_TOWER_LAYERS)
    _equal(decoder, "n_layer", shared, "shared_enrichment_layers")
    _equal(decoder, "max_seq_len", codebooks + 1, "num_codebooks + 1")
    for key in ("dim", "text_dim"):
        _equal(decoder, key, backbone.hidden_size, "text_config.hidden_size")
    _equal(decoder, "n_head", backbone.num_attention_heads, "text_config.num_attention_heads")
    kv_heads = backbone.num_key_value_heads
    _equal(decoder, "n_local_heads", kv_heads, "text_config.num_key_value_heads")
    _equal(decoder, "head_dim", backbone.head_dim, "text_config.head_dim")
    decoder.flag("attention_output_gate", True, required=True)
    decoder.flag("layernorm_zero_centered_gamma", True, required=True)
    decoder.ignore("attention_qk_norm", "rotary_interleaved")
    sections = _refused_in_tower(decoder)
    percent = decoder.positive("rotary_percent", 1.0)
    config = TowerConfig(
        shared_layers=shared,
        num_codebooks=codebooks,
        codebook_size=decoder.integer("vocab_size"),
        intermediate_size=decoder.integer("intermediate_size"),
        norm_eps=decoder.positive("norm_eps"),
        rope_base=decoder.positive("rope_base"),
        rotary_dim=_rotary_dim(decoder, "rotary_percent", backbone.head_dim, percent),
        backbone_codebooks=_placement(decoder, codebooks),
    )
    return config, sections


def _equal(section: Section, key: str, wanted: int, reason: str) -> None:
    value = section.integer(key)
    if value != wanted:
        raise section.refuse(key, f"{wanted} ({reason})", value)


def _placement(decoder: Section, codebooks: int) -> int:
    partial = "backbone_partial"
    placement = decoder.choice("vq_feature_placement", (partial, "mtp_shared_pre"))
    low, high = (1, codebooks - 1) if placement == partial else (0, 0)
    return decoder.integer("vq_backbone_codebooks", low, high)


def _refused_in_tower(decoder: Section) -> list[Section]:
    """Refuse whatever would change the tower's arithmetic; the sections read."""
    for key, value in decoder.items():
        if any(word in key for word in _TOWER_REFUSED):
            decoder.ignore(key)
            if value not in (None, False, 0, [], {}):
                raise decoder.refuse(key, "absent", value)
    spec = decoder.optional_section("mtp_spec")
    if spec is None:
        return [decoder]
    spec.choice("attention_variant", ("full_attention",), default="full_attention")
    return [decoder, spec]


def _token_ids(
    top: Section, backbone: BackboneConfig, tower: TowerConfig
) -> tuple[int, tuple[int, int]]:
    last_id = backbone.vocab_size - 1
    first = top.integer("semantic_start_token_id", 0, last_id)
    last = top.integer("semantic_end_token_id", 0, last_id)
    if last - first + 1 != tower.codebook_size:
        wanted = first + tower.codebook_size - 1
        rule = f"{wanted} (semantic_start_token_id + audio_decoder_config.vocab_size - 1)"
        raise top.refuse("semantic_end_token_id", rule, last)
    eos = top.integer("eos_token_id", 0, last_id)
    if first <= eos <= last:
        raise top.refuse("eos_token_id", f"outside the semantic band [{first}, {last}]", eos)
    return eos, (first, last)


def _quantization(top: Section) -> tuple[Quantization | None, list[Section]]:
    section = top.optional_section("quantization_config")
    if section is None:
        return None, []
    method = section.choice("quant_method", ("bsgemm-moe", "fp8"))
    block = section.get("weight_block_size")
    if block != [128, 128]:
        raise section.refuse("weight_block_size", "[128, 128]", block)
    section.choice("activation_scheme", ("dynamic",))
    section.choice("fmt", ("e4m3",), default="e4m3")
    section.ignore("modules_to_not_convert")
    return Quantization(method), [section]


def _check_absent(top: Section) -> None:
    extra = top.get("extra_samplable_token_ids")
    if extra is not None and extra != []:
        raise top.refuse("extra_samplable_token_ids", "an empty list or absent", extra)
    encoder = top.get("audio_encoder_config")
    if encoder is not None:
        raise top.refuse("audio_encoder_config", "null or absent", encoder)
    top.flag("tie_word_embeddings", False)


def _dtype(top: Section) -> str:
    key = "dtype" if top.get("dtype") is not None else "torch_dtype"
    return top.choice(key, _DTYPES, default="bfloat16")


def _generation(
    raw: Mapping[str, Any] | None,
) -> tuple[GenerationDefaults, list[Section]]:
    if raw is None:
        return GenerationDefaults(), []
    section = Section(raw, "generation_config")
    given = {key: section.get(key) for key in _SAMPLING_KEYS}
    present: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    try:
        sampling = SamplingParams(**present)
    except InvalidRequest as error:
        assert error.param is not None
        raise section.refuse(error.param, f"in {error.limit}", error.value) from error
    window = section.integer("ras_window", 1, MAX_CONTEXT, default=16)
    frames = section.integer("max_new_tokens", 1, MAX_FRAMES, default=MAX_FRAMES)
    section.ignore("eos_token_id", "bos_token_id", "pad_token_id", "transformers_version")
    section.ignore("do_sample")
    defaults = GenerationDefaults(sampling, window, frames)
    return defaults, [section]
