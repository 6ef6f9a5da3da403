"""The random shapes: sizes, tokenizer ids, repeatability, and nothing half made."""

import hashlib
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from declaim.checkpoint.inspect import inspect_checkpoint
from declaim.config.checkpoint import load_model_config, parse_model_config
from declaim.contracts.errors import Conflict, InvalidRequest
from declaim.nano.make import default_checkpoint, make_checkpoint, model_directory
from declaim.nano.shapes import GENERATION, SHAPES
from declaim.nano.tokenizer import build_tokenizer

SIZES = {
    "micro": (64, 4, 512, 4, 64, 1, 8, 32, 320),
    "tiny": (192, 8, 1024, 10, 256, 4, 16, 64, 512),
    "small": (192, 8, 2048, 10, 1024, 4, 32, 128, 1024),
}


@pytest.mark.parametrize("name", list(SHAPES))
def test_sizes(name: str) -> None:
    config = parse_model_config(SHAPES[name].config, GENERATION)
    backbone, tower = config.backbone, config.tower
    assert SIZES[name] == (
        backbone.hidden_size,
        backbone.num_hidden_layers,
        backbone.vocab_size,
        tower.num_codebooks,
        tower.codebook_size,
        tower.shared_layers,
        backbone.num_experts,
        backbone.shared_expert_intermediate_size,
        config.band[0],
    )
    assert (config.eos_token_id, config.context, config.dtype) == (257, 16384, "bfloat16")
    assert backbone.layer_types[3::4] == ("full_attention",) * (backbone.num_hidden_layers // 4)
    assert (backbone.rotary_dim, tower.rotary_dim) == (8, 8)
    assert config.unknown_keys == ()


@pytest.mark.parametrize("name", list(SHAPES))
def test_token_ids(name: str) -> None:
    shape = SHAPES[name]
    tokenizer = build_tokenizer(shape)
    expected = {
        "<|im_start|>": 256,
        "<|im_end|>": 257,
        "<|voice|>": 258,
        "<|text|>": 259,
        "<|interleave|>": 260,
        "<|speaker:0|>": 261,
        "<|speaker:15|>": 276,
        "<|semantic:0|>": shape.band_start,
        f"<|semantic:{shape.codebook_size - 1}|>": shape.band_start + shape.codebook_size - 1,
    }
    assert {token: tokenizer.token_to_id(token) for token in expected} == expected
    assert tokenizer.get_vocab_size() == shape.vocab
    assert sorted(tokenizer.get_vocab().values()) == list(range(shape.vocab))


def test_text_is_bytes_and_comes_back(tmp_path: Path) -> None:
    make_checkpoint("micro", 0, tmp_path / "made", codec=False)
    tokenizer = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    text = " Ein Märchen,\n\t漢字 \U0001f600 \x00\x7f end "
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a<|im_end|>b<|semantic:5|>").ids == [97, 257, 98, 325]


def _digests(directory: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in directory.iterdir()}


def test_the_seed_decides_the_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_checkpoint("micro", seed, tmp_path / name)
    first, again, other = (_digests(tmp_path / name) for name in "abc")
    assert first == again
    differing = {name for name in first if first[name] != other[name]}
    assert differing == {"model.safetensors", "codec.safetensors"}
    assert set(first) == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "codec_config.json",
        *differing,
    }


def test_without_a_codec(tmp_path: Path) -> None:
    make_checkpoint("micro", 0, tmp_path / "made", codec=False)
    assert inspect_checkpoint(tmp_path / "made").codec is None
    assert not list((tmp_path / "made").glob("codec*"))


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="one of micro, tiny, small, not 'huge'"):
        make_checkpoint("huge", 0, tmp_path / "made")
    with pytest.raises(InvalidRequest, match="seed must be an integer"):
        make_checkpoint("micro", -1, tmp_path / "made")
    (tmp_path / "file").write_text("x")
    with pytest.raises(Conflict, match="exists already"):
        make_checkpoint("micro", 0, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_default_checkpoint_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = default_checkpoint()
    assert first.is_relative_to(tmp_path / "declaim")
    assert load_model_config(first).backbone.hidden_size == 192
    (first / "mark").write_text("kept")
    assert default_checkpoint() == first
    assert (first / "mark").read_text() == "kept"
    assert model_directory("nano") == first


@pytest.mark.parametrize("name", ["./nano", "other", "/a/nano"])
def test_any_other_model_is_a_directory(name: str) -> None:
    assert model_directory(name) == Path(name)
