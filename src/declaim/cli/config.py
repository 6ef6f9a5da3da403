"""`declaim config`: what all settings resolve to, and where each value comes from."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from declaim.config.load import Resolved, fit_context, load_deploy
from declaim.contracts.errors import InvalidRequest

UNBROKEN = 10_000
"""Columns of an output that is no terminal: no line is folded there."""


def config(
    deploy: Annotated[
        str | None, typer.Option(help="Deploy file, or a preset's name; default: nano-cpu.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A value, as key=value; repeat.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print every value with its source.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --explain: one JSON object.")
    ] = False,
) -> None:
    """Print what all settings resolve to, as a deploy file."""
    if as_json and not explain:
        raise InvalidRequest("--json needs --explain", param="--json", limit="--explain")
    resolved = _for_checkpoint(load_deploy(deploy, assignments or ()))
    for note in resolved.notes:
        print(f"declaim: note: {note}", file=sys.stderr)
    if not explain:
        from declaim.config.documents import to_yaml

        print(to_yaml(resolved.deploy), end="")
    elif as_json:
        found = {
            key: {"value": setting.value, "source": setting.source}
            for key, setting in resolved.settings.items()
        }
        print(json.dumps(found, indent=2, default=str))
    else:
        _print_table(resolved)


def _for_checkpoint(resolved: Resolved) -> Resolved:
    """The settings fitted to the model directory, where there is one on this machine."""
    from declaim.config.checkpoint import load_model_config

    directory = Path(resolved.deploy.model)
    if not (directory / "config.json").is_file():
        return resolved
    return fit_context(resolved, load_model_config(directory).context)


def _print_table(resolved: Resolved) -> None:
    """Key, value and source in columns; in one line each where the output is no terminal."""
    console = Console(width=None if sys.stdout.isatty() else UNBROKEN)
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for key, setting in resolved.settings.items():
        value = json.dumps(setting.value, default=str, ensure_ascii=False)
        table.add_row(Text(key), Text(value), Text(setting.source))
    console.print(table)
