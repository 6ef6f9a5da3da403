"""Random steps and random memory for runners, and everything that a step leaves behind."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from declaim.contracts.request import SamplingParams
from declaim.contracts.step import Admission, PageGrant, Span, StepKind, StepPlan
from declaim.runner.runner import Runner


def memory_of(runner: Runner) -> dict[str, Tensor]:
    """Every tensor of state and hand-over, by its path; not copied."""
    found: dict[str, Tensor] = {}

    def walk(holder: Any, path: str) -> None:
        if isinstance(holder, Tensor):
            found[path] = holder
        elif isinstance(holder, tuple):
            for index, item in enumerate(holder):
                walk(item, f"{path}.{index}")
        elif is_dataclass(holder):
            for field in fields(holder):
                walk(getattr(holder, field.name), f"{path}.{field.name}")

    walk(runner.state, "state")
    for name in ("hidden", "frames", "main_logits", "code_logits"):
        found[f"batch.{name}"] = getattr(runner.batch, name)
    return found


def copied(memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of all."""
    return {name: tensor.clone() for name, tensor in memory.items()}


def restore(memory: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> None:
    """Put the copies back where they came from."""
    for name, tensor in memory.items():
        tensor.copy_(kept[name])


def differences(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> list[str]:
    """Names of what differs in any byte."""
    return [
        name
        for name, tensor in left.items()
        if tensor.contiguous().numpy().tobytes() != right[name].contiguous().numpy().tobytes()
    ]


class StepCases:
    """Random plans over slots that are admitted with pages and random state."""

    def __init__(self, runner: Runner, seed: int) -> None:
        self.runner = runner
        self.rng = np.random.default_rng(seed)
        layout = runner.state.layout
        self.slots = layout.slots
        self.each = layout.pages // layout.slots
        self.context = self.each * layout.page_size
        generator = torch.Generator().manual_seed(seed)
        for name, tensor in memory_of(runner).items():
            if tensor.is_floating_point() and "sampling" not in name:
                tensor.normal_(generator=generator)
        plan = StepPlan(
            StepKind.MIXED,
            (),
            admissions=tuple(self._admission(slot) for slot in range(self.slots)),
            page_grants=tuple(
                PageGrant(slot, tuple(range(slot * self.each, (slot + 1) * self.each)))
                for slot in range(self.slots)
            ),
        )
        runner.batch.apply(plan)
        for admission in plan.admissions:
            runner.state.frames.admit(admission)
        last = self._rows(self.slots)
        runner.state.frames.last[: self.slots] = torch.from_numpy(last)

    def _admission(self, slot: int) -> Admission:
        sampling = SamplingParams(temperature=float(self.rng.choice([0.0, 0.7, 1.0])))
        window = tuple(int(token) for token in self.rng.integers(320, 384, 3))
        return Admission(slot, sampling, int(self.rng.integers(2**40)), 5, window)

    def _rows(self, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        rows = self.rng.integers(0, 64, (count, self.runner.config.row_width))
        rows[:, 0] = np.where(self.rng.random(count) < 0.5, rows[:, 0], 320 + rows[:, 1])
        return rows.astype(np.int32)

    def decode(self, streams: int) -> StepPlan:
        """So many decode rows, in any slots, at any positions."""
        spans = tuple(
            Span(f"r{slot}", slot, int(self.rng.integers(self.context)), 1, True, None, None)
            for slot in self.rng.permutation(self.slots)[:streams].tolist()
        )
        return StepPlan(StepKind.DECODE, spans)

    def mixed(self, rows: int, decodes: int = 1, chunks: int = 2) -> StepPlan:
        """Decode rows and prompt chunks, `rows` in all; of the chunks, all but one go on."""
        slots = self.rng.permutation(self.slots).tolist()
        spans = list(self.decode(decodes).spans)
        taken = {span.slot for span in spans}
        slots = [slot for slot in slots if slot not in taken][:chunks]
        left = rows - decodes
        for place, slot in enumerate(slots):
            last = place == len(slots) - 1
            count = left if last else int(self.rng.integers(1, left - (len(slots) - place - 1) + 1))
            left -= count
            first = int(self.rng.integers(self.context - count + 1))
            known = self._rows(count + 1)
            sampled = place == 0
            next_row = None if sampled else known[-1]
            spans.append(Span(f"r{slot}", slot, first, count, sampled, known[:-1], next_row))
        kind = StepKind.MIXED if decodes else StepKind.PREFILL
        return StepPlan(kind, tuple(spans))
