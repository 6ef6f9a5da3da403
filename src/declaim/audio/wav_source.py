"""Reading 16-bit PCM WAV files block by block, mixed to mono.

Knows this one format; a file of another kind is refused with what was found.
"""

import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from declaim.contracts.errors import InvalidRequest, NotFound
from declaim.contracts.request import FloatArray

_WIDTH = 2
_CHANNELS = (1, 2)
_RATES = (1_000, 384_000)
_FULL_SCALE = 32768


class WavSource:
    """An open WAV file. rate: samples a second. samples: how many its header counts."""

    def __init__(self, path: Path, opened: wave.Wave_read) -> None:
        self._path = path
        self._opened = opened
        self.rate = opened.getframerate()
        self.samples = opened.getnframes()

    def blocks(self, size: int) -> Iterator[FloatArray]:
        """The samples in order, float32 in [-1, 1), `size` at a time, the last block short.

        Raises InvalidRequest where the file ends before its header says.
        """
        channels, left = self._opened.getnchannels(), self.samples
        while left:
            wanted = min(size, left)
            values = np.frombuffer(self._read(wanted), dtype="<i2").reshape(-1, channels)
            if len(values) < wanted:
                found = self.samples - left + len(values)
                raise _refusal(self._path, f"{self.samples} samples long", f"cut off after {found}")
            left -= wanted
            yield (values.astype(np.float32).mean(1, dtype=np.float32)) / np.float32(_FULL_SCALE)

    def _read(self, samples: int) -> bytes:
        """As much of so many samples as there is, in whole samples."""
        content = self._opened.readframes(samples)
        whole = _WIDTH * self._opened.getnchannels()
        return content[: len(content) // whole * whole]


@contextmanager
def open_wav(path: Path) -> Iterator[WavSource]:
    """A 16-bit mono or stereo WAV file with at least one sample.

    Raises NotFound without such a file, InvalidRequest for any other content.
    """
    if not path.is_file():
        raise NotFound(f"there is no file {path}", param="input", value=str(path))
    with path.open("rb") as file:
        try:
            opened = wave.open(file, "rb")
        except EOFError as error:
            raise _refusal(path, "a 16-bit PCM WAV file", "empty or cut off") from error
        except (wave.Error, RuntimeError) as error:
            raise _refusal(path, "a 16-bit PCM WAV file", f"another ({error})") from error
        with opened:
            _check(path, opened)
            yield WavSource(path, opened)


def _check(path: Path, opened: wave.Wave_read) -> None:
    width, channels = opened.getsampwidth(), opened.getnchannels()
    if width != _WIDTH:
        raise _refusal(path, "a 16-bit PCM WAV file", f"{8 * width}-bit")
    if channels not in _CHANNELS:
        raise _refusal(path, "mono or stereo", f"of {channels} channels")
    low, high = _RATES
    if not low <= opened.getframerate() <= high:
        limit = f"of {low} to {high} samples a second"
        raise _refusal(path, limit, f"of {opened.getframerate()}")
    if not opened.getnframes():
        raise _refusal(path, "at least one sample long", "without samples")


def _refusal(path: Path, limit: str, found: str) -> InvalidRequest:
    return InvalidRequest(
        f"{path} must be {limit}, not {found}", param="input", limit=limit, value=found
    )
