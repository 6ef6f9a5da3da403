"""The engine at its edges: aborts in odd moments, loops that close, streams nobody closes."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
import pytest

from declaim.contracts.errors import Cancelled, EngineFailed, Overloaded
from declaim.contracts.request import FloatArray, IntArray, Reference, SpeechRequest
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
    """A request that goes on until max_frames at most."""
    return SpeechRequest(**{"id": name, "text": f"Text {name}.", "seed": 7, **options})


async def drained(stream: Stream) -> int:
    """Take everything; the frames."""
    async for _ in stream:
        pass
    return (await stream.outcome()).frames


def endless(engine: Engine) -> None:
    """Let no stream end before its max_frames."""
    runner = engine._parts.frames.runner
    inner = runner.step

    def step(plan: StepPlan) -> StepResult:
        result = inner(plan)
        for frame in result.frames.values():
            object.__setattr__(frame, "end", False)
        return result

    runner.step = step  # type: ignore[method-assign]


def idle(engine: Engine) -> bool:
    """Whether nothing of any request is left in either stage."""
    statistics = engine.statistics()
    names = ("requests_running", "requests_waiting", "kv_pages_in_use", "codec_streams")
    return (
        not any(statistics[name] for name in names)
        and not engine._active
        and not engine._keys
        and not engine._frames._running
        and not engine._codec._voices
    )


class SlowEncoder:
    """Holds the encoder of an engine until it is opened."""

    def __init__(self, engine: Engine) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        inner = engine._references._encode

        def encode(samples: FloatArray) -> IntArray:
            self.reached.set()
            self.opened.wait(TIMEOUT)
            return inner(samples)

        engine._references._encode = encode


def clip(engine: Engine) -> Reference:
    rate = engine.info.rate
    samples = 0.1 * np.random.default_rng(0).standard_normal(int(1.2 * rate))
    return Reference("Words.", samples=samples.astype(np.float32))


@pytest.mark.parametrize("how", ["abort", "close"])
def test_a_request_given_up_while_its_reference_is_encoded(running: Running, how: str) -> None:
    """It never reaches the frame stage, where nobody could end it any more."""
    encoders: list[SlowEncoder] = []

    def prepare(engine: Engine) -> None:
        endless(engine)
        encoders.append(SlowEncoder(engine))

    async def body() -> None:
        async with running(prepare, max_num_seqs=1) as engine:
            stream = engine.speak(request("a", max_frames=300, references=(clip(engine),)))
            await asyncio.to_thread(encoders[0].reached.wait, TIMEOUT)
            if how == "abort":
                assert engine.abort("a")
            else:
                await stream.aclose()
            encoders[0].opened.set()
            with pytest.raises(Cancelled):
                await drained(stream)
            assert await drained(engine.speak(request("b", max_frames=5))) == 5
            await until(lambda: idle(engine))

    run(body())


def test_what_waits_behind_held_requests_costs_nothing(running: Running) -> None:
    """The frame stage sleeps while nothing can move, and goes on when something can."""

    def prepare(engine: Engine) -> None:
        endless(engine)
        engine._frames.frames_ahead = 4

    async def body() -> None:
        async with running(prepare, max_num_seqs=1) as engine:
            slow = engine.speak(request("slow", max_frames=12))
            await until(lambda: engine._codec.counters.frames == 4)
            waiting = engine.speak(request("waiting", max_frames=12))
            await until(lambda: engine.statistics()["requests_waiting"] == 1)
            await until(lambda: not engine._frames.pulse.working)
            assert [await drained(slow), await drained(waiting)] == [12, 12]
            await until(lambda: idle(engine))

    run(body())


def test_a_deadline_frees_those_who_wait_behind_it(running: Running) -> None:
    """A held request runs out of time; the one behind it gets its slot."""

    def prepare(engine: Engine) -> None:
        endless(engine)
        engine._frames.frames_ahead = 4

    async def body() -> None:
        async with running(prepare, max_num_seqs=1) as engine:
            held = engine.speak(request("held", max_frames=12, deadline_seconds=0.5))
            assert await drained(engine.speak(request("next", max_frames=12))) == 12
            assert held.over
            await until(lambda: idle(engine))

    run(body())


def test_a_callers_loop_that_closes(running: Running) -> None:
    """Its request ends, be it making sound, waiting or encoding; others notice nothing."""
    encoders: list[SlowEncoder] = []

    def prepare(engine: Engine) -> None:
        endless(engine)
        encoders.append(SlowEncoder(engine))
        engine._frames.frames_ahead = 6

    async def body() -> None:
        async with running(prepare, max_num_seqs=1) as engine:
            kept: list[Stream] = []

            async def leave() -> None:
                kept.append(engine.speak(request("left", max_frames=300)))
                await anext(kept[0])
                samples = clip(engine).samples
                assert samples is not None
                encoding = asyncio.ensure_future(engine.encode_reference(samples))
                await asyncio.to_thread(encoders[0].reached.wait, TIMEOUT)
                encoding.cancel()

            await asyncio.to_thread(lambda: asyncio.run(leave()))
            encoders[0].opened.set()
            assert engine.health().failure is None
            kept.clear()
            assert await drained(engine.speak(request("next", max_frames=5))) == 5
            assert engine.health().ready
            await until(lambda: idle(engine))

    run(body())


def test_a_stream_that_nobody_holds_is_closed(running: Running) -> None:
    async def body() -> None:
        async with running(endless, max_num_seqs=1) as engine:
            async for _ in engine.speak(request("left", max_frames=300)):
                break
            gc.collect()
            assert await drained(engine.speak(request("next", max_frames=5))) == 5
            await until(lambda: idle(engine))
            assert engine.statistics()["requests_failed"] == 1

    run(body())


def test_nothing_comes_after_a_stream_was_closed(running: Running) -> None:
    async def body() -> None:
        async with running(endless) as engine:
            stream = engine.speak(request("a", max_frames=40))
            await until(lambda: engine._codec.counters.frames >= 2)
            await stream.aclose()
            await until(lambda: idle(engine))
            await asyncio.sleep(0)
            with pytest.raises(Cancelled):
                await anext(stream)

    run(body())


def test_an_engine_that_never_started_can_be_closed(running: Running) -> None:
    async def body() -> None:
        engines: list[Engine] = []
        async with running(engines.append) as started:
            unstarted = Engine(started._parts)
            await unstarted.close()
            await unstarted.close()
            with pytest.raises(Overloaded):
                unstarted.speak(request("a"))

    run(body())


@pytest.mark.parametrize("stage", ["frames", "codec"])
def test_every_request_is_counted_once(running: Running, stage: str) -> None:
    """Also those that a broken stage ended."""

    def prepare(engine: Engine) -> None:
        endless(engine)

    async def body() -> None:
        async with running(prepare) as engine:
            assert await drained(engine.speak(request("good", max_frames=2))) == 2

            def broken(*arguments: object) -> Any:
                raise RuntimeError("broken")

            if stage == "frames":
                engine._parts.frames.runner.step = broken  # type: ignore[method-assign, assignment]
            else:
                engine._parts.decoder.step = broken  # type: ignore[method-assign, assignment]
            for stream in [engine.speak(request(name, max_frames=40)) for name in "abc"]:
                with pytest.raises(EngineFailed):
                    await drained(stream)
            statistics = engine.statistics()
            assert (statistics["requests_finished"], statistics["requests_failed"]) == (1, 3)

    run(body())


def test_frames_without_a_limit_fit_few_pages(running: Running) -> None:
    """A request that names no max_frames gets what the pages hold, not a refusal."""

    async def body() -> None:
        async with running(endless, kv_pages=5) as engine:
            stream = engine.speak(request("a"))
            frames = await drained(stream)
            assert frames + (await stream.outcome()).prompt_rows == 5 * 16

    run(body())
