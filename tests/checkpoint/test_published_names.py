"""The backbone's published names and shapes against what transformers itself builds and saves."""

from typing import Any

import pytest
import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from declaim.checkpoint.names import network_parameters, stacked_expert_names
from declaim.config.checkpoint import parse_model_config

KEYS = (
    "hidden_size num_hidden_layers layer_types num_attention_heads num_key_value_heads head_dim "
    "max_position_embeddings rms_norm_eps vocab_size num_experts num_experts_per_tok "
    "moe_intermediate_size shared_expert_intermediate_size linear_conv_kernel_dim "
    "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim"
).split()


@pytest.fixture
def theirs(micro: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    values = {key: micro["text_config"][key] for key in KEYS}
    with torch.device("meta"):
        model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**values))
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def test_backbone_names_and_shapes(
    micro: dict[str, Any], theirs: dict[str, tuple[int, ...]]
) -> None:
    ours: dict[str, tuple[int, ...]] = {}
    for parameter in network_parameters(parse_model_config(micro), "model."):
        if parameter.kind == "experts":
            gate_up, down = stacked_expert_names(parameter.stem)
            experts, width, hidden = parameter.shape
            ours[gate_up] = (experts, 2 * width, hidden)
            ours[down] = (experts, hidden, width)
        ours.update({source.name: source.shape for source in parameter.sources})
    backbone = {name: shape for name, shape in ours.items() if not name.startswith("audio_")}
    assert backbone == theirs
