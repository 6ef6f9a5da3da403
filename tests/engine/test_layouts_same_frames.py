"""Every way to store the same numbers loads to the same frames."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from poisoned import PoisonedEngine, request_of

from declaim.checkpoint.random import random_parameters
from declaim.checkpoint.reader import read_parameters
from declaim.checkpoint.writer import WriteFormat, write_checkpoint
from declaim.config.checkpoint import load_model_config, parse_model_config
from declaim.nano.shapes import SHAPES

LAYOUTS = {
    "per expert": WriteFormat(expert_layout="per_expert"),
    "shards": WriteFormat(shard_bytes=40_000),
    "text-only prefix": WriteFormat(prefix="model."),
    "float32": WriteFormat(dtype=torch.float32),
}

QUANTISED = {
    "stacked, bfloat16 scales": WriteFormat(quantise="experts"),
    "per expert, bfloat16 scales": WriteFormat(quantise="experts", expert_layout="per_expert"),
    "stacked, float32 scales": WriteFormat(quantise="experts", scale_dtype=torch.float32),
    "per expert, float32 scales, shards": WriteFormat(
        quantise="experts",
        expert_layout="per_expert",
        scale_dtype=torch.float32,
        shard_bytes=60_000,
        prefix="model.",
    ),
    "dense layers too": WriteFormat(quantise="all"),
}


def frames_of(directory: Path) -> bytes:
    """Seeded frames and logits of one request."""
    engine = PoisonedEngine(directory)
    engine.submit(request_of("a", rows=30, seed=5, frames=6))
    engine.run()
    trace = engine.trace("a")
    assert len(trace["frames"]) > 1
    return bytes(trace["frames"].tobytes() + trace["main"].tobytes() + trace["codes"].tobytes())


def rewritten(source: Path, target: Path, layout: WriteFormat) -> Path:
    """The same parameters in another layout."""
    config = json.loads((source / "config.json").read_text())
    write_checkpoint(target, config, read_parameters(source, load_model_config(source)), layout)
    return target


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(checkpoint: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    source = checkpoint("micro")
    assert frames_of(rewritten(source, tmp_path / "a", LAYOUTS[name])) == frames_of(source)


@pytest.mark.parametrize("name", QUANTISED)
def test_block_fp8(checkpoint: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Short edge blocks included: no width of `micro` fills a block of 128.

    The FP8 file and a float32 file of its decoded numbers give the same bytes.
    """
    quantised = rewritten(checkpoint("micro"), tmp_path / "fp8", QUANTISED[name])
    assert "quantization_config" in json.loads((quantised / "config.json").read_text())
    decoded = rewritten(quantised, tmp_path / "decoded", WriteFormat(dtype=torch.float32))
    assert frames_of(quantised) == frames_of(decoded)
    assert frames_of(quantised) != frames_of(checkpoint("micro"))


def micro_config(shared: int | None) -> dict[str, Any]:
    """`micro` with another shared expert."""
    config = json.loads(json.dumps(SHAPES["micro"].config))
    config["text_config"]["shared_expert_intermediate_size"] = shared
    return dict(config)


def test_null_and_zero_shared_expert_are_the_same(tmp_path: Path) -> None:
    made = []
    for name, shared in (("null", None), ("zero", 0)):
        raw = micro_config(shared)
        weights = random_parameters(parse_model_config(raw, None), 0)
        write_checkpoint(tmp_path / name, raw, weights)
        made.append(frames_of(tmp_path / name))
    assert made[0] == made[1]


def test_random_weights_need_no_files_but_the_configuration(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """load_format random makes weights from config.json; the seed decides them."""
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((checkpoint("micro") / name).read_bytes())
    frames = []
    for seed in (0, 0, 1):
        engine = PoisonedEngine(tmp_path, load_format="random", seed=seed)
        engine.submit(request_of("a", rows=30, seed=5, frames=6))
        engine.run()
        frames.append(engine.trace("a")["main"])
    assert np.array_equal(frames[0], frames[1])
    assert frames[0].tobytes() != frames[2].tobytes()
