"""The safetensors files of a checkpoint directory: one, or shards with an index.

Files are memory-mapped and read one tensor, or one part of a tensor, at a time. Knows what the
files hold, not what they should hold.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from declaim.config.checkpoint import read_json_object
from declaim.contracts.errors import InvalidCheckpoint, NotFound

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SAMPLE_BYTES = 65536
"""Bytes of each end of a tensor that enter the fingerprint."""


@dataclass(frozen=True)
class TensorEntry:
    """What a file's header says of a tensor; dtype in the format's words: BF16, F8_E4M3, ..."""

    dtype: str
    shape: tuple[int, ...]
    file: str


class WeightFiles:
    """All tensors of a checkpoint by published name; reads from the mapped files."""

    def __init__(self, directory: Path, handles: Mapping[str, Any]) -> None:
        self.directory = directory
        self._handles = handles
        self.entries: dict[str, TensorEntry] = {}
        for file, handle in handles.items():
            for name, entry in tensor_entries(handle, file).items():
                if name in self.entries:
                    first = self.entries[name].file
                    raise InvalidCheckpoint(
                        f"tensor {name} stands in two files: {first} and {file}",
                        param=name,
                        value=file,
                    )
                self.entries[name] = entry

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files, in order."""
        return tuple(self._handles)

    def read(self, name: str) -> Tensor:
        """One whole tensor as stored."""
        tensor: Tensor = self._handles[self.entries[name].file].get_tensor(name)
        return tensor

    def read_part(self, name: str, start: int, stop: int) -> Tensor:
        """Entries [start, stop) of the tensor's first dimension, as stored."""
        part: Tensor = self._handles[self.entries[name].file].get_slice(name)[start:stop]
        return part

    def fingerprint(self) -> str:
        """sha256 over every tensor's name, dtype, shape and the first and last 64 KiB of its bytes.

        Does not depend on how tensors are spread over files; a change in the middle of a tensor
        of more than 128 KiB may go unseen.
        """
        digest = hashlib.sha256()
        for name in sorted(self.entries):
            entry = self.entries[name]
            digest.update(f"{name}\0{entry.dtype}\0{entry.shape}\0".encode())
            octets = self.read(name).contiguous().flatten().view(torch.uint8)
            for end in (octets[:SAMPLE_BYTES], octets[SAMPLE_BYTES:][-SAMPLE_BYTES:]):
                digest.update(end.numpy().tobytes())
        return digest.hexdigest()


def open_checkpoint(directory: Path) -> WeightFiles:
    """Map model.safetensors, or the shards that model.safetensors.index.json names.

    Raises NotFound if the path does not exist, InvalidCheckpoint if files are missing, damaged
    or do not hold what the index says.
    """
    if not directory.exists():
        raise NotFound(
            f"there is no checkpoint at {directory}", param="model", value=str(directory)
        )
    if (directory / SINGLE).is_file():
        return WeightFiles(directory, {SINGLE: map_tensors(directory / SINGLE)})
    if not (directory / INDEX).is_file():
        raise InvalidCheckpoint(
            f"{directory} has neither {SINGLE} nor {INDEX}, so it holds no weights",
            param=SINGLE,
            value=str(directory),
        )
    weight_map = _weight_map(directory)
    handles = {file: map_tensors(directory / file) for file in sorted(set(weight_map.values()))}
    files = WeightFiles(directory, handles)
    _check_index(files, weight_map)
    return files


def fingerprint(directory: Path) -> str:
    """See WeightFiles.fingerprint."""
    return open_checkpoint(directory).fingerprint()


def map_tensors(path: Path) -> Any:
    """The mapped safetensors file; InvalidCheckpoint if it is damaged or something else."""
    try:
        return safe_open(path, framework="pt")
    except OSError as error:
        raise InvalidCheckpoint(
            f"{path.name} cannot be opened: {error}", param=path.name, value=str(path)
        ) from error
    except SafetensorError as error:
        raise InvalidCheckpoint(
            f"{path.name} is damaged, cut short or no safetensors file: {error}",
            param=path.name,
            value=str(path),
        ) from error


def tensor_entries(handle: Any, file: str) -> dict[str, TensorEntry]:
    """What a mapped file's header says of its tensors."""
    parts = {name: handle.get_slice(name) for name in handle.keys()}
    return {
        name: TensorEntry(part.get_dtype(), tuple(part.get_shape()), file)
        for name, part in parts.items()
    }


def _weight_map(directory: Path) -> dict[str, str]:
    weight_map = read_json_object(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidCheckpoint(f"{INDEX} has no weight_map", param=INDEX, value=str(directory))
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise InvalidCheckpoint(
                f"{INDEX} must name a file of the same directory for {name}, not {file!r}",
                param=INDEX,
                value=file,
            )
        if not (directory / file).is_file():
            raise InvalidCheckpoint(
                f"{INDEX} names {file} for {name}, but there is no such file",
                param=INDEX,
                value=file,
            )
    return weight_map


def _check_index(files: WeightFiles, weight_map: Mapping[str, str]) -> None:
    for name, file in weight_map.items():
        if name not in files.entries or files.entries[name].file != file:
            raise InvalidCheckpoint(
                f"{INDEX} says that {file} holds {name}, but it does not", param=name, value=file
            )
    for name, entry in files.entries.items():
        if name not in weight_map:
            raise InvalidCheckpoint(
                f"{entry.file} holds {name}, which {INDEX} does not name",
                param=name,
                value=entry.file,
            )
