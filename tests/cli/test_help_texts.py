"""The help that is printed is whole: every word of every option, every command in one line."""

import importlib
from typing import Any

import pytest
import typer

from declaim.cli.main import run


def all_commands() -> list[tuple[str, ...]]:
    """The words of every command, groups too."""
    group: Any = typer.main.get_command(importlib.import_module("declaim.cli.main").app)
    names: list[tuple[str, ...]] = [()]
    for name, command in group.commands.items():
        names.append((name,))
        names += [(name, inner) for inner in getattr(command, "commands", {})]
    return names


def found(words: tuple[str, ...]) -> Any:
    """The command of these words."""
    command: Any = typer.main.get_command(importlib.import_module("declaim.cli.main").app)
    for word in words:
        command = command.commands[word]
    return command


@pytest.mark.parametrize("words", all_commands(), ids=" ".join)
def test_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for parameter in found(words).params:
        assert " ".join((parameter.help or "").split()) in printed, parameter.name
    assert "..." not in printed.replace("[ARGS]...", "")
