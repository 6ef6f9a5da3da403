"""From a checkpoint's files to the network's parameters and on to weight handles.

One parameter, and of the experts one expert, is in memory at a time beside the handles. FP8
weights of dense layers are decoded; those of experts are passed on as they are where the
network's own layout can hold them.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from declaim.checkpoint.files import WeightFiles, open_checkpoint
from declaim.checkpoint.match import FP8, Match, match_tensors
from declaim.checkpoint.names import (
    Parameter,
    Source,
    expert_names,
    scale_name,
    stacked_expert_names,
)
from declaim.checkpoint.weights import (
    Experts,
    LazyExperts,
    NetworkWeight,
    candidate_ranges,
    prepare_weights,
    to_network,
)
from declaim.config.model import ModelConfig
from declaim.ops.block_fp8 import BLOCK, decode
from declaim.ops.table import BlockFP8, ExpertWeight, Handle, OpTable


def load_weights(directory: Path, config: ModelConfig, ops: OpTable) -> dict[str, Handle]:
    """Weight handles of every network parameter, by the network's names.

    Raises NotFound or InvalidCheckpoint.
    """
    return prepare_weights(read_parameters(directory, config), ops)


def read_parameters(
    directory: Path, config: ModelConfig
) -> Iterator[tuple[Parameter, NetworkWeight]]:
    """Every network parameter with its value, in the order of the network, read when asked for.

    Tensors are as stored (FP8 decoded to float32); joined parts of unlike dtypes are promoted.
    """
    files = open_checkpoint(directory)
    match = match_tensors(config, files.entries)
    for parameter in match.parameters:
        if parameter.kind == "experts":
            yield parameter, _experts(files, match, parameter)
        else:
            parts = [_part(files, source, config) for source in parameter.sources]
            yield parameter, parts[0] if len(parts) == 1 else torch.cat(parts)


def _part(files: WeightFiles, source: Source, config: ModelConfig) -> Tensor:
    weight = _weight(files, source.name)
    if isinstance(weight, BlockFP8):
        weight = decode(weight)
        if source.order == "candidates":
            return weight[torch.tensor(config.candidates)]
    elif source.order == "candidates":
        ranges = candidate_ranges(config)
        return torch.cat([files.read_part(source.name, *part) for part in ranges])
    return to_network(source, weight, config)


def _weight(files: WeightFiles, name: str) -> ExpertWeight:
    weight = files.read(name)
    if files.entries[name].dtype == FP8:
        return BlockFP8(weight, files.read(scale_name(name)))
    return weight


def _experts(files: WeightFiles, match: Match, parameter: Parameter) -> Experts:
    stem, count = parameter.stem, parameter.shape[0]
    if match.layouts[stem] == "stacked":
        gate_up, down = stacked_expert_names(stem)
        return Experts(
            LazyExperts(count, lambda expert: _stacked(files, gate_up, expert)),
            LazyExperts(count, lambda expert: _stacked(files, down, expert)),
        )
    return Experts(
        LazyExperts(count, lambda expert: _gate_up(files, stem, expert)),
        LazyExperts(count, lambda expert: _weight(files, expert_names(stem, expert)[2])),
    )


def _stacked(files: WeightFiles, name: str, expert: int) -> ExpertWeight:
    weight = files.read_part(name, expert, expert + 1)[0]
    if files.entries[name].dtype == FP8:
        return BlockFP8(weight, files.read_part(scale_name(name), expert, expert + 1)[0])
    return weight


def _gate_up(files: WeightFiles, stem: str, expert: int) -> ExpertWeight:
    """Gate rows, then up rows; decoded where a block would hold rows of both."""
    gate_name, up_name, _ = expert_names(stem, expert)
    gate, up = _weight(files, gate_name), _weight(files, up_name)
    if isinstance(gate, BlockFP8) and isinstance(up, BlockFP8):
        if gate.weight.shape[0] % BLOCK == 0 and gate.scale.dtype == up.scale.dtype:
            scale = torch.cat([gate.scale, up.scale])
            octets = torch.cat([gate.weight.view(torch.uint8), up.weight.view(torch.uint8)])
            return BlockFP8(octets.view(torch.float8_e4m3fn), scale)
    parts = [decode(part) if isinstance(part, BlockFP8) else part for part in (gate, up)]
    return torch.cat(parts)
