"""Recorded clips in any form that ffmpeg knows, as mono float32 samples at one rate.

What is in a clip is not trusted: it is decoded from memory, with no access to other files or the
network, and no further than its limits allow. Whether a clip is audible is checked where it is
used, not here.
"""

import io
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import soxr
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from numpy.typing import NDArray

from declaim.audio.mp4 import overstates
from declaim.contracts.errors import DeclaimError, InvalidRequest, NotFound, TooLarge

FloatArray = NDArray[np.float32]

MAX_CHANNELS = 32
MIN_RATE = 1_000
MAX_RATE = 384_000
"""Sample rates of a clip, in samples a second."""

PACKETS_PER_SECOND = 2_000
"""Packets that may be read for each second of the longest clip, damaged and empty ones included;
the shortest packets in use last 2.5 ms."""

MARGIN_SECONDS = 0.5
"""A clip may be longer by what encoders add at its ends; that much is cut off."""

_MAX_STREAMS = 64
_MAX_FRAME_SAMPLES = 1 << 21  # of each channel; the longest frames in use have 1.2 million

_OTHER_FILES = frozenset(
    {
        "applehttp", "concat", "concatf", "dash", "ffmetadata", "hls", "image2", "image2pipe",
        "imf", "lavfi", "rtp", "rtsp", "sap", "sdp", "tty", "webm_dash_manifest",
    }
)  # fmt: skip
"""Formats that name other files or addresses, or that hold pictures or text alone."""

_MP4_NAMES = frozenset({"mov", "mp4", "m4a", "3gp", "3g2", "mj2"})

_SAMPLE_FORMATS: Mapping[str, tuple[str, int, int]] = {
    "u8": ("u1", 128, 1 << 7),
    "s16": ("i2", 0, 1 << 15),
    "s32": ("i4", 0, 1 << 31),
    "s64": ("i8", 0, 1 << 63),
    "flt": ("f4", 0, 1),
    "dbl": ("f8", 0, 1),
}
"""numpy's name of a sample's type, the value of silence, and of full scale above it."""


@dataclass(frozen=True)
class ClipLimits:
    """How large a clip may be: bytes of the file, seconds of its sound."""

    max_bytes: int = 10_000_000
    min_seconds: float = 1.0
    max_seconds: float = 60.0


def read_clip(
    source: Path | bytes, *, rate: int, limits: ClipLimits, param: str = "reference"
) -> FloatArray:
    """The first audio stream of a file, or of its bytes, as float32 [n] at `rate` a second.

    The channels' mean, resampled; never outside [-1, 1], and not normalised. A damaged or cut off
    clip gives what could be decoded. Errors name `param`: NotFound for a path that cannot be
    read, TooLarge for too many bytes or seconds, InvalidRequest for anything without audio, too
    short, or not made of finite numbers.
    """
    assert rate > 0
    content = _content(source, limits, param)
    try:
        runs = _decode(content, limits, param)
    except (av.FFmpegError, ValueError, MemoryError) as error:
        raise _unreadable(param, "it cannot be read as audio") from error
    if not runs:
        raise _unreadable(param, "no audio could be decoded")
    resampled = [
        samples if own == rate else soxr.resample(samples, own, rate, quality="HQ")
        for own, samples in runs
    ]
    joined: FloatArray = np.concatenate(resampled)[: int(limits.max_seconds * rate)]
    seconds = len(joined) / rate
    if seconds < limits.min_seconds:
        raise InvalidRequest(
            f"{param}: a clip must last at least {limits.min_seconds:g} s, not {seconds:.2f} s",
            param=param,
            limit=f"{limits.min_seconds:g} s",
            value=round(seconds, 3),
        )
    return joined.clip(np.float32(-1), np.float32(1))


def _content(source: Path | bytes, limits: ClipLimits, param: str) -> bytes:
    if isinstance(source, bytes):
        content, size = source, len(source)
    else:
        try:
            status = source.stat()
            if not stat.S_ISREG(status.st_mode):
                raise _missing(source, "is not a file", param)
            with source.open("rb") as file:
                content = file.read(limits.max_bytes + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not a valid path"
            raise _missing(source, f"cannot be read: {reason}", param) from error
        size = max(status.st_size, len(content))
    if size > limits.max_bytes:
        raise TooLarge(
            f"{param}: a clip may have at most {limits.max_bytes} bytes, not {size}",
            param=param,
            limit=limits.max_bytes,
            value=size,
        )
    if not content:
        raise _unreadable(param, "it is empty")
    return content


def _missing(path: Path, what: str, param: str) -> NotFound:
    return NotFound(f"{param}: {path} {what}", param=param, value=str(path))


def _unreadable(param: str, what: str) -> DeclaimError:
    return InvalidRequest(
        f"{param}: {what}", param=param, limit="audio that ffmpeg can decode", value=what
    )


def _decode(content: bytes, limits: ClipLimits, param: str) -> list[tuple[int, FloatArray]]:
    """Runs of one sample rate each, in order: the rate and the channels' mean [n]."""
    runs: list[tuple[int, list[FloatArray]]] = []
    seconds = 0.0
    with av.open(
        io.BytesIO(content),
        mode="r",
        container_options=_options(content),
        metadata_errors="replace",
    ) as container:
        if not container.streams.audio:
            raise _unreadable(param, "it holds no audio")
        for frame in _frames(container, container.streams.audio[0], limits, param):
            mono = _mono(frame)
            if not np.isfinite(mono).all():
                raise _unreadable(param, "it holds samples that are not finite numbers")
            if not runs or runs[-1][0] != frame.sample_rate:
                runs.append((frame.sample_rate, []))
            runs[-1][1].append(mono)
            seconds += len(mono) / frame.sample_rate
            if seconds > limits.max_seconds + MARGIN_SECONDS:
                raise TooLarge(
                    f"{param}: a clip may last at most {limits.max_seconds:g} s; this is longer",
                    param=param,
                    limit=f"{limits.max_seconds:g} s",
                    value=f"more than {limits.max_seconds:g} s",
                )
    return [(rate, np.concatenate(pieces)) for rate, pieces in runs]


def _options(content: bytes) -> dict[str, str]:
    """What ffmpeg may do with a clip: no other files, only sound, no tables that blow up."""
    refused = _OTHER_FILES | (_MP4_NAMES if overstates(content) else frozenset())
    formats = [
        name
        for name in av.formats_available
        if not any(part in refused or part.endswith("_pipe") for part in name.split(","))
    ]
    return {
        "protocol_whitelist": "none",
        "format_whitelist": ",".join(sorted(formats)),
        "codec_whitelist": ",".join(sorted(_audio_decoders())),
        "max_streams": str(_MAX_STREAMS),
        "advanced_editlist": "0",  # each edit of an MP4 file would copy its index
    }


def _audio_decoders() -> Iterator[str]:
    """Names of decoders for sound: pictures inside a clip are never decoded."""
    for name in av.codecs_available:
        try:
            codec = av.Codec(name, "r")
        except ValueError:
            continue  # an encoder only
        if codec.type == "audio":
            yield name


def _frames(
    container: InputContainer, stream: AudioStream, limits: ClipLimits, param: str
) -> Iterator[AudioFrame]:
    """Decoded frames of a stream; packets that cannot be decoded are passed over.

    Raises InvalidRequest for more channels, another sample rate or more packets than allowed.
    """
    most = max(PACKETS_PER_SECOND, round(PACKETS_PER_SECOND * limits.max_seconds))
    context = cast(AudioCodecContext | None, stream.codec_context)
    if context is None:
        raise _unreadable(param, "its codec is not known")
    context.options = {"max_samples": str(_MAX_FRAME_SAMPLES)}
    _check_form(context.channels, context.sample_rate, param)
    packets = container.demux(stream)
    for _ in range(most):
        try:
            packet = next(packets, None)
        except (av.FFmpegError, IndexError):
            return  # the rest is damaged; IndexError: streams appeared on the way, this one ended
        if packet is None:
            return
        try:
            frames = packet.decode()
        except av.FFmpegError:
            continue
        for frame in frames:
            _check_form(frame.layout.nb_channels, frame.sample_rate, param)
            yield frame
    raise _unreadable(param, f"it has more than {most} packets")


def _check_form(channels: int, rate: int, param: str) -> None:
    """Raise InvalidRequest unless channels and samples a second are within what is read."""
    if not 1 <= channels <= MAX_CHANNELS:
        raise InvalidRequest(
            f"{param}: a clip may have 1 to {MAX_CHANNELS} channels, not {channels}",
            param=param,
            limit=MAX_CHANNELS,
            value=channels,
        )
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidRequest(
            f"{param}: a clip's sample rate must be {MIN_RATE} to {MAX_RATE} Hz, not {rate}",
            param=param,
            limit=f"[{MIN_RATE}, {MAX_RATE}] Hz",
            value=rate,
        )


def _mono(frame: AudioFrame) -> FloatArray:
    """The mean of a frame's channels, [n]; full scale of integers becomes 1."""
    channels = frame.layout.nb_channels
    kind = frame.format.name
    if frame.format.is_planar:
        kind = kind.removesuffix("p")
    dtype, zero, scale = _SAMPLE_FORMATS[kind]
    values: NDArray[Any]
    if frame.format.is_planar:
        values = np.stack(
            [np.frombuffer(bytes(plane), dtype, count=frame.samples) for plane in frame.planes]
        )
    else:
        packed = np.frombuffer(bytes(frame.planes[0]), dtype, count=frame.samples * channels)
        values = packed.reshape(frame.samples, channels).T
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is seen to be infinite
        mean: NDArray[np.float64] = values.mean(axis=0, dtype=np.float64)
        return ((mean - zero) / scale).astype(np.float32)
