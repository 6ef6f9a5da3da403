"""Requests and schedulers in which every row is told apart by its values."""

from collections.abc import Callable

import numpy as np
import pytest

from declaim.contracts.request import Frame, FrameRequest, Prompt, SamplingParams
from declaim.contracts.step import StepPlan, StepResult
from declaim.scheduler.limits import SchedulerLimits
from declaim.scheduler.scheduler import ChunkRows, Scheduler

WIDTH = 3


@pytest.fixture
def request_of() -> Callable[..., FrameRequest]:
    """A request whose prompt row r is [base + r, base + r + 1, base + r + 2]."""

    def make(
        name: str,
        rows: int,
        max_frames: int = 4,
        *,
        base: int = 0,
        seed: int = 0,
        sampling: SamplingParams | None = None,
    ) -> FrameRequest:
        prompt = base + np.arange(rows)[:, None] + np.arange(WIDTH)
        return FrameRequest(
            name,
            Prompt(prompt.astype(np.int32), 0),
            sampling=sampling or SamplingParams(),
            seed=seed,
            max_frames=max_frames,
        )

    return make


@pytest.fixture
def scheduler_of() -> Callable[..., Scheduler]:
    """A scheduler with room for everything but what a test makes scarce."""

    def make(
        chunk_rows: ChunkRows | None = None,
        *,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 64,
        pages: int = 64,
        page_size: int = 4,
        max_model_len: int = 100,
        window: int = 4,
        prefixes: int = 0,
    ) -> Scheduler:
        limits = SchedulerLimits(
            max_num_seqs, max_num_batched_tokens, pages, page_size, max_model_len, window, prefixes
        )
        return Scheduler(limits, WIDTH, chunk_rows)

    return make


@pytest.fixture
def answer() -> Callable[..., StepResult]:
    """The result of a plan: the frame [900, 901, 902] for each sampled span, or an end."""

    def make(plan: StepPlan, *, ends: tuple[str, ...] = ()) -> StepResult:
        row = np.array([900, 901, 902], dtype=np.int32)
        return StepResult(
            {span.request_id: Frame(row, span.request_id in ends) for span in plan.sampled}
        )

    return make
