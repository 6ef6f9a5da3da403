"""A byte-level tokenizer with the special tokens a speech prompt needs, at stated ids.

Ids: 0 to 255 the bytes, 256 on the named tokens, then reserved ones up to the semantic band, the
band, and reserved ones up to the vocabulary's end. There are no merges.
"""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from declaim.checkpoint.writer import write_json
from declaim.nano.shapes import CONTEXT, Shape

NAMED = (
    "<|im_start|>",
    "<|im_end|>",
    "<|voice|>",
    "<|text|>",
    "<|interleave|>",
    *(f"<|speaker:{number}|>" for number in range(16)),
)
"""Special tokens from id 256 on, in order."""


def write_tokenizer(directory: Path, shape: Shape) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    text = build_tokenizer(shape).to_str(pretty=True)
    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT,
        },
    )


def build_tokenizer(shape: Shape) -> Tokenizer:
    """The tokenizer of a shape; its size is the model's vocabulary."""
    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in _special_tokens(shape)]
    )
    return tokenizer


def _byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies, by byte.

    Printable bytes of Latin-1 stand for themselves, the others for code points from 256 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _special_tokens(shape: Shape) -> list[str]:
    """Names of ids 256 to the vocabulary's end."""
    names = [f"<|reserved:{token}|>" for token in range(shape.vocab)]
    names[256 : 256 + len(NAMED)] = NAMED
    for code in range(shape.codebook_size):
        names[shape.band_start + code] = f"<|semantic:{code}|>"
    return names[256:]
