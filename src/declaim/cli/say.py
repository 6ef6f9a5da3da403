"""`declaim say`: a text into a WAV file."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from declaim.cli.outputs import prepare_output


def say(
    text: Annotated[str, typer.Argument(help="What to speak.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="16-bit WAV file.")] = Path(
        "speech.wav"
    ),
    model: Annotated[Path | None, typer.Option(help="Model directory.")] = None,
    codec: Annotated[
        Path | None, typer.Option(help="Codec file or directory; default: the model's.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Repeats a run exactly; fresh if absent.")
    ] = None,
    max_frames: Annotated[int | None, typer.Option(help="Most frames, 1 to 2048.")] = None,
) -> None:
    """Speak a text into a WAV file."""
    prepare_output(output, "-o")
    from declaim.api import say as speak
    from declaim.audio.wav import write_wav
    from declaim.nano.make import default_checkpoint

    if model is None:
        model = default_checkpoint()
        print(
            f"declaim: WARNING: no --model given; {model} has RANDOM WEIGHTS: "
            "this is noise, not speech",
            file=sys.stderr,
        )
    start = time.perf_counter()
    speech = speak(text, model=model, codec=codec, seed=seed, max_frames=max_frames)
    seconds = time.perf_counter() - start
    write_wav(output, speech.samples, speech.rate)
    duration = len(speech.samples) / speech.rate
    print(
        f"{output}: {len(speech.frames)} frames, {duration:.2f} s of sound in {seconds:.2f} s, "
        f"finish {speech.reason}, seed {speech.seed}",
        file=sys.stderr,
    )
