"""What a platform decides about device memory, and what it comes to in bytes."""

from dataclasses import dataclass

import torch

from declaim.config.model import ModelConfig

MOST_PREFIXES = 64
"""Most prefixes that are kept, whatever the bytes for them."""


@dataclass(frozen=True)
class StateLayout:
    """Sizes and dtypes of all state of one model on one device.

    slots, pages: without the null slot and the null page, which are one more each.
    page_size: rows a page holds, a multiple of 16. window: repetition window W. prefixes: most
    kept prefixes, 0 for none.
    dtype: K and V pages and convolution tails. recurrent_dtype: delta-rule state.
    """

    slots: int
    pages: int
    page_size: int
    window: int
    dtype: torch.dtype
    recurrent_dtype: torch.dtype
    prefixes: int = 0

    def recurrent_bytes(self, config: ModelConfig) -> int:
        """Bytes of recurrent state of one stream, all linear layers."""
        backbone = config.backbone
        tail = (backbone.linear_conv_kernel_dim - 1) * backbone.convolution_channels
        matrix = backbone.linear_value_width * backbone.linear_key_head_dim
        layer = tail * self.dtype.itemsize + matrix * self.recurrent_dtype.itemsize
        return config.linear_layers * layer

    def prefixes_within(self, config: ModelConfig, size: int) -> int:
        """How many prefixes `size` bytes of recurrent state hold, at most MOST_PREFIXES."""
        return min(size // max(self.recurrent_bytes(config), 1), MOST_PREFIXES)

    def row_bytes(self, config: ModelConfig) -> int:
        """Bytes of K and V of one row, all attention layers."""
        backbone = config.backbone
        layer = 2 * backbone.num_key_value_heads * backbone.head_dim * self.dtype.itemsize
        return config.attention_layers * layer

    def page_bytes(self, config: ModelConfig) -> int:
        """Bytes of one page, all attention layers."""
        return self.page_size * self.row_bytes(config)
