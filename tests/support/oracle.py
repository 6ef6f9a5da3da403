"""A slow, plain, whole-sequence oracle of the network, on published tensor names, in float64.

No cache, no batch, no op table: every call recomputes the whole request from its rows. Written
from the published maths; it shares nothing with the package but the file format.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Tensors = Mapping[str, Tensor]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zero-centred RMS norm over the last dimension."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * (1 + weight)


def rotate(x: Tensor, rotary: int, theta: float, interleaved: bool) -> Tensor:
    """RoPE of x [rows, heads, width] at positions 0, 1, 2, ..."""
    half = rotary // 2
    exponent = torch.arange(half, dtype=torch.float64) / half
    angle = torch.arange(len(x), dtype=torch.float64)[:, None] / theta**exponent
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    if interleaved:
        first, second = x[..., 0:rotary:2], x[..., 1:rotary:2]
    else:
        first, second = x[..., :half], x[..., half:rotary]
    turned = torch.complex(first, second) * turn
    if interleaved:
        head = torch.view_as_real(turned).flatten(-2)
    else:
        head = torch.cat([turned.real, turned.imag], -1)
    return torch.cat([head, x[..., rotary:]], -1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention; q [rows, H, D], k and v [rows, K, D] -> [rows, H * D]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("thd,shd->hts", q, k) / q.shape[-1] ** 0.5
    mask = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    weights = scores.masked_fill(mask, -torch.inf).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, v).flatten(1)


@dataclass
class Oracle:
    """The network of one checkpoint: `config` is its config.json, `tensors` by full name."""

    config: dict[str, Any]
    tensors: Tensors

    def __post_init__(self) -> None:
        self.text = self.config["text_config"]
        self.audio = self.config["audio_decoder_config"]
        self.tensors = {name: value.double() for name, value in self.tensors.items()}
        self.begin: int = self.config["semantic_start_token_id"]
        self.end: int = self.config["semantic_end_token_id"]
        self.candidates = sorted({self.config["eos_token_id"], *range(self.begin, self.end + 1)})

    def get(self, name: str) -> Tensor:
        """One tensor; the backbone's by the name behind its prefix."""
        for prefix in ("", "model.language_model.", "model."):
            if prefix + name in self.tensors:
                return self.tensors[prefix + name]
        raise KeyError(name)

    def semantic(self, rows: Tensor) -> Tensor:
        """Which rows are semantic, [rows, 1]."""
        return ((rows[:, 0] >= self.begin) & (rows[:, 0] <= self.end))[:, None]

    def codes(self, rows: Tensor, first: int, last: int) -> Tensor:
        """Sum of the codebook rows of codes first..last."""
        table = self.tensors["audio_decoder.codebook_embeddings.weight"]
        width = self.audio["vocab_size"]
        total = torch.zeros(len(rows), table.shape[1], dtype=torch.float64)
        for book in range(first, last + 1):
            total += table[book * width + rows[:, 1 + book]]
        return total

    def full_attention(self, x: Tensor, prefix: str) -> Tensor:
        """One gated full-attention layer of the backbone."""
        text = self.text
        heads, kv, width = (
            text["num_attention_heads"],
            text["num_key_value_heads"],
            text["head_dim"],
        )
        both = (x @ self.get(prefix + "q_proj.weight").T).view(len(x), heads, 2, width)
        q, gate = both[:, :, 0], both[:, :, 1].flatten(1)
        k = (x @ self.get(prefix + "k_proj.weight").T).view(len(x), kv, width)
        v = (x @ self.get(prefix + "v_proj.weight").T).view(len(x), kv, width)
        rope = text["rope_parameters"]
        rotary = int(width * rope["partial_rotary_factor"])
        q = norm(q, self.get(prefix + "q_norm.weight"), text["rms_norm_eps"])
        k = norm(k, self.get(prefix + "k_norm.weight"), text["rms_norm_eps"])
        q = rotate(q, rotary, rope["rope_theta"], False)
        k = rotate(k, rotary, rope["rope_theta"], False)
        gated: Tensor = attend(q, k, v) * gate.sigmoid()
        return gated @ self.get(prefix + "o_proj.weight").T

    def delta(self, x: Tensor, prefix: str) -> Tensor:
        """One gated delta-net layer, row by row."""
        text = self.text
        key_heads, value_heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
        dk, dv = text["linear_key_head_dim"], text["linear_value_head_dim"]
        rows, group = len(x), value_heads // key_heads
        raw = x @ self.get(prefix + "in_proj_qkv.weight").T
        z = (x @ self.get(prefix + "in_proj_z.weight").T).view(rows, value_heads, dv)
        beta = (x @ self.get(prefix + "in_proj_b.weight").T).sigmoid()
        decay = x @ self.get(prefix + "in_proj_a.weight").T + self.get(prefix + "dt_bias")
        decay = torch.exp(-torch.exp(self.get(prefix + "A_log")) * F.softplus(decay))
        kernel = self.get(prefix + "conv1d.weight")
        padded = F.pad(raw.T[None], (kernel.shape[-1] - 1, 0))
        mixed = F.silu(F.conv1d(padded, kernel, groups=kernel.shape[0]))[0].T
        q, k, v = mixed.split([key_heads * dk, key_heads * dk, value_heads * dv], -1)
        q, k = (u.reshape(rows, key_heads, dk) for u in (q, k))
        q = q / torch.sqrt((q * q).sum(-1, keepdim=True) + 1e-6) / dk**0.5
        k = k / torch.sqrt((k * k).sum(-1, keepdim=True) + 1e-6)
        q, k = q.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
        v = v.reshape(rows, value_heads, dv)
        state = torch.zeros(value_heads, dk, dv, dtype=torch.float64)
        outputs = []
        for row in range(rows):
            state = state * decay[row, :, None, None]
            error = v[row] - (k[row, :, :, None] * state).sum(1)
            state = state + k[row, :, :, None] * (beta[row, :, None] * error)[:, None]
            outputs.append((q[row, :, :, None] * state).sum(1))
        o = torch.stack(outputs)
        o = o / torch.sqrt((o * o).mean(-1, keepdim=True) + text["rms_norm_eps"])
        o = o * self.get(prefix + "norm.weight") * F.silu(z)
        return o.flatten(1) @ self.get(prefix + "out_proj.weight").T

    def expert(self, prefix: str, index: int) -> tuple[Tensor, Tensor]:
        """gate|up and down of one routed expert, from either layout."""
        try:
            stacked = self.get(prefix + "experts.gate_up_proj")
            return stacked[index], self.get(prefix + "experts.down_proj")[index]
        except KeyError:
            name = f"{prefix}experts.{index}."
            gate = self.get(name + "gate_proj.weight")
            up = self.get(name + "up_proj.weight")
            return torch.cat([gate, up]), self.get(name + "down_proj.weight")

    def moe(self, x: Tensor, prefix: str) -> Tensor:
        """Routed experts and the shared one."""
        probability = (x @ self.get(prefix + "gate.weight").T).softmax(-1)
        weight, chosen = probability.topk(self.text["num_experts_per_tok"], -1)
        weight = weight / weight.sum(-1, keepdim=True)
        rows = []
        for row in range(len(x)):
            total = torch.zeros_like(x[row])
            for share, index in zip(weight[row], chosen[row].tolist(), strict=True):
                gate_up, down = self.expert(prefix, index)
                gate, up = (gate_up @ x[row]).chunk(2)
                total += share * (down @ (F.silu(gate) * up))
            rows.append(total)
        y = torch.stack(rows)
        if not self.text.get("shared_expert_intermediate_size"):
            return y
        name = prefix + "shared_expert."
        inner = F.silu(x @ self.get(name + "gate_proj.weight").T)
        inner = inner * (x @ self.get(name + "up_proj.weight").T)
        gate = (x @ self.get(prefix + "shared_expert_gate.weight").T).sigmoid()
        return y + gate * (inner @ self.get(name + "down_proj.weight").T)

    def embed(self, rows: Tensor) -> Tensor:
        """rows int64 [n, 1 + Q] -> backbone input [n, hidden]."""
        count = self.audio["vq_backbone_codebooks"]
        text = self.get("embed_tokens.weight")[rows[:, 0]]
        mixed = (text + self.codes(rows, 1, count)) / (1 + count) ** 0.5
        return torch.where(self.semantic(rows), mixed, text)

    def backbone(self, rows: Tensor) -> Tensor:
        """rows int64 [n, 1 + Q] -> hidden [n, hidden] of every row."""
        x = self.embed(rows)
        eps = self.text["rms_norm_eps"]
        for index, kind in enumerate(self.text["layer_types"]):
            prefix = f"layers.{index}."
            y = norm(x, self.get(prefix + "input_layernorm.weight"), eps)
            if kind == "full_attention":
                x = x + self.full_attention(y, prefix + "self_attn.")
            else:
                x = x + self.delta(y, prefix + "linear_attn.")
            y = norm(x, self.get(prefix + "post_attention_layernorm.weight"), eps)
            x = x + self.moe(y, prefix + "mlp.")
        return norm(x, self.get("norm.weight"), eps)

    def tower_layer(
        self, index: int, h: Tensor, rows: Tensor, frames: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """All rows through one tower layer; returns its output and its head's logits, if any."""
        audio = self.audio
        shared, eps = audio["shared_enrichment_layers"], audio["norm_eps"]
        residual = index - shared
        if residual < 0:
            prefix, table = f"audio_decoder_mtp_shared.layers.{index}.", "semantic_embedding"
        else:
            prefix, table = f"audio_decoder_mtp.layers.{residual}.", "codebook_embedding"
        code = frames[:, 1 + max(0, residual)]
        e = torch.where(self.semantic(frames), self.get(f"{prefix}{table}.weight")[code], 0.0)
        if index == 0:
            last, first = audio["num_codebooks"] - 1, audio["vq_backbone_codebooks"] + 1
            e = e + torch.where(self.semantic(rows), self.codes(rows, first, last), 0.0)
        joined = [norm(e, self.get(prefix + "enorm.weight"), eps)]
        joined.append(norm(h, self.get(prefix + "hnorm.weight"), eps))
        x = torch.cat(joined, -1) @ self.get(prefix + "eh_proj.weight").T
        x = x + self.tower_attention(x, prefix + "transformer_layer.")
        name = prefix + "transformer_layer.feed_forward."
        y = norm(x, self.get(prefix + "transformer_layer.ffn_norm.weight"), eps)
        inner = F.silu(y @ self.get(name + "w1.weight").T) * (y @ self.get(name + "w3.weight").T)
        x = x + inner @ self.get(name + "w2.weight").T
        h = norm(x, self.get(prefix + "final_layernorm.weight"), eps)
        if residual < 0:
            return h, None
        return h, h @ self.get(f"audio_decoder_mtp.heads.{residual}.weight").T

    def tower_attention(self, x: Tensor, prefix: str) -> Tensor:
        """The attention half of a tower layer."""
        audio = self.audio
        heads, kv, width = audio["n_head"], audio["n_local_heads"], audio["head_dim"]
        eps, rotary = audio["norm_eps"], int(width * audio["rotary_percent"])
        y = norm(x, self.get(prefix + "attention_norm.weight"), eps)
        mixed = y @ self.get(prefix + "attention.wqkv.weight").T
        q, gate, k, v = mixed.split([heads * width] * 2 + [kv * width] * 2, -1)
        q, k, v = q.view(-1, heads, width), k.view(-1, kv, width), v.view(-1, kv, width)
        q = norm(q, self.get(prefix + "attention.q_norm.weight"), eps)
        k = norm(k, self.get(prefix + "attention.k_norm.weight"), eps)
        q = rotate(q, rotary, audio["rope_base"], True)
        k = rotate(k, rotary, audio["rope_base"], True)
        gated: Tensor = attend(q, k, v) * gate.sigmoid()
        return gated @ self.get(prefix + "attention.wo.weight").T

    def frame_logits(self, rows: Tensor, frame: Tensor) -> tuple[Tensor, Tensor]:
        """Logits behind the last of `rows`, given the frame that was drawn there.

        rows int64 [n, 1 + Q], frame int64 [1 + Q] -> main [candidates], codes [Q - 1, V].
        """
        hidden = self.backbone(rows)
        main = self.get("lm_head.weight")[self.candidates] @ hidden[-1]
        frames = torch.cat([rows[1:], frame[None]])
        h, codes = hidden, []
        for index in range(
            self.audio["shared_enrichment_layers"] + self.audio["num_codebooks"] - 1
        ):
            h, logits = self.tower_layer(index, h, rows, frames)
            if logits is not None:
                codes.append(logits[-1])
        return main, torch.stack(codes)
