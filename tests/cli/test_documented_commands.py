"""The documents name every command and option that exists, and none that does not."""

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

DOCUMENTS = ("README.md", "docs/cli.md")


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    """Every registered command by its name."""
    app = importlib.import_module("declaim.cli.main").app
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


@pytest.fixture(scope="module")
def root() -> Path:
    return Path(__file__).parents[2]


def options(command: Any) -> set[str]:
    """Every spelling of every option, of a group's commands too; arguments have none."""
    return set().union(*map(options, getattr(command, "commands", {}).values())) | {
        spelling
        for parameter in command.params
        for spelling in (*parameter.opts, *parameter.secondary_opts)
        if spelling.startswith("-") and spelling != "--help"
    }


def section(text: str, name: str) -> str:
    """What docs/cli.md says under a command's heading."""
    return text.split(f"\n## declaim {name}\n", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_is_documented(commands: dict[str, Any], root: Path, document: str) -> None:
    text = (root / document).read_text(encoding="utf-8")
    mentioned = set(re.findall(r"`declaim ([a-z][a-z-]*)", text))
    mentioned |= set(re.findall(r"^## declaim ([a-z-]+)$", text, flags=re.MULTILINE))
    assert mentioned == set(commands)


def test_every_option_is_documented_and_exists(commands: dict[str, Any], root: Path) -> None:
    text = (root / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, command in commands.items():
        documented = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", section(text, name)))
        assert documented == options(command), name


def examples(root: Path) -> list[list[str]]:
    """The words of every line of a shell block that runs declaim."""
    return [
        shlex.split(line)
        for document in DOCUMENTS
        for block in re.findall(
            r"^```sh\n(.*?)^```", (root / document).read_text(encoding="utf-8"), re.M | re.S
        )
        for line in block.splitlines()
        if line.startswith("declaim ")
    ]


def test_examples_parse(commands: dict[str, Any], root: Path) -> None:
    found = examples(root)
    assert found
    for _program, name, *arguments in found:
        context = commands[name].make_context(name, list(arguments), resilient_parsing=False)
        assert context.params, name
