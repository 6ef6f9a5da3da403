"""What inspect says, against numbers counted by hand or from the loaded parameters."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from declaim.checkpoint.files import SINGLE, open_checkpoint
from declaim.checkpoint.inspect import CodecFiles, Totals, inspect_checkpoint
from declaim.checkpoint.names import Parameter
from declaim.checkpoint.weights import NetworkWeight
from declaim.checkpoint.writer import WriteFormat, write_checkpoint
from declaim.contracts.errors import InvalidCheckpoint, NotFound

Weights = list[tuple[Parameter, NetworkWeight]]
Dense = Callable[[NetworkWeight], list[Tensor]]


def test_a_plain_checkpoint(
    place: Path, micro: dict[str, Any], micro_weights: Weights, dense: Dense
) -> None:
    micro["stray"] = 1
    write_checkpoint(place, micro, micro_weights)
    found = inspect_checkpoint(place)
    elements = sum(tensor.numel() for _, weight in micro_weights for tensor in dense(weight))
    assert (found.loaded.parameters, found.loaded.elements) == (112, elements)
    assert (found.loaded.bytes, found.loaded.candidates) == (4 * elements, 65)
    on_disk = elements + (512 - 65) * 64
    assert found.stored.dtypes == {"BF16": Totals(132, on_disk, 2 * on_disk)}
    assert found.stored.bytes == 2 * on_disk
    assert found.stored.files == {SINGLE: (place / SINGLE).stat().st_size}
    assert (found.kind, found.dtype, found.quantization) == ("fish_omni_text", "bfloat16", None)
    assert (found.stored.expert_layout, found.stored.prefix) == ("stacked", "model.language_model.")
    assert found.layers == {
        "linear_attention": 3,
        "full_attention": 1,
        "tower_shared": 1,
        "tower_residual": 3,
    }
    assert found.sizes["hidden_size"] == 64 and found.sizes["num_codebooks"] == 4
    assert found.loaded.stream_bytes == 3 * 4 * (3 * 128 + 4 * 16 * 16)
    assert found.loaded.row_bytes == 5 * 2 * 32 * 4
    assert found.unknown_keys == ("stray",)
    assert found.stored.ignored == ()
    assert found.stored.fingerprint == open_checkpoint(place).fingerprint()
    assert found.codec is None
    json.dumps(asdict(found))


def test_a_quantised_one(place: Path, micro: dict[str, Any], micro_weights: Weights) -> None:
    layout = WriteFormat(expert_layout="per_expert", prefix="model.", quantise="experts")
    write_checkpoint(place, micro, micro_weights, layout)
    found = inspect_checkpoint(place)
    assert (found.quantization, found.stored.expert_layout) == ("bsgemm-moe", "per_expert")
    assert found.stored.prefix == "model."
    experts = 4 * 8 * 3
    assert found.stored.dtypes["F8_E4M3"] == Totals(experts, experts * 32 * 64, experts * 32 * 64)
    assert found.loaded.elements * 4 == found.loaded.bytes


def test_what_is_ignored_and_the_state_dtype(
    place: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    micro["text_config"]["model_type"] = "qwen3_5_moe_text"
    micro["text_config"]["mamba_ssm_dtype"] = "bfloat16"
    write_checkpoint(place, micro, micro_weights)
    files = open_checkpoint(place)
    tensors = {name: files.read(name).clone() for name in files.entries}
    save_file({**tensors, "mtp.norm.weight": torch.zeros(1)}, place / SINGLE)
    found = inspect_checkpoint(place)
    assert found.kind == "qwen3_5_moe_text"
    assert found.stored.ignored == ("mtp.norm.weight",)
    assert found.loaded.stream_bytes == 3 * (4 * 3 * 128 + 2 * 4 * 16 * 16)


def test_the_codec_beside_it(place: Path, micro: dict[str, Any], micro_weights: Weights) -> None:
    write_checkpoint(place, micro, micro_weights)
    (place / "codec.pth").write_bytes(b"12345")
    assert inspect_checkpoint(place).codec == CodecFiles("codec.pth", 5, None, None, None, False)
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(4)}, place / "codec.safetensors")
    (place / "codec_config.json").write_text('{"sample_rate": 22050}')
    size = (place / "codec.safetensors").stat().st_size
    expected = CodecFiles("codec.safetensors", size, 2, 10, 22050, True)
    assert inspect_checkpoint(place).codec == expected
    (place / "codec.safetensors").write_bytes(b"x")
    with pytest.raises(InvalidCheckpoint, match=r"codec\.safetensors is damaged"):
        inspect_checkpoint(place)


def test_what_cannot_be_loaded_is_refused(
    place: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    with pytest.raises(NotFound):
        inspect_checkpoint(place)
    write_checkpoint(place, micro, micro_weights[:-1])
    with pytest.raises(InvalidCheckpoint, match="1 missing: audio_decoder_mtp"):
        inspect_checkpoint(place)


@pytest.mark.parametrize(
    ("dtype", "word", "bytes_each"),
    [
        (torch.uint16, "U16", 2),
        (torch.complex64, "C64", 8),
        (torch.bool, "BOOL", 1),
        (torch.float8_e8m0fnu, "F8_E8M0", 1),
    ],
)
def test_ignored_tensors_may_have_any_dtype(
    place: Path,
    micro: dict[str, Any],
    micro_weights: Weights,
    dtype: torch.dtype,
    word: str,
    bytes_each: int,
) -> None:
    micro["text_config"]["model_type"] = "qwen3_5_moe_text"
    write_checkpoint(place, micro, micro_weights)
    files = open_checkpoint(place)
    tensors = {name: files.read(name).clone() for name in files.entries}
    tensors["model.visual.x"] = torch.zeros(6, dtype=torch.uint8).to(dtype)
    save_file(tensors, place / SINGLE)
    found = inspect_checkpoint(place)
    assert found.stored.ignored == ("model.visual.x",)
    assert found.stored.dtypes[word] == Totals(1, 6, 6 * bytes_each)
