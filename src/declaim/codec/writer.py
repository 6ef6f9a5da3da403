"""Writes a codec as codec.safetensors and codec_config.json, the form that is read first."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from declaim.codec.config import CONFIG_NAME, CodecConfig
from declaim.codec.names import codec_shapes
from declaim.codec.reader import CODEC_NAMES
from declaim.codec.weight_norm import match_weights


def write_codec(directory: Path, config: CodecConfig, tensors: Mapping[str, Tensor]) -> Path:
    """Write a codec into a directory, which is made if need be, and return the tensors' file.

    tensors: every tensor of the codec, plain or with weight norm, in any floating-point type,
    which the file keeps. Raises InvalidCheckpoint if they are not exactly the configuration's.
    A file that is already there is replaced as a whole or not at all.
    """
    match_weights(tensors, codec_shapes(config))
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / CODEC_NAMES[0]
    partial = file.with_name(f".{file.name}.partial")
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(stored, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    partial.replace(file)
    partial = directory / f".{CONFIG_NAME}.partial"
    partial.write_text(json.dumps(config.to_json(), indent=2) + "\n", encoding="utf-8")
    partial.replace(directory / CONFIG_NAME)
    return file
