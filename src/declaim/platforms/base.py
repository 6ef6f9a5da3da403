"""What a platform supplies: device, memory, dtypes and an op table. It decides nothing."""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from declaim.config.model import ModelConfig
from declaim.config.schema import FrameStage
from declaim.ops.table import Collectives, OpTable
from declaim.state.layout import StateLayout


class Staging(Protocol):
    """One step tensor: written on the host, read on the device, both at fixed addresses."""

    @property
    def host(self) -> NDArray[np.integer[Any]]:
        """The array to write."""

    @property
    def device(self) -> Tensor:
        """The tensor that model and ops read."""

    def upload(self, rows: int) -> None:
        """Make the first `rows` rows of host visible on the device before the next op."""
        ...


class Platform(Protocol):
    """One kind of device."""

    name: str
    device: torch.device
    page_size: int
    dtype: torch.dtype

    def op_table(self, collectives: Collectives) -> OpTable:
        """The arithmetic of this platform."""
        ...

    def layout(self, config: ModelConfig, stage: FrameStage) -> StateLayout:
        """State sizes and dtypes; raises InvalidConfig or OutOfMemory if the stage cannot fit."""
        ...

    def staging(self, shape: tuple[int, ...]) -> Staging:
        """An int32 step tensor, zeroed."""
        ...

    def set_threads(self, threads: int) -> None:
        """Set the host threads of the arithmetic, once, in the worker."""
        ...
