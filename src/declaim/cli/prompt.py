"""`declaim prompt`: a text and its reference voices into prompt rows."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from declaim.cli.arrays import read_integers, write_integers
from declaim.cli.outputs import prepare_output
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import Reference


def prompt(
    text: Annotated[str, typer.Argument(help="What to speak.")],
    model: Annotated[Path, typer.Option(help="Model directory.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Prompt rows, int64 [rows, 1 + Q].")
    ],
    reference_codes: Annotated[
        list[Path] | None, typer.Option(help="A voice's codes, integers [Q, frames]; repeat.")
    ] = None,
    reference_text: Annotated[
        list[str] | None, typer.Option(help="Its transcript; one per --reference-codes.")
    ] = None,
) -> None:
    """Turn a text into prompt rows.

    Prints how many of them depend on the voices alone.
    """
    codes, texts = reference_codes or [], reference_text or []
    if len(codes) != len(texts):
        raise InvalidRequest(
            f"--reference-text must be given once per --reference-codes: {len(codes)} codes, "
            f"{len(texts)} texts",
            param="--reference-text",
            limit=len(codes),
            value=len(texts),
        )
    prepare_output(output, "-o")
    from declaim.config.checkpoint import load_model_config
    from declaim.text.prompt import PromptBuilder
    from declaim.text.tokenizer import load_tokenizer

    config = load_model_config(model)
    builder = PromptBuilder(load_tokenizer(model, config), config)
    references = [
        Reference(transcript, read_integers(path, "--reference-codes"))
        for path, transcript in zip(codes, texts, strict=True)
    ]
    made = builder.build(text, references)
    write_integers(output, made.rows.astype(np.int64))
    print(f"prefix_rows {made.prefix_rows}")
