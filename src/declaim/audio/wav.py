"""16-bit mono WAV files from float samples.

Knows nothing of where the samples come from.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from declaim.audio.files import write_whole
from declaim.contracts.errors import TooLarge

HEADER_BYTES = 44
MAX_SAMPLES = (2**32 - 1 - (HEADER_BYTES - 8)) // 2
"""Most samples of a file: its size field counts all but 8 of its bytes in 32 bits."""

_FULL_SCALE = 32767
_UNKNOWN = 2**32 - 1


def _header(rest: int, data: int, rate: int) -> bytes:
    """rest: bytes after the first eight. data: bytes of samples."""
    return (
        struct.pack("<4sI4s", b"RIFF", rest, b"WAVE")
        + struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
        + struct.pack("<4sI", b"data", data)
    )


def to_int16(samples: NDArray[np.floating[Any]]) -> tuple[NDArray[np.int16], int]:
    """Samples in [-1, 1] as int16, and how many were NaN.

    Full scale is 32767 both ways; values outside are clamped, infinities too, and NaN gives 0.
    """
    nan = np.isnan(samples)
    finite = np.where(nan, 0, samples).astype(np.float64)
    scaled = np.rint(np.clip(finite, -1.0, 1.0) * _FULL_SCALE)
    return scaled.astype(np.int16), int(nan.sum())


def wav_header(samples: int, rate: int) -> bytes:
    """The 44 bytes before the samples of a 16-bit mono file; rate in samples a second.

    Raises TooLarge for more samples than the format can count.
    """
    if samples > MAX_SAMPLES:
        raise TooLarge(
            f"a WAV file holds at most {MAX_SAMPLES} samples, not {samples}",
            param="samples",
            limit=MAX_SAMPLES,
            value=samples,
        )
    return _header(HEADER_BYTES - 8 + 2 * samples, 2 * samples, rate)


def streaming_wav_header(rate: int) -> bytes:
    """The 44 bytes before samples whose number is not known yet: both sizes are 0xFFFFFFFF."""
    return _header(_UNKNOWN, _UNKNOWN, rate)


def write_wav(path: Path, samples: NDArray[np.floating[Any]], rate: int) -> int:
    """Write samples [n] in [-1, 1] as a 16-bit mono WAV file; returns how many were NaN.

    The file appears as a whole or not at all. Raises NotFound where it cannot be written.
    """
    assert samples.ndim == 1
    values, nan = to_int16(samples)
    write_whole(path, wav_header(len(values), rate) + values.astype("<i2").tobytes())
    return nan
