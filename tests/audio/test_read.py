"""Clips in many containers, codecs, rates, channel counts and sample formats are read back."""

import io
import wave
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
import soxr
from av.video.stream import VideoStream
from numpy.typing import NDArray

from declaim.audio.read import ClipLimits, read_clip

FloatArray = NDArray[np.float32]
Encode = Callable[..., bytes]

RATE = 22_050
LIMITS = ClipLimits()


def likeness(one: FloatArray, other: FloatArray, rate: int) -> tuple[float, float]:
    """Largest correlation of two clips over lags up to 0.1 s, and that lag in seconds."""
    size = 1 << (len(one) + len(other)).bit_length()
    product = np.fft.irfft(np.fft.rfft(one, size) * np.conj(np.fft.rfft(other, size)), size)
    most = rate // 10
    around = np.concatenate([product[-most:], product[: most + 1]])
    best = int(around.argmax())
    energy = float(np.linalg.norm(one.astype(np.float64)) * np.linalg.norm(other))
    return float(around[best]) / energy, (best - most) / rate


@pytest.mark.parametrize(
    ("container", "codec", "own", "channels", "least"),
    [
        ("mp3", "libmp3lame", 44_100, 1, 0.99),
        ("mp3", "libmp3lame", 22_050, 2, 0.99),
        ("flac", "flac", 48_000, 2, 0.999),
        ("flac", "flac", 96_000, 1, 0.999),
        ("wav", "pcm_s16le", 8_000, 1, 0.9),
        ("wav", "pcm_mulaw", 16_000, 1, 0.97),
        ("wav", "pcm_f32le", 44_100, 1, 0.999),
        ("wav", "pcm_s24le", 48_000, 1, 0.999),
        ("wav", "pcm_s16le", 44_100, 6, 0.999),
        ("wav", "adpcm_ms", 22_050, 1, 0.98),
        ("aiff", "pcm_s16be", 32_000, 2, 0.999),
        ("ogg", "libopus", 48_000, 1, 0.97),
        ("w64", "pcm_s32le", 32_000, 1, 0.999),
        ("ipod", "aac", 44_100, 2, 0.98),
        ("mp4", "alac", 44_100, 1, 0.999),
        ("adts", "aac", 24_000, 1, 0.97),
        ("matroska", "libopus", 48_000, 2, 0.97),
        ("webm", "libopus", 48_000, 1, 0.97),
        ("mpegts", "mp2", 44_100, 1, 0.98),
        ("caf", "pcm_s16be", 44_100, 1, 0.999),
        ("au", "pcm_s16be", 22_050, 1, 0.999),
        ("wv", "wavpack", 44_100, 1, 0.999),
        ("avi", "pcm_s16le", 44_100, 2, 0.999),
        ("mov", "pcm_s16le", 48_000, 2, 0.999),
    ],
)
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_a_spoken_clip_survives_its_format(
    spoken: FloatArray, encode: Encode, rate: int, container: str, codec: str, own: int,
    channels: int, least: float,
) -> None:  # fmt: skip
    content = encode(np.tile(spoken, (channels, 1)), container=container, codec=codec, rate=own)
    samples = read_clip(content, rate=rate, limits=LIMITS)
    assert samples.dtype == np.float32 and samples.ndim == 1
    assert np.abs(samples).max() <= 1
    assert len(samples) / rate == pytest.approx(len(spoken) / RATE, abs=0.13)
    original = soxr.resample(spoken, RATE, rate) if rate != RATE else spoken
    alike, lag = likeness(samples, original, rate)
    assert alike > least
    assert abs(lag) < 0.06
    gain = np.linalg.norm(samples) / np.linalg.norm(original)
    assert gain == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("codec", "step"),
    [
        ("pcm_u8", 2**-7),
        ("pcm_s16le", 2**-15),
        ("pcm_s24le", 2**-23),
        ("pcm_s32le", 2**-24),
        ("pcm_s64le", 2**-24),
        ("pcm_f32le", 2**-24),
        ("pcm_f64le", 2**-24),
    ],
)
def test_every_sample_format_keeps_its_values(
    spoken: FloatArray, encode: Encode, codec: str, step: float
) -> None:
    content = encode(spoken[None], container="wav", codec=codec)
    samples = read_clip(content, rate=RATE, limits=LIMITS)
    assert len(samples) == len(spoken)
    assert np.abs(samples - spoken).max() <= step


def test_channels_are_averaged(spoken: FloatArray, encode: Encode) -> None:
    gains = np.array([0.25, 0, 0.5, -0.25, 1, 0.75], dtype=np.float32)
    for count in (2, 6):
        channels = gains[:count, None] * spoken
        content = encode(channels, container="wav", codec="pcm_f32le")
        samples = read_clip(content, rate=RATE, limits=LIMITS)
        assert np.allclose(samples, gains[:count].mean() * spoken, rtol=0, atol=1e-6)


def test_loudness_is_kept_and_only_what_is_over_is_clipped(
    spoken: FloatArray, encode: Encode
) -> None:
    for gain in (0.01, 3.0):
        content = encode(gain * spoken[None], container="wav", codec="pcm_f32le")
        samples = read_clip(content, rate=RATE, limits=LIMITS)
        assert np.allclose(samples, np.clip(gain * spoken, -1, 1), rtol=0, atol=1e-6)
    assert (np.abs(samples) == 1).any()


def test_resampling_drops_what_the_new_rate_cannot_hold(encode: Encode) -> None:
    time = np.arange(2 * 48_000) / 48_000
    low, high = (np.sin(2 * np.pi * hertz * time) / 2 for hertz in (1_000, 15_000))
    both = (low + high).astype(np.float32)[None]
    content = encode(both, container="wav", codec="pcm_f32le", rate=48_000, own_rate=48_000)
    samples = read_clip(content, rate=16_000, limits=LIMITS)
    assert len(samples) == 2 * 16_000
    assert np.abs(samples - low[::3])[500:-500].max() < 1e-4


def test_a_path_and_its_bytes_give_the_same(spoken_path: Path, spoken: FloatArray) -> None:
    samples = read_clip(spoken_path, rate=RATE, limits=LIMITS)
    assert np.array_equal(samples, spoken)
    assert np.array_equal(read_clip(spoken_path.read_bytes(), rate=RATE, limits=LIMITS), spoken)


def test_a_rate_that_changes_midway_is_followed(spoken: FloatArray, encode: Encode) -> None:
    halves = [
        encode(spoken[None], container="mp3", codec="libmp3lame", rate=rate,
               options={"write_xing": "0", "id3v2_version": "0"})
        for rate in (44_100, 22_050)
    ]  # fmt: skip
    samples = read_clip(b"".join(halves), rate=RATE, limits=LIMITS)
    assert len(samples) / RATE == pytest.approx(2 * len(spoken) / RATE, abs=0.3)
    for half in (samples[: len(spoken) + 2000], samples[-len(spoken) - 2000 :]):
        assert likeness(half, spoken, RATE)[0] > 0.98


def test_the_first_of_several_streams_beside_pictures_is_read(spoken: FloatArray) -> None:
    target = io.BytesIO()
    with av.open(target, "w", format="matroska") as output:
        video = output.add_stream("mpeg4", rate=10)
        assert isinstance(video, VideoStream)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        streams = [output.add_stream("pcm_s16le", rate=RATE, layout="mono") for _ in range(2)]
        for shade in range(30):
            picture = np.full((64, 64, 3), shade, dtype=np.uint8)
            output.mux(video.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        output.mux(video.encode(None))
        for stream, samples in zip(streams, (spoken, spoken[::-1]), strict=True):
            values = np.rint(samples * (1 << 15)).astype(np.int16)[None]
            frame = av.AudioFrame.from_ndarray(values, "s16", "mono")
            frame.sample_rate = RATE
            output.mux(stream.encode(frame))
    assert np.array_equal(read_clip(target.getvalue(), rate=RATE, limits=LIMITS), spoken)


@pytest.mark.parametrize("stated", [0, 1 << 20, (1 << 32) - 1])
def test_a_wav_header_that_lies_gives_what_is_there(spoken: FloatArray, stated: int) -> None:
    target = io.BytesIO()
    with wave.open(target, "wb") as writer:
        writer.setparams((1, 2, RATE, 0, "NONE", ""))
        writer.writeframes(np.rint(spoken * (1 << 15)).astype("<i2").tobytes())
    content = bytearray(target.getvalue())
    content[40:44] = stated.to_bytes(4, "little")
    assert np.array_equal(read_clip(bytes(content), rate=RATE, limits=LIMITS), spoken)


@pytest.mark.parametrize(
    ("container", "codec"),
    [("mp3", "libmp3lame"), ("flac", "flac"), ("ogg", "libopus"), ("wav", "pcm_s16le")],
)
def test_a_clip_that_was_cut_off_gives_its_beginning(
    spoken: FloatArray, encode: Encode, container: str, codec: str
) -> None:
    rate = 48_000 if codec == "libopus" else RATE
    content = encode(spoken[None], container=container, codec=codec, rate=rate)
    samples = read_clip(content[: len(content) * 9 // 10], rate=RATE, limits=LIMITS)
    assert 1 < len(samples) / RATE < 0.95 * len(spoken) / RATE
    assert likeness(samples, spoken[: len(samples)], RATE)[0] > 0.9


def test_a_damaged_middle_is_passed_over(spoken: FloatArray, encode: Encode) -> None:
    content = bytearray(encode(spoken[None], container="mp3", codec="libmp3lame"))
    middle = len(content) // 2
    content[middle : middle + 400] = np.random.default_rng(0).bytes(400)
    samples = read_clip(bytes(content), rate=RATE, limits=LIMITS)
    assert len(samples) / RATE == pytest.approx(len(spoken) / RATE, abs=0.5)


def test_nothing_is_printed_and_no_level_is_changed(
    spoken: FloatArray, encode: Encode, capfd: pytest.CaptureFixture[str]
) -> None:
    level = av.logging.get_level()
    content = encode(spoken[None], container="mp3", codec="libmp3lame")
    read_clip(content[:100] + content[150:], rate=RATE, limits=LIMITS)
    assert av.logging.get_level() == level
    assert capfd.readouterr() == ("", "")
