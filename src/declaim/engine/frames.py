"""The synchronous front of the frame stage: submit requests, iterate steps, collect frames.

Joins scheduler and runner; knows no text, no codec and no file but the checkpoint it loads.
"""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from declaim.config.model import ModelConfig
from declaim.config.schema import FrameStage
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import MAX_SEED, FrameRequest, Prompt
from declaim.contracts.step import StepPlan
from declaim.platforms.base import Platform
from declaim.platforms.cpu.platform import CpuPlatform
from declaim.runner.runner import Runner
from declaim.runner.worker import build_runner
from declaim.scheduler.limits import SchedulerLimits
from declaim.scheduler.record import Outcome, RequestUpdate
from declaim.scheduler.scheduler import ChunkRows, Scheduler


def fresh_seed() -> int:
    """A seed from the system's entropy."""
    return secrets.randbelow(MAX_SEED + 1)


def check_prefix(config: ModelConfig, prompt: Prompt, param: str) -> None:
    """Raise InvalidRequest, naming `param`, for a prefix with a semantic row behind it.

    Such a row's codes reach what the tower keeps of the prefix's last row, which therefore does
    not depend on the prefix alone.
    """
    if not 0 <= prompt.prefix_rows <= len(prompt.rows):
        raise InvalidRequest(
            f"{param}: a prefix of {prompt.prefix_rows} rows, in a prompt of {len(prompt.rows)}",
            param=param,
            limit=len(prompt.rows),
            value=prompt.prefix_rows,
        )
    if not 0 < prompt.prefix_rows < len(prompt.rows):
        return
    token = int(prompt.rows[prompt.prefix_rows, 0])
    if config.band[0] <= token <= config.band[1]:
        raise InvalidRequest(
            f"{param}: row {prompt.prefix_rows}, the first behind the prefix, must be text, but "
            f"its main token {token} is semantic",
            param=param,
            limit=f"outside [{config.band[0]}, {config.band[1]}]",
            value=token,
        )


@dataclass(frozen=True)
class StepReport:
    """What one step did. seconds: (scheduler, runner) wall time."""

    step: int
    plan: StepPlan
    updates: tuple[RequestUpdate, ...]
    pages_in_use: int
    seconds: tuple[float, float]

    def as_json(self) -> dict[str, Any]:
        """The step as a line of a steps file: spans of (request, slot, rows)."""
        plan = self.plan
        prefill = sum(span.count for span in plan.spans if span.rows is not None)
        return {
            "step": self.step,
            "kind": str(plan.kind),
            "rows": plan.rows,
            "prefill_rows": prefill,
            "sampled_rows": len(plan.sampled),
            "spans": [[span.request_id, span.slot, span.count] for span in plan.spans],
            "pages_in_use": self.pages_in_use,
        }


class FrameEngine:
    """Frames of many requests at once. One thread owns it.

    submit: a request waits, or is refused at once. step: one step of everything that runs.
    Outcomes are kept until they are taken.
    """

    def __init__(self, config: ModelConfig, scheduler: Scheduler, runner: Runner) -> None:
        self.config = config
        self.scheduler = scheduler
        self.runner = runner
        self._outcomes: dict[str, Outcome] = {}
        self._steps = 0

    def submit(self, request: FrameRequest) -> None:
        """Queue a request.

        Raises InvalidRequest for rows outside the model's vocabulary or codebooks, for a prefix
        that cannot be kept and for what can never fit, Conflict for the id of an unfinished
        request.
        """
        self._check_rows(request)
        check_prefix(self.config, request.prompt, "prompt")
        self.scheduler.add(request)

    def _check_rows(self, request: FrameRequest) -> None:
        rows = request.prompt.rows
        limits = (self.config.backbone.vocab_size, self.config.tower.codebook_size)
        parts = (("main token", rows[:, :1]), ("code", rows[:, 1:])) if rows.ndim == 2 else ()
        for (what, part), limit in zip(parts, limits, strict=False):
            if part.size and (part.min() < 0 or part.max() >= limit):
                value = int(part.min() if part.min() < 0 else part.max())
                raise InvalidRequest(
                    f"prompt rows hold the {what} {value}, outside [0, {limit - 1}]",
                    param="prompt",
                    limit=f"[0, {limit - 1}]",
                    value=value,
                )

    def abort(self, request_id: str) -> bool:
        """End an unfinished request; everything it owned is free at once. False if there is none.

        Its outcome, with the frames so far, is kept as any other.
        """
        outcome = self.scheduler.abort(request_id)
        if outcome is not None:
            self._outcomes[request_id] = outcome
        return outcome is not None

    def step(self) -> StepReport | None:
        """Plan, run, update; None when no request has work."""
        start = time.perf_counter()
        plan = self.scheduler.plan()
        if plan is None:
            return None
        pages = self.scheduler.statistics().pages_in_use
        planned = time.perf_counter()
        result = self.runner.step(plan)
        ran = time.perf_counter()
        updates = self.scheduler.update(result)
        for update in updates:
            if update.outcome is not None:
                self._outcomes[update.request_id] = update.outcome
        step, self._steps = self._steps, self._steps + 1
        scheduling = planned - start + time.perf_counter() - ran
        return StepReport(step, plan, tuple(updates), pages, (scheduling, ran - planned))

    def steps(self) -> Iterator[StepReport]:
        """Step until every request is over."""
        while (report := self.step()) is not None:
            yield report

    def outcome(self, request_id: str) -> Outcome:
        """Take the outcome of a request that is over; KeyError if there is none to take."""
        return self._outcomes.pop(request_id)


def load_frame_engine(
    directory: Path,
    stage: FrameStage,
    config: ModelConfig,
    *,
    chunk_rows: ChunkRows | None = None,
    platform: Platform | None = None,
    preempt_every: int | None = None,
) -> FrameEngine:
    """Load a checkpoint into an engine, graphs captured.

    platform: the CPU by default. chunk_rows: cuts prompts shorter than a step has room for, as
    the scheduler's. preempt_every: preempts each request after so
    many frames, as the scheduler's.
    Raises InvalidCheckpoint, InvalidConfig or OutOfMemory.
    """
    runner = build_runner(directory, config, stage, platform or CpuPlatform())
    runner.capture()
    layout = runner.state.layout
    limits = SchedulerLimits(
        max_num_seqs=stage.max_num_seqs,
        max_num_batched_tokens=stage.max_num_batched_tokens,
        pages=layout.pages,
        page_size=layout.page_size,
        max_model_len=min(stage.max_model_len, config.context),
        window=layout.window,
        prefixes=layout.prefixes,
    )
    scheduler = Scheduler(limits, config.row_width, chunk_rows, preempt_every=preempt_every)
    return FrameEngine(config, scheduler, runner)
