"""The WAV writer: bytes, sizes, clamping and NaN."""

import wave
from pathlib import Path

import numpy as np
import pytest

from declaim.audio.wav import (
    HEADER_BYTES,
    MAX_SAMPLES,
    streaming_wav_header,
    to_int16,
    wav_header,
    write_wav,
)
from declaim.contracts.errors import NotFound, TooLarge


def test_samples_are_scaled_rounded_and_clamped() -> None:
    samples = np.array([0, 1, -1, 0.5, -0.5, 2, -3, 1 / 32767, 0.4 / 32767], dtype=np.float32)
    values, nan = to_int16(samples)
    assert values.dtype == np.int16
    assert values.tolist() == [0, 32767, -32767, 16384, -16384, 32767, -32767, 1, 0]
    assert nan == 0


def test_nan_is_silence_and_counted_and_infinity_is_clamped() -> None:
    samples = np.array([np.nan, np.inf, -np.inf, 0.25, np.nan], dtype=np.float32)
    values, nan = to_int16(samples)
    assert values.tolist() == [0, 32767, -32767, 8192, 0]
    assert nan == 2


@pytest.mark.parametrize("count", [0, 1, 2048, 4097])
@pytest.mark.parametrize("rate", [22050, 44100])
def test_another_reader_sees_the_same_file(tmp_path: Path, count: int, rate: int) -> None:
    samples = np.linspace(-1, 1, count, dtype=np.float32)
    path = tmp_path / "speech.wav"
    assert write_wav(path, samples, rate) == 0
    with wave.open(str(path), "rb") as reader:
        assert reader.getparams()[:4] == (1, 2, rate, count)
        frames = reader.readframes(count + 1)
    assert np.array_equal(np.frombuffer(frames, "<i2"), to_int16(samples)[0])
    content = path.read_bytes()
    assert len(content) == HEADER_BYTES + 2 * count
    assert int.from_bytes(content[4:8], "little") == len(content) - 8
    assert int.from_bytes(content[28:32], "little") == 2 * rate


def test_a_file_is_replaced_and_nan_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(b"old")
    assert write_wav(path, np.array([np.nan, 0.5], dtype=np.float32), 22050) == 1
    assert path.read_bytes()[:4] == b"RIFF"


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere/speech\.wav cannot be written"):
        write_wav(tmp_path / "nowhere" / "speech.wav", np.zeros(3, dtype=np.float32), 22050)


def test_more_samples_than_the_format_counts_are_refused() -> None:
    assert wav_header(MAX_SAMPLES, 44100)[40:44] == (2 * MAX_SAMPLES).to_bytes(4, "little")
    with pytest.raises(TooLarge) as caught:
        wav_header(MAX_SAMPLES + 1, 44100)
    assert caught.value.limit == MAX_SAMPLES


def test_a_header_of_unknown_length() -> None:
    """Only the two sizes differ from the header of a finished file."""
    header, known = streaming_wav_header(24000), wav_header(0, 24000)
    assert len(header) == HEADER_BYTES
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"
    assert header[:4] + header[8:40] == known[:4] + known[8:40]
