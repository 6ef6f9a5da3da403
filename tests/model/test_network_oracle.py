"""Logits of every frame against the slow whole-sequence oracle, through mixed and chunked steps."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from oracle import Oracle
from poisoned import PoisonedEngine, request_of
from safetensors.torch import load_file


@pytest.mark.parametrize("chunk", [7, 512])
def test_main_and_code_logits(
    checkpoint: Callable[[str], Path], make_engine: Callable[..., PoisonedEngine], chunk: int
) -> None:
    directory = checkpoint("micro")
    config = json.loads((directory / "config.json").read_text())
    oracle = Oracle(config, load_file(directory / "model.safetensors"))
    engine = make_engine(chunk_rows=lambda request, done: chunk)
    requests = [
        request_of(str(index), rows=20 + 9 * index, seed=index, frames=6) for index in range(3)
    ]
    for request in requests:
        engine.submit(request)
    engine.run()
    kinds = {str(report.plan.kind) for report in engine.reports}
    assert kinds == ({"prefill", "mixed", "decode"} if chunk == 7 else {"prefill", "decode"})
    for request in requests:
        trace = engine.trace(request.id)
        frames = torch.tensor(trace["frames"]).long()
        assert len(frames) > 1
        history = torch.cat([torch.tensor(request.prompt.rows).long(), frames])
        for index, frame in enumerate(frames):
            main, codes = oracle.frame_logits(history[: len(request.prompt.rows) + index], frame)
            torch.testing.assert_close(
                torch.tensor(trace["main"][index]).double(), main, atol=1e-4, rtol=0
            )
            torch.testing.assert_close(
                torch.tensor(trace["codes"][index]).double(), codes, atol=1e-4, rtol=0
            )


def test_greedy_frames_are_the_oracles_arg_max(
    checkpoint: Callable[[str], Path], make_engine: Callable[..., PoisonedEngine]
) -> None:
    directory = checkpoint("micro")
    config = json.loads((directory / "config.json").read_text())
    oracle = Oracle(config, load_file(directory / "model.safetensors"))
    request = request_of("a", rows=31, seed=8, frames=10, greedy=True)
    engine = make_engine()
    engine.submit(request)
    engine.run()
    frames = torch.tensor(engine.trace("a")["frames"]).long()
    assert len(frames) > 3
    rows = torch.tensor(request.prompt.rows).long()
    for frame in frames:
        main, codes = oracle.frame_logits(rows, frame)
        assert oracle.candidates[int(main.argmax())] == frame[0]
        assert frame[1] == frame[0] - config["semantic_start_token_id"]
        assert codes.argmax(-1).tolist() == frame[2:].tolist()
        rows = torch.cat([rows, frame[None]])
