"""The network's parameter names, and how each is made from a checkpoint's tensors, both ways.

The network's own names (what model asks for and op tables prepare); [rows, columns]:

    embed                                table   [vocab, hidden]
    codebooks                            table   [Q * V, hidden]
    lm_head                              linear  [candidates, hidden], token ids ascending
    final_norm                           vector  [hidden]
    layers.I.input_norm, .post_norm      vector  [hidden]
    layers.I.attention.qgkv              linear  [2 H D + 2 K D, hidden]: q | gate | k | v
    layers.I.attention.q_norm, .k_norm   vector  [D]
    layers.I.attention.out               linear  [hidden, H D]
    layers.I.delta.qkvz                  linear  [channels + value width, hidden]: q | k | v | z
    layers.I.delta.ba                    linear  [2 * value heads, hidden]: b | a
    layers.I.delta.conv                  conv    [channels, kernel]
    layers.I.delta.a_log, .dt_bias       vector  [value heads]
    layers.I.delta.norm                  vector  [value head width]
    layers.I.delta.out                   linear  [hidden, value width]
    layers.I.experts.router              linear  [experts, hidden]
    layers.I.experts.routed              experts
    layers.I.experts.shared_gate_up      linear  [2 * shared width, hidden]: gate | up
    layers.I.experts.shared_down         linear  [hidden, shared width]
    layers.I.experts.shared_gate         linear  [1, hidden]
    tower.I.table                        table   [V, dim]
    tower.I.enorm, .hnorm, .attention_norm, .ffn_norm, .final_norm   vector  [dim]
    tower.I.eh                           linear  [dim, 2 * dim]
    tower.I.attention.qgkv, .q_norm, .k_norm, .out   as in layers
    tower.I.ffn_gate_up                  linear  [2 * intermediate, dim]: w1 | w3
    tower.I.ffn_down                     linear  [dim, intermediate]
    tower.I.head                         linear  [V, dim]; residual layers only
                                         (I >= shared layers: tower layer shared + j is residual j)

The shared expert's three are absent where the checkpoint has none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from declaim.config.model import FULL, BackboneConfig, ModelConfig

Kind = Literal["table", "linear", "vector", "conv", "experts"]
Order = Literal["as_stored", "query_gate", "candidates", "conv"]

PREFIXES = ("model.language_model.", "model.")
"""What may stand before the backbone's published names; the first is the usual one."""

IGNORED_OF_TEXT_MODEL = ("mtp.", "model.visual.")
"""Starts of names that a plain text model's files may hold beside the network."""


@dataclass(frozen=True)
class Source:
    """One published tensor that a parameter is made from.

    shape: as published. order: how its rows become the parameter's: as_stored; query_gate (per
    head [q | gate] becomes all q, then all gate); candidates (the rows of the token ids that the
    main draw may give); conv ([channels, 1, kernel] without the middle dimension).
    usually_fp8: one of those that a block-FP8 release quantises.
    """

    name: str
    shape: tuple[int, ...]
    order: Order = "as_stored"
    usually_fp8: bool = False


@dataclass(frozen=True)
class Parameter:
    """One parameter of the network: its sources' rows, joined in order.

    shape: of the parameter; for experts [experts, width, hidden]. `stem` is the published name
    that an experts parameter's tensors start with; the others have sources instead.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    sources: tuple[Source, ...] = ()
    stem: str = ""


def stacked_expert_names(stem: str) -> tuple[str, str]:
    """Published names of gate_up [experts, 2 * width, hidden] and down [experts, hidden, width]."""
    return f"{stem}.gate_up_proj", f"{stem}.down_proj"


def expert_names(stem: str, expert: int) -> tuple[str, str, str]:
    """Published names of one expert's gate and up [width, hidden] and down [hidden, width]."""
    start = f"{stem}.{expert}"
    return f"{start}.gate_proj.weight", f"{start}.up_proj.weight", f"{start}.down_proj.weight"


def scale_name(name: str) -> str:
    """Published name of the block scales of an FP8 tensor."""
    return f"{name}_scale_inv"


def scale_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the block scales of an FP8 tensor [..., rows, columns]."""
    rows, columns = shape[-2:]
    return (*shape[:-2], -(-rows // 128), -(-columns // 128))


def network_parameters(config: ModelConfig, prefix: str = PREFIXES[0]) -> tuple[Parameter, ...]:
    """Every parameter of the network in the order it is used, with its published tensors.

    prefix: what stands before the backbone's published names, one of PREFIXES.
    """
    return (*_ends(config, prefix), *_backbone(config, prefix), *_tower(config))


def _plain(
    name: str, kind: Kind, published: str, *shape: int, usually_fp8: bool = False
) -> Parameter:
    source = Source(published, shape, usually_fp8=usually_fp8)
    return Parameter(name, kind, shape, (source,))


def _joined(name: str, width: int, *sources: Source) -> Parameter:
    rows = sum(source.shape[0] for source in sources)
    return Parameter(name, "linear", (rows, width), sources)


def _ends(config: ModelConfig, prefix: str) -> Iterator[Parameter]:
    backbone, tower = config.backbone, config.tower
    vocab, hidden = backbone.vocab_size, backbone.hidden_size
    codes = tower.num_codebooks * tower.codebook_size
    yield _plain("embed", "table", f"{prefix}embed_tokens.weight", vocab, hidden)
    yield _plain("codebooks", "table", "audio_decoder.codebook_embeddings.weight", codes, hidden)
    head = Source("lm_head.weight", (vocab, hidden), "candidates")
    yield Parameter("lm_head", "linear", (len(config.candidates), hidden), (head,))
    yield _plain("final_norm", "vector", f"{prefix}norm.weight", hidden)


def _backbone(config: ModelConfig, prefix: str) -> Iterator[Parameter]:
    backbone = config.backbone
    for index, kind in enumerate(backbone.layer_types):
        ours, published = f"layers.{index}", f"{prefix}layers.{index}"
        width = backbone.hidden_size
        yield _plain(f"{ours}.input_norm", "vector", f"{published}.input_layernorm.weight", width)
        if kind == FULL:
            yield from _attention(backbone, f"{ours}.attention", f"{published}.self_attn")
        else:
            yield from _delta(backbone, f"{ours}.delta", f"{published}.linear_attn")
        yield _plain(
            f"{ours}.post_norm", "vector", f"{published}.post_attention_layernorm.weight", width
        )
        yield from _experts(backbone, f"{ours}.experts", f"{published}.mlp")


def _attention(backbone: BackboneConfig, ours: str, published: str) -> Iterator[Parameter]:
    hidden, head = backbone.hidden_size, backbone.head_dim
    query = backbone.num_attention_heads * head
    key = backbone.num_key_value_heads * head
    yield _joined(
        f"{ours}.qgkv",
        hidden,
        Source(f"{published}.q_proj.weight", (2 * query, hidden), "query_gate", True),
        Source(f"{published}.k_proj.weight", (key, hidden), usually_fp8=True),
        Source(f"{published}.v_proj.weight", (key, hidden), usually_fp8=True),
    )
    yield _plain(f"{ours}.q_norm", "vector", f"{published}.q_norm.weight", head)
    yield _plain(f"{ours}.k_norm", "vector", f"{published}.k_norm.weight", head)
    out = f"{published}.o_proj.weight"
    yield _plain(f"{ours}.out", "linear", out, hidden, query, usually_fp8=True)


def _delta(backbone: BackboneConfig, ours: str, published: str) -> Iterator[Parameter]:
    hidden, heads = backbone.hidden_size, backbone.linear_num_value_heads
    channels, value = backbone.convolution_channels, backbone.linear_value_width
    kernel = backbone.linear_conv_kernel_dim
    yield _joined(
        f"{ours}.qkvz",
        hidden,
        Source(f"{published}.in_proj_qkv.weight", (channels, hidden), usually_fp8=True),
        Source(f"{published}.in_proj_z.weight", (value, hidden), usually_fp8=True),
    )
    yield _joined(
        f"{ours}.ba",
        hidden,
        Source(f"{published}.in_proj_b.weight", (heads, hidden)),
        Source(f"{published}.in_proj_a.weight", (heads, hidden)),
    )
    conv = Source(f"{published}.conv1d.weight", (channels, 1, kernel), "conv")
    yield Parameter(f"{ours}.conv", "conv", (channels, kernel), (conv,))
    yield _plain(f"{ours}.a_log", "vector", f"{published}.A_log", heads)
    yield _plain(f"{ours}.dt_bias", "vector", f"{published}.dt_bias", heads)
    width = backbone.linear_value_head_dim
    yield _plain(f"{ours}.norm", "vector", f"{published}.norm.weight", width)
    out = f"{published}.out_proj.weight"
    yield _plain(f"{ours}.out", "linear", out, hidden, value, usually_fp8=True)


def _experts(backbone: BackboneConfig, ours: str, published: str) -> Iterator[Parameter]:
    hidden, count = backbone.hidden_size, backbone.num_experts
    yield _plain(f"{ours}.router", "linear", f"{published}.gate.weight", count, hidden)
    shape = (count, backbone.moe_intermediate_size, hidden)
    yield Parameter(f"{ours}.routed", "experts", shape, stem=f"{published}.experts")
    shared = backbone.shared_expert_intermediate_size
    if shared:
        stem = f"{published}.shared_expert"
        yield _joined(
            f"{ours}.shared_gate_up",
            hidden,
            Source(f"{stem}.gate_proj.weight", (shared, hidden), usually_fp8=True),
            Source(f"{stem}.up_proj.weight", (shared, hidden), usually_fp8=True),
        )
        down = f"{stem}.down_proj.weight"
        yield _plain(f"{ours}.shared_down", "linear", down, hidden, shared, usually_fp8=True)
        yield _plain(f"{ours}.shared_gate", "linear", f"{stem}_gate.weight", 1, hidden)


def _tower(config: ModelConfig) -> Iterator[Parameter]:
    backbone, tower = config.backbone, config.tower
    dim, head, codes = backbone.hidden_size, backbone.head_dim, tower.codebook_size
    query = backbone.num_attention_heads * head
    rows = 2 * query + 2 * backbone.num_key_value_heads * head
    inner = tower.intermediate_size
    for index in range(tower.layers):
        ours, residual = f"tower.{index}", index - tower.shared_layers
        if residual < 0:
            published = f"audio_decoder_mtp_shared.layers.{index}"
            table = f"{published}.semantic_embedding.weight"
        else:
            published = f"audio_decoder_mtp.layers.{residual}"
            table = f"{published}.codebook_embedding.weight"
        block = f"{published}.transformer_layer"
        yield _plain(f"{ours}.table", "table", table, codes, dim)
        for norm in ("enorm", "hnorm"):
            yield _plain(f"{ours}.{norm}", "vector", f"{published}.{norm}.weight", dim)
        yield _plain(f"{ours}.eh", "linear", f"{published}.eh_proj.weight", dim, 2 * dim)
        yield _plain(f"{ours}.attention_norm", "vector", f"{block}.attention_norm.weight", dim)
        attention = f"{block}.attention"
        yield _plain(f"{ours}.attention.qgkv", "linear", f"{attention}.wqkv.weight", rows, dim)
        for norm in ("q_norm", "k_norm"):
            yield _plain(f"{ours}.attention.{norm}", "vector", f"{attention}.{norm}.weight", head)
        yield _plain(f"{ours}.attention.out", "linear", f"{attention}.wo.weight", dim, query)
        yield _plain(f"{ours}.ffn_norm", "vector", f"{block}.ffn_norm.weight", dim)
        yield _joined(
            f"{ours}.ffn_gate_up",
            dim,
            Source(f"{block}.feed_forward.w1.weight", (inner, dim)),
            Source(f"{block}.feed_forward.w3.weight", (inner, dim)),
        )
        down = f"{block}.feed_forward.w2.weight"
        yield _plain(f"{ours}.ffn_down", "linear", down, dim, inner)
        final = f"{published}.final_layernorm.weight"
        yield _plain(f"{ours}.final_norm", "vector", final, dim)
        if residual >= 0:
            head_name = f"audio_decoder_mtp.heads.{residual}.weight"
            yield _plain(f"{ours}.head", "linear", head_name, codes, dim)
