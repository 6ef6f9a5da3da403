"""An engine whose unused memory holds NaN, and which keeps what each request left behind."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from declaim.config.model import load_model_config
from declaim.config.schema import FrameStage
from declaim.contracts.request import FrameRequest, Prompt, SamplingParams
from declaim.contracts.step import StepPlan
from declaim.engine.frames import FrameEngine, StepReport, load_frame_engine
from declaim.runner.batch import StepSize, exact_size

Array = NDArray[Any]


def request_of(
    name: str,
    *,
    rows: int,
    seed: int,
    frames: int,
    greedy: bool = False,
    ends: bool = True,
    codebooks: int = 4,
    first: int = 320,
    width: int = 64,
) -> FrameRequest:
    """A request for `micro`: text, speech and text rows from the seed.

    ends False: top_k 1 in no draw, but a temperature so low that the end frame is not drawn.
    """
    generator = np.random.default_rng(seed)
    array = np.zeros((rows, 1 + codebooks), dtype=np.int32)
    array[:, 0] = generator.integers(0, 256, rows)
    speech = slice(rows // 4, rows // 2)
    array[speech, 1:] = generator.integers(0, width, array[speech, 1:].shape)
    array[speech, 0] = first + array[speech, 1]
    sampling = SamplingParams()
    if greedy:
        sampling = replace(sampling, temperature=0.0, repetition_aware=False)
    return FrameRequest(
        id=name,
        prompt=Prompt(rows=array, prefix_rows=0),
        sampling=sampling,
        seed=seed,
        max_frames=frames,
    )


class PoisonedEngine:
    """Runs a FrameEngine on NaN-filled memory and checks the books after every step."""

    def __init__(
        self,
        directory: Path,
        *,
        padding: int = 0,
        chunk_rows: Callable[[FrameRequest, int], int] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        stage = FrameStage(**{"max_num_seqs": 4, "max_model_len": 256, **options})
        config = load_model_config(directory)
        self.engine: FrameEngine = load_frame_engine(
            directory, stage, config, chunk_rows=chunk_rows
        )
        self.runner = self.engine.runner
        self.reports: list[StepReport] = []
        self.slots: dict[str, int] = {}
        self.logits: dict[str, list[Array]] = {}
        self.left: dict[str, dict[str, Array]] = {}
        if padding:
            self.runner.sizes = lambda plan: padded_size(plan, padding, stage)
        layout = self.runner.state.layout
        for slot in range(layout.slots):
            self.poison_slot(slot)
        self.poison_pages(range(layout.pages))
