"""Makes complete random checkpoints: model, tokenizer and codec of a stated shape.

Random weights give noise, never speech; they are for tests, for measuring and for trying the path.
"""

from pathlib import Path

import declaim
from declaim.checkpoint.random import random_parameters
from declaim.checkpoint.writer import new_directory, write_model
from declaim.config.checkpoint import parse_model_config
from declaim.config.load import cache_directory
from declaim.contracts.errors import Conflict, InvalidRequest
from declaim.contracts.request import MAX_SEED, check_integer
from declaim.nano.codec import write_random_codec
from declaim.nano.shapes import GENERATION, SHAPES
from declaim.nano.tokenizer import write_tokenizer

BUNDLED = "nano"


def make_checkpoint(shape: str, seed: int, directory: Path, *, codec: bool = True) -> None:
    """Make a checkpoint directory of a shape (micro, tiny or small) with random weights.

    The same shape and seed give the same bytes of weights. Raises InvalidRequest for an unknown
    shape or a seed out of range, Conflict if the directory exists and is not empty. The directory
    appears whole or not at all.
    """
    if shape not in SHAPES:
        names = ", ".join(SHAPES)
        raise InvalidRequest(
            f"shape must be one of {names}, not {shape!r}", param="shape", limit=names, value=shape
        )
    check_integer("seed", seed, 0, MAX_SEED)
    chosen = SHAPES[shape]
    config = parse_model_config(chosen.config, GENERATION)
    with new_directory(directory) as unfinished:
        write_tokenizer(unfinished, chosen)
        weights = random_parameters(config, seed)
        write_model(unfinished, chosen.config, weights, generation=GENERATION)
        if codec:
            write_random_codec(unfinished, chosen.codec_config, seed)


def default_checkpoint() -> Path:
    """The tiny random checkpoint with seed 0, made once under the cache folder."""
    directory = cache_directory() / f"tiny-{declaim.__version__}"
    if not (directory / "config.json").is_file():
        try:
            make_checkpoint("tiny", 0, directory)
        except Conflict:
            if not (directory / "config.json").is_file():
                raise
    return directory


def model_directory(model: str) -> Path:
    """The directory that a deploy's `model` names; nano is the default checkpoint."""
    return default_checkpoint() if model == BUNDLED else Path(model)
