"""StepPlan to StepResult on one device: apply, fill, run the passes, read the frames back."""

import numpy as np
import torch

from declaim.config.model import ModelConfig
from declaim.contracts.request import Frame
from declaim.contracts.step import StepPlan, StepResult
from declaim.model.frame_lm import FrameLM
from declaim.runner.batch import Batch, exact_size
from declaim.runner.graphs import Graphs
from declaim.state.device import DeviceState
from declaim.state.step import StepTensors


class Runner:
    """Runs the frame step; owns the device state, the step tensors and the graphs.

    tensors: the step tensors of the last step, whose hand-over buffers hold its results.
    """

    def __init__(
        self, config: ModelConfig, model: FrameLM, state: DeviceState, batch: Batch, graphs: Graphs
    ) -> None:
        self.config = config
        self.model = model
        self.state = state
        self.batch = batch
        self.graphs = graphs
        self.tensors: StepTensors | None = None

    def capture(self) -> None:
        """Capture all graphs; once, before the first step."""
        self.graphs.capture(self.batch)

    def step(self, plan: StepPlan) -> StepResult:
        """Run one plan; returns the frame of every sampled span."""
        self._apply(plan)
        route = self.graphs.route(plan.kind, exact_size(plan))
        step = self.batch.fill(plan, route.size)
        self.tensors = step
        with torch.inference_mode():
            self.graphs.run(route, step)
        return self._result(plan, step)

    def _apply(self, plan: StepPlan) -> None:
        """Everything that a plan changes before its rows, in the plan's order."""
        state = self.state
        for save in plan.prefix_saves:
            state.prefixes.save(state.recurrent, save.slot, save.prefix)
        self.batch.apply(plan)
        for admission in plan.admissions:
            state.admit(admission)
        for copy in plan.page_copies:
            state.copy_page(copy.source, copy.target)
        for load in plan.prefix_loads:
            state.prefixes.load(state.recurrent, load.prefix, load.slot)

    def _result(self, plan: StepPlan, step: StepTensors) -> StepResult:
        rows = step.frames.cpu().numpy().astype(np.int32)
        end = self.config.eos_token_id
        return StepResult(
            {
                span.request_id: Frame(row=row, end=int(row[0]) == end)
                for span, row in zip(plan.sampled, rows, strict=False)
            }
        )
