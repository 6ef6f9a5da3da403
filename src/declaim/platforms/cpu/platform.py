"""The CPU platform: reference arithmetic in float32, pages of 16 rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from declaim.config.model import ModelConfig
from declaim.config.schema import FrameStage
from declaim.contracts.errors import InvalidConfig, OutOfMemory
from declaim.ops.reference import ReferenceOps
from declaim.ops.table import Collectives, OpTable
from declaim.platforms.recorder import Recorder
from declaim.state.layout import StateLayout

BLOCK = 16
"""Attention runs over blocks of this many rows; a page holds whole blocks."""

STATE_DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class HostTensor:
    """A step tensor whose host and device sides are the same memory."""

    host: NDArray[np.integer[Any]]
    device: Tensor

    def upload(self, rows: int) -> None:
        """Nothing to do: the device reads what the host wrote."""


class CpuPlatform:
    """Reference ops; state in float32 unless the recurrent dtype is asked for otherwise."""

    name = "cpu"
    graph_modes = frozenset({"PIECEWISE", "FULL", "FULL_AND_PIECEWISE"})
    device = torch.device("cpu")
    page_size = BLOCK
    dtype = torch.float32

    def op_table(self, collectives: Collectives) -> OpTable:
        """The readable PyTorch reference."""
        return ReferenceOps(collectives)

    def recorder(self, table: OpTable) -> Recorder:
        """Programs of op calls, replayed by a loop."""
        return Recorder(table)

    def layout(self, config: ModelConfig, stage: FrameStage) -> StateLayout:
        """Pages from kv_pages or kv_memory, no more than all slots can use.

        Kept prefixes have no pages set aside: they use those that no request needs.
        """
        page_size = stage.page_size or self.page_size
        if page_size % BLOCK:
            raise InvalidConfig(
                f"page_size must be a multiple of {BLOCK} on {self.name}, not {page_size}",
                param="page_size",
                limit=BLOCK,
                value=page_size,
            )
        name = stage.mamba_ssm_cache_dtype or config.backbone.mamba_ssm_dtype or "float32"
        layout = StateLayout(
            slots=stage.max_num_seqs,
            pages=0,
            page_size=page_size,
            window=config.generation.ras_window,
            dtype=self.dtype,
            recurrent_dtype=STATE_DTYPES[name],
        )
        rows = min(stage.max_model_len, config.context)
        useful = stage.max_num_seqs * -(-rows // page_size)
        pages = stage.kv_pages or min(useful, stage.kv_memory // layout.page_bytes(config))
        if pages < 1:
            raise OutOfMemory(
                f"kv_memory of {stage.kv_memory} bytes holds no page of "
                f"{layout.page_bytes(config)} bytes",
                param="kv_memory",
                limit=layout.page_bytes(config),
                value=stage.kv_memory,
            )
        prefixes = layout.prefixes_within(config, stage.prefix_cache_bytes)
        return replace(layout, pages=pages, prefixes=prefixes)

    def staging(self, shape: tuple[int, ...]) -> HostTensor:
        """An int32 step tensor shared by both sides."""
        device = torch.zeros(shape, dtype=torch.int32)
        return HostTensor(host=device.numpy(), device=device)

    def set_threads(self, threads: int) -> None:
        """torch's intra-op threads."""
        torch.set_num_threads(threads)
