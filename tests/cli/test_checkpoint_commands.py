"""declaim inspect and declaim make-checkpoint as commands of an app."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from declaim.cli.inspect import inspect
from declaim.cli.make_checkpoint import make_checkpoint
from declaim.contracts.errors import InvalidRequest, NotFound


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command("inspect")(inspect)
    app.command("make-checkpoint")(make_checkpoint)
    return app


def test_make_then_inspect(app: typer.Typer, tmp_path: Path) -> None:
    runner, made = CliRunner(), tmp_path / "made"
    arguments = ["make-checkpoint", "--shape", "micro", "--seed", "3", str(made), "--no-codec"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0
    assert result.output == f"made {made}: micro, seed 3, without a codec\n"

    found = json.loads(runner.invoke(app, ["inspect", str(made), "--json"]).output)
    assert found["sizes"]["hidden_size"] == 64
    assert found["loaded"]["parameters"] == 112
    assert found["codec"] is None

    lines = runner.invoke(app, ["inspect", str(made)]).output
    for shown in (
        "hidden_size",
        "572,936 elements",
        "16,896 bytes",
        found["stored"]["fingerprint"][:40],
    ):
        assert shown in lines


def test_errors_reach_the_caller(app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "absent")])
    assert isinstance(result.exception, NotFound)
    result = CliRunner().invoke(app, ["make-checkpoint", "--shape", "big", str(tmp_path / "x")])
    assert isinstance(result.exception, InvalidRequest)
