"""`declaim serve`: an engine behind HTTP until it is told to stop."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from declaim.config.load import Resolved, load_deploy


def serve(
    model: Annotated[
        str | None, typer.Option(help="Model directory; default: the deploy file's.")
    ] = None,
    codec: Annotated[
        Path | None, typer.Option(help="Codec file or directory; default: the model's.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 takes a free one; default: 8000.")
    ] = None,
    deploy: Annotated[
        str | None, typer.Option(help="Deploy file, or a preset's name; default: nano-cpu.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A value, as key=value; repeat.")
    ] = None,
) -> None:
    """Serve speech over HTTP until interrupted."""
    flags = {"model": model, "server.host": host, "server.port": port}
    given = {key: value for key, value in flags.items() if value is not None}
    run_server(load_deploy(deploy, assignments or (), flags=given), codec)


def run_server(resolved: Resolved, codec: Path | None) -> None:
    """Take the address, load the engine, and serve until a signal ends both."""
    from declaim.api import open_engine, read_reference
    from declaim.server.app import create_app
    from declaim.server.connection import BrokenOffLines, SpeechServer, open_listener
    from declaim.server.settings import ServerSettings

    wanted = resolved.deploy.server
    with open_listener(wanted.host, wanted.port) as listener:
        engine, notes = open_engine(resolved, codec)
        for line in notes:
            _note(line)
        settings = ServerSettings(strict_fields=wanted.strict_fields)
        app = create_app(engine, settings, lambda content: read_reference(engine, content))
        name = engine.info.model
        server = SpeechServer(app, engine, lambda url: _note(f"{name} is served at {url}"))
        logging.getLogger("uvicorn.error").addFilter(BrokenOffLines())
        engine.start()
        server.run([listener])


def _note(line: str) -> None:
    print(f"declaim: {line}", file=sys.stderr, flush=True)
