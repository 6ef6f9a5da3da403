"""The Python examples of the documents run as they stand, one after the other."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_python_examples(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "python.md").read_text(encoding="utf-8")
    (tmp_path / "micro").symlink_to(checkpoint("micro"))
    shutil.copy(root / "tests" / "assets" / "spoken.flac", tmp_path / "voice.flac")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = []
    for example in re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S):
        exec(compile(example, "docs/python.md", "exec"), names)
        printed.append(capsys.readouterr().out.strip())
    spoken, refused, many = printed
    assert re.fullmatch(r"(stop|length) \d+ 1", spoken)
    assert refused and f"# {refused}\n" in text
    assert len(names["speech"].samples) == names["speech"].outcome.frames * 1024 > 0
    assert (tmp_path / "speech.wav").stat().st_size == 44 + 2 * len(names["speech"].samples)
    assert many.count("(") == 3
