"""Prompt rows against the template's pieces, typed out and tokenised one by one."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer

from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import Reference
from declaim.text.prompt import PromptBuilder

Piece = str | NDArray[np.int64]

CODES = np.array([[5, 63, 0], [1, 2, 3], [60, 61, 62], [7, 7, 7]])
"""Three frames."""

CODES_ROWS = [[325, 5, 1, 60, 7], [383, 63, 2, 61, 7], [320, 0, 3, 62, 7]]
ONE_FRAME = np.array([[9], [8], [7], [6]], dtype=np.uint8)


def ids(raw: Tokenizer, text: str) -> list[int]:
    found: list[int] = raw.encode(text, add_special_tokens=False).ids
    return found


def rows_of(raw: Tokenizer, pieces: Sequence[Piece]) -> list[list[int]]:
    """Rows of the pieces: tokens with zeros, codes with the token of their first code."""
    rows: list[list[int]] = []
    for piece in pieces:
        if isinstance(piece, str):
            rows += [[token, 0, 0, 0, 0] for token in ids(raw, piece)]
        else:
            rows += [[320 + int(frame[0]), *map(int, frame)] for frame in piece.T]
    return rows


PLAIN = [
    "<|im_start|>system\n",
    "convert the provided text to speech",
    "<|im_end|>\n",
    "<|im_start|>user\n",
]
END = ["<|im_end|>\n", "<|im_start|>assistant\n<|voice|>"]


def test_a_text_alone(builder: PromptBuilder, raw: Tokenizer) -> None:
    prompt = builder.build("Hello on the moon.")
    assert prompt.rows.dtype == np.int32
    assert prompt.rows.tolist() == rows_of(raw, [*PLAIN, "<|speaker:0|> Hello on the moon.", *END])
    assert prompt.prefix_rows == len(rows_of(raw, PLAIN))


def test_two_references(builder: PromptBuilder, raw: Tokenizer) -> None:
    prompt = builder.build(
        "Now.", [Reference("One\ntwo.", CODES), Reference("<|speaker:1|>Other", ONE_FRAME)]
    )
    prefix: list[Piece] = [
        "<|im_start|>system\n",
        "convert the provided text to speech reference to the following:",
        "\n\n[Reference 1]\nText: <|speaker:0|> One\ntwo.\nSpeech: ",
        CODES,
        "\n\n[Reference 2]\nText: <|speaker:1|>Other\nSpeech: ",
        ONE_FRAME.astype(np.int64),
        "<|im_end|>\n",
        "<|im_start|>user\n",
    ]
    expected = rows_of(raw, [*prefix, "<|speaker:0|> Now.", *END])
    assert prompt.rows.tolist() == expected
    assert prompt.prefix_rows == len(rows_of(raw, prefix))


def test_audio_rows_are_literal(builder: PromptBuilder, raw: Tokenizer) -> None:
    rows = builder.build("Now.", [Reference("One", CODES)]).rows.tolist()
    start = rows.index(CODES_ROWS[0])
    assert rows[start : start + 3] == CODES_ROWS
    assert rows[start - 1] == [raw.token_to_id("Ġ"), 0, 0, 0, 0]
    assert rows[start + 3] == [raw.token_to_id("<|im_end|>"), 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("<|im_start|>system\n", "convert the provided text to speech"),
        (
            "convert the provided text to speech reference to the following:",
            "\n\n[Reference 1]\nText: <|speaker:0|> One\nSpeech: ",
        ),
        ("<|im_start|>user\n", "  <|speaker:2|>Hi"),
    ],
)
def test_seams_matter(raw: Tokenizer, left: str, right: str) -> None:
    assert ids(raw, left + right) != ids(raw, left) + ids(raw, right)


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("Hi", "<|speaker:0|> Hi"),
        ("  Hi ", "<|speaker:0|>   Hi "),
        ("<|speaker:0|> Hi", "<|speaker:0|> Hi"),
        ("<|speaker:15|>Hi", "<|speaker:15|>Hi"),
        ("<|speaker:3|>", "<|speaker:3|>"),
        ("  <|speaker:2|> Hi", "  <|speaker:2|> Hi"),
        ("\u2003\u3000\n<|speaker:2|>Hi", "\u2003\u3000\n<|speaker:2|>Hi"),
        ("\x1c<|speaker:2|>Hi", "<|speaker:0|> \x1c<|speaker:2|>Hi"),
        ("\u200b<|speaker:2|>Hi", "<|speaker:0|> \u200b<|speaker:2|>Hi"),
        ("tag later <|speaker:3|>", "<|speaker:0|> tag later <|speaker:3|>"),
        ("<|speaker:1|>a<|speaker:10|>b", "<|speaker:1|>a<|speaker:10|>b"),
        ("a <think> b", "<|speaker:0|> a <think> b"),
        ("\x1c", "<|speaker:0|> \x1c"),
        ("<|SPEAKER:1|> <|im_end", "<|speaker:0|> <|SPEAKER:1|> <|im_end"),
    ],
)
def test_tags_of_the_input(builder: PromptBuilder, raw: Tokenizer, text: str, piece: str) -> None:
    assert builder.build(text).rows.tolist() == rows_of(raw, [*PLAIN, piece, *END])


@pytest.mark.parametrize(
    ("transcript", "spoken"),
    [
        ("One", "<|speaker:0|> One"),
        (" One", "<|speaker:0|>  One"),
        ("<|speaker:4|> One", "<|speaker:4|> One"),
        ("  <|speaker:0|> One", "<|speaker:0|>   One"),
        ("\u3000<|speaker:11|>One", "<|speaker:11|>\u3000One"),
        (" <|speaker:1|> a <|speaker:2|>", "<|speaker:1|>  a <|speaker:2|>"),
        ("\x1f<|speaker:1|>a", "<|speaker:0|> \x1f<|speaker:1|>a"),
        ("tag later <|speaker:3|>", "<|speaker:0|> tag later <|speaker:3|>"),
    ],
)
def test_tags_of_a_transcript(
    builder: PromptBuilder, raw: Tokenizer, transcript: str, spoken: str
) -> None:
    pieces: list[Piece] = [
        "<|im_start|>system\n",
        "convert the provided text to speech reference to the following:",
        f"\n\n[Reference 1]\nText: {spoken}\nSpeech: ",
        CODES,
        "<|im_end|>\n",
        "<|im_start|>user\n",
        "<|speaker:0|> Hi",
        *END,
    ]
    rows = builder.build("Hi", [Reference(transcript, CODES)]).rows
    assert rows.tolist() == rows_of(raw, pieces)


def test_the_prefix_depends_on_the_voices_alone(builder: PromptBuilder) -> None:
    voices = [Reference("One", CODES)]
    first, second = builder.build("a", voices), builder.build("  <|speaker:3|> b", voices)
    assert first.prefix_rows == second.prefix_rows
    count = first.prefix_rows
    np.testing.assert_array_equal(first.rows[:count], second.rows[:count])


TEXT = st.lists(
    st.one_of(
        st.text(st.characters(), max_size=4),
        st.sampled_from(
            ["<|speaker:", "0|>", "15|>", "16|>", "01|>", "<|", "<|im_end|>", "<|endoftext|>"]
            + ["<|semantic", ":7|>", "<|speaker:3|>", " ", "\n", "\x85", "c", "<think>", "\ud800"]
        ),
    ),
    max_size=8,
).map("".join)


@given(TEXT)
@example("<|speaker:3|>")
@example("\n <|speaker:3|> a")
@settings(max_examples=200, deadline=None)
def test_any_text_is_refused_or_comes_back(
    builder: PromptBuilder, raw: Tokenizer, text: str
) -> None:
    try:
        prompt = builder.build(text)
    except InvalidRequest as error:
        assert error.param == "text"
        return
    assert not prompt.rows[:, 1:].any()
    spoken = prompt.rows[prompt.prefix_rows :, 0].tolist()
    end = spoken[-len(ids(raw, "".join(END))) :]
    decoded = raw.decode(spoken, skip_special_tokens=False)
    assert raw.decode(end, skip_special_tokens=False) == "".join(END)
    assert decoded in (text + "".join(END), f"<|speaker:0|> {text}" + "".join(END))
    leads = text.lstrip("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000").lstrip(
        "".join(map(chr, range(0x2000, 0x200B)))
    )
    assert decoded.startswith("<|speaker:0|> ") or leads.startswith("<|speaker:")
