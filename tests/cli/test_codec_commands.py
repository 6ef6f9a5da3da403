"""`declaim codec`: both directions, whole and in chunks, and their errors."""

import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from declaim.audio.resample import StreamResampler
from declaim.cli.main import run
from declaim.codec.reader import load_decoder, load_encoder
from declaim.codec.stream import Decoder

HOP, RATE, CODEBOOKS, ENTRIES = 1024, 22050, 4, 64

Samples = NDArray[np.int16]


@pytest.fixture
def codec(checkpoint: Callable[[str], Path]) -> Path:
    """The directory of a random checkpoint, whose codec it is."""
    return checkpoint("micro")


@pytest.fixture
def codes_file(tmp_path: Path) -> Callable[[int], Path]:
    """A file of random codes of so many frames."""

    def get(frames: int) -> Path:
        codes = np.random.default_rng(0).integers(0, ENTRIES, (CODEBOOKS, frames))
        np.save(tmp_path / "codes.npy", codes)
        return tmp_path / "codes.npy"

    return get


@pytest.fixture
def wav_file(tmp_path: Path) -> Callable[..., Path]:
    """A file of noise: samples, and whatever differs from 16-bit mono at the codec's rate."""

    def get(samples: int, channels: int = 1, width: int = 2, rate: int = RATE) -> Path:
        noise = np.random.default_rng(1).normal(0, 5000, (samples, channels)).astype("<i2")
        path = tmp_path / "sound.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(width)
            file.setframerate(rate)
            file.writeframes(noise.tobytes() if width == 2 else bytes(noise.size * width))
        return path

    return get


def line(name: str, codec: Path, source: Path, output: Path, *more: object) -> list[str]:
    """A command line; `name` is decode or encode."""
    words = ["codec", name, "--codec", str(codec), str(source), "-o", str(output)]
    return words + [str(item) for item in more]


def samples_of(path: Path) -> Samples:
    """The samples of a 16-bit mono file at the codec's rate."""
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")


def test_decoded_sound_is_the_decoders(
    codec: Path, codes_file: Callable[[int], Path], tmp_path: Path
) -> None:
    path = codes_file(19)
    assert run(line("decode", codec, path, tmp_path / "a.wav")) == 0
    found = samples_of(tmp_path / "a.wav")
    wanted = load_decoder(codec, None, CODEBOOKS).decode(np.load(path))
    assert found.shape == (19 * HOP,)
    assert np.abs(found - np.rint(wanted * 32767)).max() <= 1
    assert found.std() > 100


def test_encoded_codes_are_the_encoders(
    codec: Path, wav_file: Callable[..., Path], tmp_path: Path
) -> None:
    path = wav_file(19 * HOP + 1)
    assert run(line("encode", codec / "codec.safetensors", path, tmp_path / "a.npy")) == 0
    found = np.load(tmp_path / "a.npy")
    samples = (samples_of(path) / 32768).astype(np.float32)
    assert found.dtype == np.int64 and found.shape == (CODEBOOKS, 20)
    assert np.array_equal(found, load_encoder(codec, None, CODEBOOKS).encode(samples))
    assert len(np.unique(found)) > 20


def test_there_and_back(codec: Path, codes_file: Callable[[int], Path], tmp_path: Path) -> None:
    """Codes of codes' sound have the codes' shape, and become sound of the same length."""
    first, wav, codes, second = codes_file(9), *(tmp_path / n for n in ("1.wav", "2.npy", "3.wav"))
    assert run(line("decode", codec, first, wav)) == 0
    assert run(line("encode", codec, wav, codes)) == 0
    assert run(line("decode", codec, codes, second)) == 0
    assert np.load(codes).shape == (CODEBOOKS, 9)
    assert samples_of(second).shape == samples_of(wav).shape


@pytest.mark.parametrize("chunk", [1, 7, 40, 1000])
def test_decoding_in_chunks(
    codec: Path,
    codes_file: Callable[[int], Path],
    tmp_path: Path,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, seen, step = codes_file(40), [], Decoder.step

    def watched(self: Decoder, codes: NDArray[np.int64], *rest: object) -> object:
        seen.append(codes.shape[-1])
        return step(self, codes, *rest)  # type: ignore[arg-type]

    assert run(line("decode", codec, path, tmp_path / "a.wav")) == 0
    monkeypatch.setattr(Decoder, "step", watched)
    assert run(line("decode", codec, path, tmp_path / "b.wav", "--chunk", chunk)) == 0
    assert max(seen) == min(chunk, 40) and sum(seen) == 40
    whole, chunked = samples_of(tmp_path / "a.wav"), samples_of(tmp_path / "b.wav")
    assert np.abs(whole.astype(int) - chunked).max() <= 1


@pytest.mark.parametrize("rate", [RATE, 16000, 44100])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_encoding_in_chunks(
    codec: Path,
    wav_file: Callable[..., Path],
    tmp_path: Path,
    chunk: int,
    rate: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Never more than a chunk is read at once, and the files are equal byte for byte."""
    samples, frame, seen = 39 * HOP + 100, -(-HOP * rate // RATE), list[int]()
    path, read = wav_file(samples, channels=2, rate=rate), wave.Wave_read.readframes

    def watched(self: wave.Wave_read, count: int) -> bytes:
        seen.append(count)
        return read(self, count)

    assert run(line("encode", codec, path, tmp_path / "a.npy")) == 0
    monkeypatch.setattr(wave.Wave_read, "readframes", watched)
    assert run(line("encode", codec, path, tmp_path / "b.npy", "--chunk", chunk)) == 0
    assert max(seen) == min(chunk * frame, samples) and sum(seen) == samples
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    frames = -(-round(samples * RATE / rate) // HOP)
    assert np.load(tmp_path / "b.npy").shape == (CODEBOOKS, frames)


def test_another_rate_is_resampled(
    codec: Path, wav_file: Callable[..., Path], tmp_path: Path
) -> None:
    """The codes are those of the resampled sound, but for choices that hang by a hair."""
    path = wav_file(30000, rate=16000)
    assert run(line("encode", codec, path, tmp_path / "a.npy")) == 0
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(30000), dtype="<i2").astype(np.float32)
    samples /= 32768
    resampler = StreamResampler(16000, RATE)
    sound = np.concatenate((resampler.feed(samples), resampler.finish()))
    wanted = load_encoder(codec, None, CODEBOOKS).encode(sound.clip(-1, 1))
    found = np.load(tmp_path / "a.npy")
    assert found.shape == wanted.shape
    assert (found == wanted).mean() > 0.9


def test_residual_codes_as_wide_as_the_semantic_book(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """A model may draw them from a wider range than its codec's residual books have entries."""
    codec = checkpoint("small")
    np.save(tmp_path / "a.npy", np.full((10, 1), 1023))
    assert run(line("decode", codec, tmp_path / "a.npy", tmp_path / "a.wav")) == 0
    np.save(tmp_path / "a.npy", np.full((10, 1), 1024))
    assert run(line("decode", codec, tmp_path / "a.npy", tmp_path / "a.wav")) == 2


BAD_CODES: dict[str, tuple[NDArray[np.generic], str]] = {
    "few rows": (np.zeros((3, 5), dtype=np.int64), "[3, 5]"),
    "transposed": (np.zeros((5, 4), dtype=np.int64), "[5, 4]"),
    "one dimension": (np.zeros(4, dtype=np.int64), "int64 (4,)"),
    "no frames": (np.zeros((4, 0), dtype=np.int64), "[4, 0]"),
    "floats": (np.zeros((4, 5)), "float64"),
    "negative": (np.array([[0, 0], [0, 0], [0, -1], [0, 0]]), "code -1 in codebook 2, frame 1"),
    "too high": (np.array([[0, 0, 64], [0] * 3, [0] * 3, [0] * 3]), "[0, 63]"),
    "huge": (np.full((4, 2), 2**64 - 1, dtype=np.uint64), str(2**64 - 1)),
}


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("case", BAD_CODES)
def test_codes_that_are_refused(
    codec: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    case: str,
    chunk: int | None,
) -> None:
    array, named = BAD_CODES[case]
    np.save(tmp_path / "bad.npy", array)
    more = [] if chunk is None else ["--chunk", chunk]
    assert run(line("decode", codec, tmp_path / "bad.npy", tmp_path / "a.wav", *more)) == 2
    error = capsys.readouterr().err
    assert named in error and "bad.npy" in error and "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npy"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"width": 3}, "24-bit"),
        ({"samples": 0}, "without samples"),
        ({"channels": 4}, "4 channels"),
        ({"rate": 500}, "of 500"),
        ({"samples": 1, "rate": 384000}, "not 1 at 384000"),
    ],
)
def test_sound_that_is_refused(
    codec: Path,
    wav_file: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, int],
    named: str,
) -> None:
    path = wav_file(**{"samples": 60, **options})
    assert run(line("encode", codec, path, tmp_path / "a.npy")) == 2
    error = capsys.readouterr().err
    assert named in error and "sound.wav" in error and "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["sound.wav"]


def test_sound_that_ends_early_leaves_nothing(
    codec: Path, wav_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = wav_file(50 * HOP)
    path.write_bytes(path.read_bytes()[:-999])
    assert run(line("encode", codec, path, tmp_path / "a.npy", "--chunk", 4)) == 2
    assert "cut off" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["sound.wav"]


@pytest.mark.parametrize("name", ["decode", "encode"])
@pytest.mark.parametrize("content", [None, b"", b"neither sound nor codes, but some bytes"])
def test_files_of_another_kind(
    codec: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes | None,
) -> None:
    path = tmp_path / "other"
    if content is not None:
        path.write_bytes(content)
    assert run(line(name, codec, path, tmp_path / "a")) == 2
    error = capsys.readouterr().err
    assert str(path) in error and "Traceback" not in error
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["decode", "encode"])
def test_outputs_that_cannot_be_written(
    codec: Path,
    codes_file: Callable[[int], Path],
    wav_file: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    source = codes_file(2) if name == "decode" else wav_file(100)
    (tmp_path / "file").write_text("kept")
    assert run(line(name, codec, source, tmp_path / "file" / "a")) == 2
    error = capsys.readouterr().err
    assert "cannot be written" in error and "Traceback" not in error
    assert run(line(name, codec, source, tmp_path)) == 2
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("name", ["decode", "encode"])
def test_codecs_that_are_not_there(
    codes_file: Callable[[int], Path],
    wav_file: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    source = codes_file(2) if name == "decode" else wav_file(100)
    assert run(line(name, tmp_path / "absent", source, tmp_path / "a")) == 2
    assert "absent" in capsys.readouterr().err
    assert run(line(name, tmp_path, source, tmp_path / "a")) == 3
    assert run(line(name, tmp_path, source, tmp_path / "a", "--chunk", 0)) == 2
    assert "--chunk" in capsys.readouterr().err
