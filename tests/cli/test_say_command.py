"""`declaim say`: real text to a WAV file, and its errors."""

import io
import os
import signal
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from whole import speak_whole

from declaim.cli.main import run


@pytest.fixture
def micro(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("micro")


def stored_samples(path: Path) -> NDArray[np.int64]:
    """The samples of a 16-bit WAV file."""
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(np.int64)


def assert_same_sound(left: NDArray[np.int64], right: NDArray[np.int64]) -> None:
    """As many samples, each within 1: the cuts of the codec follow the load."""
    assert len(left) == len(right) and np.abs(left - right).max() <= 1


def test_wav_file(micro: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many samples as frames, at the codec's rate, audible, and the same from the same seed."""
    output = tmp_path / "a.wav"
    line = ["say", "Hello there.", "-o", str(output), "--model", str(micro), "--max-frames", "12"]
    assert run([*line, "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert "seed 3" in captured.err and "RANDOM" not in captured.err and not captured.out
    speech = speak_whole(micro, "Hello there.", 3, 12)
    with wave.open(str(output)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 22050)
    samples = stored_samples(output)
    assert len(samples) == len(speech.frames) * 1024 == len(speech.samples)
    assert np.abs(samples - np.round(speech.samples * 32767)).max() <= 1
    assert samples.std() > 100
    assert run([*line, "--seed", "3"]) == 0
    assert_same_sound(stored_samples(output), samples)
    assert run([*line, "--seed", "4"]) == 0
    other = stored_samples(output)
    assert len(other) != len(samples) or np.abs(other - samples).max() > 1


def test_an_interrupt(micro: Path) -> None:
    """While it speaks, more than a pipe holds: it ends with the interrupt's own exit code."""
    program = "from declaim.cli.main import main; main()"
    line = ["say", "Hello there.", "-o", "-", "--model", str(micro), "--seed", "5"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *line, "--set", "stages.0.max_model_len=2000"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert len(process.stdout.read(2048)) == 2048
        process.send_signal(signal.SIGINT)
        _rest, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b"Traceback" not in said and b"finish" not in said


def test_commands_load_without_torch() -> None:
    """Help and settings are quick, and an interrupt finds its handler in place."""
    program = "import sys, declaim.cli.main; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_codec_from_elsewhere(
    micro: Path, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """--codec takes a file or a directory; a codec with other codebooks is refused, both named."""
    base = ["say", "Hi.", "-o", str(tmp_path / "a.wav"), "--model", str(micro)]
    base += ["--max-frames", "3", "--seed", "1"]
    assert run([*base, "--codec", str(micro)]) == 0
    assert run([*base, "--codec", str(micro / "codec.safetensors")]) == 0
    assert run([*base, "--codec", str(checkpoint("tiny"))]) == 3


def test_without_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tiny random checkpoint is made once, with a loud warning each time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    line = ["say", "Hi.", "-o", str(tmp_path / "a.wav"), "--max-frames", "2", "--seed", "1"]
    assert run(line) == 0
    assert "RANDOM WEIGHTS" in capsys.readouterr().err
    made = sorted((tmp_path / "cache").rglob("model.safetensors"))
    assert len(made) == 1
    stamp = made[0].stat().st_mtime_ns
    assert run(line) == 0
    assert "RANDOM WEIGHTS" in capsys.readouterr().err
    assert made[0].stat().st_mtime_ns == stamp


def test_raw_samples_on_stdout(
    micro: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """-o - gives the samples of the file and nothing else; the text may come from stdin."""
    base = ["--model", str(micro), "--max-frames", "9", "--seed", "3"]
    output = tmp_path / "a.wav"
    assert run(["say", "Hello there.", "-o", str(output), *base]) == 0
    capfdbinary.readouterr()
    assert run(["say", "Hello there.", "-o", "-", *base]) == 0
    raw = np.frombuffer(capfdbinary.readouterr().out, dtype="<i2").astype(int)
    with wave.open(str(output)) as file:
        stored = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(int)
    assert len(raw) == len(stored) and np.abs(raw - stored).max() <= 1


def test_text_from_stdin(micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given on stdin with a line's end it is the text that an argument gives."""
    base = ["--model", str(micro), "--max-frames", "4", "--seed", "3", "-o"]
    assert run(["say", "Grüße.", *base, str(tmp_path / "a.wav")]) == 0
    stdin = io.TextIOWrapper(io.BytesIO("Grüße.\n".encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert run(["say", "-", *base, str(tmp_path / "b.wav")]) == 0
    assert_same_sound(stored_samples(tmp_path / "a.wav"), stored_samples(tmp_path / "b.wav"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert run(["say", "-", *base, str(tmp_path / "c.wav")]) == 2


BAD = {
    "reference without text": (["say", "a", "--reference", "x.wav"], "--reference-text", 2),
    "temperature": (["say", "a", "--temperature", "3"], "temperature", 2),
    "top_p": (["say", "a", "--top-p", "0"], "top_p", 2),
    "unknown setting": (["say", "a", "--set", "stages.0.max_num_seq=1"], "max_num_seqs", 3),
    "absent deploy file": (["say", "a", "--deploy", "nowhere.yaml"], "nowhere.yaml", 2),
    "blank": (["say", " \n"], "text", 2),
    "marker": (["say", "a <|im_end|> b"], "<|im_end|>", 2),
    "tag": (["say", "<|speaker:16|> a"], "<|speaker", 2),
    "max frames": (["say", "a", "--max-frames", "0"], "max_frames", 2),
    "seed": (["say", "a", "--seed", str(2**63)], "seed", 2),
    "codec": (["say", "a", "--codec", "nowhere"], "nowhere", 2),
}


@pytest.mark.parametrize("case", BAD)
def test_errors(micro: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    line, named, code = BAD[case]
    output = tmp_path / "a.wav"
    assert run([*line, "--model", str(micro), "-o", str(output)]) == code
    error = capsys.readouterr().err
    assert named in error and "Traceback" not in error
    assert not output.exists()


def test_an_output_that_cannot_be_written(
    micro: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "a.wav"
    line = ["say", "Hi.", "--model", str(micro), "--max-frames", "2", "-o", str(output)]
    assert run(line) == 2
    assert "Traceback" not in capsys.readouterr().err
