"""`declaim bench`: step times and whole streams on this machine."""

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from declaim.contracts.request import MAX_FRAMES, check_integer

COLUMNS = 110
"""Of an output that is no terminal: the widest table is whole."""

LEAST_FRAMES = 3
"""A spread needs two decode steps; the first frame comes with the prompt's."""


def bench(
    shape: Annotated[str, typer.Option(help="micro, tiny or small.")] = "tiny",
    frames: Annotated[int, typer.Option(help="Frames of a request, 3 to 2048.")] = 200,
    repeats: Annotated[int, typer.Option(help="Runs of the long request.")] = 3,
) -> None:
    """Measure this machine with a random checkpoint.

    Steps by phase, long requests and whole streams, each stage on one thread.
    """
    check_integer("--frames", frames, LEAST_FRAMES, MAX_FRAMES)
    check_integer("--repeats", repeats, 1, 1000)
    from declaim.bench.frames import long_request, step_phases
    from declaim.bench.report import environment, print_line
    from declaim.bench.streams import stream_times
    from declaim.config.checkpoint import load_model_config
    from declaim.nano.make import make_checkpoint

    console = Console(stderr=True, width=None if sys.stderr.isatty() else COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / shape
        make_checkpoint(shape, 0, directory)
        config = load_model_config(directory)
        phases = [
            step_phases(directory, config, streams=streams, rows=60, steps=frames)
            for streams in (1, 8)
        ]
        longs = [
            long_request(directory, config, rows=rows, frames=frames, repeats=repeats)
            for rows in (300, 1000)
        ]
        whole = [
            stream_times(directory, streams=streams, rounds=repeats, frames=frames)
            for streams in (1, 4, 8)
        ]
    console.print(_phase_table(phases))
    console.print(_long_table(longs))
    console.print(_stream_table(whole))
    print_line(
        {
            "environment": environment(threads=1),
            "shape": shape,
            "steps": [_plain(result) for result in phases],
            "long": [_plain(result) for result in longs],
            "streams": whole,
        }
    )


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    return {**result, "step": asdict(result["step"])}


def _phase_table(results: list[dict[str, Any]]) -> Table:
    table = Table(title="Decode step by phase, median milliseconds")
    table.add_column("streams", justify="right")
    table.add_column("step (p10 to p90)", justify="right")
    for phase in results[0]["phases"]:
        table.add_column(phase, justify="right")
    for result in results:
        step = result["step"]
        table.add_row(
            str(result["streams"]),
            f"{step.median:.2f} ({step.p10:.2f} to {step.p90:.2f})",
            *(f"{value:.2f}" for value in result["phases"].values()),
        )
    return table


def _long_table(results: list[dict[str, Any]]) -> Table:
    table = Table(title="One request, whole")
    for name in ("prompt rows", "frames", "prefill s", "step ms (p10 to p90)", "frames/s"):
        table.add_column(name, justify="right")
    for result in results:
        step = result["step"]
        table.add_row(
            str(result["prompt_rows"]),
            str(result["frames"]),
            f"{result['prefill_seconds']:.2f}",
            f"{step.median:.2f} ({step.p10:.2f} to {step.p90:.2f})",
            f"{result['frames_per_second']:.1f}",
        )
    return table


def _stream_table(results: list[dict[str, Any]]) -> Table:
    table = Table(title="Whole streams, frames and codec, medians (worst)")
    for name in ("streams", "frames/s", "RTF", "first audio s", "step ms", "codec ms/frame"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(
            str(result["streams"]),
            f"{result['frames_per_second']:.1f}",
            f"{result['rtf']:.2f} ({result['rtf_worst']:.2f})",
            f"{result['first_audio_seconds']:.2f} ({result['first_audio_worst']:.2f})",
            f"{result['frame_stage_ms_per_step']:.1f}",
            f"{result['codec_ms_per_frame']:.1f}",
        )
    return table
