"""Recurrent state of kept prefixes, by number; their K and V stay in pages."""

from dataclasses import dataclass

import torch

from declaim.config.model import ModelConfig
from declaim.state.layout import StateLayout
from declaim.state.recurrent import RecurrentState, allocate_recurrent_rows


@dataclass(frozen=True)
class KeptPrefixes:
    """One RecurrentState a linear layer, with a row for each prefix number."""

    recurrent: tuple[RecurrentState, ...]

    def save(self, slots: tuple[RecurrentState, ...], slot: int, prefix: int) -> None:
        """Copy a slot's state to a prefix's row."""
        for kept, live in zip(self.recurrent, slots, strict=True):
            kept.tail[prefix].copy_(live.tail[slot])
            kept.matrix[prefix].copy_(live.matrix[slot])

    def load(self, slots: tuple[RecurrentState, ...], prefix: int, slot: int) -> None:
        """Copy a prefix's row to a slot."""
        for kept, live in zip(self.recurrent, slots, strict=True):
            live.tail[slot].copy_(kept.tail[prefix])
            live.matrix[slot].copy_(kept.matrix[prefix])


def allocate_prefixes(
    config: ModelConfig, layout: StateLayout, device: torch.device
) -> KeptPrefixes:
    """Zeroed rows for `layout.prefixes` prefixes."""
    return KeptPrefixes(allocate_recurrent_rows(config, layout, layout.prefixes, device))
