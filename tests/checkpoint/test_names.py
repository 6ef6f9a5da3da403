"""The network's parameters and the published tensors they come from, against a typed list."""

from typing import Any

from declaim.checkpoint.names import expert_names, network_parameters, stacked_expert_names
from declaim.config.checkpoint import parse_model_config
from declaim.config.model import ModelConfig

LM = "model.language_model."

EXPECTED = {
    "embed": ("table", (512, 64), [f"{LM}embed_tokens.weight"]),
    "codebooks": ("table", (256, 64), ["audio_decoder.codebook_embeddings.weight"]),
    "lm_head": ("linear", (65, 64), ["lm_head.weight"]),
    "final_norm": ("vector", (64,), [f"{LM}norm.weight"]),
    "layers.0.input_norm": ("vector", (64,), [f"{LM}layers.0.input_layernorm.weight"]),
    "layers.0.post_norm": ("vector", (64,), [f"{LM}layers.0.post_attention_layernorm.weight"]),
    "layers.0.delta.qkvz": (
        "linear",
        (192, 64),
        [
            f"{LM}layers.0.linear_attn.in_proj_qkv.weight",
            f"{LM}layers.0.linear_attn.in_proj_z.weight",
        ],
    ),
    "layers.0.delta.ba": (
        "linear",
        (8, 64),
        [
            f"{LM}layers.0.linear_attn.in_proj_b.weight",
            f"{LM}layers.0.linear_attn.in_proj_a.weight",
        ],
    ),
    "layers.0.delta.conv": ("conv", (128, 4), [f"{LM}layers.0.linear_attn.conv1d.weight"]),
    "layers.0.delta.a_log": ("vector", (4,), [f"{LM}layers.0.linear_attn.A_log"]),
    "layers.0.delta.dt_bias": ("vector", (4,), [f"{LM}layers.0.linear_attn.dt_bias"]),
    "layers.0.delta.norm": ("vector", (16,), [f"{LM}layers.0.linear_attn.norm.weight"]),
    "layers.0.delta.out": ("linear", (64, 64), [f"{LM}layers.0.linear_attn.out_proj.weight"]),
    "layers.3.attention.qgkv": (
        "linear",
        (192, 64),
        [f"{LM}layers.3.self_attn.{part}_proj.weight" for part in "qkv"],
    ),
    "layers.3.attention.q_norm": ("vector", (32,), [f"{LM}layers.3.self_attn.q_norm.weight"]),
    "layers.3.attention.k_norm": ("vector", (32,), [f"{LM}layers.3.self_attn.k_norm.weight"]),
    "layers.3.attention.out": ("linear", (64, 64), [f"{LM}layers.3.self_attn.o_proj.weight"]),
    "layers.3.experts.router": ("linear", (8, 64), [f"{LM}layers.3.mlp.gate.weight"]),
    "layers.3.experts.routed": ("experts", (8, 32, 64), []),
    "layers.3.experts.shared_gate_up": (
        "linear",
        (64, 64),
        [
            f"{LM}layers.3.mlp.shared_expert.gate_proj.weight",
            f"{LM}layers.3.mlp.shared_expert.up_proj.weight",
        ],
    ),
    "layers.3.experts.shared_down": (
        "linear",
        (64, 32),
        [f"{LM}layers.3.mlp.shared_expert.down_proj.weight"],
    ),
    "layers.3.experts.shared_gate": (
        "linear",
        (1, 64),
        [f"{LM}layers.3.mlp.shared_expert_gate.weight"],
    ),
    "tower.0.table": (
        "table",
        (64, 64),
        ["audio_decoder_mtp_shared.layers.0.semantic_embedding.weight"],
    ),
    "tower.0.eh": ("linear", (64, 128), ["audio_decoder_mtp_shared.layers.0.eh_proj.weight"]),
    "tower.1.table": ("table", (64, 64), ["audio_decoder_mtp.layers.0.codebook_embedding.weight"]),
    "tower.1.enorm": ("vector", (64,), ["audio_decoder_mtp.layers.0.enorm.weight"]),
    "tower.1.hnorm": ("vector", (64,), ["audio_decoder_mtp.layers.0.hnorm.weight"]),
    "tower.1.attention_norm": (
        "vector",
        (64,),
        ["audio_decoder_mtp.layers.0.transformer_layer.attention_norm.weight"],
    ),
    "tower.1.attention.qgkv": (
        "linear",
        (192, 64),
        ["audio_decoder_mtp.layers.0.transformer_layer.attention.wqkv.weight"],
    ),
    "tower.1.attention.q_norm": (
        "vector",
        (32,),
        ["audio_decoder_mtp.layers.0.transformer_layer.attention.q_norm.weight"],
    ),
    "tower.1.attention.k_norm": (
        "vector",
        (32,),
        ["audio_decoder_mtp.layers.0.transformer_layer.attention.k_norm.weight"],
    ),
    "tower.1.attention.out": (
        "linear",
        (64, 64),
        ["audio_decoder_mtp.layers.0.transformer_layer.attention.wo.weight"],
    ),
    "tower.1.ffn_norm": (
        "vector",
        (64,),
        ["audio_decoder_mtp.layers.0.transformer_layer.ffn_norm.weight"],
    ),
    "tower.1.ffn_gate_up": (
        "linear",
        (256, 64),
        [
            "audio_decoder_mtp.layers.0.transformer_layer.feed_forward.w1.weight",
            "audio_decoder_mtp.layers.0.transformer_layer.feed_forward.w3.weight",
        ],
    ),
    "tower.1.ffn_down": (
        "linear",
        (64, 128),
        ["audio_decoder_mtp.layers.0.transformer_layer.feed_forward.w2.weight"],
    ),
    "tower.1.final_norm": ("vector", (64,), ["audio_decoder_mtp.layers.0.final_layernorm.weight"]),
    "tower.3.head": ("linear", (64, 64), ["audio_decoder_mtp.heads.2.weight"]),
}


def test_the_table_against_a_typed_list(micro_config: ModelConfig) -> None:
    found = {
        parameter.name: (
            parameter.kind,
            parameter.shape,
            [source.name for source in parameter.sources],
        )
        for parameter in network_parameters(micro_config)
    }
    assert {name: found.get(name) for name in EXPECTED} == EXPECTED


def test_no_parameter_beyond_those_of_the_list(micro_config: ModelConfig) -> None:
    def shape_of(name: str) -> str:
        group, _, rest = name.partition(".")
        return f"{group}.{rest.partition('.')[2]}" if rest else group

    assert {shape_of(p.name) for p in network_parameters(micro_config)} == {
        shape_of(name) for name in EXPECTED
    }
    heads = [p.name for p in network_parameters(micro_config) if p.name.endswith(".head")]
    assert heads == ["tower.1.head", "tower.2.head", "tower.3.head"]


def test_the_other_prefix_touches_the_backbone_alone(micro_config: ModelConfig) -> None:
    usual = network_parameters(micro_config)
    other = network_parameters(micro_config, "model.")
    for first, second in zip(usual, other, strict=True):
        names = [source.name.replace(LM, "model.") for source in first.sources]
        assert names == [source.name for source in second.sources]
        assert first.stem.replace(LM, "model.") == second.stem


def test_expert_names() -> None:
    assert stacked_expert_names("a.experts") == ("a.experts.gate_up_proj", "a.experts.down_proj")
    assert expert_names("a.experts", 3) == (
        "a.experts.3.gate_proj.weight",
        "a.experts.3.up_proj.weight",
        "a.experts.3.down_proj.weight",
    )


def test_without_a_shared_expert_its_three_are_absent(micro: dict[str, Any]) -> None:
    micro["text_config"]["shared_expert_intermediate_size"] = None
    names = [parameter.name for parameter in network_parameters(parse_model_config(micro))]
    assert not [name for name in names if "shared" in name]
    assert len(names) == 112 - 3 * 4
