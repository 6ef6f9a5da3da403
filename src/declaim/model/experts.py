"""The mixture of experts: routed experts in ascending id, the shared one last."""

from collections.abc import Mapping

from torch import Tensor

from declaim.config.model import BackboneConfig
from declaim.ops.table import Handle, OpTable


class Experts:
    """A router, routed experts and, where the checkpoint has one, a gated shared expert."""

    def __init__(
        self, config: BackboneConfig, ops: OpTable, weights: Mapping[str, Handle], prefix: str
    ) -> None:
        self.ops = ops
        self.top_k = config.num_experts_per_tok
        self.router = weights[f"{prefix}.router"]
        self.routed = weights[f"{prefix}.routed"]
        self.shared: tuple[Handle, Handle, Handle] | None = None
        if config.shared_expert_intermediate_size:
            self.shared = (
                weights[f"{prefix}.shared_gate_up"],
                weights[f"{prefix}.shared_down"],
                weights[f"{prefix}.shared_gate"],
            )

    def __call__(self, x: Tensor, base: Tensor) -> Tensor:
        """base + the experts' output for the normed rows x [n, hidden]."""
        ops = self.ops
        weights, ids = ops.router(x, self.router, top_k=self.top_k)
        y = ops.experts(x, weights, ids, self.routed, base)
        if self.shared is not None:
            gate_up, down, gate = self.shared
            inner = ops.linear(x, gate_up, epilogue="silu_mul")
            scale = ops.linear(x, gate)
            y = ops.linear(inner, down, y, scale, epilogue="scaled_add")
        return ops.all_reduce(y)
