"""Text and reference voices to the rows of a prompt, by the template reference-bracket-v1.

The template is a list of pieces, each tokenised alone: joining two of them would change ids where
they meet. Knows no device and no audio.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from declaim.config.model import ModelConfig
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import Prompt, Reference, shown
from declaim.text.tokenizer import SpeechTokenizer

MAX_PROMPT_ROWS = 8192
"""Most rows of a prompt, whatever the context."""

WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space, exactly: str.isspace also counts the separators U+001C to U+001F."""

USER_OPENING = "<|im_start|>user\n"
"""What opens the user turn; all rows up to here depend on the voices alone."""

REFUSED = ("<|im_start|>", "<|im_end|>", "<|voice|>", "<|text|>", "<|interleave|>", "<|semantic:")
"""What no caller's text may contain."""

_DEFAULT_TAG = "<|speaker:0|>"
_TAG_START = re.compile(re.escape("<|speaker"))
_TAG = re.compile(r"<\|speaker:(1[0-5]|[0-9])\|>")


class PromptBuilder:
    """Builds the prompts of one checkpoint."""

    def __init__(self, tokenizer: SpeechTokenizer, config: ModelConfig) -> None:
        self._tokenizer = tokenizer
        self._band_start = config.band[0]
        self._codebooks = config.tower.num_codebooks
        self._codebook_size = config.tower.codebook_size
        self._context = config.context

    def build(self, text: str, references: Sequence[Reference] = ()) -> Prompt:
        """The prompt that speaks `text` in the references' voices.

        Raises InvalidRequest naming `text`, `references[i].text` or `references[i].codes`: for a
        blank text, a special token other than a whole speaker tag, a lone surrogate, codes that
        are not integers [Q, frames >= 1] in [0, V), and too many rows.
        """
        _check_text(text, "text")
        for index, reference in enumerate(references):
            _check_text(reference.text, f"references[{index}].text")
            self._check_codes(reference.codes, f"references[{index}].codes")
        parts = [*self._system(references), self._template(USER_OPENING)]
        prefix_rows = sum(map(len, parts))
        parts += [
            self._spoken(_tagged_text(text), "text"),
            self._template("<|im_end|>\n"),
            self._template("<|im_start|>assistant\n<|voice|>"),
        ]
        self._check_rows(sum(map(len, parts)))
        return Prompt(rows=np.concatenate(parts), prefix_rows=prefix_rows)

    def _system(self, references: Sequence[Reference]) -> list[NDArray[np.int32]]:
        task = "convert the provided text to speech"
        if references:
            task += " reference to the following:"
        parts = [self._template("<|im_start|>system\n"), self._template(task)]
        for index, reference in enumerate(references):
            tagged = _tagged_transcript(reference.text)
            piece = f"\n\n[Reference {index + 1}]\nText: {tagged}\nSpeech: "
            parts.append(self._spoken(piece, f"references[{index}].text"))
            parts.append(self._audio_rows(reference))
        parts.append(self._template("<|im_end|>\n"))
        return parts

    def _template(self, piece: str) -> NDArray[np.int32]:
        """Rows of a piece without a caller's text."""
        return self._text_rows(self._tokenizer.encode(piece))

    def _spoken(self, piece: str, name: str) -> NDArray[np.int32]:
        """Rows of a piece that holds a caller's text; `name` is its parameter."""
        ids = self._tokenizer.encode(piece)
        control = next((token for token in ids if token in self._tokenizer.control), None)
        if control is not None:
            raise InvalidRequest(
                f"{name} must not contain what the tokenizer reads as "
                f"{self._tokenizer.name(control)}",
                param=name,
                limit="no special token but <|speaker:0|> to <|speaker:15|>",
                value=self._tokenizer.name(control),
            )
        speakers = self._tokenizer.speakers
        found = [speakers.index(token) for token in ids if token in speakers]
        written = [int(number) for number in _TAG.findall(piece)]
        if found != written:
            raise InvalidRequest(
                f"{name} holds the speaker tags {written}, but the tokenizer reads {found}",
                param=name,
                limit=written,
                value=found,
            )
        return self._text_rows(ids)

    def _text_rows(self, ids: list[int]) -> NDArray[np.int32]:
        rows = np.zeros((len(ids), 1 + self._codebooks), dtype=np.int32)
        rows[:, 0] = ids
        return rows

    def _audio_rows(self, reference: Reference) -> NDArray[np.int32]:
        assert reference.codes is not None
        codes = reference.codes.astype(np.int32)  # [Q, frames]
        return np.concatenate([codes[:1] + self._band_start, codes]).T

    def _check_codes(self, codes: object, name: str) -> None:
        wanted = f"integers [{self._codebooks}, at least 1 frame]"
        if not isinstance(codes, np.ndarray) or codes.dtype.kind not in "iu":
            found = f"{codes.dtype}" if isinstance(codes, np.ndarray) else shown(codes)
            raise InvalidRequest(
                f"{name} must be {wanted}, not {found}", param=name, limit=wanted, value=found
            )
        if codes.ndim != 2 or codes.shape[0] != self._codebooks or codes.shape[1] == 0:
            shape = list(codes.shape)
            raise InvalidRequest(
                f"{name} must be {wanted}, not {shape}", param=name, limit=wanted, value=shape
            )
        low, high = int(codes.min()), int(codes.max())
        if low < 0 or high >= self._codebook_size:
            limit = f"[0, {self._codebook_size - 1}]"
            value = low if low < 0 else high
            raise InvalidRequest(
                f"{name} must be in {limit}, but one code is {value}",
                param=name,
                limit=limit,
                value=value,
            )

    def _check_rows(self, rows: int) -> None:
        limit = min(MAX_PROMPT_ROWS, self._context)
        if rows > limit:
            what = "a prompt may have" if limit == MAX_PROMPT_ROWS else "the context holds"
            raise InvalidRequest(
                f"text and references make a prompt of {rows} rows, more than the {limit} {what}",
                param="text",
                limit=limit,
                value=rows,
            )


def prefix_of(rows: NDArray[np.int32], tokenizer: SpeechTokenizer) -> int:
    """How many rows [rows, 1 + Q] end with the last opening of a user turn; 0 without one."""
    opening = np.array(tokenizer.encode(USER_OPENING))
    for end in range(len(rows), len(opening) - 1, -1):
        if np.array_equal(rows[end - len(opening) : end, 0], opening):
            return end
    return 0


def _check_text(text: object, name: str) -> None:
    if not isinstance(text, str):
        raise InvalidRequest(
            f"{name} must be a string, not {shown(text)}", param=name, limit="a string", value=text
        )
    if not text.strip(WHITE_SPACE):
        raise InvalidRequest(
            f"{name} must hold more than white space, not {shown(text)}",
            param=name,
            limit="more than white space",
            value=text,
        )
    surrogate = re.search("[\ud800-\udfff]", text)
    if surrogate:
        raise InvalidRequest(
            f"{name} must be Unicode text, but character {surrogate.start()} is the lone "
            f"surrogate U+{ord(surrogate[0]):04X}",
            param=name,
            limit="no lone surrogate",
            value=f"U+{ord(surrogate[0]):04X}",
        )
    for marker in REFUSED:
        if marker in text:
            raise InvalidRequest(
                f"{name} must not contain {marker}",
                param=name,
                limit=f"none of {' '.join(REFUSED)}",
                value=marker,
            )
    for start in _TAG_START.finditer(text):
        if not _TAG.match(text, start.start()):
            found = text[start.start() : start.start() + 20]
            raise InvalidRequest(
                f"{name} must spell speaker tags <|speaker:0|> to <|speaker:15|>, not {found!r}",
                param=name,
                limit="<|speaker:0|> to <|speaker:15|>",
                value=found,
            )


def _tagged_text(text: str) -> str:
    """The input text, led by a speaker tag; one that is there stays where it is."""
    return text if _TAG.match(text.lstrip(WHITE_SPACE)) else f"{_DEFAULT_TAG} {text}"


def _tagged_transcript(text: str) -> str:
    """A reference's transcript, led by a speaker tag; white space before one moves behind it."""
    bare = text.lstrip(WHITE_SPACE)
    tag = _TAG.match(bare)
    if tag is None:
        return f"{_DEFAULT_TAG} {text}"
    return tag[0] + text[: len(text) - len(bare)] + bare[tag.end() :]
