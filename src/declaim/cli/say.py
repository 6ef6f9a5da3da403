"""`declaim say`: a text into a WAV file, or raw samples to stdout while they are made."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from declaim.cli.outputs import prepare_output
from declaim.contracts.errors import InvalidRequest

STDIO = "-"


def say(
    text: Annotated[str, typer.Argument(help="What to speak; - reads it from stdin.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="16-bit WAV file; - writes raw PCM to stdout.")
    ] = Path("speech.wav"),
    reference: Annotated[
        list[Path] | None, typer.Option(help="Clip of a voice to imitate, 1 to 60 seconds; repeat.")
    ] = None,
    reference_text: Annotated[
        list[str] | None, typer.Option(help="What the clip says; one per --reference.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Repeats a run exactly; fresh if absent.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 to 2.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Above 0, at most 1.")] = None,
    top_k: Annotated[int | None, typer.Option(help="At least 1.")] = None,
    max_frames: Annotated[int | None, typer.Option(help="Most frames, 1 to 2048.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model directory.")] = None,
    codec: Annotated[
        Path | None, typer.Option(help="Codec file or directory; default: the model's.")
    ] = None,
    deploy: Annotated[str | None, typer.Option(help="Deploy file, or a preset's name.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, as key=value; repeat.")
    ] = None,
) -> None:
    """Speak a text into a WAV file.

    Without a model it makes a random one, once, and what it says is noise.
    """
    references = _references(reference or [], reference_text or [])
    if str(output) != STDIO:
        prepare_output(output, "-o")
    if text == STDIO:
        text = _read_stdin()
    from declaim.api import Setup
    from declaim.api import say as speak

    progress = _Progress(to_stdout=str(output) == STDIO)
    speech = speak(
        text,
        setup=Setup(model, codec, deploy, tuple(assignments or ())),
        references=references,
        seed=seed,
        max_frames=max_frames,
        on_open=progress.note,
        on_chunk=progress.chunk,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
    )
    if not progress.to_stdout:
        from declaim.audio.wav import write_wav

        write_wav(output, speech.samples, speech.rate)
    outcome = speech.outcome
    progress.line(f"{output}: {outcome.frames} frames", speech.rate)
    print(f"; finish {outcome.reason}, seed {outcome.seed}", file=sys.stderr)


def _references(clips: list[Path], words: list[str]) -> list[tuple[Path, str]]:
    if len(clips) != len(words):
        raise InvalidRequest(
            f"--reference-text must be given once per --reference: {len(clips)} clips, "
            f"{len(words)} texts",
            param="--reference-text",
            limit=len(clips),
            value=len(words),
        )
    return list(zip(clips, words, strict=True))


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8").strip("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            "the text on stdin is not UTF-8", param="text", value=f"byte {error.start}"
        ) from error


class _Progress:
    """One line on stderr that grows with the sound; raw PCM on stdout where that is asked for."""

    def __init__(self, *, to_stdout: bool) -> None:
        self.to_stdout = to_stdout
        self.started = time.perf_counter()
        self.first_audio: float | None = None
        self.samples = 0

    def note(self, lines: tuple[str, ...]) -> None:
        """What the engine has to say before it starts."""
        for text in lines:
            print(f"declaim: {text}", file=sys.stderr)
        self.started = time.perf_counter()

    def chunk(self, samples: Any, rate: int) -> None:
        """Samples have arrived."""
        if self.first_audio is None:
            self.first_audio = time.perf_counter() - self.started
        self.samples += len(samples)
        if self.to_stdout:
            from declaim.audio.wav import to_int16

            sys.stdout.buffer.write(to_int16(samples)[0].astype("<i2").tobytes())
            sys.stdout.buffer.flush()
        if sys.stderr.isatty():
            print("\r", end="", file=sys.stderr)
            self.line("speaking", rate)

    def line(self, head: str, rate: int) -> None:
        """Length, real-time factor (time from request to last sample over sound) and first audio.

        The line is not ended: more may follow.
        """
        seconds = self.samples / rate
        spent = time.perf_counter() - self.started
        factor = f"RTF {spent / seconds:.2f}" if seconds else "no sound"
        first = "" if self.first_audio is None else f", first audio {self.first_audio:.2f} s"
        text = f"{head}, {seconds:.2f} s of sound in {spent:.2f} s, {factor}{first}"
        print(text, end="", file=sys.stderr, flush=True)
