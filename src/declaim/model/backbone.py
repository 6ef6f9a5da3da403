"""The text backbone: linear and full attention layers, each followed by experts."""

from collections.abc import Mapping

from torch import Tensor

from declaim.config.model import FULL, ModelConfig
from declaim.model.delta_attention import DeltaAttention
from declaim.model.experts import Experts
from declaim.model.full_attention import AttentionGeometry, GatedAttention
from declaim.ops.table import Handle, OpTable
from declaim.state.device import DeviceState
from declaim.state.pages import Pages
from declaim.state.recurrent import RecurrentState
from declaim.state.step import Spans

LayerState = RecurrentState | Pages | None


class Layer:
    """Norm, mixer, norm, experts; both residual."""

    def __init__(
        self, config: ModelConfig, ops: OpTable, weights: Mapping[str, Handle], index: int
    ) -> None:
        backbone = config.backbone
        prefix = f"layers.{index}"
        self.ops = ops
        self.eps = backbone.rms_norm_eps
        self.input_norm = weights[f"{prefix}.input_norm"]
        self.post_norm = weights[f"{prefix}.post_norm"]
        self.mixer: GatedAttention | DeltaAttention
        if backbone.layer_types[index] == FULL:
            geometry = AttentionGeometry(
                heads=backbone.num_attention_heads,
                kv_heads=backbone.num_key_value_heads,
                head_dim=backbone.head_dim,
                rotary=backbone.rotary_dim,
                theta=backbone.rope_theta,
                interleaved=False,
                eps=backbone.rms_norm_eps,
            )
            self.mixer = GatedAttention(geometry, ops, weights, f"{prefix}.attention")
        else:
            self.mixer = DeltaAttention(backbone, ops, weights, f"{prefix}.delta")
        self.experts = Experts(backbone, ops, weights, f"{prefix}.experts")

    def __call__(self, x: Tensor, spans: Spans, state: LayerState) -> Tensor:
        """x [n, hidden] -> [n, hidden]; updates the layer's own state."""
        y = self.ops.rms_norm(x, self.input_norm, eps=self.eps, zero_centred=True)
        x = self.mixer(y, x, spans, state)  # type: ignore[arg-type]
        y = self.ops.rms_norm(x, self.post_norm, eps=self.eps, zero_centred=True)
        return self.experts(y, x)


class Backbone:
    """Frame rows in, final-norm hidden rows out."""

    def __init__(self, config: ModelConfig, ops: OpTable, weights: Mapping[str, Handle]) -> None:
        self.config = config
        self.ops = ops
        self.table = weights["embed"]
        self.codebooks = weights["codebooks"]
        self.final_norm = weights["final_norm"]
        count = config.backbone.num_hidden_layers
        self.layers = tuple(Layer(config, ops, weights, index) for index in range(count))

    def layer_states(self, state: DeviceState | None) -> tuple[LayerState, ...]:
        """Each layer's own part of the state, in layer order."""
        if state is None:
            return (None,) * len(self.layers)
        recurrent, pages = iter(state.recurrent), iter(state.pages)
        kinds = self.config.backbone.layer_types
        return tuple(next(pages) if kind == FULL else next(recurrent) for kind in kinds)

    def __call__(
        self, rows: Tensor, spans: Spans, state: DeviceState | None, out: Tensor | None = None
    ) -> Tensor:
        """rows int32 [n, 1 + Q] -> hidden [n, hidden], the input of lm_head and tower."""
        x = self.ops.embed(
            rows,
            self.table,
            self.codebooks,
            band=self.config.band,
            codes=self.config.tower.backbone_codebooks,
        )
        for layer, layer_state in zip(self.layers, self.layer_states(state), strict=True):
            x = layer(x, spans, layer_state)
        eps = self.config.backbone.rms_norm_eps
        return self.ops.rms_norm(x, self.final_norm, eps=eps, zero_centred=True, out=out)
