"""Frames are what the logits, the seed and the window give, drawn again in plain Python.

Nothing of the engine is used but its logits: not its noise, its counters or its window.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from poisoned import PoisonedEngine, request_of

from declaim.contracts.request import SamplingParams

WORD = 2**32


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 by its definition."""
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (
            second // WORD ^ b ^ low,
            second % WORD,
            first // WORD ^ d ^ high,
            first % WORD,
        )
        low, high = (low + 0x9E3779B9) % WORD, (high + 0xBB67AE85) % WORD
    return a, b, c, d


def uniform(seed: int, frame: int, draw: int, candidate: int) -> float:
    words = philox((candidate // 4, draw, frame, 0), (seed % WORD, seed // WORD))
    return ((words[candidate % 4] >> 9) + 0.5) * 2.0**-23


def drawn(
    logits: NDArray[np.float32],
    rule: tuple[float, float, int | None],
    at: tuple[int, int, int],
    *,
    keep_crossing: bool,
) -> int:
    """The candidate that wins; rule: temperature, top_p, top_k; at: seed, frame, draw."""
    temperature, top_p, top_k = rule
    ranked = sorted(range(len(logits)), key=lambda index: (-float(logits[index]), index))
    if temperature == 0.0:
        return ranked[0]
    scaled = [float(value) / temperature for value in logits]
    weights = [math.exp(value - max(scaled)) for value in scaled]
    best, winner, before = -math.inf, -1, 0.0
    for rank, index in enumerate(ranked):
        share = weights[index] / sum(weights)
        crossed = before if keep_crossing else before + share
        if rank == 0 or ((top_k is None or rank < top_k) and crossed <= top_p):
            score = scaled[index] - math.log(-math.log(uniform(*at, index)))
            if score > best:
                best, winner = score, index
        before += share
    return winner


def frame_of(
    main: NDArray[np.float32],
    codes: NDArray[np.float32],
    sampling: SamplingParams,
    at: tuple[int, int],
    known: Sequence[int],
    vocabulary: tuple[Sequence[int], tuple[int, int]],
) -> list[int]:
    """One frame; known: the last main tokens. vocabulary: candidates and band."""
    candidates, band = vocabulary
    rule = (sampling.temperature, sampling.top_p, sampling.top_k)
    token = candidates[drawn(main, rule, (*at, 0), keep_crossing=True)]
    if sampling.repetition_aware and token in known and band[0] <= token <= band[1]:
        second = (sampling.ras_temperature, sampling.ras_top_p, sampling.ras_top_k)
        token = candidates[drawn(main, second, (*at, 1), keep_crossing=True)]
    kept = min(sampling.top_k or 2**31, sampling.codebook_top_k)
    frame = [token, min(max(token - band[0], 0), band[1] - band[0])]
    for head, logits in enumerate(codes):
        rule = (sampling.temperature, sampling.top_p, kept)
        frame.append(drawn(logits, rule, (*at, 2 + head), keep_crossing=False))
    return frame


SAMPLINGS = {
    "defaults": SamplingParams(),
    "narrow": SamplingParams(temperature=0.7, top_p=0.6, top_k=9, codebook_top_k=4),
    "greedy": SamplingParams(temperature=0.0),
    "off": SamplingParams(temperature=1.3, top_p=1.0, repetition_aware=False),
}


@pytest.mark.parametrize("preempt_every", [None, 5])
def test_every_frame(make_engine: Callable[..., PoisonedEngine], preempt_every: int | None) -> None:
    """Requests of unlike parameters side by side, their seeds over 32 bits."""
    engine = make_engine(max_num_batched_tokens=40, preempt_every=preempt_every)
    requests = [
        replace(
            request_of(name, rows=3 + 9 * index, seed=(index << 33) + 17 + index, frames=14),
            sampling=sampling,
        )
        for index, (name, sampling) in enumerate(SAMPLINGS.items())
    ]
    for request in requests:
        engine.submit(request)
        engine.step()
    engine.run()
    config = engine.config
    vocabulary = (config.candidates, config.band)
    window, second = config.generation.ras_window, 0
    for request in requests:
        trace = engine.trace(request.id)
        history = request.prompt.rows[:, 0].tolist()
        assert len(trace["frames"]) > 5
        for index, frame in enumerate(trace["frames"].tolist()):
            logits = (trace["main"][index], trace["codes"][index])
            at, known = (request.seed, index), history[-window:]
            wanted = frame_of(*logits, request.sampling, at, known, vocabulary)
            assert frame == wanted, f"{request.id}, frame {index}"
            second += frame != frame_of(*logits, request.sampling, at, (), vocabulary)
            history.append(frame[0])
    assert second > 1, "hardly any second draw was taken"
