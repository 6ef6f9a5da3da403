"""A small byte-level tokenizer whose merges cross the seams of the template."""

from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from declaim.config.checkpoint import parse_model_config
from declaim.config.model import ModelConfig
from declaim.nano.shapes import SHAPES
from declaim.text.prompt import PromptBuilder
from declaim.text.tokenizer import SpeechTokenizer

SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|voice|>",
    "<|endoftext|>",
    *(f"<|speaker:{number}|>" for number in range(16)),
]
MERGES = [("Ċ", "c"), (":", "Ċ"), ("Ċ", "Ġ"), ("Ċ", "Ċ"), ("Ġ", "Ġ"), ("o", "n"), ("Ġ", "t")]
BAND_START, BAND_WIDTH, VOCABULARY = 320, 64, 512


def make_tokenizer(*, lower: bool = False) -> Tokenizer:
    """Ids: bytes, merged pairs, special tokens from 280, the band from 320.

    lower: text is lowered before special tokens are looked for.
    """
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(characters)}
    for left, right in MERGES:
        vocabulary[left + right] = len(vocabulary)
    while len(vocabulary) < 280:
        vocabulary[f"unused {len(vocabulary)}"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    if lower:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [*SPECIAL, *(f"<|unused:{token}|>" for token in range(280 + len(SPECIAL), BAND_START))]
    names += [f"<|semantic:{code}|>" for code in range(BAND_WIDTH)]
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=lower, special=True) for name in names]
    )
    tokenizer.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    return tokenizer


@pytest.fixture(scope="session")
def build_tokenizer() -> Callable[..., Tokenizer]:
    """A fresh tokenizer, to be changed at will; lower=True lowers text first."""
    return make_tokenizer


@pytest.fixture(scope="session")
def config() -> ModelConfig:
    """4 codebooks of 64 codes, band 320 to 383, vocabulary 512, context 16384."""
    return parse_model_config(SHAPES["micro"].config)


@pytest.fixture(scope="session")
def raw() -> Tokenizer:
    """The tokenizer on its own."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def builder(config: ModelConfig) -> PromptBuilder:
    return PromptBuilder(SpeechTokenizer(make_tokenizer(), config), config)
