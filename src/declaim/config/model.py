"""The checkpoint's config.json and generation_config.json as frozen values.

Knows the published keys and which of their values this engine can serve; knows no tensor.
"""

from dataclasses import dataclass, field

from declaim.contracts.request import SamplingParams

LINEAR = "linear_attention"
FULL = "full_attention"


@dataclass(frozen=True)
class BackboneConfig:
    """The text backbone (`text_config`); names as published.

    rotary_dim: dimensions of a head that rotate, int(head_dim * partial_rotary_factor).
    shared_expert_intermediate_size: 0 means that there is no shared expert.
    """

    hidden_size: int
    layer_types: tuple[str, ...]
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    linear_conv_kernel_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    mamba_ssm_dtype: str | None = None

    @property
    def num_hidden_layers(self) -> int:
        """Layers of both kinds."""
        return len(self.layer_types)

    @property
    def convolution_channels(self) -> int:
        """Channels of a linear layer's convolution: q, k and v."""
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_value_width

    @property
    def linear_value_width(self) -> int:
        """Width of a linear layer's v, z and output."""
        return self.linear_num_value_heads * self.linear_value_head_dim


@dataclass(frozen=True)
class TowerConfig:
    """The codebook tower (`audio_decoder_config`); head geometry is the backbone's.

    num_codebooks: Q. codebook_size: V, entries a codebook has here (`vocab_size`).
    backbone_codebooks: k; codes 1..k enter the backbone, the others the tower.
    """

    shared_layers: int
    num_codebooks: int
    codebook_size: int
    intermediate_size: int
    norm_eps: float
    rope_base: float
    rotary_dim: int
    backbone_codebooks: int

    @property
    def layers(self) -> int:
        """Shared layers, then one residual layer for each code but the first."""
        return self.shared_layers + self.num_codebooks - 1


@dataclass(frozen=True)
class GenerationDefaults:
    """generation_config.json: sampling defaults of the checkpoint.

    ras_window: W, how many of the last main tokens the repetition rule looks at.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    ras_window: int = 16
    max_new_tokens: int = 2048


@dataclass(frozen=True)
class Quantization:
    """`quantization_config`: block-FP8 weights; `method` is bsgemm-moe or fp8."""

    method: str
    block: tuple[int, int] = (128, 128)


@dataclass(frozen=True)
class ModelConfig:
    """One checkpoint.

    band: (first, last) main token id of semantic frames, both inside; width = codebook_size.
    context: most rows a stream may hold, min(16384, max_position_embeddings).
    dtype: the file's own dtype name. unknown_keys: dotted names of ignored keys, for `inspect`.
    plain_text_model: the backbone was saved as the public text model, whose files may also hold
        draft and vision tensors that nothing here reads.
    """

    backbone: BackboneConfig
    tower: TowerConfig
    eos_token_id: int
    band: tuple[int, int]
    context: int
    dtype: str = "bfloat16"
    quantization: Quantization | None = None
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    plain_text_model: bool = False
    unknown_keys: tuple[str, ...] = ()

    @property
    def candidates(self) -> tuple[int, ...]:
        """Token ids that the main draw may give, ascending: the band and the end."""
        first, last = self.band
        return tuple(sorted({self.eos_token_id, *range(first, last + 1)}))

    @property
    def linear_layers(self) -> int:
        """Backbone layers with recurrent state."""
        return sum(kind == LINEAR for kind in self.backbone.layer_types)

    @property
    def attention_layers(self) -> int:
        """Layers with K and V pages: the backbone's full ones, then every tower layer."""
        return sum(kind == FULL for kind in self.backbone.layer_types) + self.tower.layers

    @property
    def row_width(self) -> int:
        """Columns of a frame row: the main token and Q codes."""
        return 1 + self.tower.num_codebooks
