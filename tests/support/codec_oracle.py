"""The codec as slow, whole-utterance mathematics in float64; shares no code with the package."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from declaim.codec.config import CodecConfig

Weights = dict[str, Tensor]

DILATIONS = (1, 3, 9)


@dataclass(frozen=True)
class Choices:
    """What an encoding chose and what it chose from.

    latent float64 [frames, latent]. codes int64 [Q, frames]. margins float64 [Q, frames]: by how
    much the best cosine exceeds the second best.
    """

    latent: Tensor
    codes: Tensor
    margins: Tensor


def decode_whole(config: CodecConfig, weights: Weights, codes: Tensor) -> Tensor:
    """Codes int64 [Q, frames] -> float64 samples [frames * hop]."""
    w = {name: value.double() for name, value in weights.items()}
    x = _attention_stack(w, "quantizer.post_module.", _pre_post(config), _latent(w, codes)).T[None]
    for stage, factor in enumerate(reversed(config.downsample_factor)):
        p = f"quantizer.upsample.{stage}."
        x = functional.conv_transpose1d(x, w[f"{p}0.conv.weight"], stride=factor)
        x = _convnext(w, f"{p}1.", x + w[f"{p}0.conv.bias"][:, None])
    x = _causal(w, "decoder.model.0.conv", x)
    for stage, rate in enumerate(config.decoder_rates, 1):
        p = f"decoder.model.{stage}.block."
        wide = functional.conv_transpose1d(
            _snake(x, w[f"{p}0.alpha"]),
            w[f"{p}1.conv.weight"],
            w[f"{p}1.conv.bias"],
            stride=rate,
        )
        x = wide[..., : x.shape[-1] * rate]
        for unit, dilation in enumerate(DILATIONS, 2):
            x = _residual_unit(w, f"{p}{unit}.block.", x, dilation)
    last = len(config.decoder_rates) + 1
    x = _snake(x, w[f"decoder.model.{last}.alpha"])
    return torch.tanh(_causal(w, f"decoder.model.{last + 1}.conv", x))[0, 0]


def encode_whole(config: CodecConfig, weights: Weights, samples: Tensor) -> Choices:
    """Samples [n] -> the codes of the clip, zeros filling its last frame."""
    w = {name: value.double() for name, value in weights.items()}
    x = functional.pad(samples.double(), (0, -len(samples) % config.hop))[None, None]
    x = _causal(w, "encoder.block.0.conv", x)
    for stage, rate in enumerate(config.encoder_rates, 1):
        p = f"encoder.block.{stage}.block."
        for unit, dilation in enumerate(DILATIONS):
            x = _residual_unit(w, f"{p}{unit}.block.", x, dilation)
        x = _strided(w, f"{p}4.conv", _snake(x, w[f"{p}3.alpha"]), rate)
    depth, window = config.encoder_transformer.n_layer, config.encoder_transformer.window
    if depth:
        shape = _Attention(depth, x.shape[1] // 64, 64, window, 10000.0, 1e-5, torch.bfloat16)
        x = _attention_stack(w, f"{p}5.", shape, x[0].T).T[None]
    last = len(config.encoder_rates) + 1
    x = _snake(x, w[f"encoder.block.{last}.alpha"])
    x = _causal(w, f"encoder.block.{last + 1}.conv", x)
    for stage, factor in enumerate(config.downsample_factor):
        p = f"quantizer.downsample.{stage}."
        x = _convnext(w, f"{p}1.", _strided(w, f"{p}0.conv", x, factor))
    latent = _attention_stack(w, "quantizer.pre_module.", _pre_post(config), x[0].T)
    return _search(config, w, latent)


def _search(config: CodecConfig, w: Weights, latent: Tensor) -> Choices:
    left, codes, margins = latent, [], []
    for index in range(config.num_codebooks):
        p = _quantizer(index)
        narrow = left @ w[f"{p}in_proj.weight"][:, :, 0].T + w[f"{p}in_proj.bias"]
        book = w[f"{p}codebook.weight"]
        cosines = functional.cosine_similarity(narrow[:, None], book, -1)
        best = cosines.topk(2, -1)
        codes.append(best.indices[:, 0])
        margins.append(best.values[:, 0] - best.values[:, 1])
        rows = book[codes[-1]]
        left = left - rows @ w[f"{p}out_proj.weight"][:, :, 0].T - w[f"{p}out_proj.bias"]
    return Choices(latent, torch.stack(codes), torch.stack(margins))


def _quantizer(index: int) -> str:
    """Name prefix of the quantizer that makes one row of the codes."""
    if index:
        return f"quantizer.quantizer.quantizers.{index - 1}."
    return "quantizer.semantic_quantizer.quantizers.0."


def _latent(w: Weights, codes: Tensor) -> Tensor:
    """[frames, latent]."""
    frames = []
    for t in range(codes.shape[1]):
        total = torch.zeros((), dtype=torch.float64)
        for index, code in enumerate(codes[:, t].tolist()):
            p = _quantizer(index)
            book = w[f"{p}codebook.weight"]
            row = book[min(code, len(book) - 1)]
            total = total + w[f"{p}out_proj.weight"][:, :, 0] @ row + w[f"{p}out_proj.bias"]
        frames.append(total)
    return torch.stack(frames)


@dataclass(frozen=True)
class _Attention:
    layers: int
    heads: int
    head_dim: int
    window: int
    base: float
    eps: float
    table: torch.dtype


def _pre_post(config: CodecConfig) -> _Attention:
    block = config.pre_post
    table = {"bfloat16": torch.bfloat16, "float32": torch.float32}[block.rope_table_dtype]
    sizes = (block.n_layer, block.n_head, block.head_dim, block.window)
    return _Attention(*sizes, block.rope_base, block.norm_eps, table)


def _attention_stack(w: Weights, prefix: str, shape: _Attention, x: Tensor) -> Tensor:
    """[frames, width], shape kept: every frame against every frame, masked."""
    frames, width = x.shape
    at = torch.arange(frames)
    seen = (at[:, None] >= at) & (at[:, None] - at < shape.window)
    half = torch.arange(shape.head_dim // 2, dtype=torch.float32)
    angle = torch.outer(at.float(), shape.base ** (-2 * half / shape.head_dim))
    turn = torch.complex(angle.cos().to(shape.table).double(), angle.sin().to(shape.table).double())

    def heads(y: Tensor) -> Tensor:
        return y.reshape(frames, shape.heads, shape.head_dim).transpose(0, 1)

    def turned(y: Tensor) -> Tensor:
        pairs = torch.view_as_complex(heads(y).reshape(shape.heads, frames, -1, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(2)

    def normed(y: Tensor, name: str) -> Tensor:
        return y / (y.square().mean(-1, keepdim=True) + shape.eps).sqrt() * w[name]

    for layer in range(shape.layers):
        p = f"{prefix}layers.{layer}."
        qkv = normed(x, f"{p}attention_norm.weight") @ w[f"{p}attention.wqkv.weight"].T
        q, k, v = qkv.split(width, -1)
        scores = turned(q) @ turned(k).transpose(1, 2) / shape.head_dim**0.5
        mixed = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ heads(v)
        mixed = mixed.transpose(0, 1).reshape(frames, -1) @ w[f"{p}attention.wo.weight"].T
        x = x + mixed * w[f"{p}attention_layer_scale.gamma"]
        y = normed(x, f"{p}ffn_norm.weight")
        gate = y @ w[f"{p}feed_forward.w1.weight"].T
        y = gate * torch.sigmoid(gate) * (y @ w[f"{p}feed_forward.w3.weight"].T)
        x = x + y @ w[f"{p}feed_forward.w2.weight"].T * w[f"{p}ffn_layer_scale.gamma"]
    return normed(x, f"{prefix}norm.weight")


def _residual_unit(w: Weights, u: str, x: Tensor, dilation: int) -> Tensor:
    y = _causal(w, f"{u}1.conv", _snake(x, w[f"{u}0.alpha"]), dilation)
    return x + _causal(w, f"{u}3.conv", _snake(y, w[f"{u}2.alpha"]))


def _strided(w: Weights, name: str, x: Tensor, stride: int) -> Tensor:
    """Every stride-th column of the causal convolution, the first one at stride - 1."""
    return _causal(w, name, x)[..., stride - 1 :: stride]


def _causal(w: Weights, name: str, x: Tensor, dilation: int = 1, groups: int = 1) -> Tensor:
    weight = w[f"{name}.weight"]
    x = functional.pad(x, ((weight.shape[-1] - 1) * dilation, 0))
    return functional.conv1d(x, weight, w[f"{name}.bias"], dilation=dilation, groups=groups)


def _convnext(w: Weights, p: str, x: Tensor) -> Tensor:
    y = _causal(w, f"{p}dwconv.conv", x, groups=x.shape[1])[0].T
    y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
    y = y * w[f"{p}norm.weight"] + w[f"{p}norm.bias"]
    y = y @ w[f"{p}pwconv1.weight"].T + w[f"{p}pwconv1.bias"]
    y = y * 0.5 * (1 + torch.erf(y / 2**0.5))
    y = y @ w[f"{p}pwconv2.weight"].T + w[f"{p}pwconv2.bias"]
    return x + (y * w[f"{p}gamma"]).T


def _snake(x: Tensor, alpha: Tensor) -> Tensor:
    return x + torch.sin(alpha * x) ** 2 / (alpha + 1e-9)
