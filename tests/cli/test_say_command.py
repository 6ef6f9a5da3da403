"""`declaim say`: real text to a WAV file, and its errors."""

import json
import shutil
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from declaim.api import say as speak
from declaim.cli.main import run


@pytest.fixture
def micro(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("micro")


def test_wav_file(micro: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many samples as frames, at the codec's rate, audible, and the same from the same seed."""
    output = tmp_path / "a.wav"
    line = ["say", "Hello there.", "-o", str(output), "--model", str(micro), "--max-frames", "12"]
    assert run([*line, "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert "seed 3" in captured.err and "RANDOM" not in captured.err and not captured.out
    speech = speak("Hello there.", model=micro, seed=3, max_frames=12)
    with wave.open(str(output)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 22050)
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
    assert len(samples) == len(speech.frames) * 1024 == len(speech.samples)
    assert np.abs(samples - np.round(speech.samples * 32767)).max() <= 1
    assert samples.std() > 100
    first = output.read_bytes()
    assert run([*line, "--seed", "3"]) == 0
    assert output.read_bytes() == first
    assert run([*line, "--seed", "4"]) == 0
    assert output.read_bytes() != first


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


def test_a_context_below_the_default_frames(micro: Path, tmp_path: Path) -> None:
    """Without --max-frames a request takes what the context leaves it."""
    small = tmp_path / "small"
    shutil.copytree(micro, small)
    config = json.loads((small / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 80
    (small / "config.json").write_text(json.dumps(config))
    speech = speak("Hello.", model=small, seed=3)
    assert 1 <= len(speech.frames) <= 80 - 73


BAD = {
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
