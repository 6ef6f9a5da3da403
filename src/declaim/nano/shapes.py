"""The random checkpoints' shapes as configuration files: micro, tiny and small.

micro is for tests, tiny for trying the whole path, small for measuring. Data only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from declaim.config.model import FULL, LINEAR

CONTEXT = 16384
EPS = 1e-6
ROTARY_FRACTION = 0.25
ROPE_THETA = 10000.0


@dataclass(frozen=True)
class Shape:
    """Sizes of one random checkpoint.

    heads, kv_heads, head_dim: attention of backbone and tower. delta_heads: key and value heads
    of the delta-net layers, each delta_dim wide. codebooks: Q. codebook_size: V. band_start: token
    id of the first semantic token. codec: what codec_config.json says beside the fixed values.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    delta_heads: tuple[int, int]
    delta_dim: int
    experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    vocab: int
    codebooks: int
    codebook_size: int
    shared_layers: int
    tower_width: int
    band_start: int
    codec: Mapping[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """The object of config.json."""
        return {
            "model_type": "fish_omni",
            "architectures": ["FishOmniModel"],
            "fish_schema_version": 1,
            "speech_template_version": "reference-bracket-v1",
            "dtype": "bfloat16",
            "eos_token_id": 257,
            "semantic_start_token_id": self.band_start,
            "semantic_end_token_id": self.band_start + self.codebook_size - 1,
            "audio_encoder_config": None,
            "extra_samplable_token_ids": [],
            "text_config": self._text_config(),
            "audio_decoder_config": self._decoder_config(),
        }

    def _text_config(self) -> dict[str, Any]:
        interval = 4
        kinds = [FULL if (i + 1) % interval == 0 else LINEAR for i in range(self.layers)]
        return {
            "model_type": "fish_omni_text",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "layer_types": kinds,
            "mlp_layer_types": ["moe"] * self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "attn_output_gate": True,
            "use_qk_norm": True,
            "rotary_interleaved": False,
            "layernorm_zero_centered_gamma": True,
            "shared_expert_gate": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": ROPE_THETA,
                "partial_rotary_factor": ROTARY_FRACTION,
            },
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": EPS,
            "vocab_size": self.vocab,
            "tie_word_embeddings": False,
            "num_experts": self.experts,
            "num_experts_per_tok": self.experts_per_token,
            "moe_intermediate_size": self.expert_width,
            "shared_expert_intermediate_size": self.shared_width,
            "linear_conv_kernel_dim": 4,
            "linear_num_key_heads": self.delta_heads[0],
            "linear_num_value_heads": self.delta_heads[1],
            "linear_key_head_dim": self.delta_dim,
            "linear_value_head_dim": self.delta_dim,
            "mamba_ssm_dtype": "float32",
        }

    def _decoder_config(self) -> dict[str, Any]:
        return {
            "model_type": "fish_qwen3_audio_decoder",
            "decoder_type": "codebook_mtp_shared",
            "dim": self.hidden,
            "text_dim": self.hidden,
            "n_head": self.heads,
            "n_local_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "n_layer": self.shared_layers,
            "shared_enrichment_layers": self.shared_layers,
            "num_codebooks": self.codebooks,
            "vocab_size": self.codebook_size,
            "max_seq_len": self.codebooks + 1,
            "intermediate_size": self.tower_width,
            "norm_eps": EPS,
            "rope_base": ROPE_THETA,
            "rotary_percent": ROTARY_FRACTION,
            "rotary_interleaved": True,
            "attention_output_gate": True,
            "attention_qk_norm": True,
            "layernorm_zero_centered_gamma": True,
            "vq_feature_scope": "all_vq",
            "vq_feature_placement": "backbone_partial",
            "vq_backbone_codebooks": 1,
            "mtp_spec": {},
        }

    @property
    def codec_config(self) -> dict[str, Any]:
        """The object of codec_config.json."""
        return {
            "model_type": "fish_dac",
            "downsample_factor": [2, 2],
            "codebook_dim": 8,
            "n_residual_codebooks": self.codebooks - 1,
            "causal": True,
            **self.codec,
        }


GENERATION: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 0.9,
    "codebook_top_k": 30,
    "ras_window": 16,
    "ras_temperature": 1.0,
    "ras_top_k": 30,
    "ras_top_p": 0.95,
    "max_new_tokens": 2048,
}
"""The object of generation_config.json of every shape."""


def _pre_post(layers: int, heads: int, width: int) -> dict[str, Any]:
    return {
        "n_layer": layers,
        "n_head": heads,
        "head_dim": 64,
        "intermediate_size": width,
        "window": 128,
        "rope_base": 10000,
        "norm_eps": 1e-5,
        "rope_table_dtype": "bfloat16",
    }


_MICRO_CODEC: Mapping[str, Any] = {
    "sample_rate": 22050,
    "encoder_dim": 4,
    "encoder_rates": [2, 4, 4, 8],
    "decoder_dim": 64,
    "decoder_rates": [8, 4, 4, 2],
    "latent_dim": 64,
    "semantic_codebook_size": 64,
    "codebook_size": 64,
    "pre_post": _pre_post(1, 1, 192),
    "encoder_transformer": {"n_layer": 1, "window": 512},
}

_TINY_CODEC: Mapping[str, Any] = {
    "sample_rate": 44100,
    "encoder_dim": 16,
    "encoder_rates": [2, 4, 8, 8],
    "decoder_dim": 192,
    "decoder_rates": [8, 8, 4, 2],
    "latent_dim": 256,
    "semantic_codebook_size": 256,
    "codebook_size": 256,
    "pre_post": _pre_post(2, 4, 768),
    "encoder_transformer": {"n_layer": 1, "window": 512},
}

_MICRO = Shape(
    name="micro",
    hidden=64,
    layers=4,
    heads=2,
    kv_heads=1,
    head_dim=32,
    delta_heads=(2, 4),
    delta_dim=16,
    experts=8,
    experts_per_token=2,
    expert_width=32,
    shared_width=32,
    vocab=512,
    codebooks=4,
    codebook_size=64,
    shared_layers=1,
    tower_width=128,
    band_start=320,
    codec=_MICRO_CODEC,
)

_TINY = Shape(
    name="tiny",
    hidden=192,
    layers=8,
    heads=4,
    kv_heads=2,
    head_dim=32,
    delta_heads=(4, 8),
    delta_dim=24,
    experts=16,
    experts_per_token=4,
    expert_width=64,
    shared_width=64,
    vocab=1024,
    codebooks=10,
    codebook_size=256,
    shared_layers=4,
    tower_width=256,
    band_start=512,
    codec=_TINY_CODEC,
)

_SMALL = Shape(
    name="small",
    hidden=192,
    layers=8,
    heads=4,
    kv_heads=2,
    head_dim=32,
    delta_heads=(4, 8),
    delta_dim=24,
    experts=32,
    experts_per_token=4,
    expert_width=64,
    shared_width=128,
    vocab=2048,
    codebooks=10,
    codebook_size=1024,
    shared_layers=4,
    tower_width=384,
    band_start=1024,
    codec={**_TINY_CODEC, "semantic_codebook_size": 1024},
)

SHAPES: Mapping[str, Shape] = {shape.name: shape for shape in (_MICRO, _TINY, _SMALL)}
"""The shapes by name."""
