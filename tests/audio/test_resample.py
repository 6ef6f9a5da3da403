"""The streaming resampler: counts, cuts, and what it does to a tone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declaim.audio.resample import StreamResampler
from declaim.audio.wav import to_int16
from declaim.contracts.request import FloatArray


def resampled(samples: FloatArray, source: int, target: int, cuts: list[int]) -> FloatArray:
    """The stream's output for the input in chunks of these sizes, the rest as the last."""
    resampler = StreamResampler(source, target)
    parts, done = [], 0
    for cut in [*cuts, len(samples)]:
        parts.append(resampler.feed(samples[done : done + cut]))
        done += cut
    return np.concatenate([*parts, resampler.finish()])


def noise(count: int) -> FloatArray:
    return (np.random.default_rng(0).standard_normal(count) * 0.3).astype(np.float32)


@pytest.mark.parametrize("source", [22050, 44100])
@pytest.mark.parametrize("target", [8000, 8001, 16000, 24000, 44100, 47999, 48000])
@pytest.mark.parametrize("cuts", [[1] * 50, [1024] * 12, [2048, 1, 700, 0, 3000], [10**6]])
def test_chunked_equals_whole(source: int, target: int, cuts: list[int]) -> None:
    samples = noise(13 * 1024 + 7)
    whole = resampled(samples, source, target, [])
    chunked = resampled(samples, source, target, cuts)
    assert len(chunked) == len(whole) == int(len(samples) * target / source + 0.5)
    difference = to_int16(chunked)[0].astype(int) - to_int16(whole)[0]
    assert np.abs(difference).max() <= 1


@given(
    count=st.integers(0, 3000),
    source=st.integers(8000, 48000),
    target=st.integers(8000, 48000),
    cuts=st.lists(st.integers(0, 1000), max_size=5),
)
def test_every_count_is_exact(count: int, source: int, target: int, cuts: list[int]) -> None:
    output = resampled(noise(count), source, target, cuts)
    assert output.dtype == np.float32
    assert len(output) == (2 * count * target + source) // (2 * source)


def test_equal_rates_pass_the_samples_on() -> None:
    samples = noise(5000)
    assert np.array_equal(resampled(samples, 44100, 44100, [100, 2000]), samples)


def test_a_tone_keeps_its_pitch_and_level() -> None:
    """1 kHz at 44.1 kHz is 1 kHz at 24 kHz, in phase, within 1e-3 away from the ends."""
    tone = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(44100) / 44100)
    output = resampled(tone.astype(np.float32), 44100, 24000, [2048] * 20)
    expected = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(24000) / 24000)
    assert np.abs(output - expected)[1000:-1000].max() < 1e-3


def test_the_first_frame_gives_sound_at_once() -> None:
    """A frame of 2,048 samples already gives some at 24 kHz, and less than its whole share."""
    given_first = StreamResampler(44100, 24000).feed(noise(2048))
    assert 0 < len(given_first) <= 1115
