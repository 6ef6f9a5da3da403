"""A checkpoint that does not hold what it should is refused in one sentence that names it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from declaim.checkpoint.files import INDEX, SINGLE, fingerprint, open_checkpoint
from declaim.checkpoint.names import Parameter
from declaim.checkpoint.reader import load_weights
from declaim.checkpoint.weights import NetworkWeight
from declaim.checkpoint.writer import WriteFormat, write_checkpoint
from declaim.config.checkpoint import load_model_config
from declaim.contracts.errors import DeclaimError, InvalidCheckpoint, NotFound
from declaim.ops.table import OpTable

Weights = list[tuple[Parameter, NetworkWeight]]
Tensors = dict[str, Tensor]
LM = "model.language_model."
GATE = f"{LM}layers.0.mlp.experts.0.gate_proj.weight"
OUT = f"{LM}layers.3.self_attn.o_proj.weight"
STACK = f"{LM}layers.0.mlp.experts.gate_up_proj"


@pytest.fixture
def write(place: Path, micro: dict[str, Any], micro_weights: Weights) -> Callable[..., None]:
    def make(**layout: Any) -> None:
        write_checkpoint(place, micro, micro_weights, WriteFormat(**layout))

    return make


def _change(place: Path, edit: Callable[[Tensors], object]) -> None:
    """Write the single file anew after an edit of its tensors."""
    files = open_checkpoint(place)
    tensors = {name: files.read(name).clone() for name in files.entries}
    edit(tensors)
    save_file(tensors, place / SINGLE)


def _refusal(place: Path, recorder: OpTable) -> DeclaimError:
    with pytest.raises(InvalidCheckpoint) as caught:
        load_weights(place, load_model_config(place), recorder)
    assert "\n" not in caught.value.message
    return caught.value


EDITS: list[tuple[dict[str, Any], Callable[[Tensors], object], str]] = [
    ({}, lambda t: t.pop(OUT), f"1 missing: {OUT}"),
    ({}, lambda t: t.pop("lm_head.weight"), "1 missing: lm_head.weight"),
    ({}, lambda t: t.update(stray=torch.zeros(1)), "1 unexpected: stray"),
    ({}, lambda t: t.update({f"{LM}layers.4.x": torch.zeros(1)}), f"unexpected: {LM}layers.4.x"),
    ({}, lambda t: t.update({"mtp.x": torch.zeros(1)}), "1 unexpected: mtp.x"),
    ({}, lambda t: t.update({"model.visual.x": torch.zeros(1)}), "unexpected: model.visual.x"),
    (
        {},
        lambda t: t.update({OUT: t[OUT][:3].clone()}),
        f"1 wrong: {OUT} has shape [3, 64] instead of [64, 64]",
    ),
    (
        {},
        lambda t: t.update({OUT: t[OUT].to(torch.int32)}),
        f"1 wrong: {OUT} is I32 instead of BF16 or F16 or F32",
    ),
    (
        {},
        lambda t: t.update({OUT: t[OUT].to(torch.float8_e4m3fn)}),
        f"{OUT} is F8_E4M3 instead of BF16 or F16 or F32",
    ),
    (
        {},
        lambda t: t.update({f"{OUT}_scale_inv": torch.ones(1, 1)}),
        f"{OUT}_scale_inv scales {OUT}, which is BF16",
    ),
    (
        {"quantise": "experts"},
        lambda t: t.update({OUT: t[OUT].to(torch.float8_e4m3fn)}),
        f"{OUT} is F8_E4M3 instead of",
    ),
    (
        {"quantise": "experts"},
        lambda t: t.pop(f"{STACK}_scale_inv"),
        f"1 wrong: {STACK} is F8_E4M3 without {STACK}_scale_inv",
    ),
    (
        {"quantise": "experts"},
        lambda t: t.update({f"{STACK}_scale_inv": torch.ones(8, 2, 1)}),
        f"{STACK}_scale_inv has shape [8, 2, 1] instead of [8, 1, 1]",
    ),
    (
        {"quantise": "experts"},
        lambda t: t.update({f"{STACK}_scale_inv": torch.ones(8, 1, 1, dtype=torch.uint8)}),
        f"{STACK}_scale_inv is U8 instead of BF16 or F32",
    ),
    (
        {"quantise": "all", "expert_layout": "per_expert"},
        lambda t: t.pop(f"{GATE}_scale_inv"),
        f"{GATE} is F8_E4M3 without {GATE}_scale_inv",
    ),
    (
        {"quantise": "all"},
        lambda t: t.pop(OUT),
        f"1 missing: {OUT}; 1 unexpected: {OUT}_scale_inv",
    ),
    ({"expert_layout": "per_expert"}, lambda t: t.pop(GATE), f"1 missing: {GATE}"),
    (
        {"expert_layout": "per_expert"},
        lambda t: t.update({STACK: torch.zeros(8, 64, 64)}),
        "1 missing: model.language_model.layers.0.mlp.experts.down_proj; 24 unexpected",
    ),
    (
        {},
        lambda t: [t.pop(name) for name in list(t) if "delta" in name or "linear_attn" in name],
        "27 missing: ",
    ),
]


@pytest.mark.parametrize(("layout", "edit", "shown"), EDITS, ids=lambda value: str(value)[:50])
def test_wrong_tensors_are_named(
    place: Path,
    write: Callable[..., None],
    recorder: OpTable,
    layout: dict[str, Any],
    edit: Callable[[Tensors], object],
    shown: str,
) -> None:
    write(**layout)
    _change(place, edit)
    error = _refusal(place, recorder)
    assert error.message.startswith("the tensors do not fit config.json (")
    assert shown in error.message
    assert error.param


def test_missing_and_unexpected_are_told_together_and_cut(
    place: Path, write: Callable[..., None], recorder: OpTable
) -> None:
    write(prefix="model.language_model.")

    def rename(tensors: Tensors) -> None:
        for name in list(tensors):
            if name.startswith("audio_decoder_mtp."):
                tensors[f"other.{name}"] = tensors.pop(name)

    _change(place, rename)
    message = _refusal(place, recorder).message
    assert "45 missing: audio_decoder_mtp.layers.0.codebook_embedding.weight, " in message
    assert "45 unexpected: other.audio_decoder_mtp.heads.0.weight, " in message
    assert message.count(", ...") == 2
    assert len(message) < 1000


def test_draft_and_vision_tensors_of_a_plain_text_model_are_ignored(
    place: Path, write: Callable[..., None], recorder: OpTable
) -> None:
    write()
    _change(place, lambda t: t.update({"mtp.x": torch.zeros(1), "model.visual.y": torch.zeros(1)}))
    config = json.loads((place / "config.json").read_text())
    config["text_config"]["model_type"] = "qwen3_5_moe_text"
    (place / "config.json").write_text(json.dumps(config))
    assert len(load_weights(place, load_model_config(place), recorder)) == 112
    _change(place, lambda t: t.update({"stray": torch.zeros(1)}))
    assert "1 unexpected: stray" in _refusal(place, recorder).message


def test_damaged_files(place: Path, write: Callable[..., None], recorder: OpTable) -> None:
    write()
    whole = (place / SINGLE).read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], whole[:4], b"", b"no tensors" * 9):
        (place / SINGLE).write_bytes(content)
        error = _refusal(place, recorder)
        assert error.message.startswith(f"{SINGLE} is damaged, cut short or no safetensors file")
        assert error.param == SINGLE


def test_absent_files(place: Path, write: Callable[..., None], recorder: OpTable) -> None:
    with pytest.raises(NotFound, match="there is no checkpoint at"):
        open_checkpoint(place)
    write()
    (place / SINGLE).unlink()
    assert f"neither {SINGLE} nor {INDEX}" in _refusal(place, recorder).message
    (place / "config.json").unlink()
    assert "no config.json" in _refusal(place, recorder).message


def _index(place: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = place / INDEX
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


INDEX_EDITS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda v: v.pop("weight_map"), "has no weight_map"),
    (lambda v: v.update(weight_map={}), "has no weight_map"),
    (lambda v: v.update(weight_map=[1]), "has no weight_map"),
    (lambda v: v["weight_map"].update(x="absent.safetensors"), "there is no such file"),
    (lambda v: v["weight_map"].update(x="../m.safetensors"), "a file of the same directory"),
    (lambda v: v["weight_map"].update(x=3), "a file of the same directory"),
    (
        lambda v: v["weight_map"].update(x=v["weight_map"][OUT]),
        "holds x, but it does not",
    ),
    (lambda v: v["weight_map"].pop(OUT), f"holds {OUT}, which {INDEX} does not name"),
]


@pytest.mark.parametrize(("edit", "shown"), INDEX_EDITS, ids=lambda value: str(value)[:40])
def test_an_index_that_is_wrong(
    place: Path,
    write: Callable[..., None],
    recorder: OpTable,
    edit: Callable[[dict[str, Any]], object],
    shown: str,
) -> None:
    write(shard_bytes=200_000)
    _index(place, edit)
    assert shown in _refusal(place, recorder).message


def test_shards_that_are_wrong(place: Path, write: Callable[..., None], recorder: OpTable) -> None:
    write(shard_bytes=200_000)
    files = open_checkpoint(place)
    first = files.files[0]
    tensors = {n: files.read(n).clone() for n, e in files.entries.items() if e.file == first}
    save_file({**tensors, OUT: torch.zeros(1)}, place / first)
    assert f"tensor {OUT} stands in two files" in _refusal(place, recorder).message
    (place / first).write_bytes(b"")
    assert f"{first} is damaged" in _refusal(place, recorder).message
    (place / INDEX).write_text("{")
    assert f"{INDEX} cannot be read as JSON" in _refusal(place, recorder).message


def test_fingerprint_sees_values_and_not_files(
    tmp_path: Path, micro: dict[str, Any], micro_weights: Weights
) -> None:
    write_checkpoint(tmp_path / "one", micro, micro_weights)
    write_checkpoint(tmp_path / "many", micro, micro_weights, WriteFormat(shard_bytes=100_000))
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "many")
    before = fingerprint(tmp_path / "one")
    _change(tmp_path / "one", lambda t: t[OUT].mul_(2))
    assert fingerprint(tmp_path / "one") != before
