"""WAV files read block by block: values, mixing, and every refusal with what was found."""

import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from declaim.audio.wav import write_wav
from declaim.audio.wav_source import open_wav
from declaim.contracts.errors import InvalidRequest, NotFound
from declaim.contracts.request import FloatArray


def written(
    path: Path, content: bytes, *, channels: int = 1, width: int = 2, rate: int = 8000
) -> Path:
    """A WAV file with this content."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)
    return path


def read(path: Path, size: int) -> list[FloatArray]:
    with open_wav(path) as source:
        return list(source.blocks(size))


@pytest.mark.parametrize("size", [1, 3, 5, 6, 100])
def test_blocks_join_to_the_samples(tmp_path: Path, size: int) -> None:
    values = np.array([0, 16384, -16384, 32767, -32768], dtype="<i2")
    path = written(tmp_path / "a.wav", values.tobytes())
    with open_wav(path) as source:
        assert (source.rate, source.samples) == (8000, 5)
        blocks = list(source.blocks(size))
    assert [len(block) for block in blocks[:-1]] == [size] * (len(blocks) - 1)
    joined = np.concatenate(blocks)
    assert joined.dtype == np.float32
    assert joined.tolist() == [0, 0.5, -0.5, 32767 / 32768, -1]


def test_stereo_is_mixed_to_mono(tmp_path: Path) -> None:
    values = np.array([[100, 300], [-32768, -32768], [32767, -32767]], dtype="<i2")
    (block,) = read(written(tmp_path / "a.wav", values.tobytes(), channels=2), 10)
    assert block.tolist() == [200 / 32768, -1, 0]


def test_what_declaim_writes_is_read_back(tmp_path: Path) -> None:
    samples = np.linspace(-1, 1, 1001, dtype=np.float32)
    write_wav(tmp_path / "a.wav", samples, 44100)
    found = np.concatenate(read(tmp_path / "a.wav", 64))
    assert np.abs(found - samples).max() < 1.5 / 32768


def test_a_file_that_ends_early_is_refused_with_both_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "a.wav", bytes(2 * 50), channels=2)
    path.write_bytes(path.read_bytes()[:-41])
    with open_wav(path) as source, pytest.raises(InvalidRequest, match="25 samples .* after 14$"):
        list(source.blocks(10))


def float_file(path: Path) -> Path:
    """IEEE floats, which the format numbers 3."""
    data = np.zeros(4, dtype="<f4").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, 8000, 32000, 4, 32)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(data)) + data
    path.write_bytes(struct.pack("<4sI", b"RIFF", len(body)) + body)
    return path


def bad_file(path: Path, kind: str) -> Path:
    match kind:
        case "empty":
            path.write_bytes(b"")
        case "header cut off":
            path.write_bytes(b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00")
        case "text":
            path.write_bytes(b"This is no sound at all, but longer than a header would be.")
        case "no samples":
            written(path, b"")
        case "8-bit":
            written(path, bytes(8), width=1)
        case "24-bit":
            written(path, bytes(9), width=3)
        case "channels":
            written(path, bytes(12), channels=3)
        case "slow":
            written(path, bytes(12), rate=999)
        case "fast":
            written(path, bytes(12), rate=384_001)
        case "float":
            float_file(path)
        case "no data":
            written(path, bytes(4))
            path.write_bytes(path.read_bytes()[:36])
    return path


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("empty", "empty or cut off"),
        ("header cut off", "missing"),
        ("text", "RIFF"),
        ("no samples", "without samples"),
        ("8-bit", "8-bit"),
        ("24-bit", "24-bit"),
        ("channels", "3 channels"),
        ("slow", "of 999"),
        ("fast", "of 384001"),
        ("float", "unknown format: 3"),
        ("no data", "16-bit PCM WAV"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, kind: str, named: str) -> None:
    path = bad_file(tmp_path / "bad.wav", kind)
    with pytest.raises(InvalidRequest) as caught, open_wav(path):
        pass
    assert named in caught.value.message and str(path) in caught.value.message
    assert caught.value.param == "input"


@pytest.mark.parametrize("place", ["nowhere.wav", "."])
def test_a_file_that_is_not_there(tmp_path: Path, place: str) -> None:
    with pytest.raises(NotFound, match="there is no file"), open_wav(tmp_path / place):
        pass
