"""The public Python face: text in, samples out, for scripts and for the command line."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from declaim.config.checkpoint import load_model_config
from declaim.config.load import Resolved, fit_context, load_deploy
from declaim.contracts.engine import SpeechOutcome
from declaim.contracts.request import FloatArray, Reference, SamplingParams, SpeechRequest
from declaim.engine.engine import Engine
from declaim.engine.load import load_engine
from declaim.nano.make import BUNDLED, model_directory

OnChunk = Callable[[FloatArray, int], None]
"""Called with each chunk of samples and the rate, in order, while the rest is being made."""


@dataclass(frozen=True)
class Speech:
    """What was spoken.

    samples: float32 [n] in [-1, 1] at `rate` Hz. outcome: finish reason, frames, their hash, seed
    and timings; the seed repeats it exactly. notes: what the engine could not honour.
    """

    samples: FloatArray
    rate: int
    outcome: SpeechOutcome
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setup:
    """What to speak with.

    model: a directory, or None: the deploy's. codec: a codec file or directory, or None: the
    model's. deploy: a deploy file or a preset's name. assignments: key=value above it.
    """

    model: Path | None = None
    codec: Path | None = None
    deploy: str | None = None
    assignments: tuple[str, ...] = ()


def open_engine(resolved: Resolved, codec: Path | None = None) -> tuple[Engine, tuple[str, ...]]:
    """An engine that is not started, and notes on what was adjusted or is not as it seems.

    codec: a codec file or directory, or None: the model's.
    Raises NotFound, InvalidConfig, InvalidCheckpoint or OutOfMemory.
    """
    directory = model_directory(resolved.deploy.model)
    notes: tuple[str, ...] = ()
    if resolved.deploy.model == BUNDLED:
        notes = (f"WARNING: {directory} has RANDOM WEIGHTS: this is noise, not speech",)
    resolved = fit_context(resolved, load_model_config(directory).context)
    engine, warnings = load_engine(resolved.deploy, directory, codec)
    return engine, (*notes, *resolved.notes, *warnings)


def read_reference(engine: Engine, source: Path | bytes, param: str = "reference") -> FloatArray:
    """A clip as float32 samples at the engine's rate, within its limits; see audio.read."""
    from declaim.audio.read import ClipLimits, read_clip

    shortest, longest = engine.info.reference_seconds
    limits = ClipLimits(min_seconds=shortest, max_seconds=longest)
    return read_clip(source, rate=engine.info.rate, limits=limits, param=param)


def say(
    text: str,
    *,
    setup: Setup | None = None,
    references: Sequence[tuple[Path, str]] = (),
    seed: int | None = None,
    max_frames: int | None = None,
    on_open: Callable[[tuple[str, ...]], None] | None = None,
    on_chunk: OnChunk | None = None,
    **sampling: Any,
) -> Speech:
    """Speak a text; returns when all of it is spoken.

    references: clips to imitate, each an audio file and its transcript. sampling: fields of
    SamplingParams that differ from the checkpoint's defaults (temperature, top_p, top_k, ...).
    on_open: called with the engine's notes once it is loaded.
    seed: fresh without one. Works in scripts and in notebooks: the engine's event loop runs in a
    thread of its own. Raises a DeclaimError for whatever cannot be spoken.
    """
    chosen = setup or Setup()
    flags = {} if chosen.model is None else {"model": str(chosen.model)}
    resolved = load_deploy(chosen.deploy, chosen.assignments, flags=flags)
    engine, notes = open_engine(resolved, chosen.codec)
    if on_open is not None:
        on_open(notes)
    request = SpeechRequest(
        id="say",
        text=text,
        references=tuple(
            Reference(words, samples=read_reference(engine, path)) for path, words in references
        ),
        sampling=_sampling(engine.info.sampling, sampling),
        seed=seed,
        max_frames=max_frames,
    )
    samples, outcome = _in_thread(lambda: _speak(engine, request, on_chunk))
    return Speech(samples, engine.info.rate, outcome, notes)


def _sampling(defaults: SamplingParams, given: dict[str, Any]) -> SamplingParams:
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})


async def _speak(
    engine: Engine, request: SpeechRequest, on_chunk: OnChunk | None
) -> tuple[FloatArray, SpeechOutcome]:
    engine.start()
    parts: list[FloatArray] = [np.zeros(0, dtype=np.float32)]
    try:
        stream = engine.speak(request)
        try:
            async for chunk in stream:
                parts.append(chunk.samples)
                if on_chunk is not None:
                    on_chunk(chunk.samples, engine.info.rate)
            outcome = await stream.outcome()
        finally:
            await stream.aclose()
    finally:
        await engine.close()
    return np.concatenate(parts), outcome


def _in_thread(
    body: Callable[[], Coroutine[Any, Any, tuple[FloatArray, SpeechOutcome]]],
) -> tuple[FloatArray, SpeechOutcome]:
    """Run a coroutine in an event loop of its own thread; what it raises is raised here.

    An interrupt cancels it and waits until it has cleaned up.
    """
    over = threading.Event()
    loop = asyncio.new_event_loop()
    task = loop.create_task(body())

    def run() -> None:
        loop.run_until_complete(asyncio.wait((task,)))
        loop.run_until_complete(loop.shutdown_default_executor())
        over.set()

    thread = threading.Thread(target=run, name="declaim-say")
    thread.start()
    try:
        over.wait()  # an interrupted join takes a thread that runs for one that has ended
    except BaseException:
        loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        thread.join()
        loop.close()
    return task.result()
