"""StepPlan to StepResult on one device: apply, fill, run the passes, read the frames back."""

from collections.abc import Callable

import numpy as np
import torch

from declaim.config.model import ModelConfig
from declaim.contracts.request import Frame
from declaim.contracts.step import StepPlan, StepResult
from declaim.model.frame_lm import FrameLM
from declaim.runner.batch import Batch, StepSize, exact_size
from declaim.state.device import DeviceState
from declaim.state.step import StepTensors


class Runner:
    """Runs the frame step; owns the device state and the step tensors.

    sizes: the padded sizes of a step; the plan's own sizes by default.
    tensors: the step tensors of the last step, whose hand-over buffers hold its results.
    """

    def __init__(
        self,
        config: ModelConfig,
        model: FrameLM,
        state: DeviceState,
        batch: Batch,
        sizes: Callable[[StepPlan], StepSize] = exact_size,
    ) -> None:
        self.config = config
        self.model = model
        self.state = state
        self.batch = batch
        self.sizes = sizes
        self.tensors: StepTensors | None = None

    def step(self, plan: StepPlan) -> StepResult:
        """Run one plan; returns the frame of every sampled span."""
        self.batch.apply(plan)
        for admission in plan.admissions:
            self.state.admit(admission)
        size = self.sizes(plan)
        step = self.batch.fill(plan, size)
        self.tensors = step
        with torch.inference_mode():
            self.model.run_backbone(step, self.state)
            if size.labelled:
                self.model.run_fill(step, self.state)
            if size.streams:
                self.model.run_frame(step, self.state)
        return self._result(plan, step)

    def _result(self, plan: StepPlan, step: StepTensors) -> StepResult:
        rows = step.frames.cpu().numpy().astype(np.int32)
        end = self.config.eos_token_id
        return StepResult(
            {
                span.request_id: Frame(row=row, end=int(row[0]) == end)
                for span, row in zip(plan.sampled, rows, strict=False)
            }
        )
