"""The backbone against the transformers library's own Qwen3.5-MoE, on random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import Oracle
from safetensors.torch import load_file
from torch import Tensor

from declaim.runner.runner import Runner

RunRows = Callable[[Runner, Tensor, list[int]], Tensor]


def transformers_model(config: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """The library's model with the checkpoint's backbone weights, float32."""
    from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeTextModel

    ours = ("model_type", "mlp_layer_types")
    text = {key: value for key, value in config["text_config"].items() if key not in ours}
    model = Qwen3_5MoeTextModel(Qwen3_5MoeTextConfig(**text)).eval()
    prefix = "model.language_model."
    weights = {
        name.removeprefix(prefix): value.float()
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not missing and not unexpected
    return model


@pytest.fixture(params=["micro", "tiny"])
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_hidden_rows_equal_transformers(
    shape: str, checkpoint: Callable[[str], Path], build: Callable[..., Runner], run_rows: RunRows
) -> None:
    """Text and speech rows, in one shot and in ragged cuts, against the library's one shot."""
    directory = checkpoint(shape)
    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    model = transformers_model(config, tensors)
    oracle = Oracle(config, tensors)
    generator = torch.Generator().manual_seed(3)
    rows = torch.zeros(70, 1 + config["audio_decoder_config"]["num_codebooks"], dtype=torch.int64)
    rows[:, 0] = torch.randint(0, 256, (70,), generator=generator)
    width = config["audio_decoder_config"]["vocab_size"]
    rows[20:50, 1:] = torch.randint(0, width, rows[20:50, 1:].shape, generator=generator)
    rows[20:50, 0] = config["semantic_start_token_id"] + rows[20:50, 1]
    with torch.no_grad():
        expected = model(inputs_embeds=oracle.embed(rows).float()[None]).last_hidden_state[0]
    for cuts in ([70], [17, 3, 40, 10], [1] * 70):
        hidden = run_rows(build(directory), rows, cuts)
        torch.testing.assert_close(hidden, expected, atol=2e-3, rtol=0)
        assert (hidden - expected).abs().mean() < 2e-5


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_cached_transformers_agrees(
    checkpoint: Callable[[str], Path], build: Callable[..., Runner], run_rows: RunRows
) -> None:
    """The library fed in two parts with its own cache gives our rows too."""
    directory = checkpoint("micro")
    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    model = transformers_model(config, tensors)
    generator = torch.Generator().manual_seed(5)
    rows = torch.zeros(40, 1 + config["audio_decoder_config"]["num_codebooks"], dtype=torch.int64)
    rows[:, 0] = torch.randint(0, 256, (40,), generator=generator)
    with torch.no_grad():
        first = model(input_ids=rows[None, :25, 0], use_cache=True)
        cache = first.past_key_values
        parts = [first.last_hidden_state[0]]
        for row in range(25, 40):
            part = model(input_ids=rows[None, row : row + 1, 0], past_key_values=cache)
            parts.append(part.last_hidden_state[0])
    hidden = run_rows(build(directory), rows, [40])
    torch.testing.assert_close(hidden, torch.cat(parts), atol=2e-3, rtol=0)
