"""The checkpoint's tokenizer, checked once against its configuration.

Knows the special tokens that a speech prompt needs; knows no template and no request.
"""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from declaim.config.model import ModelConfig
from declaim.contracts.errors import InvalidCheckpoint, NotFound

FILE = "tokenizer.json"
MARKERS = ("<|im_start|>", "<|im_end|>", "<|voice|>")
"""Special tokens of the template."""

SPEAKERS = tuple(f"<|speaker:{number}|>" for number in range(16))
"""Special tokens that a caller may write, by speaker."""


class SpeechTokenizer:
    """Text to token ids; special tokens come from the text alone, none is added.

    speakers: the id of each speaker tag, by speaker.
    control: ids that only the template may use: every other special token and the semantic band.
    """

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        """Check a tokenizer for a checkpoint; from here on it belongs to this object.

        Raises InvalidCheckpoint for a token that is missing, misplaced or not read as one token,
        and for ids outside the vocabulary.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        _check_size(vocabulary, config.backbone.vocab_size)
        _check_band(vocabulary, *config.band)
        for token in (*MARKERS, *SPEAKERS):
            self._check_special(vocabulary, token)
        self.speakers = tuple(vocabulary[token] for token in SPEAKERS)
        added = tokenizer.get_added_tokens_decoder()
        special = {token for token, entry in added.items() if entry.special}
        special.update(vocabulary[token] for token in MARKERS)
        special.update(range(config.band[0], config.band[1] + 1))
        self.control = frozenset(special - set(self.speakers))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that UTF-8 can hold; special tokens in it become their ids."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def name(self, token: int) -> str:
        """A token as the vocabulary spells it."""
        return self._tokenizer.id_to_token(token) or f"token {token}"

    def _check_special(self, vocabulary: Mapping[str, int], token: str) -> None:
        wanted = vocabulary.get(token)
        if wanted is None:
            raise InvalidCheckpoint(
                f"{FILE} has no token {token}, which a speech prompt needs",
                param=FILE,
                limit=token,
            )
        if self.encode(token) != [wanted] or self.encode(f"a{token}a").count(wanted) != 1:
            raise InvalidCheckpoint(
                f"{FILE} must read {token} as the one token {wanted} wherever it stands",
                param=FILE,
                limit=wanted,
                value=token,
            )


def load_tokenizer(directory: Path, config: ModelConfig) -> SpeechTokenizer:
    """Read tokenizer.json of a checkpoint directory.

    Raises NotFound if the directory does not exist, InvalidCheckpoint if it has no readable
    tokenizer.json or one that does not fit the configuration.
    """
    if not directory.exists():
        raise NotFound(
            f"there is no checkpoint at {directory}", param="model", value=str(directory)
        )
    path = directory / FILE
    if not path.is_file():
        raise InvalidCheckpoint(
            f"{directory} has no {FILE}, so it cannot read text", param=FILE, value=str(directory)
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise InvalidCheckpoint(
            f"{FILE} cannot be read as a tokenizer: {error}", param=FILE, value=str(path)
        ) from error
    return SpeechTokenizer(tokenizer, config)


def _check_size(vocabulary: Mapping[str, int], size: int) -> None:
    token, largest = max(vocabulary.items(), key=lambda item: item[1], default=("", -1))
    if largest >= size:
        raise InvalidCheckpoint(
            f"{FILE} gives {token} the id {largest}, outside the {size} ids of "
            "text_config.vocab_size",
            param=FILE,
            limit=size - 1,
            value=largest,
        )


def _check_band(vocabulary: Mapping[str, int], first: int, last: int) -> None:
    for code, wanted in enumerate(range(first, last + 1)):
        token = f"<|semantic:{code}|>"
        found = vocabulary.get(token)
        if found != wanted:
            where = "no id" if found is None else f"the id {found}"
            raise InvalidCheckpoint(
                f"{FILE} gives {token} {where}, but the semantic band [{first}, {last}] "
                f"of config.json puts it at {wanted}",
                param=FILE,
                limit=wanted,
                value=found,
            )
