"""The codec's decode side as slow, whole-utterance mathematics in float64; shares no code."""

import torch
from torch import Tensor
from torch.nn import functional

from declaim.codec.config import CodecConfig

Weights = dict[str, Tensor]


def decode_whole(config: CodecConfig, weights: Weights, codes: Tensor) -> Tensor:
    """Codes int64 [Q, frames] -> float64 samples [frames * hop]."""
    w = {name: value.double() for name, value in weights.items()}
    x = _attention_stack(config, w, _latent(w, codes)).T[None]
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
        for unit, dilation in ((2, 1), (3, 3), (4, 9)):
            u = f"{p}{unit}.block."
            y = _causal(w, f"{u}1.conv", _snake(x, w[f"{u}0.alpha"]), dilation)
            x = x + _causal(w, f"{u}3.conv", _snake(y, w[f"{u}2.alpha"]))
    last = len(config.decoder_rates) + 1
    x = _snake(x, w[f"decoder.model.{last}.alpha"])
    return torch.tanh(_causal(w, f"decoder.model.{last + 1}.conv", x))[0, 0]


def _latent(w: Weights, codes: Tensor) -> Tensor:
    """[frames, latent]."""
    frames = []
    for t in range(codes.shape[1]):
        total = torch.zeros((), dtype=torch.float64)
        for index, code in enumerate(codes[:, t].tolist()):
            p = "quantizer.semantic_quantizer.quantizers.0."
            if index:
                p = f"quantizer.quantizer.quantizers.{index - 1}."
            book = w[f"{p}codebook.weight"]
            row = book[min(code, len(book) - 1)]
            total = total + w[f"{p}out_proj.weight"][:, :, 0] @ row + w[f"{p}out_proj.bias"]
        frames.append(total)
    return torch.stack(frames)


def _attention_stack(config: CodecConfig, w: Weights, x: Tensor) -> Tensor:
    """[frames, latent], shape kept: every frame against every frame, masked."""
    block, frames = config.pre_post, len(x)
    at = torch.arange(frames)
    seen = (at[:, None] >= at) & (at[:, None] - at < block.window)
    half = torch.arange(block.head_dim // 2, dtype=torch.float32)
    angle = torch.outer(at.float(), block.rope_base ** (-2 * half / block.head_dim))
    table = {"bfloat16": torch.bfloat16, "float32": torch.float32}[block.rope_table_dtype]
    turn = torch.complex(angle.cos().to(table).double(), angle.sin().to(table).double())

    def heads(y: Tensor) -> Tensor:
        return y.reshape(frames, block.n_head, block.head_dim).transpose(0, 1)

    def turned(y: Tensor) -> Tensor:
        pairs = torch.view_as_complex(heads(y).reshape(block.n_head, frames, -1, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(2)

    def normed(y: Tensor, name: str) -> Tensor:
        return y / (y.square().mean(-1, keepdim=True) + block.norm_eps).sqrt() * w[name]

    for layer in range(block.n_layer):
        p = f"quantizer.post_module.layers.{layer}."
        qkv = normed(x, f"{p}attention_norm.weight") @ w[f"{p}attention.wqkv.weight"].T
        q, k, v = qkv.split(config.latent_dim, -1)
        scores = turned(q) @ turned(k).transpose(1, 2) / block.head_dim**0.5
        mixed = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ heads(v)
        mixed = mixed.transpose(0, 1).reshape(frames, -1) @ w[f"{p}attention.wo.weight"].T
        x = x + mixed * w[f"{p}attention_layer_scale.gamma"]
        y = normed(x, f"{p}ffn_norm.weight")
        gate = y @ w[f"{p}feed_forward.w1.weight"].T
        y = gate * torch.sigmoid(gate) * (y @ w[f"{p}feed_forward.w3.weight"].T)
        x = x + y @ w[f"{p}feed_forward.w2.weight"].T * w[f"{p}ffn_layer_scale.gamma"]
    return normed(x, "quantizer.post_module.norm.weight")


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
