"""declaim make-checkpoint: a random checkpoint of a stated shape."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text


def make_checkpoint(
    directory: Annotated[Path, typer.Argument(help="The directory to make.")],
    shape: Annotated[str, typer.Option(help="micro, tiny or small.")] = "tiny",
    seed: Annotated[int, typer.Option(help="The same seed gives the same weights.")] = 0,
    no_codec: Annotated[bool, typer.Option("--no-codec", help="Leave the codec out.")] = False,
) -> None:
    """Make a random checkpoint, which speaks noise.

    Weights, tokenizer and codec.
    """
    from declaim.nano.make import make_checkpoint as make

    make(shape, seed, directory, codec=not no_codec)
    codec = "without a codec" if no_codec else "with codec"
    Console().print(Text(f"made {directory}: {shape}, seed {seed}, {codec}"), soft_wrap=True)
