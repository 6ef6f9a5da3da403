from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from declaim.checkpoint.names import Parameter
from declaim.checkpoint.random import random_parameters
from declaim.checkpoint.weights import Experts, NetworkWeight
from declaim.config.checkpoint import parse_model_config
from declaim.config.model import ModelConfig
from declaim.nano.shapes import SHAPES
from declaim.ops.block_fp8 import decode
from declaim.ops.table import BlockFP8, ExpertWeight, OpTable

Weights = list[tuple[Parameter, NetworkWeight]]


class _Recorder:
    """Handles are (kind, float32 tensors); experts are decoded one by one, in order."""

    def prepare_linear(self, weight: Tensor) -> tuple[str, Tensor]:
        return "linear", weight.float()

    def prepare_vector(self, weight: Tensor) -> tuple[str, Tensor]:
        return "vector", weight.float()

    def prepare_conv(self, weight: Tensor) -> tuple[str, Tensor]:
        return "conv", weight.float()

    def prepare_table(self, weight: Tensor) -> tuple[str, Tensor]:
        return "table", weight.float()

    def prepare_experts(
        self, gate_up: Sequence[ExpertWeight], down: Sequence[ExpertWeight]
    ) -> tuple[str, Tensor, Tensor]:
        assert len(gate_up) == len(down)
        return "experts", _stacked(gate_up), _stacked(down)


def _stacked(sequence: Sequence[ExpertWeight]) -> Tensor:
    return torch.stack([decode(w) if isinstance(w, BlockFP8) else w.float() for w in sequence])


@pytest.fixture
def recorder() -> OpTable:
    """An op table that only prepares weights: each handle is (kind, float32 tensors)."""
    return cast(OpTable, _Recorder())


@pytest.fixture
def micro() -> dict[str, Any]:
    """A fresh config.json of the micro shape."""
    return SHAPES["micro"].config


@pytest.fixture
def micro_config(micro: dict[str, Any]) -> ModelConfig:
    return parse_model_config(micro)


@pytest.fixture
def micro_weights(micro_config: ModelConfig) -> Weights:
    """Random network parameters of the micro shape."""
    return list(random_parameters(micro_config, 7))


Dense = Callable[[NetworkWeight], list[Tensor]]


@pytest.fixture(scope="session")
def dense() -> Dense:
    """The float32 tensors of a network parameter: one, or gate_up and down of all experts."""

    def tensors(weight: NetworkWeight) -> list[Tensor]:
        if isinstance(weight, Experts):
            return [_stacked(weight.gate_up), _stacked(weight.down)]
        return [weight.float()]

    return tensors


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory's path that does not exist yet."""
    yield tmp_path / "checkpoint"
