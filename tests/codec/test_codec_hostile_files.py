"""Codec files and configurations that would exhaust memory or answer in a library's words."""

import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from declaim.codec.config import CodecConfig, parse_codec_config
from declaim.codec.reader import load_decoder
from declaim.contracts.errors import InvalidCheckpoint

LIMITS: dict[str, tuple[int, int]] = {
    "n_residual_codebooks": (1, 1024),
    "pre_post.n_layer": (1, 1024),
    "pre_post.window": (1, 65536),
    "encoder_transformer.n_layer": (0, 1024),
    "encoder_transformer.window": (1, 65536),
}


def _with(dotted: str, value: int) -> dict[str, Any]:
    raw = CodecConfig().to_json()
    *parents, key = dotted.split(".")
    section = raw
    for parent in parents:
        section = section[parent]
    section[key] = value
    return raw


@pytest.mark.parametrize("key", list(LIMITS))
def test_what_no_tensor_bounds_is_bounded(key: str) -> None:
    low, high = LIMITS[key]
    for accepted in (low, high):
        raw = _with(key, accepted)
        assert parse_codec_config(raw).to_json() == raw
    for refused in (low - 1, high + 1, 2**31 - 1, 10**400):
        with pytest.raises(InvalidCheckpoint) as caught:
            parse_codec_config(_with(key, refused))
        assert caught.value.param == key
        assert caught.value.limit == f"an integer in [{low}, {high}]"
        assert caught.value.value == refused
        assert f"{key} must be an integer in [{low}, {high}], not " in caught.value.message
        assert len(caught.value.message) < 200


def _half_a_signature(path: Path) -> None:
    path.write_bytes(b"PK")


def _module(path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), path)


def _plain_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"decoder.model.0.conv.bias": [0.0]}, protocol=2))


def _words(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\n", encoding="utf-8")


@pytest.mark.parametrize("make", [_half_a_signature, _module, _plain_pickle, _words])
def test_a_foreign_file_is_told_in_our_words(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Nothing of how to get round the safe loader, no escape codes, no second line."""
    (tmp_path / "codec_config.json").write_text(json.dumps(CodecConfig().to_json()))
    path = tmp_path / "codec.pth"
    make(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidCheckpoint) as caught:
            load_decoder(path, tmp_path, 10)
    message = caught.value.message
    assert message.startswith(f"{path} is no whole torch file: ")
    assert message.isprintable() and len(message) < len(str(path)) + 240
    for word in ("weights_only", "mmap", "trust", "pickle"):
        assert word not in message
