"""A checkpoint's directory appears whole or not at all, and never over another."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor

from declaim.checkpoint.files import INDEX, SINGLE, open_checkpoint
from declaim.checkpoint.names import Parameter
from declaim.checkpoint.weights import NetworkWeight
from declaim.checkpoint.writer import WriteFormat, new_directory, write_checkpoint, write_tensors
from declaim.config.checkpoint import load_model_config
from declaim.contracts.errors import Conflict, InvalidCheckpoint, InvalidRequest

Quantise = Literal["experts", "all"]
Weights = list[tuple[Parameter, NetworkWeight]]


def test_the_files_of_a_checkpoint(
    place: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    write_checkpoint(place, micro, micro_weights, generation={"top_p": 0.5})
    assert {path.name for path in place.iterdir()} == {
        "config.json",
        "generation_config.json",
        SINGLE,
    }
    assert json.loads((place / "config.json").read_text()) == micro
    assert load_model_config(place).generation.sampling.top_p == 0.5
    assert [path.name for path in place.parent.iterdir()] == [place.name]


@pytest.mark.parametrize(("quantise", "method"), [("experts", "bsgemm-moe"), ("all", "fp8")])
def test_the_quantization_that_config_states(
    place: Path, micro: dict[str, Any], micro_weights: Weights, quantise: Quantise, method: str
) -> None:
    write_checkpoint(place, micro, micro_weights, WriteFormat(quantise=quantise))
    config = load_model_config(place)
    assert config.quantization is not None
    assert config.quantization.method == method
    entries = open_checkpoint(place).entries
    fp8 = {name for name, entry in entries.items() if entry.dtype == "F8_E4M3"}
    assert fp8 and all(f"{name}_scale_inv" in entries for name in fp8)
    assert all(".experts." in name for name in fp8) == (quantise == "experts")


def test_shards_hold_at_most_what_was_asked(
    place: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    limit = 100_000
    write_checkpoint(place, micro, micro_weights, WriteFormat(shard_bytes=limit))
    files = open_checkpoint(place)
    index = json.loads((place / INDEX).read_text())
    sizes = dict.fromkeys(files.files, 0)
    largest = 0
    for name, entry in files.entries.items():
        size = files.read(name).nbytes
        sizes[entry.file] += size
        largest = max(largest, size)
        assert index["weight_map"][name] == entry.file
    assert all(size <= max(limit, largest) for size in sizes.values())
    assert index["metadata"]["total_size"] == sum(sizes.values())
    count = len(sizes)
    assert sorted(sizes) == [
        f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)
    ]


def test_a_directory_in_use_is_refused(
    place: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    place.mkdir()
    (place / "kept").write_text("mine")
    with pytest.raises(Conflict, match="exists already"):
        write_checkpoint(place, micro, micro_weights)
    assert [path.name for path in place.iterdir()] == ["kept"]
    with pytest.raises(Conflict, match="exists already"):
        write_checkpoint(place / "kept", micro, micro_weights)
    link = place.parent / "link"
    link.symlink_to(place.parent / "nowhere")
    with pytest.raises(Conflict, match="exists already"):
        write_checkpoint(link, micro, micro_weights)


def test_a_place_that_cannot_be_written_to(
    place: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    place.write_text("a file")
    with pytest.raises(InvalidRequest, match="cannot be made"):
        write_checkpoint(place / "below", micro, micro_weights)


def test_an_empty_directory_and_new_parents_are_fine(
    place: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    place.mkdir()
    write_checkpoint(place, micro, micro_weights)
    deep = place.parent / "a" / "b"
    write_checkpoint(deep, micro, micro_weights)
    assert (place / SINGLE).read_bytes() == (deep / SINGLE).read_bytes()


def test_a_failure_leaves_nothing(
    place: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    def failing() -> Iterator[tuple[Parameter, NetworkWeight]]:
        yield micro_weights[0]
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write_checkpoint(place, micro, failing())
    micro["eos_token_id"] = -1
    with pytest.raises(InvalidCheckpoint):
        write_checkpoint(place, micro, micro_weights)
    assert list(place.parent.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left"), SafetensorError("disk full")])
def test_a_full_disk_is_one_sentence(place: Path, error: Exception) -> None:
    with pytest.raises(InvalidRequest, match="cannot be written: .*(No space left|disk full)"):
        with new_directory(place) as unfinished:
            (unfinished / "half").write_text("1")
            raise error
    assert list(place.parent.iterdir()) == []


def test_a_directory_that_appears_meanwhile_is_kept(place: Path) -> None:
    with pytest.raises(Conflict, match="appeared while"):
        with new_directory(place) as unfinished:
            (unfinished / "ours").write_text("1")
            place.mkdir()
            (place / "theirs").write_text("2")
    assert [path.name for path in place.parent.rglob("*")] == [place.name, "theirs"]


def test_views_are_written_as_they_are(tmp_path: Path) -> None:
    base: Tensor = torch.arange(12.0).view(3, 4)
    write_tensors(tmp_path, [("columns", base.T), ("part", base[1:])])
    files = open_checkpoint(tmp_path)
    assert torch.equal(files.read("columns"), base.T)
    assert torch.equal(files.read_part("part", 1, 2), base[2:])
