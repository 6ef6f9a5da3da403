"""What a platform supplies: device, memory, dtypes, graphs and an op table. It decides nothing."""

from collections.abc import Callable
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


class Graph(Protocol):
    """What a platform recorded of one body."""

    def replay(self) -> None:
        """Compute all of it again, on the memory it was recorded with."""
        ...


class GraphRecorder(Protocol):
    """Records bodies that compute through `ops` alone."""

    ops: OpTable

    def record(self, body: Callable[[], None], *, whole: bool) -> Graph:
        """The body as a graph that `finish` makes ready; it need not be computed.

        whole: ops with effects on state are inside; else they run one by one, between its pieces.
        """
        ...

    def finish(self) -> int:
        """Make ready what was recorded since the last time; bytes of the buffers it shares."""
        ...


class Platform(Protocol):
    """One kind of device. graph_modes: those it can replay, but for running without graphs."""

    name: str
    graph_modes: frozenset[str]
    device: torch.device
    page_size: int
    dtype: torch.dtype

    def op_table(self, collectives: Collectives) -> OpTable:
        """The arithmetic of this platform."""
        ...

    def recorder(self, table: OpTable) -> GraphRecorder:
        """A recorder over a table of this platform."""
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
