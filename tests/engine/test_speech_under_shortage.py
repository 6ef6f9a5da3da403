"""Streams while pages run out: whole, exact, and no worker that turns without work."""

import asyncio
import hashlib
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import cast

import numpy as np
from poisoned import request_of
from whole import speak_whole

from declaim.contracts.request import SpeechRequest
from declaim.engine.engine import Engine
from declaim.engine.frame_loop import FrameEvents, FrameLoop
from declaim.engine.frames import FrameEngine

Running = Callable[..., AbstractAsyncContextManager[Engine]]
TIMEOUT = 60.0


def test_streams_survive_preemption(running: Running, checkpoint: Callable[[str], Path]) -> None:
    """No repeat and no gap, the frames of a lone run, and one admission time for each."""
    seeds = {"a": 3, "b": 5, "c": 8, "d": 9}

    async def speak(engine: Engine, name: str) -> tuple[int, str]:
        asked = SpeechRequest(name, f"Text {name}.", seed=seeds[name], max_frames=40)
        stream = engine.speak(asked)
        samples = 0
        async for chunk in stream:
            assert chunk.first == samples
            samples += len(chunk.samples)
        outcome = await stream.outcome()
        assert outcome.timings.admitted is not None
        return samples, outcome.frames_sha256

    async def body() -> None:
        async with running(kv_pages=12, max_num_batched_tokens=64) as engine:
            told = await asyncio.gather(*(speak(engine, name) for name in seeds))
            for (name, seed), (samples, digest) in zip(seeds.items(), told, strict=True):
                whole = speak_whole(checkpoint("micro"), f"Text {name}.", seed, 40)
                rows = np.ascontiguousarray(whole.frames, dtype="<i8")
                assert digest == hashlib.sha256(rows.tobytes()).hexdigest()
                assert samples == len(whole.samples)
            statistics = engine.statistics()
            assert min(statistics["preemptions"], statistics["prefix_hits"]) > 0
            assert statistics["kv_pages_in_use"] == 0

    asyncio.run(asyncio.wait_for(body(), TIMEOUT))


def test_a_loop_whose_requests_must_wait_does_not_turn() -> None:
    """Where held requests own what the others need, a step has no rows until an order comes."""

    class Waiting:
        """An engine that has no rows to give."""

        def __init__(self) -> None:
            self.steps = 0
            self.stepped = threading.Semaphore(0)

        def submit(self, request: object) -> None:
            """Nothing is refused."""

        def step(self) -> None:
            """No plan."""
            self.steps += 1
            self.stepped.release()

    def ignore(*told: object) -> None:
        """No event matters here."""

    engine = Waiting()
    events = FrameEvents(ignore, ignore, ignore, ignore, ignore, ignore)
    loop = FrameLoop(cast(FrameEngine, engine), events, lambda: None)
    loop.start()
    for name in "ab":
        loop.submit(request_of(name, rows=3, seed=1, frames=1), None)
        assert engine.stepped.acquire(timeout=TIMEOUT)
    loop.stop()
    loop.join()
    assert engine.steps == 2
