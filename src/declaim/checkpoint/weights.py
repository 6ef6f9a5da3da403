"""Values of network parameters, between published tensors and an op table's handles.

Reorders rows both ways without changing a value; knows no file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from declaim.checkpoint.names import Parameter, Source
from declaim.config.model import ModelConfig
from declaim.ops.table import ExpertWeight, Handle, OpTable


class LazyExperts(Sequence[ExpertWeight]):
    """The weights of `count` experts, each made when it is asked for and then forgotten."""

    def __init__(self, count: int, make: Callable[[int], ExpertWeight]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> ExpertWeight: ...

    @overload
    def __getitem__(self, index: slice) -> list[ExpertWeight]: ...

    def __getitem__(self, index: int | slice) -> ExpertWeight | list[ExpertWeight]:
        numbers = range(self._count)[index]
        if isinstance(numbers, range):
            return [self._make(number) for number in numbers]
        return self._make(numbers)


@dataclass(frozen=True)
class Experts:
    """The routed experts of a layer: gate_up [2 * width, hidden] and down [hidden, width] each."""

    gate_up: Sequence[ExpertWeight]
    down: Sequence[ExpertWeight]


NetworkWeight = Tensor | Experts
"""Experts for a parameter of kind experts, else a tensor of the parameter's shape."""


def prepare_weights(
    weights: Iterable[tuple[Parameter, NetworkWeight]], ops: OpTable
) -> dict[str, Handle]:
    """Hand each parameter to the op table, one at a time; handles by the network's names."""
    return {parameter.name: _prepare(parameter, weight, ops) for parameter, weight in weights}


def _prepare(parameter: Parameter, weight: NetworkWeight, ops: OpTable) -> Handle:
    if isinstance(weight, Experts):
        return ops.prepare_experts(weight.gate_up, weight.down)
    assert tuple(weight.shape) == parameter.shape, parameter.name
    if parameter.kind == "table":
        return ops.prepare_table(weight)
    if parameter.kind == "vector":
        return ops.prepare_vector(weight)
    if parameter.kind == "conv":
        return ops.prepare_conv(weight)
    return ops.prepare_linear(weight)


def candidate_ranges(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Ranges [start, stop) of token ids that the main draw may give, ascending."""
    first, last = config.band
    ends = (config.eos_token_id, config.eos_token_id + 1)
    return tuple(sorted([(first, last + 1), ends]))


def to_network(source: Source, tensor: Tensor, config: ModelConfig) -> Tensor:
    """A published tensor's rows in the network's order; `candidates` rows come in already cut."""
    if source.order == "query_gate":
        heads, width = config.backbone.num_attention_heads, config.backbone.head_dim
        return tensor.view(heads, 2, width, -1).transpose(0, 1).reshape(tensor.shape)
    if source.order == "conv":
        return tensor.squeeze(1)
    return tensor


def to_published(
    parameter: Parameter, weight: Tensor, config: ModelConfig
) -> Iterator[tuple[Source, Tensor]]:
    """A parameter's published tensors; rows of lm_head that no draw can give are zeros."""
    start = 0
    for source in parameter.sources:
        rows = len(config.candidates) if source.order == "candidates" else source.shape[0]
        yield source, _published(source, weight[start : start + rows], config)
        start += rows


def _published(source: Source, part: Tensor, config: ModelConfig) -> Tensor:
    if source.order == "query_gate":
        heads, width = config.backbone.num_attention_heads, config.backbone.head_dim
        return part.reshape(2, heads, width, -1).transpose(0, 1).reshape(source.shape)
    if source.order == "candidates":
        whole = torch.zeros(source.shape, dtype=part.dtype)
        whole[torch.tensor(config.candidates)] = part
        return whole
    return part.reshape(source.shape)
