"""Random parameters depend on the seed and their own name alone, and have sensible scales."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from declaim.checkpoint.names import Parameter
from declaim.checkpoint.random import random_parameters, random_weights
from declaim.checkpoint.reader import load_weights
from declaim.checkpoint.weights import Experts, NetworkWeight
from declaim.checkpoint.writer import write_checkpoint
from declaim.config.checkpoint import load_model_config, parse_model_config
from declaim.config.model import ModelConfig
from declaim.nano.shapes import SHAPES
from declaim.ops.table import OpTable

Dense = Callable[[NetworkWeight], list[Tensor]]


def _values(config: ModelConfig, seed: int, dense: Dense) -> dict[str, list[Tensor]]:
    return {p.name: dense(weight) for p, weight in random_parameters(config, seed)}


def test_same_seed_same_values_other_seed_others(micro_config: ModelConfig, dense: Dense) -> None:
    first, again = _values(micro_config, 1, dense), _values(micro_config, 1, dense)
    other = _values(micro_config, 2, dense)
    for name, tensors in first.items():
        for one, two, three in zip(tensors, again[name], other[name], strict=True):
            assert torch.equal(one, two)
            assert not torch.equal(one, three), name


def test_a_value_does_not_depend_on_the_rest_of_the_network(
    micro: dict[str, Any], micro_config: ModelConfig, dense: Dense
) -> None:
    micro["text_config"]["shared_expert_intermediate_size"] = 0
    fewer = _values(parse_model_config(micro), 1, dense)
    whole = _values(micro_config, 1, dense)
    assert set(fewer) < set(whole)
    for name, tensors in fewer.items():
        assert all(map(torch.equal, tensors, whole[name]))


def test_experts_may_be_asked_in_any_order(micro_config: ModelConfig) -> None:
    experts = [w for _, w in random_parameters(micro_config, 1) if isinstance(w, Experts)][0]
    backward = [experts.gate_up[number] for number in reversed(range(8))]
    for one, two in zip(experts.gate_up, reversed(backward), strict=True):
        assert isinstance(one, Tensor) and isinstance(two, Tensor)
        assert torch.equal(one, two)
    first, second = experts.down[0], experts.down[1]
    assert isinstance(first, Tensor) and isinstance(second, Tensor)
    assert not torch.equal(first, second)


def test_the_global_generator_is_untouched(micro_config: ModelConfig) -> None:
    before = torch.get_rng_state()
    list(random_parameters(micro_config, 1))
    assert torch.equal(torch.get_rng_state(), before)


def test_random_weights_equal_those_of_a_checkpoint_with_the_seed(
    place: Path, micro: dict[str, Any], recorder: OpTable
) -> None:
    config = parse_model_config(micro)
    write_checkpoint(place, micro, random_parameters(config, 9))
    loaded = load_weights(place, load_model_config(place), recorder)
    for name, (kind, *tensors) in random_weights(config, recorder, 9).items():
        assert kind == loaded[name][0]
        assert all(map(torch.equal, tensors, loaded[name][1:]))


@pytest.mark.parametrize(
    ("name", "mean", "spread"),
    [
        ("embed", 0.0, 1.0),
        ("codebooks", 0.0, 1.0),
        ("tower.2.table", 0.0, 1.0),
        ("layers.0.delta.qkvz", 0.0, 192**-0.5),
        ("layers.0.delta.out", 0.0, 192**-0.5),
        ("layers.7.attention.out", 0.0, 128**-0.5),
        ("layers.0.delta.conv", 0.0, 0.5),
        ("layers.0.input_norm", 0.0, 0.1),
        ("tower.0.ffn_norm", 0.0, 0.1),
        ("layers.0.delta.norm", 1.0, 0.1),
        ("lm_head", 0.0, 2 * 192**-0.5),
        ("tower.4.head", 0.0, 2 * 192**-0.5),
    ],
)
def test_scales(tiny: dict[str, Tensor], name: str, mean: float, spread: float) -> None:
    value = tiny[name]
    error = 5 * spread / value.numel() ** 0.5
    assert abs(value.mean() - mean) < error
    assert abs(value.std() - spread) < error


def test_decays_are_in_range(tiny: dict[str, Tensor]) -> None:
    for layer in range(3):
        decay = tiny[f"layers.{layer}.delta.a_log"].exp()
        step = torch.nn.functional.softplus(tiny[f"layers.{layer}.delta.dt_bias"])
        assert 0.98 < decay.min() and decay.max() < 16.1
        assert 0.00098 < step.min() and step.max() < 0.102


@pytest.fixture(scope="module")
def tiny() -> dict[str, Tensor]:
    config = parse_model_config(SHAPES["tiny"].config)
    pairs: list[tuple[Parameter, NetworkWeight]] = list(random_parameters(config, 0))
    return {p.name: weight.float() for p, weight in pairs if isinstance(weight, Tensor)}
