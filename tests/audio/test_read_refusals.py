"""What cannot be read is refused with its parameter, limit and value, whatever the bytes are."""

import io
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.stream import VideoStream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from declaim.audio.read import MAX_CHANNELS, MAX_RATE, MIN_RATE, ClipLimits, read_clip
from declaim.contracts.errors import DeclaimError, InvalidRequest, NotFound, TooLarge

FloatArray = NDArray[np.float32]
Encode = Callable[..., bytes]

RATE = 22_050
LIMITS = ClipLimits()


def refusal(
    source: Path | bytes, limits: ClipLimits = LIMITS, param: str = "reference"
) -> DeclaimError:
    """The error that a clip meets; it names the parameter in the first place."""
    with pytest.raises(DeclaimError) as caught:
        read_clip(source, rate=RATE, limits=limits, param=param)
    error = caught.value
    assert error.param == param
    assert error.message.startswith(f"{param}: ")
    assert error.value is not None
    return error


def wav(samples: bytes, *, channels: int, rate: int, kind: int = 1, width: int = 2) -> bytes:
    """A WAV file with any header."""
    form = struct.pack(
        "<HHIIHH", kind, channels, rate, rate * channels * width, channels * width, 8 * width
    )
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(samples))
    return b"RIFF" + struct.pack("<I", len(body) + len(samples)) + body + samples


def zipped() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("clip.txt", "not a clip " * 100)
    return target.getvalue()


def pictures() -> bytes:
    target = io.BytesIO()
    with av.open(target, "w", format="mp4") as output:
        video = output.add_stream("mpeg4", rate=10)
        assert isinstance(video, VideoStream)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        for _ in range(20):
            blank = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), dtype=np.uint8), "rgb24")
            output.mux(video.encode(blank))
        output.mux(video.encode(None))
    return target.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"\0" * 100_000,
        b"The quick brown fox jumps over the lazy dog.\n" * 500,
        np.random.default_rng(0).bytes(100_000),
        zipped(),
        wav(b"", channels=1, rate=RATE),
        wav(b"", channels=1, rate=RATE)[:30],
        b"ID3\x04\0\0\0\0\0\0",
        b"fLaC" + b"\xff" * 1000,
        b"OggS" + b"\0" * 1000,
        b"\x89PNG\r\n\x1a\n" + b"\0" * 1000,
    ],
    ids=["empty", "zero", "zeros", "text", "random", "zip", "wav", "header", "id3", "flac", "ogg",
         "png"],
)  # fmt: skip
def test_what_is_no_clip_is_refused(content: bytes) -> None:
    assert isinstance(refusal(content), InvalidRequest)


def test_a_film_without_sound_is_refused() -> None:
    assert refusal(pictures()).message == "reference: it holds no audio"


def test_too_many_bytes(tmp_path: Path, spoken_path: Path) -> None:
    size = spoken_path.stat().st_size
    for source in (spoken_path, spoken_path.read_bytes()):
        error = refusal(source, ClipLimits(max_bytes=size - 1), param="references[2]")
        assert isinstance(error, TooLarge)
        assert (error.limit, error.value) == (size - 1, size)
        assert len(read_clip(source, rate=RATE, limits=ClipLimits(max_bytes=size))) > 0
    huge = tmp_path / "huge.wav"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    assert refusal(huge).value == 1 << 40


def test_too_long_and_too_short(spoken: FloatArray, encode: Encode) -> None:
    content = encode(spoken[None], container="wav", codec="pcm_s16le")
    seconds = len(spoken) / RATE
    error = refusal(content, ClipLimits(min_seconds=3.5))
    assert isinstance(error, InvalidRequest)
    assert (error.limit, error.value) == ("3.5 s", pytest.approx(seconds, abs=1e-3))
    error = refusal(content, ClipLimits(max_seconds=2))
    assert isinstance(error, TooLarge)
    assert error.limit == "2 s"
    exact = ClipLimits(min_seconds=seconds, max_seconds=seconds)
    assert len(read_clip(content, rate=RATE, limits=exact)) == len(spoken)


def test_what_encoders_add_is_cut_off(spoken: FloatArray, encode: Encode) -> None:
    content = encode(spoken[None, : 3 * RATE], container="adts", codec="aac")
    limits = ClipLimits(max_seconds=3)
    assert len(read_clip(content, rate=RATE, limits=ClipLimits())) > 3 * RATE
    assert len(read_clip(content, rate=RATE, limits=limits)) == 3 * RATE


@pytest.mark.parametrize("channels", [MAX_CHANNELS + 1, 64])
def test_too_many_channels(channels: int) -> None:
    error = refusal(wav(bytes(2 * channels * RATE * 2), channels=channels, rate=RATE))
    assert isinstance(error, InvalidRequest)
    assert (error.limit, error.value) == (MAX_CHANNELS, channels)
    most = wav(bytes(2 * MAX_CHANNELS * RATE * 2), channels=MAX_CHANNELS, rate=RATE)
    assert len(read_clip(most, rate=RATE, limits=LIMITS)) == 2 * RATE


@pytest.mark.parametrize("rate", [1, MIN_RATE - 1, MAX_RATE + 1, 2_000_000_000])
def test_sample_rates_out_of_range(rate: int) -> None:
    error = refusal(wav(bytes(1 << 20), channels=1, rate=rate))
    assert isinstance(error, InvalidRequest)
    assert error.value == rate
    assert str(MAX_RATE) in str(error.limit)


@pytest.mark.parametrize("rate", [MIN_RATE, MAX_RATE])
def test_sample_rates_at_the_ends_are_read(rate: int) -> None:
    samples = read_clip(wav(bytes(4 * rate), channels=1, rate=rate), rate=RATE, limits=LIMITS)
    assert len(samples) == 2 * RATE


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_samples_that_are_no_finite_numbers(value: float) -> None:
    samples = np.zeros((2 * RATE, 2))
    samples[RATE] = value
    content = wav(samples.tobytes(), channels=2, rate=RATE, kind=3, width=8)
    assert "finite" in refusal(content).message


def test_more_packets_than_allowed(spoken: FloatArray, encode: Encode) -> None:
    """Packets of 0.4 ms, which no codec uses, in a clip that is short enough."""
    content = encode(spoken[None, :RATE], container="matroska", codec="pcm_s16le", frame=8)
    assert "more than 2000 packets" in refusal(content, ClipLimits(max_seconds=1)).message


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path / "absent.wav", tmp_path, pipe, Path("a\0b"), Path("x" * 5000)):
        error = refusal(path)
        assert isinstance(error, NotFound)
        assert error.value == str(path)


def other_files(path: Path) -> dict[str, str]:
    """Texts that name another file, in every way that a reader of media knows."""
    return {
        "concat": f"ffconcat version 1.0\nfile '{path}'\n",
        "concat url": f"ffconcat version 1.0\nfile 'file:{path}'\n",
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:3.1,\n{path}\n#EXT-X-ENDLIST\n",
        "hls url": "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:3,\nhttp://127.0.0.1:9/a.ts\n",
        "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
        "m=audio 9 RTP/AVP 0\n",
        "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period>'
        f"<AdaptationSet><Representation><BaseURL>{path}</BaseURL></Representation>"
        "</AdaptationSet></Period></MPD>",
    }


def test_no_other_file_is_read(spoken_path: Path) -> None:
    for text in other_files(spoken_path).values():
        assert isinstance(refusal(text.encode()), InvalidRequest)


@pytest.fixture(scope="module")
def clips(spoken: FloatArray, encode: Encode) -> Mapping[str, bytes]:
    """One valid clip of a second a format."""
    kinds = {"wav": "pcm_s16le", "flac": "flac", "mp3": "libmp3lame", "ipod": "aac",
             "ogg": "libopus", "matroska": "pcm_f32le", "aiff": "pcm_s16be", "adts": "aac",
             "caf": "alac", "wv": "wavpack"}  # fmt: skip
    return {
        container: encode(
            spoken[None, :RATE],
            container=container,
            codec=codec,
            rate=48_000 if codec == "libopus" else RATE,
        )
        for container, codec in kinds.items()
    }


def read_or_refuse(content: bytes) -> None:
    """A clip in range, or an error of ours."""
    try:
        samples = read_clip(content, rate=16_000, limits=ClipLimits(min_seconds=0.1, max_seconds=5))
    except DeclaimError as error:
        assert error.param == "reference"
    else:
        assert samples.dtype == np.float32
        assert 1_600 <= len(samples) <= 80_000
        assert np.abs(samples).max() <= 1


FUZZ = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(content=st.binary(max_size=400), kind=st.sampled_from([b"", b"RIFF", b"fLaC", b"\xff\xfb"]))
def test_random_bytes_are_refused(content: bytes, kind: bytes) -> None:
    read_or_refuse(kind + content)


@FUZZ
@given(data=st.data())
def test_any_damage_is_read_or_refused(clips: Mapping[str, bytes], data: st.DataObject) -> None:
    content = bytearray(clips[data.draw(st.sampled_from(sorted(clips)))])
    head = min(len(content), 600) - 1
    places = st.integers(0, head) | st.integers(0, len(content) - 1)
    for place in data.draw(st.lists(places, max_size=20)):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    end = data.draw(st.none() | st.integers(0, len(content)))
    read_or_refuse(bytes(content[:end]))
