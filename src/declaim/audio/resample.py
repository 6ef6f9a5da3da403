"""Streaming change of sample rate: the cut into chunks changes nothing.

Knows nothing of where samples come from or go to.
"""

import numpy as np
import soxr

from declaim.contracts.request import FloatArray


def resampled_count(samples: int, source_rate: int, target_rate: int) -> int:
    """round(samples * target_rate / source_rate), a half rounded up."""
    return (2 * samples * target_rate + source_rate) // (2 * source_rate)


class StreamResampler:
    """One stream of mono samples from one rate to another, in samples a second.

    All output together holds `resampled_count` samples: cut, or padded with zeros, where the
    filter's own count differs. Equal rates pass the samples on as they are. The filter holds some
    samples back until more arrive or the end.
    """

    def __init__(self, source_rate: int, target_rate: int) -> None:
        assert source_rate > 0 and target_rate > 0
        self._source = source_rate
        self._target = target_rate
        self._taken = 0
        self._given = 0
        self._filter = (
            None
            if source_rate == target_rate
            else soxr.ResampleStream(source_rate, target_rate, 1, "float32", "HQ")
        )

    def feed(self, samples: FloatArray) -> FloatArray:
        """What can be given after these samples, float32 [m]; m may be 0."""
        assert samples.ndim == 1
        self._taken += len(samples)
        if self._filter is None:
            return samples
        made = self._filter.resample_chunk(np.ascontiguousarray(samples, dtype=np.float32))
        return self._counted(made)

    def finish(self) -> FloatArray:
        """The rest, float32 [m]. The stream is over after it."""
        if self._filter is None:
            return np.zeros(0, dtype=np.float32)
        rest = self._counted(self._filter.resample_chunk(np.zeros(0, dtype=np.float32), last=True))
        missing = self._whole - self._given
        return np.concatenate([rest, np.zeros(missing, dtype=np.float32)]) if missing else rest

    @property
    def _whole(self) -> int:
        """How many samples all input so far makes."""
        return resampled_count(self._taken, self._source, self._target)

    def _counted(self, made: FloatArray) -> FloatArray:
        kept = made[: max(0, self._whole - self._given)]
        self._given += len(kept)
        return kept
