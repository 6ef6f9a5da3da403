"""The cache folder follows the environment."""

from pathlib import Path

import pytest

from declaim.config.load import cache_directory


def test_the_named_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "declaim"


@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_the_home_folder_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_directory() == tmp_path / ".cache" / "declaim"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / ".cache" / "declaim"
