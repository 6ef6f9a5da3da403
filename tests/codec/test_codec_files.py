"""Codec files: found, opened in every published form, refused in one sentence, written."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from declaim.codec.config import CONFIG_NAME, CodecConfig
from declaim.codec.encoder import Encoder
from declaim.codec.names import codec_shapes, decode_shapes, encode_shapes
from declaim.codec.reader import find_codec, load_decoder, load_encoder, open_codec
from declaim.codec.stream import Decoder
from declaim.codec.writer import write_codec
from declaim.contracts.errors import InvalidCheckpoint, NotFound

Weights = dict[str, Tensor]


@pytest.fixture
def tensors(micro: CodecConfig, make_weights: Callable[[CodecConfig], Weights]) -> Weights:
    """The micro codec's tensors, folded."""
    return make_weights(micro)


@pytest.fixture
def directory(tmp_path: Path, micro: CodecConfig, tensors: Weights) -> Path:
    """A directory with the micro codec."""
    write_codec(tmp_path / "codec", micro, tensors)
    return tmp_path / "codec"


def published(tensors: Weights) -> Weights:
    """With weight norm as published files have it: two spellings, and buffers."""
    stored = {}
    for name, value in tensors.items():
        g, v = "", ""
        if name.endswith("_proj.weight"):
            g, v = name + "_g", name + "_v"
        elif name.endswith("conv.weight") and name.startswith(("encoder.", "decoder.")):
            base = name.removesuffix("weight") + "parametrizations.weight.original"
            g, v = base + "0", base + "1"
        if not g:
            stored[name] = value
            continue
        norm = value.flatten(1).norm(dim=1).reshape(-1, *[1] * (value.dim() - 1))
        stored[g], stored[v] = norm, value * 3.0
    for module in ("quantizer.pre_module", "quantizer.post_module"):
        stored[f"{module}.freqs_cis"] = torch.ones(2, 2)
        stored[f"{module}.causal_mask"] = torch.ones(2, 2, dtype=torch.bool)
    return stored


def written_as(directory: Path, config: CodecConfig, content: object, **options: Any) -> Path:
    """A codec.pth of any content, with its configuration beside it."""
    directory.mkdir(exist_ok=True)
    (directory / CONFIG_NAME).write_text(json.dumps(config.to_json()))
    torch.save(content, directory / "codec.pth", **options)
    return directory / "codec.pth"


def test_what_is_written_is_read_back(
    directory: Path, micro: CodecConfig, tensors: Weights
) -> None:
    stored = open_codec(find_codec(directory, None), model_codebooks=4)
    assert stored.config == micro
    assert sorted(os.listdir(directory)) == ["codec.safetensors", CONFIG_NAME]
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in directory.iterdir())
    whole, half = stored.weights(), stored.weights(decode_only=True)
    assert whole.keys() == codec_shapes(micro).keys()
    assert half.keys() == decode_shapes(micro).keys()
    assert stored.encode_weights().keys() == encode_shapes(micro).keys()
    assert all(torch.equal(value, tensors[name]) for name, value in whole.items())
    assert all(torch.equal(value, tensors[name]) for name, value in half.items())


@pytest.mark.parametrize("wrapping", ["plain", "state_dict", "generator", "both", "prefix"])
@pytest.mark.parametrize("zipped", [True, False])
def test_published_pickles_hold_the_same_codec(
    tmp_path: Path, micro: CodecConfig, tensors: Weights, wrapping: str, zipped: bool
) -> None:
    stored = published(tensors)
    contents: dict[str, dict[str, Any]] = {
        "plain": stored,
        "state_dict": {"state_dict": stored, "step": 3},
        "generator": {"generator": stored},
        "both": {"state_dict": {"generator": stored}},
        "prefix": {
            **{f"generator.{name}": value for name, value in stored.items()},
            "discriminator.weight": torch.ones(3),
        },
    }
    file = written_as(tmp_path, micro, contents[wrapping], _use_new_zipfile_serialization=zipped)
    read = open_codec(file).weights()
    assert read.keys() == tensors.keys()
    for name, value in read.items():
        torch.testing.assert_close(value, tensors[name], rtol=1e-5, atol=1e-7)


def test_a_loaded_encoder_chooses_as_the_weights(
    directory: Path, micro: CodecConfig, tensors: Weights
) -> None:
    samples = torch.randn(9 * micro.hop, generator=torch.Generator().manual_seed(0)).numpy()
    wanted = torch.from_numpy(Encoder(micro, tensors).encode(samples))
    found = load_encoder(None, directory, 4).encode(samples)
    assert torch.equal(torch.from_numpy(found), wanted)
    assert torch.equal(
        torch.from_numpy(load_encoder(directory / "codec.safetensors", None, 4).encode(samples)),
        wanted,
    )
    with pytest.raises(InvalidCheckpoint, match="n_residual_codebooks"):
        load_encoder(None, directory, 10)


def test_a_loaded_decoder_sounds_like_the_weights(
    tmp_path: Path, directory: Path, micro: CodecConfig, tensors: Weights
) -> None:
    codes = torch.randint(0, 64, (4, 9)).numpy()
    wanted = torch.from_numpy(Decoder(micro, tensors).decode(codes))
    found = load_decoder(None, directory, 4).decode(codes)
    assert torch.equal(torch.from_numpy(found), wanted)
    file = written_as(tmp_path / "other", micro, published(tensors))
    found = load_decoder(file, directory, 4).decode(codes)
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-4, atol=1e-5)


def test_narrow_types_are_widened(tmp_path: Path, micro: CodecConfig, tensors: Weights) -> None:
    narrow = {name: value.to(torch.bfloat16) for name, value in tensors.items()}
    write_codec(tmp_path, micro, narrow)
    read = open_codec(tmp_path / "codec.safetensors").weights()
    assert all(torch.equal(value, narrow[name].float()) for name, value in read.items())
    assert {value.dtype for value in read.values()} == {torch.float32}


def test_weights_outlive_their_file(directory: Path, tensors: Weights) -> None:
    file = directory / "codec.safetensors"
    weights = open_codec(file).weights()
    with file.open("r+b") as opened:
        opened.seek(-4000, os.SEEK_END)
        opened.write(bytes(4000))
    assert all(torch.equal(value, tensors[name]) for name, value in weights.items())


def test_safetensors_are_preferred_and_a_given_codec_over_both(
    tmp_path: Path, directory: Path, micro: CodecConfig, tensors: Weights
) -> None:
    written_as(directory, micro, tensors)
    assert find_codec(None, directory) == directory / "codec.safetensors"
    other = tmp_path / "other"
    file = written_as(other, micro, tensors)
    assert find_codec(other, directory) == file
    assert find_codec(file, directory) == file
    (directory / "codec.safetensors").unlink()
    assert find_codec(None, directory) == directory / "codec.pth"


def test_a_directory_without_codec_says_what_to_pass(tmp_path: Path) -> None:
    for place in (tmp_path, None):
        with pytest.raises(InvalidCheckpoint, match="has no codec.*pass --codec") as caught:
            find_codec(place, tmp_path)
        assert caught.value.param == "codec"
        assert str(tmp_path) in caught.value.message
    for missing in (tmp_path / "nowhere", tmp_path / "codec.pth"):
        with pytest.raises(NotFound, match="pass --codec") as missed:
            find_codec(missing, tmp_path)
        assert str(missing) in missed.value.message
    with pytest.raises(NotFound, match="pass --codec"):
        find_codec(None, None)


def test_another_number_of_codebooks_is_refused(directory: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="num_codebooks is 10") as caught:
        load_decoder(None, directory, 10)
    assert caught.value.value == 3


def test_a_codec_of_another_configuration_is_reported_by_name(directory: Path) -> None:
    (directory / CONFIG_NAME).unlink()
    with pytest.raises(InvalidCheckpoint) as caught:
        open_codec(directory / "codec.safetensors")
    message = caught.value.message
    assert "missing: " in message and "wrong: encoder.block.0.conv.weight is [4, 1, 7]" in message
    assert len(message) < 2500


@pytest.mark.parametrize("name", ["codec.safetensors", "codec.pth"])
@pytest.mark.parametrize("damage", ["half", "empty", "text", "header", "directory"])
def test_a_damaged_file_is_one_sentence(
    directory: Path, micro: CodecConfig, tensors: Weights, name: str, damage: str
) -> None:
    written_as(directory, micro, tensors)
    file = directory / name
    content = file.read_bytes()
    file.unlink()
    if damage == "directory":
        file.mkdir()
    else:
        file.write_bytes(
            {
                "half": content[: len(content) // 2],
                "empty": b"",
                "text": b"version https://git-lfs.github.com/spec/v1\nsize 3\n",
                "header": content[:100],
            }[damage]
        )
    with pytest.raises(InvalidCheckpoint) as caught:
        open_codec(file)
    assert str(file) in caught.value.message
    assert "\n" not in caught.value.message and len(caught.value.message) < 400


class Intruder:
    """An object whose unpickling would run code."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (os.mkdir, ("unpickled",))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_with_code_is_refused_unrun(
    tmp_path: Path, micro: CodecConfig, monkeypatch: pytest.MonkeyPatch, zipped: bool
) -> None:
    content = {"weight": torch.ones(1), "other": Intruder()}
    file = written_as(tmp_path, micro, content, _use_new_zipfile_serialization=zipped)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidCheckpoint, match="no whole torch file"):
        open_codec(file)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("content", [[torch.ones(1)], {3: torch.ones(1)}, torch.ones(2), 5])
def test_a_pickle_of_something_else_is_refused(
    tmp_path: Path, micro: CodecConfig, content: object
) -> None:
    with pytest.raises(InvalidCheckpoint, match="no mapping of names to tensors"):
        open_codec(written_as(tmp_path, micro, content))


def test_an_entry_that_is_no_tensor_is_named(
    tmp_path: Path, micro: CodecConfig, tensors: Weights
) -> None:
    name = "decoder.model.0.conv.bias"
    file = written_as(tmp_path, micro, {**tensors, name: [1.0, 2.0]})
    with pytest.raises(InvalidCheckpoint, match=f"1 wrong: {name} is no tensor"):
        open_codec(file)


def test_the_fingerprint_is_of_configuration_and_tensors(
    tmp_path: Path, directory: Path, micro: CodecConfig, tensors: Weights
) -> None:
    first = open_codec(directory / "codec.safetensors").fingerprint()
    assert len(first) == 64
    with_buffers = {**tensors, "quantizer.pre_module.freqs_cis": torch.ones(3)}
    same = written_as(tmp_path / "same", micro, dict(reversed(with_buffers.items())))
    assert open_codec(same).fingerprint() == first
    name = "encoder.block.0.conv.bias"
    tensors[name] = tensors[name].clone()
    tensors[name][0] += 1e-3
    changed = {open_codec(written_as(tmp_path / "a", micro, tensors)).fingerprint(), first}
    raw = micro.to_json() | {"sample_rate": 16000}
    (directory / CONFIG_NAME).write_text(json.dumps(raw))
    changed.add(open_codec(directory / "codec.safetensors").fingerprint())
    assert len(changed) == 3


def test_the_writer_refuses_tensors_of_another_codec(
    tmp_path: Path, micro: CodecConfig, tensors: Weights
) -> None:
    del tensors["decoder.model.0.conv.bias"]
    with pytest.raises(InvalidCheckpoint, match="1 missing: decoder.model.0.conv.bias"):
        write_codec(tmp_path / "codec", micro, tensors)
    assert not (tmp_path / "codec").exists()


def test_the_writer_replaces_what_was_there(
    directory: Path, micro: CodecConfig, tensors: Weights
) -> None:
    name = "decoder.model.0.conv.bias"
    tensors[name] = torch.zeros_like(tensors[name])
    write_codec(directory, micro, tensors)
    assert not open_codec(directory / "codec.safetensors").weights()[name].any()
    assert sorted(os.listdir(directory)) == ["codec.safetensors", CONFIG_NAME]


def test_weight_norm_in_safetensors(tmp_path: Path, micro: CodecConfig, tensors: Weights) -> None:
    (tmp_path / CONFIG_NAME).write_text(json.dumps(micro.to_json()))
    save_file(published(tensors), tmp_path / "codec.safetensors")
    for name, value in open_codec(tmp_path / "codec.safetensors").weights().items():
        torch.testing.assert_close(value, tensors[name], rtol=1e-5, atol=1e-7)
