"""Per-slot frame state: last frame, repetition window, counter, seed, sampling parameters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.config.model import ModelConfig
from declaim.contracts.step import Admission
from declaim.state.layout import StateLayout


@dataclass(frozen=True)
class SamplingTensors:
    """SamplingParams of every slot, each [slots + 1].

    temperature, top_p, ras_temperature, ras_top_p float32; top_k, code_top_k, ras_top_k int32
    (top_k of "unlimited" is 2**31 - 1; code_top_k is min(top_k, codebook_top_k));
    ras_enabled int32: 1 where the repetition-aware draw may be taken.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    code_top_k: Tensor
    ras_temperature: Tensor
    ras_top_p: Tensor
    ras_top_k: Tensor
    ras_enabled: Tensor


@dataclass(frozen=True)
class FrameState:
    """What a slot carries from frame to frame; the last row is the null slot.

    last int32 [slots + 1, 1 + Q]: the frame generated last.
    window int32 [slots + 1, W]: the last W main tokens, oldest first, -1 where there is none.
    counter int64 [slots + 1]: index of the next frame to generate. seed int64 [slots + 1].
    """

    last: Tensor
    window: Tensor
    counter: Tensor
    seed: Tensor
    sampling: SamplingTensors

    def admit(self, admission: Admission) -> None:
        """Reset everything that a slot holds to what the admission says."""
        slot, params = admission.slot, admission.sampling
        unlimited = 2**31 - 1
        top_k = unlimited if params.top_k is None else params.top_k
        self.last[slot].zero_()
        width = self.window.shape[1]
        window = admission.window[-width:]
        self.window[slot].fill_(-1)
        if window:
            self.window[slot, width - len(window) :] = torch.tensor(window, dtype=torch.int32)
        self.counter[slot] = admission.frame_index
        self.seed[slot] = admission.seed
        target = self.sampling
        target.temperature[slot] = params.temperature
        target.top_p[slot] = params.top_p
        target.top_k[slot] = top_k
        target.code_top_k[slot] = min(top_k, params.codebook_top_k)
        target.ras_temperature[slot] = params.ras_temperature
        target.ras_top_p[slot] = params.ras_top_p
        target.ras_top_k[slot] = params.ras_top_k
        target.ras_enabled[slot] = int(params.repetition_aware)


def allocate_frames(config: ModelConfig, layout: StateLayout, device: torch.device) -> FrameState:
    """Frame state of all slots; the null slot holds parameters that are safe to draw with."""
    rows = layout.slots + 1

    def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(rows, *shape, dtype=dtype, device=device)

    def ones(dtype: torch.dtype) -> Tensor:
        return torch.ones(rows, dtype=dtype, device=device)

    return FrameState(
        last=zeros(config.row_width, dtype=torch.int32),
        window=zeros(layout.window, dtype=torch.int32) - 1,
        counter=zeros(dtype=torch.int64),
        seed=zeros(dtype=torch.int64),
        sampling=SamplingTensors(
            temperature=ones(torch.float32),
            top_p=ones(torch.float32),
            top_k=ones(torch.int32),
            code_top_k=ones(torch.int32),
            ras_temperature=ones(torch.float32),
            ras_top_p=ones(torch.float32),
            ras_top_k=ones(torch.int32),
            ras_enabled=zeros(dtype=torch.int32),
        ),
    )
