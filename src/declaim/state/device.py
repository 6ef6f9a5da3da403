"""All state of one model on one device, allocated once."""

from dataclasses import dataclass

import torch

from declaim.config.model import ModelConfig
from declaim.contracts.step import Admission
from declaim.state.frames import FrameState, allocate_frames
from declaim.state.layout import StateLayout
from declaim.state.pages import Pages, allocate_pages
from declaim.state.prefixes import KeptPrefixes, allocate_prefixes
from declaim.state.recurrent import RecurrentState, allocate_recurrent
from declaim.state.step import tensor_addresses


@dataclass(frozen=True)
class DeviceState:
    """recurrent: one a linear layer. pages: one an attention layer, backbone then tower."""

    layout: StateLayout
    recurrent: tuple[RecurrentState, ...]
    pages: tuple[Pages, ...]
    frames: FrameState
    prefixes: KeptPrefixes

    def admit(self, admission: Admission) -> None:
        """Reset everything that a slot holds. Pages need none: a row is written before it is read.

        The reset does not depend on how many rows the first span has.
        """
        self.frames.admit(admission)
        for layer in self.recurrent:
            layer.reset(admission.slot)

    def addresses(self) -> dict[str, int]:
        """Where every tensor of the state lies, by its path; constant once allocated."""
        return tensor_addresses(self)

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page's K and V in every attention layer."""
        for layer in self.pages:
            layer.k[target].copy_(layer.k[source])
            layer.v[target].copy_(layer.v[source])


def allocate(config: ModelConfig, layout: StateLayout, device: torch.device) -> DeviceState:
    """Zeroed state, null slot and null page included."""
    return DeviceState(
        layout=layout,
        recurrent=allocate_recurrent(config, layout, device),
        pages=allocate_pages(config, layout, device),
        frames=allocate_frames(config, layout, device),
        prefixes=allocate_prefixes(config, layout, device),
    )
