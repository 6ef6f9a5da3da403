"""Whole frame engines without weights: scripted frames, in any batch, mode and cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declaim.config.checkpoint import parse_model_config
from declaim.config.schema import FrameStage
from declaim.contracts.request import FinishReason, FrameRequest, Prompt, SamplingParams
from declaim.engine.frames import FrameEngine, load_frame_engine
from declaim.nano.shapes import GENERATION, SHAPES
from declaim.platforms.null import END, NullPlatform, default_script

NullEngine = Callable[..., FrameEngine]


@pytest.fixture
def null_engine() -> NullEngine:
    """An engine of `micro`'s shape; options are the stage's."""

    def get(platform: NullPlatform | None = None, **options: Any) -> FrameEngine:
        config = parse_model_config(SHAPES["micro"].config, GENERATION)
        sizes = {"max_num_seqs": 5, "max_num_batched_tokens": 24, "max_model_len": 128}
        stage = FrameStage(**{**sizes, "load_format": "random", **options})
        return load_frame_engine(Path("absent"), stage, config, platform=platform or NullPlatform())

    return get


def request(name: str, rows: int, seed: int, frames: int = 20) -> FrameRequest:
    prompt = np.zeros((rows, 5), dtype=np.int32)
    return FrameRequest(name, Prompt(prompt, 0), SamplingParams(), seed, frames)


def scripted(seed: int, most: int) -> list[list[int]]:
    """The frames that the default script gives a request of micro."""
    frames = []
    for frame in range(most):
        if default_script(seed, frame, 0) == END:
            break
        codes = [default_script(seed, frame, draw) % 64 for draw in (0, 2, 3, 4)]
        frames.append([320 + codes[0], *codes])
    return frames


@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"])
def test_every_request_gets_its_script(null_engine: NullEngine, mode: str) -> None:
    """More requests than slots, of 1 to 60 rows, cut by a budget of 24 rows."""
    engine = null_engine(cudagraph_mode=mode)
    asked = {f"r{seed}": (seed, 1 + 7 * seed % 60) for seed in range(17)}
    for name, (seed, rows) in asked.items():
        engine.submit(request(name, rows, seed, frames=10))
    for _ in engine.steps():
        engine.scheduler.check()
    for name, (seed, _) in asked.items():
        outcome = engine.outcome(name)
        assert outcome.frames.tolist() == scripted(seed, 10)
        ended = len(scripted(seed, 99)) < 10
        assert outcome.reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
    assert not engine.runner.graphs.misses
    assert (mode == "NONE") == (engine.runner.graphs.replays.total() == 0)


def test_a_script_of_ones_own(null_engine: NullEngine) -> None:
    """The end comes where the script says, first of all frames if it says so."""
    platform = NullPlatform(lambda seed, frame, draw: END if frame == seed else 10 * frame + draw)
    engine = null_engine(platform)
    for seed in (0, 3):
        engine.submit(request(f"r{seed}", 4, seed))
    for _ in engine.steps():
        pass
    assert engine.outcome("r0").frames.shape == (0, 5)
    frames = [
        [320 + 10 * frame, *(10 * frame + draw for draw in (0, 2, 3, 4))] for frame in (0, 1, 2)
    ]
    assert engine.outcome("r3").frames.tolist() == frames
