"""Codec files: finding them, opening them, and the weights they hold.

A codec is codec.safetensors or codec.pth, with its codec_config.json beside it (S2-Pro's values
without one). Files are memory-mapped; only the weights that are asked for are read.
"""

import hashlib
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from declaim.codec.config import CodecConfig, load_codec_config, require_codebooks
from declaim.codec.encoder import Encoder
from declaim.codec.layers import Weights
from declaim.codec.names import IGNORED_SUFFIXES, codec_shapes, needed_to_decode, needed_to_encode
from declaim.codec.stream import Decoder
from declaim.codec.weight_norm import StoredWeight, match_weights
from declaim.contracts.errors import InvalidCheckpoint, NotFound

CODEC_NAMES = ("codec.safetensors", "codec.pth")
"""What a codec's file is called in a directory; the first is preferred."""

_WRAPPERS = ("state_dict", "generator")
_PICKLE_ERRORS = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)


@dataclass(frozen=True)
class StoredCodec:
    """An open codec file whose names and shapes have been checked against its configuration.

    tensors: as stored, memory-mapped. sources: folded name -> where its weight comes from.
    """

    file: Path
    config: CodecConfig
    tensors: Mapping[str, Tensor]
    sources: Mapping[str, StoredWeight]

    def weights(self, *, decode_only: bool = False) -> Weights:
        """Folded name -> float32 weight; of the whole codec, or of what codes -> sound needs."""
        return self._folded(needed_to_decode if decode_only else lambda _name: True)

    def encode_weights(self) -> Weights:
        """Folded name -> float32 weight, of what sound -> codes needs."""
        return self._folded(needed_to_encode)

    def fingerprint(self) -> str:
        """sha256 of the configuration and of every stored tensor; reads the whole file."""
        digest = hashlib.sha256(json.dumps(self.config.to_json(), sort_keys=True).encode())
        for name in sorted(self.tensors):
            tensor = self.tensors[name].detach().contiguous()
            digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _folded(self, needed: Callable[[str], bool]) -> Weights:
        return {
            name: source.fold(self.tensors) for name, source in self.sources.items() if needed(name)
        }


def find_codec(path: Path | None, model_directory: Path | None) -> Path:
    """The codec's file: in or at `path` if that is given, else in the model's directory.

    Raises NotFound where `path` is not there, InvalidCheckpoint where a directory has no codec.
    """
    place = path if path is not None else model_directory
    if place is None or not place.exists():
        raise NotFound(
            f"there is no codec at {place}; pass --codec with a codec file or its directory",
            param="codec",
            value=None if place is None else str(place),
        )
    if not place.is_dir():
        return place
    for name in CODEC_NAMES:
        if (place / name).is_file():
            return place / name
    wanted = " or ".join(CODEC_NAMES)
    raise InvalidCheckpoint(
        f"{place} has no codec ({wanted}); pass --codec with a codec file or its directory",
        param="codec",
        limit=wanted,
        value=str(place),
    )


def open_codec(file: Path, *, model_codebooks: int | None = None) -> StoredCodec:
    """Open a codec file and check it against the codec_config.json beside it.

    model_codebooks: the model's num_codebooks, which the codec's must equal. Raises
    InvalidCheckpoint for anything that does not fit, naming it.
    """
    config = load_codec_config(file.parent)
    if model_codebooks is not None:
        require_codebooks(config, model_codebooks)
    stored = _read_safetensors(file) if file.suffix == ".safetensors" else _read_pickle(file)
    sources = match_weights(stored, codec_shapes(config))
    tensors = {
        name: tensor
        for name, tensor in stored.items()
        if isinstance(tensor, Tensor) and name.rsplit(".", 1)[-1] not in IGNORED_SUFFIXES
    }
    return StoredCodec(file, config, tensors, sources)


def load_decoder(path: Path | None, model_directory: Path | None, model_codebooks: int) -> Decoder:
    """The decode side of the codec that `find_codec` finds, ready on the CPU.

    Raises what `find_codec` and `open_codec` raise.
    """
    stored = open_codec(find_codec(path, model_directory), model_codebooks=model_codebooks)
    return Decoder(stored.config, stored.weights(decode_only=True))


def load_encoder(path: Path | None, model_directory: Path | None, model_codebooks: int) -> Encoder:
    """The encode side of the codec that `find_codec` finds, ready on the CPU.

    Raises what `find_codec` and `open_codec` raise.
    """
    stored = open_codec(find_codec(path, model_directory), model_codebooks=model_codebooks)
    return Encoder(stored.config, stored.encode_weights())


def _read_safetensors(file: Path) -> dict[str, object]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}
    except (OSError, SafetensorError) as error:
        raise _unreadable(file, "safetensors", error) from error


def _read_pickle(file: Path) -> dict[str, object]:
    """The tensors of a torch.save file, unwrapped; loads tensors alone, never code."""
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=_is_archive(file))
    except pickle.UnpicklingError as error:
        # Torch's own words advise to load the file without its protection against code.
        refused = ValueError("it is damaged or holds something other than tensors")
        raise _unreadable(file, "torch", refused) from error
    except _PICKLE_ERRORS as error:
        raise _unreadable(file, "torch", error) from error
    for wrapper in _WRAPPERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        raise InvalidCheckpoint(
            f"{file} holds no mapping of names to tensors", param="codec", value=str(file)
        )
    prefix = "generator."
    if any(name.startswith(prefix) for name in loaded):
        return {n.removeprefix(prefix): t for n, t in loaded.items() if n.startswith(prefix)}
    return loaded


def _is_archive(file: Path) -> bool:
    """Whether a torch file is of the newer kind, which can be memory-mapped."""
    with file.open("rb") as opened:
        return opened.read(4) == b"PK\x03\x04"


def _unreadable(file: Path, kind: str, error: Exception) -> InvalidCheckpoint:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return InvalidCheckpoint(
        f"{file} is no whole {kind} file: {reason}", param="codec", limit=kind, value=str(file)
    )
