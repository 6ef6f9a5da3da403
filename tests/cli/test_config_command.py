"""`declaim config`: what it prints, where, and its exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from declaim.cli.main import run
from declaim.config.keys import KEYS
from declaim.config.load import load_deploy


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    path = tmp_path / "deploy.yaml"
    path.write_text(
        "base_config: nano-cpu\n"
        f"server: {{port: 1234, host: {'a.very.long.name.' * 9}org}}\n"
        "stages: [{stage_id: 0, platform: npu}]\n"
        "platforms: {npu: {stages: [{stage_id: 0, page_size: 128}]}}\n",
        encoding="utf-8",
    )
    return path


def test_every_value_with_its_source_as_json(
    deploy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECLAIM_LIMITS__QUEUE", "5")
    line = ["config", "--deploy", str(deploy), "--set", "stages.1.threads=2", "--explain", "--json"]
    assert run(line) == 0
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert output.err == ""
    assert list(found) == [*KEYS, "platforms"]
    assert found["server.port"] == {"value": 1234, "source": f"file {deploy}"}
    assert found["stages.0.page_size"] == {
        "value": 128,
        "source": f"file {deploy}, platforms.npu",
    }
    assert found["stages.1.threads"] == {"value": 2, "source": "--set"}
    assert found["limits.queue"] == {"value": 5, "source": "environment DECLAIM_LIMITS__QUEUE"}
    assert found["model"] == {"value": "nano", "source": "preset nano-cpu"}
    assert found["voices.directory"] == {"value": None, "source": "default"}
    assert found["stages.0.devices"] == {"value": [0], "source": "default"}
    blocks = {"npu": {"stages": [{"stage_id": 0, "page_size": 128}]}}
    assert found["platforms"] == {"value": blocks, "source": f"file {deploy}"}


def test_every_value_with_its_source_as_lines(
    deploy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "--deploy", str(deploy), "--explain"]) == 0
    lines = [line.rstrip().split(None, 1) for line in capsys.readouterr().out.splitlines()]
    assert [key for key, _rest in lines] == [*KEYS, "platforms"]
    shown = dict(lines)
    assert shown["server.port"].split(None, 1) == ["1234", f"file {deploy}"]
    assert shown["stages.0.page_size"].split(None, 1) == ["128", f"file {deploy}, platforms.npu"]
    assert shown["stages.0.kv_pages"].split() == ["null", "default"]


def test_the_printed_file_resolves_to_the_same(
    deploy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "--deploy", str(deploy), "--set", "model=other"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["server"]["port"] == 1234
    again = tmp_path / "again.yaml"
    again.write_text(printed, encoding="utf-8")
    first = load_deploy(deploy, ["model=other"], environment={}).deploy
    second = load_deploy(again, environment={}).deploy
    assert second == first.replaced(base_config=None, platforms={})


def test_adjustments_are_told_on_standard_error(
    checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["config", "--set", f"model={checkpoint('micro')}", "--explain", "--json"]
    changes = [
        "--set",
        "stages.0.max_model_len=99999",
        "--set",
        "stages.0.max_num_batched_tokens=4",
    ]
    assert run([*line, *changes]) == 0
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert found["stages.0.max_model_len"] == {"value": 16384, "source": "--set"}
    assert found["stages.0.max_num_seqs"] == {"value": 4, "source": "default"}
    assert len(output.err.splitlines()) == 2
    assert "from 99999 to the checkpoint's context of 16384 rows" in output.err
    assert "from 8 to 4" in output.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--set", "stages.0.max_num_seq=1"], 3, "did you mean stages.0.max_num_seqs?"),
        (["--json"], 2, "--json needs --explain"),
        (["--set", "server.port=x"], 3, "server.port must be an integer in [0, 65535]; found 'x'"),
        (["--deploy", "absent.yaml"], 2, "deploy names absent.yaml, which is not there"),
        (["--deploy", "nano-cqu"], 3, "did you mean nano-cpu?"),
    ],
)
def test_errors(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", *arguments]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("declaim: ") and message in output.err
    assert len(output.err.splitlines()) == 1
