"""All state of one model on one device, allocated once."""

from dataclasses import dataclass

import torch

from declaim.config.model import ModelConfig
from declaim.contracts.step import Admission
from declaim.state.frames import FrameState, allocate_frames
from declaim.state.layout import StateLayout
from declaim.state.pages import Pages, allocate_pages
from declaim.state.recurrent import RecurrentState, allocate_recurrent


@dataclass(frozen=True)
class DeviceState:
    """recurrent: one a linear layer. pages: one an attention layer, backbone then tower."""

    layout: StateLayout
    recurrent: tuple[RecurrentState, ...]
    pages: tuple[Pages, ...]
    frames: FrameState

    def admit(self, admission: Admission) -> None:
        """Reset everything that a slot holds. Pages need none: a row is written before it is read.

        The reset does not depend on how many rows the first span has.
        """
        self.frames.admit(admission)
        for layer in self.recurrent:
            layer.reset(admission.slot)


def allocate(config: ModelConfig, layout: StateLayout, device: torch.device) -> DeviceState:
    """Zeroed state, null slot and null page included."""
    return DeviceState(
        layout=layout,
        recurrent=allocate_recurrent(config, layout, device),
        pages=allocate_pages(config, layout, device),
        frames=allocate_frames(config, layout, device),
    )
