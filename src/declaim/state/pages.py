"""K and V pages of the attention layers, and a null page for padding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.config.model import ModelConfig
from declaim.state.layout import StateLayout


@dataclass(frozen=True)
class Pages:
    """Pages of one attention layer; the last page is the null page.

    k, v [pages + 1, kv heads, page size, head width].
    """

    k: Tensor
    v: Tensor


def allocate_pages(
    config: ModelConfig, layout: StateLayout, device: torch.device
) -> tuple[Pages, ...]:
    """Zeroed pages: the backbone's full-attention layers in order, then the tower's layers."""
    backbone = config.backbone
    shape = (
        layout.pages + 1,
        backbone.num_key_value_heads,
        layout.page_size,
        backbone.head_dim,
    )
    return tuple(
        Pages(
            k=torch.zeros(shape, dtype=layout.dtype, device=device),
            v=torch.zeros(shape, dtype=layout.dtype, device=device),
        )
        for _ in range(config.attention_layers)
    )
