"""What a prompt is not built from, and what the refusal says."""

import unicodedata
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer

from declaim.config.model import ModelConfig
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import Reference
from declaim.text.prompt import WHITE_SPACE, PromptBuilder
from declaim.text.tokenizer import SpeechTokenizer

CODES = np.zeros((4, 2), dtype=np.int64)

REFUSED_TEXTS = [
    ("", "white space"),
    (" \n\t", "white space"),
    ("\u3000\u2028\x85\xa0\u1680\u205f", "white space"),
    ("a<|im_start|>", "<|im_start|>"),
    ("<|im_end|>", "<|im_end|>"),
    ("a <|voice|> b", "<|voice|>"),
    ("a <|text|>", "<|text|>"),
    ("<|interleave|>", "<|interleave|>"),
    ("<|semantic:", "<|semantic:"),
    ("<|semantic:3|>", "<|semantic:"),
    ("a <|endoftext|> b", "<|endoftext|>"),
    ("<|unused:310|>", "<|unused:310|>"),
    ("<|speaker", "'<|speaker'"),
    ("<|speaker:", "'<|speaker:'"),
    ("<|speaker:16|>", "'<|speaker:16|>'"),
    ("<|speaker:00|>", "'<|speaker:00|>'"),
    ("<|speaker:01|> a", "'<|speaker:01|> a'"),
    ("<|speaker:-1|>", "'<|speaker:-1|>'"),
    ("<|speaker:\u0663|>", "'<|speaker:\u0663|>'"),
    ("<|speaker: 1|>", "'<|speaker: 1|>'"),
    ("<|speaker:1|", "'<|speaker:1|'"),
    ("<|speakers|>", "'<|speakers|>'"),
    ("<|speaker:1|> fine, but <|speaker:99|> not", "'<|speaker:99|> not'"),
    ("<|speaker:<|speaker:1|>", "'<|speaker:<|speaker:'"),
    ("a\ud800b", "character 1 is the lone surrogate U+D800"),
    ("\udfff", "character 0 is the lone surrogate U+DFFF"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED_TEXTS)
def test_refused_text(builder: PromptBuilder, text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        builder.build(text)
    assert caught.value.param == "text"
    assert caught.value.message.startswith("text must ")
    assert said in caught.value.message
    assert caught.value.limit is not None
    caught.value.message.encode("utf-8")


@pytest.mark.parametrize(("text", "said"), REFUSED_TEXTS)
def test_refused_transcript(builder: PromptBuilder, text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        builder.build("Hi", [Reference("fine", CODES), Reference(text, CODES)])
    assert caught.value.param == "references[1].text"
    assert said in caught.value.message


@pytest.mark.parametrize("text", [None, b"Hi", 3])
def test_text_of_another_type(builder: PromptBuilder, text: object) -> None:
    with pytest.raises(InvalidRequest, match="text must be a string"):
        builder.build(text)  # type: ignore[arg-type]


def test_white_space_is_unicodes_own() -> None:
    """The separators Zs, Zl and Zp and the controls that are line breaks, tab or space."""
    separators = {chr(i) for i in range(0x110000) if unicodedata.category(chr(i))[0] == "Z"}
    assert set(WHITE_SPACE) == separators | set("\t\n\v\f\r\x85")
    assert len(WHITE_SPACE) == len(set(WHITE_SPACE)) == 25


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        (np.zeros((4, 2)), "not float64"),
        (np.zeros((4, 2), dtype=bool), "not bool"),
        (np.array([["a"] * 2] * 4), "not <U1"),
        ([[0]] * 4, "of type list"),
        (np.zeros((3, 2), dtype=np.int64), "[4, at least 1 frame], not [3, 2]"),
        (np.zeros((2, 4), dtype=np.int64), "not [2, 4]"),
        (np.zeros((4, 0), dtype=np.int64), "not [4, 0]"),
        (np.zeros(4, dtype=np.int64), "not [4]"),
        (np.zeros((1, 4, 2), dtype=np.int64), "not [1, 4, 2]"),
        (np.zeros((), dtype=np.int64), "not []"),
        (np.full((4, 1), -1), "[0, 63], but one code is -1"),
        (np.full((4, 1), 64), "[0, 63], but one code is 64"),
        (np.full((4, 1), 2**64 - 1, dtype=np.uint64), f"one code is {2**64 - 1}"),
        (np.full((4, 1), 2**32), f"one code is {2**32}"),
    ],
)
def test_refused_codes(builder: PromptBuilder, codes: object, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        builder.build("Hi", [Reference("One", codes)])  # type: ignore[arg-type]
    assert caught.value.param == "references[0].codes"
    assert said in caught.value.message


def test_rows_up_to_the_limit(builder: PromptBuilder) -> None:
    fixed = len(builder.build("a").rows) - 1
    assert len(builder.build("a" * (8192 - fixed)).rows) == 8192
    with pytest.raises(InvalidRequest) as caught:
        builder.build("a" * (8193 - fixed))
    assert (caught.value.param, caught.value.limit, caught.value.value) == ("text", 8192, 8193)
    assert "8193 rows, more than the 8192 a prompt may have" in caught.value.message


def test_reference_frames_count(builder: PromptBuilder) -> None:
    with pytest.raises(InvalidRequest, match="more than the 8192"):
        builder.build("Hi", [Reference("One", np.zeros((4, 8192), dtype=np.int64))])


def test_rows_up_to_the_context(
    config: ModelConfig, build_tokenizer: Callable[..., Tokenizer], builder: PromptBuilder
) -> None:
    rows = len(builder.build("Hi").rows)
    tokenizer = SpeechTokenizer(build_tokenizer(), config)
    assert len(PromptBuilder(tokenizer, replace(config, context=rows)).build("Hi").rows) == rows
    with pytest.raises(InvalidRequest) as caught:
        PromptBuilder(tokenizer, replace(config, context=rows - 1)).build("Hi")
    assert f"{rows} rows, more than the {rows - 1} the context holds" in caught.value.message


def test_special_tokens_that_only_the_tokenizer_sees(
    config: ModelConfig, build_tokenizer: Callable[..., Tokenizer]
) -> None:
    lowering = PromptBuilder(SpeechTokenizer(build_tokenizer(lower=True), config), config)
    with pytest.raises(InvalidRequest, match=r"reads as <\|im_end\|>"):
        lowering.build("a <|IM_END|>")
    with pytest.raises(InvalidRequest, match=r"reads as <\|semantic:5\|>"):
        lowering.build("a <|Semantic:5|>")
    with pytest.raises(InvalidRequest, match=r"speaker tags \[0\], but the tokenizer reads \[0, 1"):
        lowering.build("a <|SPEAKER:1|>")
