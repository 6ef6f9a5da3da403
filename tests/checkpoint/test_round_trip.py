"""Every way of writing a checkpoint loads to the same network parameters, bit for bit."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from declaim.checkpoint.files import open_checkpoint
from declaim.checkpoint.match import ExpertLayout
from declaim.checkpoint.names import PREFIXES, Parameter
from declaim.checkpoint.random import random_parameters
from declaim.checkpoint.reader import load_weights, read_parameters
from declaim.checkpoint.weights import Experts, NetworkWeight
from declaim.checkpoint.writer import WriteFormat, write_checkpoint
from declaim.config.checkpoint import load_model_config, parse_model_config
from declaim.ops.block_fp8 import decode, encode
from declaim.ops.table import BlockFP8, OpTable

Weights = list[tuple[Parameter, NetworkWeight]]
Dense = Callable[[NetworkWeight], list[Tensor]]


def _on_the_grid(tensor: Tensor) -> Tensor:
    """Values that FP8 with power-of-two scales holds exactly, whatever the blocks.

    Each row and each column of 16 x 16 tiles holds the largest value, so every block does.
    """
    grid = encode(tensor.float()).weight.float().clamp(-240, 240)
    grid[..., ::16, ::16] = 448.0
    return grid / 1024


def _gridded(weights: Weights) -> Weights:
    result: Weights = []
    for parameter, weight in weights:
        if isinstance(weight, Experts):
            gate_up = [_on_the_grid(w) for w in weight.gate_up if isinstance(w, Tensor)]
            down = [_on_the_grid(w) for w in weight.down if isinstance(w, Tensor)]
            result.append((parameter, Experts(gate_up, down)))
        elif any(source.usually_fp8 for source in parameter.sources):
            result.append((parameter, _on_the_grid(weight)))
        else:
            result.append((parameter, weight))
    return result


LAYOUTS: tuple[ExpertLayout, ...] = ("stacked", "per_expert")
QUANTISE: tuple[Literal["experts", "all"] | None, ...] = (None, "experts", "all")
FORMATS = [
    WriteFormat(expert_layout=layout, prefix=prefix, quantise=quantise, scale_dtype=scale)
    for layout, prefix, quantise, scale in itertools.product(
        LAYOUTS, PREFIXES, QUANTISE, (torch.bfloat16, torch.float32)
    )
]


def _resized(raw: dict[str, Any], shared: int | None, hidden: int) -> dict[str, Any]:
    text, decoder = raw["text_config"], raw["audio_decoder_config"]
    text["shared_expert_intermediate_size"] = shared
    text["hidden_size"] = decoder["dim"] = decoder["text_dim"] = hidden
    text["moe_intermediate_size"] = hidden // 2
    return raw


@pytest.mark.parametrize(
    ("shared", "hidden", "shard_bytes"),
    [(32, 64, None), (0, 64, 60_000), (None, 64, None), (160, 288, 400_000), (None, 256, None)],
)
def test_all_formats_load_to_the_same_bits(
    tmp_path: Path,
    micro: dict[str, Any],
    recorder: OpTable,
    dense: Dense,
    shared: int | None,
    hidden: int,
    shard_bytes: int | None,
) -> None:
    raw = _resized(micro, shared, hidden)
    weights = _gridded(list(random_parameters(parse_model_config(raw), 3)))
    expected = {parameter.name: dense(weight) for parameter, weight in weights}
    for number, layout in enumerate(FORMATS):
        directory = tmp_path / str(number)
        write_checkpoint(directory, raw, weights, replace(layout, shard_bytes=shard_bytes))
        assert (len(open_checkpoint(directory).files) > 1) == (shard_bytes is not None)
        loaded = load_weights(directory, load_model_config(directory), recorder)
        assert list(loaded) == list(expected)
        for name, (_, *tensors) in loaded.items():
            for found, wanted in zip(tensors, expected[name], strict=True):
                assert torch.equal(found, wanted), (name, layout)


def test_kinds_reach_the_op_table(
    place: Path, micro: dict[str, Any], micro_weights: Weights, recorder: OpTable
) -> None:
    write_checkpoint(place, micro, micro_weights)
    loaded = load_weights(place, load_model_config(place), recorder)
    for parameter, _ in micro_weights:
        assert loaded[parameter.name][0] == parameter.kind


def test_query_rows_are_per_head_on_disk(
    place: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    write_checkpoint(place, micro, micro_weights)
    stored = open_checkpoint(place).read("model.language_model.layers.3.self_attn.q_proj.weight")
    fused = {p.name: w for p, w in micro_weights}["layers.3.attention.qgkv"]
    assert isinstance(fused, Tensor)
    for head in range(2):
        query, gate = stored[64 * head : 64 * head + 32], stored[64 * head + 32 : 64 * head + 64]
        assert torch.equal(query, fused[32 * head : 32 * head + 32])
        assert torch.equal(gate, fused[64 + 32 * head : 64 + 32 * head + 32])


def test_the_tower_is_stored_in_the_order_of_the_network(
    place: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    write_checkpoint(place, micro, micro_weights)
    name = "audio_decoder_mtp.layers.1.transformer_layer.attention.wqkv.weight"
    fused = {p.name: w for p, w in micro_weights}["tower.2.attention.qgkv"]
    assert isinstance(fused, Tensor)
    assert torch.equal(open_checkpoint(place).read(name), fused)


@pytest.mark.parametrize("eos", [257, 400])
def test_lm_head_holds_the_candidates_and_zeros(
    place: Path, micro: dict[str, Any], eos: int, dense: Dense
) -> None:
    micro["eos_token_id"] = eos
    config = parse_model_config(micro)
    weights = list(random_parameters(config, 1))
    write_checkpoint(place, micro, weights)
    stored = open_checkpoint(place).read("lm_head.weight")
    head = {p.name: w for p, w in weights}["lm_head"]
    assert isinstance(head, Tensor)
    for row in range(512):
        wanted = torch.zeros(64, dtype=torch.bfloat16)
        if row in config.candidates:
            wanted = head[config.candidates.index(row)]
        assert torch.equal(stored[row], wanted)
    read = {p.name: w for p, w in read_parameters(place, config)}
    assert torch.equal(dense(read["lm_head"])[0], head.float())


def test_vectors_may_be_float32_on_disk(
    place: Path, micro: dict[str, Any], micro_weights: Weights, recorder: OpTable
) -> None:
    fine = [
        (p, torch.full(p.shape, 1 + 2**-20) if p.kind == "vector" else w) for p, w in micro_weights
    ]
    write_checkpoint(place, micro, fine, WriteFormat(dtype=torch.float32))
    loaded = load_weights(place, load_model_config(place), recorder)
    assert torch.equal(loaded["layers.0.delta.a_log"][1], torch.full((4,), 1 + 2**-20))


def _wide(micro: dict[str, Any]) -> dict[str, Any]:
    """Experts 128 wide: their blocks do not straddle gate and up."""
    micro["text_config"]["moe_intermediate_size"] = 128
    return micro


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scale", [torch.bfloat16, torch.float32])
def test_block_fp8_experts_pass_through(
    place: Path, micro: dict[str, Any], layout: ExpertLayout, scale: torch.dtype
) -> None:
    raw = _wide(micro)
    weights = list(random_parameters(parse_model_config(raw), 5))
    form = WriteFormat(expert_layout=layout, quantise="experts", scale_dtype=scale)
    write_checkpoint(place, raw, weights, form)
    given = {p.name: w for p, w in weights}["layers.0.experts.routed"]
    read = {p.name: w for p, w in read_parameters(place, load_model_config(place))}
    found = read["layers.0.experts.routed"]
    assert isinstance(given, Experts) and isinstance(found, Experts)
    for before, after in ((given.gate_up, found.gate_up), (given.down, found.down)):
        for first, second in zip(before, after, strict=True):
            assert isinstance(first, Tensor) and isinstance(second, BlockFP8)
            quantised = encode(first, scale)
            assert second.scale.dtype == scale
            assert torch.equal(second.scale, quantised.scale)
            assert torch.equal(decode(second), decode(quantised))
    again = place.parent / "again"
    write_checkpoint(again, raw, read_parameters(place, load_model_config(place)), form)
    assert open_checkpoint(again).fingerprint() == open_checkpoint(place).fingerprint()


def test_experts_are_read_when_asked_for(
    place: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    write_checkpoint(place, micro, micro_weights)
    read = {p.name: w for p, w in read_parameters(place, load_model_config(place))}
    experts = read["layers.0.experts.routed"]
    assert isinstance(experts, Experts)
    assert len(experts.gate_up) == 8
    assert [tuple(part.shape) for part in experts.down[6:] if isinstance(part, Tensor)] == [
        (64, 32),
        (64, 32),
    ]
    last, same = experts.gate_up[-1], experts.gate_up[7]
    assert isinstance(last, Tensor) and isinstance(same, Tensor)
    assert torch.equal(last, same)
    with pytest.raises(IndexError):
        experts.gate_up[8]
