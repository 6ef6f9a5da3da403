"""`declaim verify`: everything equal on the reference, and a difference is found and named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declaim.bench.verify as module
from declaim.bench.equivalence import SETS, Trace, chunker, compare, request_set, run_case
from declaim.cli.main import run
from declaim.config.checkpoint import load_model_config


def test_every_way_is_equal(
    checkpoint: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "v.json"
    model = str(checkpoint("micro"))
    line = ["verify", "--model", model, "--set", "short", "--modes", "none,FULL_AND_PIECEWISE"]
    assert run([*line, "-o", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["equal"] and found["tolerance"] == 0
    assert {row["mode"] for row in found["results"]} == {"NONE", "FULL_AND_PIECEWISE"}
    assert all(row["draws"] > 20 and row["misses"] == 0 for row in found["results"])
    replayed = {row["mode"]: row["replays"] for row in found["results"]}
    assert replayed["NONE"] == 0 and replayed["FULL_AND_PIECEWISE"] > 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(found["results"])


def test_a_difference_is_named(
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One bit of one logit of one request in one case."""
    calls = []

    def faulty(*arguments: Any) -> dict[str, Trace]:
        traces = run_case(*arguments)
        calls.append(1)
        if len(calls) == 4:
            value = traces["2"].codes[1]
            value.view(np.uint32)[0, 5] ^= 1
        return traces

    monkeypatch.setattr(module, "run_case", faulty)
    model = str(checkpoint("micro"))
    assert run(["verify", "--model", model, "--set", "short", "--modes", "NONE"]) == 1
    captured = capsys.readouterr()
    assert captured.out.count("DIFFERS") == 1
    assert "3 at once: request 2 differs at draw 1 in code logits" in captured.err


def test_unknown_names(checkpoint: Callable[[str], Path]) -> None:
    model = str(checkpoint("micro"))
    assert run(["verify", "--model", model, "--set", "huge"]) == 2
    assert run(["verify", "--model", model, "--modes", "SOME"]) == 2
    assert run(["verify", "--model", model + "-absent"]) == 2


def trace(*rows: float) -> Trace:
    """A trace of one draw a row."""
    made = Trace()
    for value in rows:
        made.frames.append(np.array([0 if np.isnan(value) else int(value)], dtype=np.int32))
        made.main.append(np.array([value, 0.0], dtype=np.float32))
        made.codes.append(np.array([[value]], dtype=np.float32))
    return made


def test_compare() -> None:
    assert compare("a", trace(1, 2), trace(1, 2), 0.0) == (0.0, None)
    largest, wrong = compare("a", trace(1, 2), trace(1, 2.25), 0.0)
    assert wrong is not None and (wrong.draw, wrong.what, largest) == (1, "main logits", 0.25)
    assert compare("a", trace(1, 2), trace(1, 2.25), 0.5) == (0.25, None)
    _, wrong = compare("a", trace(1, 2), trace(1, 3.0), 2.0)
    assert wrong is not None and wrong.what == "frame"
    _, wrong = compare("a", trace(1, 2), trace(1), 1.0)
    assert wrong is not None and wrong.what == "count of draws"
    _, wrong = compare("a", trace(1.0), trace(float("nan")), 1.0)
    assert wrong is not None


def test_cuts_repeat() -> None:
    rows = chunker((17, 3, 40, 30))
    assert rows is not None and chunker(None) is None
    request = Any
    done, sizes = 0, []
    while done < 100:
        sizes.append(rows(request, done))  # type: ignore[arg-type]
        done += sizes[-1]
    assert sizes == [17, 3, 40, 30, 17]
    assert rows(request, 18) == 2  # type: ignore[arg-type]


def test_sets(checkpoint: Callable[[str], Path]) -> None:
    """The stated number and sizes; the seed decides them; prefixes end before a text row."""
    config = load_model_config(checkpoint("micro"))
    for name, chosen in SETS.items():
        requests = request_set(config, chosen, 0)
        assert len(requests) == chosen.requests, name
        for request in requests:
            rows = len(request.prompt.rows)
            assert chosen.prompt_rows[0] <= rows <= chosen.prompt_rows[1]
            assert chosen.frames[0] <= request.max_frames <= chosen.frames[1]
            if request.prompt.prefix_rows:
                behind = request.prompt.rows[request.prompt.prefix_rows, 0]
                assert not config.band[0] <= behind <= config.band[1]
        assert any(request.prompt.prefix_rows for request in requests)
        other = request_set(config, chosen, 1)
        assert requests[0].prompt.rows.tobytes() != other[0].prompt.rows.tobytes()
