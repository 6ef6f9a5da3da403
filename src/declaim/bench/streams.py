"""Whole streams in process: real-time factor, first audio and where the stages' time goes.

RTF of a stream: wall time from its request to its last sample over the seconds of its sound.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from declaim.config.schema import Deploy
from declaim.contracts.request import SpeechRequest
from declaim.engine.engine import Engine
from declaim.engine.load import load_engine

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests in the shade."


@dataclass(frozen=True)
class StreamTimes:
    """One stream: seconds to its first chunk and to its last sample, and frames."""

    first_audio: float
    whole: float
    frames: int


def stream_times(directory: Path, *, streams: int, rounds: int, frames: int) -> dict[str, Any]:
    """`rounds` times `streams` requests at once, after one round that is not counted.

    Seeds count up from 0; a stream ends at its end frame or after `frames`.
    """
    base = Deploy()
    deploy = base.replaced(
        stages=(
            base.frames.replaced(max_num_seqs=streams),
            base.codec.replaced(max_num_seqs=streams),
        )
    )
    engine, _ = load_engine(deploy, directory)
    return asyncio.run(_measure(engine, streams, rounds, frames))


async def _measure(engine: Engine, streams: int, rounds: int, frames: int) -> dict[str, Any]:
    engine.start()
    try:
        await _round(engine, streams, frames, 0)
        before = engine.statistics()
        start = time.perf_counter()
        made: list[StreamTimes] = []
        for number in range(1, rounds + 1):
            made += await _round(engine, streams, frames, number)
        wall = time.perf_counter() - start
        after = engine.statistics()
    finally:
        await engine.close()
    return _summary(engine, streams, made, wall, {k: after[k] - before[k] for k in after})


async def _round(engine: Engine, streams: int, frames: int, number: int) -> list[StreamTimes]:
    async def one(seed: int) -> StreamTimes:
        request = SpeechRequest(id=f"bench {seed}", text=TEXT, seed=seed, max_frames=frames)
        start = time.perf_counter()
        first = 0.0
        stream = engine.speak(request)
        async for chunk in stream:
            if chunk.first == 0:
                first = time.perf_counter() - start
        outcome = await stream.outcome()
        return StreamTimes(first, time.perf_counter() - start, outcome.frames)

    seeds = range(number * streams, (number + 1) * streams)
    return await asyncio.gather(*map(one, seeds))


def _summary(
    engine: Engine, streams: int, made: list[StreamTimes], wall: float, totals: dict[str, float]
) -> dict[str, Any]:
    spoken = [times for times in made if times.frames]
    period = engine.info.hop / engine.info.rate
    factors = [times.whole / (times.frames * period) for times in spoken]
    frames = sum(times.frames for times in made)
    first = sorted(times.first_audio for times in spoken)
    return {
        "streams": streams,
        "requests": len(made),
        "frames": frames,
        "frames_per_second": frames / wall,
        "rtf": statistics.median(factors),
        "rtf_worst": max(factors),
        "first_audio_seconds": statistics.median(first),
        "first_audio_worst": first[-1],
        "frame_stage_ms_per_step": 1e3 * totals["step_seconds"] / totals["steps"],
        "codec_ms_per_frame": 1e3 * totals["codec_seconds"] / frames,
        "codec_streams_per_batch": totals["codec_batch_streams"] / totals["codec_batches"],
    }
