"""`declaim bench` on a small checkpoint: its numbers are there and hang together."""

import json

import pytest

from declaim.bench.phases import PHASES
from declaim.cli.main import run


def test_last_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--shape", "micro", "--frames", "12", "--repeats", "2"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out.splitlines()[-1])
    assert result["environment"]["declaim"] and result["shape"] == "micro"
    assert [item["streams"] for item in result["steps"]] == [1, 8]
    for item in result["steps"]:
        assert item["steps"] == 12 and set(item["phases"]) == set(PHASES)
        assert all(value >= 0 for value in item["phases"].values())
        step = item["step"]
        assert 0 < step["p10"] <= step["median"] <= step["p90"]
    assert [item["prompt_rows"] for item in result["long"]] == [300, 1000]
    for item in result["long"]:
        assert len(set(item["seeds"])) == 2 and item["prefill_seconds"] > 0
        assert item["frames_per_second"] == pytest.approx(1e3 / item["step"]["median"])
    assert [item["streams"] for item in result["streams"]] == [1, 4, 8]
    for item in result["streams"]:
        assert item["requests"] == 2 * item["streams"] and 0 < item["rtf"] <= item["rtf_worst"]
        assert 1 <= item["codec_streams_per_batch"] <= item["streams"]
        assert 0 < item["first_audio_seconds"] <= item["first_audio_worst"]


def test_unknown_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--shape", "huge"]) == 2
    assert "huge" in capsys.readouterr().err
