"""Output files appear whole or not at all; devices and links stay what they are."""

import os
import stat
from pathlib import Path

import pytest

from declaim.audio.files import open_whole, write_whole
from declaim.contracts.errors import NotFound


def test_a_file_is_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    for content in (b"first", b"second, longer", b""):
        write_whole(path, content)
        assert path.read_bytes() == content
        assert os.listdir(tmp_path) == ["speech.wav"]


def test_a_written_file_has_the_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_bytes(b"")
    write_whole(tmp_path / "written", b"")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "written")]
    assert modes[0] == modes[1]


def test_a_link_keeps_pointing_at_the_written_file(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_device_is_written_to_and_stays_a_device() -> None:
    write_whole(Path(os.devnull), b"gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(b"old")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(NotFound, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["speech.wav"]


def test_a_file_that_is_never_finished_does_not_appear(tmp_path: Path) -> None:
    """Neither does it replace an old one; while it is written the old one stands."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"old")
    for path in (old, new):
        with pytest.raises(ZeroDivisionError), open_whole(path) as file:
            file.write(b"begun")
            assert old.read_bytes() == b"old" and not new.exists()
            raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["old"]
    with open_whole(old) as file:
        file.write(b"begun, ")
        file.write(b"ended")
    assert old.read_bytes() == b"begun, ended"
    assert os.listdir(tmp_path) == ["old"]


@pytest.mark.parametrize("place", ["nowhere/file", "a_file/file", "."])
def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "a_file").write_bytes(b"")
    path = tmp_path / place
    with pytest.raises(NotFound) as caught:
        write_whole(path, b"new")
    assert caught.value.param == "output"
    assert str(path) in caught.value.message
