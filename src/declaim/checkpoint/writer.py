"""Writes network parameters as a checkpoint in the published format.

A directory appears whole under its name or not at all. Knows no tokenizer and no codec; who adds
their files does it inside `new_directory`.
"""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from declaim.checkpoint.files import INDEX, SINGLE
from declaim.checkpoint.match import ExpertLayout
from declaim.checkpoint.names import (
    PREFIXES,
    Parameter,
    expert_names,
    network_parameters,
    scale_name,
    stacked_expert_names,
)
from declaim.checkpoint.weights import Experts, NetworkWeight, to_published
from declaim.config.checkpoint import parse_model_config
from declaim.config.model import ModelConfig
from declaim.contracts.errors import Conflict, InvalidRequest
from declaim.ops.block_fp8 import BLOCK, decode, encode
from declaim.ops.table import BlockFP8, ExpertWeight


@dataclass(frozen=True)
class WriteFormat:
    """How parameters are laid out in files.

    dtype: of every tensor that is not quantised. quantise: None, "experts" (the routed ones) or
    "all" (also the dense layers that block-FP8 releases quantise). Experts that come as BlockFP8
    are then written as they are where the layout can hold them, and decoded if quantise is None.
    scale_dtype: bfloat16 or float32.
    shard_bytes: most bytes of tensors in a file, None for one file; a larger tensor stands alone.
    """

    dtype: torch.dtype = torch.bfloat16
    expert_layout: ExpertLayout = "stacked"
    prefix: str = PREFIXES[0]
    quantise: Literal["experts", "all"] | None = None
    scale_dtype: torch.dtype = torch.bfloat16
    shard_bytes: int | None = None

    @property
    def quantization_config(self) -> dict[str, Any] | None:
        """What config.json must say of it."""
        if self.quantise is None:
            return None
        method = "bsgemm-moe" if self.quantise == "experts" else "fp8"
        scheme = {"activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
        return {"quant_method": method, **scheme}


def write_checkpoint(
    directory: Path,
    config: Mapping[str, Any],
    weights: Iterable[tuple[Parameter, NetworkWeight]],
    layout: WriteFormat | None = None,
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Make a checkpoint directory from config.json's object and the network's parameters.

    Raises Conflict if the directory exists and is not empty, InvalidCheckpoint if config is not
    one that can be served. quantization_config is set from the layout.
    """
    with new_directory(directory) as unfinished:
        write_model(unfinished, config, weights, layout, generation)


def write_model(
    directory: Path,
    config: Mapping[str, Any],
    weights: Iterable[tuple[Parameter, NetworkWeight]],
    layout: WriteFormat | None = None,
    generation: Mapping[str, Any] | None = None,
) -> None:
    """As write_checkpoint, into an existing directory."""
    layout = layout or WriteFormat()
    raw = {key: value for key, value in config.items() if key != "quantization_config"}
    if layout.quantization_config is not None:
        raw["quantization_config"] = layout.quantization_config
    parsed = parse_model_config(raw, generation)
    write_tensors(directory, published_tensors(parsed, weights, layout), layout.shard_bytes)
    write_json(directory / "config.json", raw)
    if generation is not None:
        write_json(directory / "generation_config.json", generation)


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """A directory to fill; it takes its name when the block ends well, else it goes away.

    Raises Conflict if the name is taken by a file or by a directory that is not empty,
    InvalidRequest if the place cannot be written to or has no room for all of it.
    """
    if directory.is_symlink() or directory.exists():
        if not directory.is_dir() or any(directory.iterdir()):
            raise Conflict(
                f"{directory} exists already; name a new or an empty directory",
                param="directory",
                value=str(directory),
            )
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(
            prefix=f".{directory.name}.", suffix=".unfinished", dir=directory.parent
        )
    except OSError as error:
        raise InvalidRequest(
            f"{directory} cannot be made: {error.strerror}",
            param="directory",
            value=str(directory),
        ) from error
    unfinished = Path(made)
    try:
        try:
            yield unfinished
        except (OSError, SafetensorError) as error:
            raise InvalidRequest(
                f"{directory} cannot be written: {error}", param="directory", value=str(directory)
            ) from error
        unfinished.chmod(0o755)
        try:
            unfinished.rename(directory)
        except OSError as error:
            raise Conflict(
                f"{directory} appeared while it was being made", param="directory"
            ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as indented JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(
    directory: Path, tensors: Iterable[tuple[str, Tensor]], shard_bytes: int | None = None
) -> None:
    """Write named tensors as model.safetensors, or as shards with an index."""
    shards: list[Path] = []
    weight_map: dict[str, int] = {}
    total = 0
    for number, shard in enumerate(_shards(tensors, shard_bytes)):
        path = directory / f"shard-{number}.unfinished"
        save_file(shard, path, metadata={"format": "pt"})
        path.chmod(0o644)
        shards.append(path)
        weight_map.update(dict.fromkeys(shard, number))
        total += sum(tensor.nbytes for tensor in shard.values())
    if shard_bytes is None:
        shards[0].rename(directory / SINGLE)
        return
    count = len(shards)
    files = [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]
    for path, file in zip(shards, files, strict=True):
        path.rename(directory / file)
    names = {name: files[number] for name, number in sorted(weight_map.items())}
    write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": names})


def _shards(
    tensors: Iterable[tuple[str, Tensor]], shard_bytes: int | None
) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if shard and shard_bytes is not None and size + tensor.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor.contiguous()
        size += tensor.nbytes
    yield shard


def published_tensors(
    config: ModelConfig,
    weights: Iterable[tuple[Parameter, NetworkWeight]],
    layout: WriteFormat,
) -> Iterator[tuple[str, Tensor]]:
    """The published tensors of the network's parameters, by name; one parameter at a time."""
    renamed = {parameter.name: parameter for parameter in network_parameters(config, layout.prefix)}
    for given, weight in weights:
        parameter = renamed[given.name]
        if isinstance(weight, Experts):
            yield from _published_experts(parameter, weight, layout)
            continue
        for source, tensor in to_published(parameter, weight, config):
            dense = tensor.to(layout.dtype)
            if layout.quantise == "all" and source.usually_fp8:
                yield from _quantised(source.name, encode(dense, layout.scale_dtype))
            else:
                yield source.name, dense


def _quantised(name: str, weight: BlockFP8) -> Iterator[tuple[str, Tensor]]:
    yield name, weight.weight
    yield scale_name(name), weight.scale


def _published_experts(
    parameter: Parameter, experts: Experts, layout: WriteFormat
) -> Iterator[tuple[str, Tensor]]:
    width = parameter.shape[1]
    if layout.expert_layout == "stacked":
        names = stacked_expert_names(parameter.stem)
        for name, sequence in zip(names, (experts.gate_up, experts.down), strict=True):
            yield from _stack(name, [_stored(weight, layout) for weight in sequence])
        return
    pairs = zip(experts.gate_up, experts.down, strict=True)
    for expert, (gate_up, down) in enumerate(pairs):
        gate, up = _rows(gate_up, 0, width), _rows(gate_up, width, 2 * width)
        names3 = expert_names(parameter.stem, expert)
        for name, weight in zip(names3, (gate, up, down), strict=True):
            stored = _stored(weight, layout)
            if isinstance(stored, BlockFP8):
                yield from _quantised(name, stored)
            else:
                yield name, stored


def _stack(name: str, weights: list[ExpertWeight]) -> Iterator[tuple[str, Tensor]]:
    quantised = [weight for weight in weights if isinstance(weight, BlockFP8)]
    if quantised:
        yield name, torch.stack([weight.weight for weight in quantised])
        yield scale_name(name), torch.stack([weight.scale for weight in quantised])
    else:
        yield name, torch.stack([weight for weight in weights if isinstance(weight, Tensor)])


def _rows(weight: ExpertWeight, start: int, stop: int) -> ExpertWeight:
    if isinstance(weight, Tensor):
        return weight[start:stop]
    if start % BLOCK == 0 and stop % BLOCK == 0:
        blocks = slice(start // BLOCK, stop // BLOCK)
        return BlockFP8(weight.weight[start:stop], weight.scale[blocks])
    return decode(weight)[start:stop]


def _stored(weight: ExpertWeight, layout: WriteFormat) -> ExpertWeight:
    if layout.quantise is None:
        return (decode(weight) if isinstance(weight, BlockFP8) else weight).to(layout.dtype)
    if isinstance(weight, BlockFP8):
        if weight.scale.dtype == layout.scale_dtype:
            return weight
        weight = decode(weight)
    return encode(weight, layout.scale_dtype)
