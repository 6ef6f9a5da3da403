"""What a checkpoint is and what would be loaded from it, without loading it.

Knows file headers and the configuration; of a codec it knows the files and their tensors' sizes.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from declaim.checkpoint.files import (
    TensorEntry,
    WeightFiles,
    map_tensors,
    open_checkpoint,
    tensor_entries,
)
from declaim.checkpoint.match import Match, match_tensors
from declaim.checkpoint.names import Parameter
from declaim.checkpoint.random import DTYPES
from declaim.config.checkpoint import FISH_TEXT, QWEN_TEXT, load_model_config, read_json_object
from declaim.config.model import FULL, LINEAR, ModelConfig
from declaim.state.layout import StateLayout

PAGE_SIZE = 16
_SIZES = (
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)


@dataclass(frozen=True)
class Totals:
    """Tensors of one dtype in the files: how many, their elements and their bytes."""

    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class CodecFiles:
    """The codec beside the model: its file, size and, of a safetensors file, its elements."""

    file: str
    bytes: int
    tensors: int | None
    elements: int | None
    sample_rate: int | None
    config: bool


@dataclass(frozen=True)
class StoredWeights:
    """The tensors in the files.

    files: bytes by name. dtypes: by the format's words. expert_layout: stacked, per_expert or
    mixed. prefix: of the backbone's names. ignored: tensors that are not of the network.
    fingerprint: see WeightFiles.fingerprint.
    """

    files: Mapping[str, int]
    dtypes: Mapping[str, Totals]
    bytes: int
    expert_layout: str
    prefix: str
    ignored: tuple[str, ...]
    fingerprint: str


@dataclass(frozen=True)
class LoadedWeights:
    """What would be loaded, lm_head cut to the `candidates` rows that the main draw may give.

    bytes: of the parameters in float32. stream_bytes: recurrent state of one stream. row_bytes:
    K and V of one row. Convolution tails and pages in float32.
    """

    parameters: int
    elements: int
    candidates: int
    bytes: int
    stream_bytes: int
    row_bytes: int


@dataclass(frozen=True)
class Inspection:
    """A checkpoint that can be loaded.

    kind: the text model's type. sizes: by published key, of both networks. layers: how many of
    each kind. context: most rows of a stream. unknown_keys: of the configuration, ignored.
    """

    directory: str
    kind: str
    dtype: str
    quantization: str | None
    sizes: Mapping[str, int]
    layers: Mapping[str, int]
    context: int
    unknown_keys: tuple[str, ...]
    stored: StoredWeights
    loaded: LoadedWeights
    codec: CodecFiles | None


def inspect_checkpoint(directory: Path) -> Inspection:
    """Describe a checkpoint directory; raises NotFound or InvalidCheckpoint as loading would."""
    config = load_model_config(directory)
    weights = open_checkpoint(directory)
    match = match_tensors(config, weights.entries)
    return Inspection(
        directory=str(directory),
        kind=QWEN_TEXT if config.plain_text_model else FISH_TEXT,
        dtype=config.dtype,
        quantization=config.quantization.method if config.quantization else None,
        sizes=_sizes(config),
        layers=_layers(config),
        context=config.context,
        unknown_keys=config.unknown_keys,
        stored=_stored(weights, match),
        loaded=_loaded(config, match),
        codec=_codec(directory),
    )


def _stored(weights: WeightFiles, match: Match) -> StoredWeights:
    dtypes = _totals(weights.entries.values())
    return StoredWeights(
        files={file: (weights.directory / file).stat().st_size for file in weights.files},
        dtypes=dtypes,
        bytes=sum(total.bytes for total in dtypes.values()),
        expert_layout=_expert_layout(match),
        prefix=match.prefix,
        ignored=match.ignored,
        fingerprint=weights.fingerprint(),
    )


def _loaded(config: ModelConfig, match: Match) -> LoadedWeights:
    layout = _float32_layout(config)
    elements = sum(_elements(parameter) for parameter in match.parameters)
    return LoadedWeights(
        parameters=len(match.parameters),
        elements=elements,
        candidates=len(config.candidates),
        bytes=elements * torch.float32.itemsize,
        stream_bytes=layout.recurrent_bytes(config),
        row_bytes=layout.row_bytes(config),
    )


def _totals(entries: Iterable[TensorEntry]) -> dict[str, Totals]:
    totals: dict[str, Totals] = {}
    for entry in entries:
        before = totals.get(entry.dtype, Totals(0, 0, 0))
        elements = math.prod(entry.shape)
        size = elements * _bits(entry.dtype) // 8
        totals[entry.dtype] = Totals(
            before.tensors + 1, before.elements + elements, before.bytes + size
        )
    return dict(sorted(totals.items()))


def _bits(dtype: str) -> int:
    """Of one element; the format's words hold them first: BF16, F8_E4M3."""
    found = re.search(r"\d+", dtype)
    return int(found[0]) if found else 8  # BOOL


def _elements(parameter: Parameter) -> int:
    count = math.prod(parameter.shape)
    return 3 * count if parameter.kind == "experts" else count


def _expert_layout(match: Match) -> str:
    layouts = set(match.layouts.values())
    return layouts.pop() if len(layouts) == 1 else "mixed"


def _float32_layout(config: ModelConfig) -> StateLayout:
    return StateLayout(
        slots=1,
        pages=1,
        page_size=PAGE_SIZE,
        window=config.generation.ras_window,
        dtype=torch.float32,
        recurrent_dtype=DTYPES[config.backbone.mamba_ssm_dtype or "float32"],
    )


def _layers(config: ModelConfig) -> dict[str, int]:
    kinds = config.backbone.layer_types
    return {
        LINEAR: kinds.count(LINEAR),
        FULL: kinds.count(FULL),
        "tower_shared": config.tower.shared_layers,
        "tower_residual": config.tower.layers - config.tower.shared_layers,
    }


def _sizes(config: ModelConfig) -> dict[str, int]:
    backbone, tower = config.backbone, config.tower
    sizes: dict[str, int] = {name: getattr(backbone, name) for name in _SIZES}
    sizes["num_codebooks"] = tower.num_codebooks
    sizes["codebook_size"] = tower.codebook_size
    sizes["tower_intermediate_size"] = tower.intermediate_size
    return sizes


def _codec(directory: Path) -> CodecFiles | None:
    described = directory / "codec_config.json"
    raw: dict[str, Any] = read_json_object(described) if described.is_file() else {}
    rate = raw.get("sample_rate")
    for name in ("codec.safetensors", "codec.pth"):
        path = directory / name
        if not path.is_file():
            continue
        entries = tensor_entries(map_tensors(path), name) if path.suffix != ".pth" else None
        return CodecFiles(
            file=name,
            bytes=path.stat().st_size,
            tensors=None if entries is None else len(entries),
            elements=None if entries is None else sum(math.prod(e.shape) for e in entries.values()),
            sample_rate=rate if isinstance(rate, int) else None,
            config=bool(raw),
        )
    return None
