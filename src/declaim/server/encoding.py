"""Samples to the bytes of an answer: pcm and wav, whole samples at a time.

Knows no HTTP but the names of formats and their content types.
"""

from collections.abc import Mapping
from typing import Final

from declaim.audio.resample import StreamResampler
from declaim.audio.wav import streaming_wav_header, to_int16, wav_header
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import FloatArray, shown

CONTENT_TYPES: Final[Mapping[str, str]] = {"pcm": "audio/pcm", "wav": "audio/wav"}
"""Every format that there is, with its content type."""

PCM_RATE = 24000
"""What clients that cannot ask for a rate take raw samples to have."""

_ELSEWHERE = ("mp3", "opus", "aac", "flac")


class SampleEncoder:
    """One stream of samples to 16-bit little-endian bytes at another rate."""

    def __init__(self, source_rate: int, rate: int) -> None:
        self._resampler = StreamResampler(source_rate, rate)

    def feed(self, samples: FloatArray) -> bytes:
        """What can be sent after these samples, float32 [n] in [-1, 1]; may be empty."""
        return _int16_bytes(self._resampler.feed(samples))

    def finish(self) -> bytes:
        """The rest."""
        return _int16_bytes(self._resampler.finish())


def _int16_bytes(samples: FloatArray) -> bytes:
    return to_int16(samples)[0].astype("<i2").tobytes()


def check_format(name: str | None) -> str:
    """The format itself; raises InvalidRequest for one that is absent, unknown or not there."""
    if name is not None and name in CONTENT_TYPES:
        return name
    available = " and ".join(CONTENT_TYPES)
    if name is None:
        said = "response_format must be given"
    elif name in _ELSEWHERE:
        said = f"response_format {name} is not available"
    else:
        said = f"response_format {shown(name)} is not known"
    raise InvalidRequest(
        f"{said}: available are {available}",
        param="response_format",
        limit=tuple(CONTENT_TYPES),
        value=name,
    )


def default_rate(name: str, engine_rate: int) -> int:
    """Samples a second of an answer that was not asked for a rate."""
    return PCM_RATE if name == "pcm" else engine_rate


def stream_header(name: str, rate: int) -> bytes:
    """What comes before the samples of a streamed answer."""
    return streaming_wav_header(rate) if name == "wav" else b""


def whole_body(name: str, rate: int, data: bytes) -> bytes:
    """A whole answer: its header with true sizes, then the samples."""
    return wav_header(len(data) // 2, rate) + data if name == "wav" else data
