"""Output paths are checked before any work; damaged arrays are refused in one sentence."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import declaim
from declaim.cli.main import run


@pytest.fixture
def line(checkpoint: Callable[[str], Path], tmp_path: Path) -> list[str]:
    """A command line of `frames` for two prompts that lacks its outputs."""
    np.save(tmp_path / "a.npy", np.ones((4, 5), dtype=np.int64))
    rows = ["--rows", str(tmp_path / "a.npy")]
    model = ["--model", str(checkpoint("micro"))]
    return ["frames", *model, *rows, *rows, "--seed", "1", "--max-frames", "2"]


def refused(line: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """The one sentence of a command that fails."""
    capsys.readouterr()
    assert run(line) == code
    message = capsys.readouterr().err.strip()
    assert message.startswith("declaim: ") and "\n" not in message
    return message


@pytest.mark.parametrize("names", [("x", "x", "y"), ("x", "y", "x"), ("x", "y", "./y")])
def test_one_file_for_two_outputs(
    line: list[str], names: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, steps = (f"{tmp_path}/{name}" for name in names)
    message = refused([*line, "-o", first, "-o", second, "--steps", steps], capsys)
    assert "is written by -o already" in message
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_a_device_takes_many_outputs(line: list[str]) -> None:
    assert run([*line, "-o", "/dev/null", "-o", "/dev/null"]) == 0


@pytest.mark.parametrize(("name", "why"), [(".", "is a directory"), ("a.npy/x", "is no directory")])
@pytest.mark.parametrize("option", ["-o", "--steps", "say", "prompt"])
def test_a_place_that_cannot_be_written(
    line: list[str],
    option: str,
    name: str,
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad, good = f"{tmp_path}/{name}", f"{tmp_path}/good.npy"
    if option in ("say", "prompt"):
        line = [option, "Hi.", "--model", line[2], "-o", bad]
    elif option == "-o":
        line = [*line, "-o", good, "-o", bad]
    else:
        line = [*line, "-o", good, "-o", f"{good}2", "--steps", bad]
    message = refused(line, capsys)
    assert bad.rstrip("/.") in message and why in message
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_folders_on_the_way_are_made(line: list[str], tmp_path: Path) -> None:
    new = tmp_path / "new"
    outputs = ["-o", str(new / "1" / "a.npy"), "-o", str(new / "2" / "b.npy")]
    assert run([*line, *outputs, "--steps", str(new / "3" / "steps")]) == 0
    assert sorted(path.name for path in new.rglob("*") if path.is_file()) == [
        "a.npy",
        "b.npy",
        "steps",
    ]
    say = ["say", "Hi.", "--model", line[2], "--max-frames", "1", "-o", str(new / "4" / "a.wav")]
    assert run(say) == 0 and (new / "4" / "a.wav").is_file()


def array_file(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


DAMAGED = {
    "more than memory": array_file(
        "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000, 5), }\n"
    ),
    "more than 64 bits": array_file(
        f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({10**30}, 5), }}\n"
    ),
    "no dtype": array_file("{'descr': ',,,', 'fortran_order': False, 'shape': (1, 5), }\n"),
    "no end": array_file("(" * 9000),
    "deep": array_file("-" * 9000 + "1"),
    "cut archive": b"PK\x03\x04" + bytes(40),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_arrays(
    line: list[str], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.npy").write_bytes(DAMAGED[kind])
    message = refused([*line, "-o", f"{tmp_path}/x", "-o", f"{tmp_path}/y"], capsys)
    assert "--rows" in message and "is not a readable .npy file" in message


@pytest.mark.parametrize("option", ["--max-num-seqs", "--max-batched-rows"])
def test_limits_of_a_step(
    line: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit far over what the requests need costs no memory; one that cannot work is named."""
    line += ["-o", f"{tmp_path}/x", "-o", f"{tmp_path}/y"]
    assert run([*line, option, str(2**31 - 1)]) == 0
    for value in ("0", "-1", str(2**31)):
        assert option in refused([*line, option, value], capsys)


def test_bench_limits(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (("--frames", "2"), ("--frames", "2049"), ("--repeats", "0")):
        assert option in refused(["bench", "--shape", "micro", option, value], capsys)


def test_the_command_starts_without_torch() -> None:
    script = "import sys, declaim.cli.main; sys.exit('torch' in sys.modules)"
    source = str(Path(declaim.__file__).parents[1])
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": source})
