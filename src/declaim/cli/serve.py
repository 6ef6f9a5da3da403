"""`declaim serve`: an engine behind HTTP until it is told to stop."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from declaim.contracts.engine import SpeechEngine
from declaim.server.references import DecodeReference
from declaim.server.settings import ServerSettings


def serve(
    model: Annotated[Path | None, typer.Option(help="Model directory.")] = None,
    codec: Annotated[
        Path | None, typer.Option(help="Codec file or directory; default: the model's.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    deploy: Annotated[Path | None, typer.Option(help="Deploy file or a preset's name.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="One key=value of the deploy file.")
    ] = None,
) -> None:
    """Serve speech over HTTP."""
    raise NotImplementedError
