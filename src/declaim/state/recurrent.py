"""Recurrent state of the linear layers: one row per slot and a null slot for padding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.config.model import ModelConfig
from declaim.state.layout import StateLayout


@dataclass(frozen=True)
class RecurrentState:
    """State of one linear layer.

    tail [slots + 1, kernel - 1, channels]: the last raw convolution inputs, oldest first.
    matrix [slots + 1, value heads, key width, value width]: the delta rule's state.
    """

    tail: Tensor
    matrix: Tensor

    def reset(self, slot: int) -> None:
        """Start a slot from nothing."""
        self.tail[slot].zero_()
        self.matrix[slot].zero_()


def allocate_recurrent(
    config: ModelConfig, layout: StateLayout, device: torch.device
) -> tuple[RecurrentState, ...]:
    """One zeroed RecurrentState for each linear layer: every slot and the null slot."""
    return allocate_recurrent_rows(config, layout, layout.slots + 1, device)


def allocate_recurrent_rows(
    config: ModelConfig, layout: StateLayout, rows: int, device: torch.device
) -> tuple[RecurrentState, ...]:
    """One zeroed RecurrentState of so many rows for each linear layer."""
    backbone = config.backbone
    tail = (rows, backbone.linear_conv_kernel_dim - 1, backbone.convolution_channels)
    matrix = (
        rows,
        backbone.linear_num_value_heads,
        backbone.linear_key_head_dim,
        backbone.linear_value_head_dim,
    )
    return tuple(
        RecurrentState(
            tail=torch.zeros(tail, dtype=layout.dtype, device=device),
            matrix=torch.zeros(matrix, dtype=layout.recurrent_dtype, device=device),
        )
        for _ in range(config.linear_layers)
    )
