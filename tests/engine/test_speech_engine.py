"""The whole engine: streams that are real, exact, bounded, and that end as they should."""

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole import Whole, speak_whole

from declaim.contracts.engine import SpeechOutcome
from declaim.contracts.errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    TooLarge,
)
from declaim.contracts.request import FinishReason, Reference, SpeechRequest
from declaim.contracts.step import StepPlan, StepResult
from declaim.engine.engine import Engine
from declaim.engine.stream import Stream

Running = Callable[..., AbstractAsyncContextManager[Engine]]
TIMEOUT = 60.0


def run(body: Coroutine[Any, Any, None]) -> None:
    """Run a test's body in an event loop of its own; nothing may hang."""

    async def bounded() -> None:
        await asyncio.wait_for(body, TIMEOUT)

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread brings about."""
    while not condition():
        await asyncio.sleep(0.002)


def request(name: str, **options: Any) -> SpeechRequest:
    """A request of its own text and seed."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return SpeechRequest(**{"id": name, "text": f"Text {name}.", "seed": seed, **options})


async def collect(stream: Stream) -> tuple[np.ndarray[Any, np.dtype[np.float32]], SpeechOutcome]:
    """All samples of a stream, checked for gaps, and its outcome."""
    parts, cursor = [], 0
    async for chunk in stream:
        assert chunk.request_id == stream.request_id
        assert chunk.first == cursor and chunk.samples.dtype == np.float32
        cursor += len(chunk.samples)
        parts.append(chunk.samples)
    samples = np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
    return samples, await stream.outcome()


class Gate:
    """Holds the runner after a number of steps, until it is opened."""

    def __init__(self, engine: Engine, steps: int) -> None:
        self.opened = threading.Event()
        self.held = threading.Event()
        self.steps = 0
        runner = engine._parts.frames.runner
        inner = runner.step

        def step(plan: StepPlan) -> StepResult:
            if self.steps == steps:
                self.held.set()
                self.opened.wait(TIMEOUT)
            self.steps += 1
            return inner(plan)

        runner.step = step  # type: ignore[method-assign]


def solo(checkpoint: Callable[[str], Path], text: str, seed: int, frames: int) -> Whole:
    return speak_whole(checkpoint("micro"), text, seed, frames)


def test_stream_equals_the_whole(running: Running, checkpoint: Callable[[str], Path]) -> None:
    async def body() -> None:
        async with running() as engine:
            asked = request("a", max_frames=40)
            samples, outcome = await collect(engine.speak(asked))
        assert asked.seed is not None
        whole = solo(checkpoint, asked.text, asked.seed, 40)
        rows = np.ascontiguousarray(whole.frames, dtype="<i8")
        assert outcome.frames_sha256 == hashlib.sha256(rows.tobytes()).hexdigest()
        assert outcome.frames == len(rows) and outcome.seed == asked.seed
        assert len(samples) == len(whole.samples)
        assert np.abs(samples - whole.samples).max() * 32767 <= 1
        assert outcome.reason in (FinishReason.STOP, FinishReason.LENGTH)
        timings = outcome.timings
        assert timings.admitted is not None and timings.first_audio is not None
        assert timings.finished is not None
        assert 0 <= timings.admitted <= timings.first_audio <= timings.finished

    run(body())


def test_first_audio_needs_few_frames(running: Running) -> None:
    """With the runner held before its third frame the first chunk has arrived."""

    async def body() -> None:
        gates: list[Gate] = []
        async with running(lambda engine: gates.append(Gate(engine, 2))) as engine:
            stream = engine.speak(request("a", max_frames=20))
            chunk = await anext(stream)
            assert chunk.first == 0 and len(chunk.samples) >= engine.info.hop
            assert not gates[0].opened.is_set()
            gates[0].opened.set()
            await collect_rest(stream)

    run(body())


async def collect_rest(stream: Stream) -> SpeechOutcome:
    async for _ in stream:
        pass
    return await stream.outcome()


def test_a_slow_reader_stops_only_itself(
    running: Running, checkpoint: Callable[[str], Path]
) -> None:
    """Its request is held some frames ahead, loses nothing, and others run through."""

    def short_lead(engine: Engine) -> None:
        engine._frames.frames_ahead = 8

    async def body() -> None:
        for seed in range(100):  # one whose stream is long enough
            whole = solo(checkpoint, "Slow.", seed, 40)
            if len(whole.frames) == 40:
                break
        async with running(short_lead) as engine:
            slow = engine.speak(request("slow", text="Slow.", seed=seed, max_frames=40))
            made = engine._codec.counters
            await until(lambda: made.frames >= 8)
            for name in ("x", "y"):
                _, outcome = await collect(engine.speak(request(name, max_frames=30)))
                assert outcome.frames
            assert engine.statistics()["requests_running"] == 1
            record = next(iter(engine._parts.frames.scheduler._running.values()))
            assert record.held and len(record.frames) == 8
            samples, outcome = await collect(slow)
            assert outcome.frames == 40
            assert len(samples) == len(whole.samples)
            assert np.abs(samples - whole.samples).max() * 32767 <= 1

    run(body())


def test_streams_that_share_a_codec_row_one_after_another(
    running: Running, checkpoint: Callable[[str], Path]
) -> None:
    """The codec has one row; what it remembers of a stream does not sound in the next."""

    async def body() -> None:
        async with running(codec_streams=1) as engine:
            for name in "abc":
                asked = request(name, max_frames=12)
                samples, outcome = await collect(engine.speak(asked))
                assert asked.seed is not None
                whole = solo(checkpoint, asked.text, asked.seed, 12)
                assert outcome.frames == len(whole.frames) > 0
                assert np.abs(samples - whole.samples).max() * 32767 <= 1

    run(body())


def test_survivors_of_aborts_and_failures(
    running: Running, checkpoint: Callable[[str], Path]
) -> None:
    """Eight at once; some are aborted, closed, too late or refused; the others notice nothing."""

    async def body() -> None:
        async with running(max_num_seqs=4, codec_streams=3) as engine:
            streams = {name: engine.speak(request(name, max_frames=25)) for name in "abcdef"}
            late = engine.speak(request("late", max_frames=400, deadline_seconds=0.001))
            with pytest.raises(Conflict):
                engine.speak(request("a"))
            with pytest.raises(InvalidRequest):
                engine.speak(request("bad", text="<|im_end|>"))
            with pytest.raises(InvalidRequest, match="max_frames can be at most"):
                engine.speak(request("long", max_frames=2048))
            with pytest.raises(InvalidRequest, match="no room for a frame in the 512"):
                engine.speak(request("much", text="word " * 200, max_frames=1))
            assert engine.abort("b") and not engine.abort("nobody")
            with pytest.raises(Cancelled):
                await collect(streams["b"])
            await anext(streams["c"])
            await streams["c"].aclose()
            await streams["c"].aclose()
            with pytest.raises(DeadlineExceeded):
                await collect(late)
            for name in "adef":
                asked = request(name, max_frames=25)
                assert asked.seed is not None
                samples, outcome = await collect(streams[name])
                whole = solo(checkpoint, asked.text, asked.seed, 25)
                rows = np.ascontiguousarray(whole.frames, dtype="<i8")
                assert outcome.frames_sha256 == hashlib.sha256(rows.tobytes()).hexdigest()
                assert len(samples) == len(whole.samples)
                assert np.abs(samples - whole.samples).max(initial=0) * 32767 <= 1
            await until(lambda: engine.statistics()["codec_streams"] == 0)
            statistics = engine.statistics()
            assert statistics["requests_running"] == statistics["requests_waiting"] == 0
            assert statistics["kv_pages_in_use"] == statistics["preemptions"] == 0
            engine._parts.frames.scheduler.check()
            assert not engine._active and not engine._keys and not engine._codec._voices

    run(body())


def test_an_id_may_be_used_again_at_once(running: Running) -> None:
    async def body() -> None:
        async with running() as engine:
            for _ in range(3):
                stream = engine.speak(request("again", max_frames=300))
                await anext(stream)
                assert engine.abort("again")
            _, outcome = await collect(engine.speak(request("again", max_frames=5)))
            assert outcome.frames <= 5

    run(body())


def test_a_broken_stage_ends_everything_at_once(running: Running) -> None:
    """No request hangs, none ends cleanly, and the engine says that it is dead."""

    async def body() -> None:
        gates: list[Gate] = []

        def break_runner(engine: Engine) -> None:
            gates.append(Gate(engine, 1))
            inner = engine._parts.frames.runner.step

            def step(plan: StepPlan) -> StepResult:
                result = inner(plan)
                if gates[0].steps > 1:
                    raise RuntimeError("/secret/path broke")
                return result

            engine._parts.frames.runner.step = step  # type: ignore[method-assign]

        async with running(break_runner) as engine:
            streams = [engine.speak(request(str(index), max_frames=300)) for index in range(5)]
            assert engine.health().ready
            gates[0].opened.set()
            for stream in streams:
                with pytest.raises(EngineFailed) as caught:
                    await collect(stream)
                assert "secret" not in caught.value.message
            health = engine.health()
            assert not health.ready and health.failure is not None
            with pytest.raises(EngineFailed):
                engine.speak(request("after"))
            with pytest.raises(EngineFailed):
                await engine.encode_reference(np.ones(22050, dtype=np.float32))

    run(body())


def test_close_breaks_streams_and_ends_threads(running: Running) -> None:
    async def body() -> None:
        async with running() as engine:
            stream = engine.speak(request("a", max_frames=400))
            await anext(stream)
            await engine.close()
            with pytest.raises(Overloaded):
                await collect(stream)
            with pytest.raises(Overloaded):
                engine.speak(request("b"))
            assert not engine.health().ready
        names = {thread.name for thread in threading.enumerate()}
        assert not names & {"declaim-frames", "declaim-codec"}

    run(body())


def test_limits(running: Running) -> None:
    async def body() -> None:
        limits = {"input_characters": 20, "queue": 2, "reference_seconds": (1.0, 2.0)}
        async with running(limits=limits) as engine:
            with pytest.raises(TooLarge, match="at most 20 characters, not 21"):
                engine.speak(request("a", text="x" * 21))
            first = [engine.speak(request(name, max_frames=400)) for name in "ab"]
            with pytest.raises(Overloaded, match="2 requests"):
                engine.speak(request("c"))
            for stream in first:
                await stream.aclose()
            rate = engine.info.rate
            clips = {
                "short": np.ones(rate // 2, dtype=np.float32),
                "long": np.ones(3 * rate, dtype=np.float32),
                "silent": np.zeros(rate, dtype=np.float32),
                "broken": np.full(rate, np.nan, dtype=np.float32),
            }
            for name, clip in clips.items():
                with pytest.raises(InvalidRequest, match=r"references\[0\]"):
                    asked = request(name, references=(Reference("Words.", samples=clip),))
                    engine.speak(asked)

    run(body())


def noise(rate: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A second and a bit of quiet noise."""
    generator = np.random.default_rng(seed)
    return (0.1 * generator.standard_normal(int(1.3 * rate))).astype(np.float32)


def test_references_are_encoded_once_and_conditioning_is_theirs_alone(running: Running) -> None:
    """Samples and their codes give the same stream; each request keeps its own voice."""

    async def body() -> None:
        async with running() as engine:
            clips = [noise(engine.info.rate, seed) for seed in range(3)]
            codes = [await engine.encode_reference(clip) for clip in clips]
            assert engine.statistics()["reference_misses"] == 3
            frames = -(-len(clips[0]) // engine.info.hop)
            assert all(item.shape == (engine.info.codebooks, frames) for item in codes)

            async def spoken(name: str, reference: Reference) -> SpeechOutcome:
                asked = request(name, text="Same.", seed=5, max_frames=20, references=(reference,))
                return (await collect(engine.speak(asked)))[1]

            by_samples: list[Awaitable[SpeechOutcome]] = [
                spoken(f"s{index}", Reference("Words.", samples=clip))
                for index, clip in enumerate(clips)
            ]
            together = await asyncio.gather(*by_samples)
            for index, item in enumerate(codes):
                lone = await spoken(f"c{index}", Reference("Words.", codes=item))
                assert lone.frames_sha256 == together[index].frames_sha256
            assert len({outcome.frames_sha256 for outcome in together}) == 3
            statistics = engine.statistics()
            assert (statistics["reference_misses"], statistics["reference_hits"]) == (3, 3)

    run(body())
