"""Loading a checkpoint's tokenizer and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from declaim.config.checkpoint import load_model_config
from declaim.config.model import ModelConfig
from declaim.contracts.errors import InvalidCheckpoint, NotFound
from declaim.text.tokenizer import SpeechTokenizer, load_tokenizer

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def edited(
    tmp_path: Path, build_tokenizer: Callable[..., Tokenizer]
) -> Callable[[Callable[[dict[str, Any]], None]], Path]:
    """A directory whose tokenizer.json was changed as an object."""

    def make(edit: Edit) -> Path:
        content = json.loads(build_tokenizer().to_str())
        edit(content)
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return make


def rename(old: str, new: str) -> Edit:
    def edit(content: dict[str, Any]) -> None:
        for token in content["added_tokens"]:
            if token["content"] == old:
                token["content"] = new

    return edit


def test_ids(
    edited: Callable[[Edit], Path], config: ModelConfig, build_tokenizer: Callable[..., Tokenizer]
) -> None:
    tokenizer = load_tokenizer(edited(lambda content: None), config)
    assert tokenizer.speakers == tuple(range(284, 300))
    assert {280, 281, 282, 283, *range(300, 384)} == tokenizer.control
    raw = build_tokenizer()
    text = "Ünï ☃ on the <|speaker:7|>\n\n<|voice|>"
    assert tokenizer.encode(text) == raw.encode(text, add_special_tokens=False).ids
    assert tokenizer.name(282) == "<|voice|>"


def test_control_tokens_that_the_file_does_not_call_special(
    edited: Callable[[Edit], Path], config: ModelConfig
) -> None:
    def plain(content: dict[str, Any]) -> None:
        for token in content["added_tokens"]:
            token["special"] = False

    tokenizer = load_tokenizer(edited(plain), config)
    assert tokenizer.control == {280, 281, 282, *range(320, 384)}
    assert tokenizer.encode("a<|speaker:0|>") == [*tokenizer.encode("a"), 284]


def test_the_random_checkpoints_tokenizer(checkpoint: Callable[[str], Path]) -> None:
    directory = checkpoint("micro")
    tokenizer = load_tokenizer(directory, load_model_config(directory))
    assert tokenizer.encode("a<|speaker:15|>") == [ord("a"), 276]
    assert {259, 260} <= tokenizer.control


def test_nothing_is_added_cut_or_padded(config: ModelConfig, checkpoint: Any) -> None:
    raw = Tokenizer.from_file(str(checkpoint("micro") / "tokenizer.json"))
    from tokenizers.processors import TemplateProcessing

    raw.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[("<|im_start|>", 256), ("<|im_end|>", 257)],
    )
    raw.enable_truncation(3)
    raw.enable_padding(length=5)
    assert len(raw.encode("abcd").ids) == 5
    tokenizer = SpeechTokenizer(raw, config)
    assert tokenizer.encode("abcd") == [97, 98, 99, 100]
    assert tokenizer.encode("a") == [97]


@pytest.mark.parametrize(
    "token",
    ["<|im_start|>", "<|im_end|>", "<|voice|>", "<|speaker:0|>", "<|speaker:15|>"],
)
def test_a_missing_token(edited: Callable[[Edit], Path], config: ModelConfig, token: str) -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        load_tokenizer(edited(rename(token, "<|other|>")), config)
    assert caught.value.message == (
        f"tokenizer.json has no token {token}, which a speech prompt needs"
    )
    assert caught.value.param == "tokenizer.json"


@pytest.mark.parametrize("code", [0, 31, 63])
def test_a_hole_in_the_band(edited: Callable[[Edit], Path], config: ModelConfig, code: int) -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        load_tokenizer(edited(rename(f"<|semantic:{code}|>", "<|other|>")), config)
    assert f"gives <|semantic:{code}|> no id" in caught.value.message
    assert caught.value.limit == 320 + code


def test_a_band_elsewhere(edited: Callable[[Edit], Path], config: ModelConfig) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"<\|semantic:0\|> the id 320, .* puts it at 321"):
        load_tokenizer(edited(lambda content: None), replace(config, band=(321, 384)))


def test_two_codes_swapped(edited: Callable[[Edit], Path], config: ModelConfig) -> None:
    def swap(content: dict[str, Any]) -> None:
        rename("<|semantic:8|>", "<|kept|>")(content)
        rename("<|semantic:9|>", "<|semantic:8|>")(content)
        rename("<|kept|>", "<|semantic:9|>")(content)

    with pytest.raises(InvalidCheckpoint, match=r"<\|semantic:8\|> the id 329, .* at 328"):
        load_tokenizer(edited(swap), config)


def test_ids_outside_the_vocabulary(edited: Callable[[Edit], Path], config: ModelConfig) -> None:
    directory = edited(lambda content: None)
    small = replace(config, backbone=replace(config.backbone, vocab_size=385))
    load_tokenizer(directory, small)
    small = replace(config, backbone=replace(config.backbone, vocab_size=384))
    with pytest.raises(InvalidCheckpoint, match="<think> the id 384, outside the 384 ids"):
        load_tokenizer(directory, small)


def test_a_token_that_is_not_read_whole(
    edited: Callable[[Edit], Path], config: ModelConfig
) -> None:
    def plain(content: dict[str, Any]) -> None:
        """The tag is an entry of the vocabulary that no merge reaches."""
        rename("<|speaker:3|>", "<|other|>")(content)
        vocabulary = content["model"]["vocab"]
        unused = next(name for name in vocabulary if name.startswith("unused"))
        vocabulary["<|speaker:3|>"] = vocabulary.pop(unused)

    with pytest.raises(InvalidCheckpoint, match=r"must read <\|speaker:3\|> as the one token"):
        load_tokenizer(edited(plain), config)


def test_a_token_that_is_read_between_spaces_only(
    edited: Callable[[Edit], Path], config: ModelConfig
) -> None:
    def single_word(content: dict[str, Any]) -> None:
        for token in content["added_tokens"]:
            token["single_word"] = True

    with pytest.raises(InvalidCheckpoint, match=r"must read <\|im_start\|> .* wherever it stands"):
        load_tokenizer(edited(single_word), config)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"\xff\xfe", b"[1, 2]", b'{"model": 3}'])
def test_a_corrupt_file(tmp_path: Path, config: ModelConfig, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InvalidCheckpoint) as caught:
        load_tokenizer(tmp_path, config)
    assert caught.value.message.startswith("tokenizer.json cannot be read as a tokenizer")


def test_paths_that_hold_no_tokenizer(tmp_path: Path, config: ModelConfig) -> None:
    with pytest.raises(NotFound, match="there is no checkpoint at"):
        load_tokenizer(tmp_path / "absent", config)
    with pytest.raises(InvalidCheckpoint, match="has no tokenizer.json"):
        load_tokenizer(tmp_path, config)
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(InvalidCheckpoint, match="has no tokenizer.json"):
        load_tokenizer(tmp_path, config)
