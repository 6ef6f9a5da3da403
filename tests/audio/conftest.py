"""A spoken clip, and a way to write it in many formats."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import av
import numpy as np
import pytest
from av.audio.stream import AudioStream
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

SPOKEN_RATE = 22_050


def encode_clip(
    channels: FloatArray,
    *,
    container: str,
    codec: str,
    rate: int = SPOKEN_RATE,
    own_rate: int = SPOKEN_RATE,
    options: Mapping[str, str] | None = None,
    frame: int = 0,
) -> bytes:
    """A file of float32 samples [channels, n] at `own_rate`, written at `rate`.

    ffmpeg's resampler is used where the rates differ; `frame` samples go into a packet of PCM.
    """
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(channels)]
    target = io.BytesIO()
    with av.open(target, "w", format=container, options=dict(options or {})) as output:
        stream = output.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, AudioStream)
        whole = av.AudioFrame.from_ndarray(np.ascontiguousarray(channels), "fltp", layout)
        whole.sample_rate = own_rate
        context = stream.codec_context
        resampler = av.AudioResampler(
            stream.format, layout, rate, frame_size=frame or context.frame_size or None
        )
        for piece in (*resampler.resample(whole), *resampler.resample(None), None):
            for packet in stream.encode(piece):
                output.mux(packet)
    return target.getvalue()


@pytest.fixture(scope="session")
def encode() -> Callable[..., bytes]:
    """encode_clip: keyword arguments container, codec, rate, own_rate, options, frame."""
    return encode_clip


@pytest.fixture(scope="session")
def spoken_path() -> Path:
    """The stored clip: 3.1 s of speech, 16-bit mono FLAC at 22,050 Hz."""
    return Path(__file__).parents[1] / "assets" / "spoken.flac"


@pytest.fixture(scope="session")
def spoken(spoken_path: Path) -> FloatArray:
    """Its samples [n], read-only, decoded without declaim."""
    with av.open(str(spoken_path)) as container:
        pieces = [frame.to_ndarray() for frame in container.decode(audio=0)]
    samples: FloatArray = np.concatenate(pieces, axis=1)[0].astype(np.float32)
    samples /= 1 << 15
    samples.flags.writeable = False
    return samples
