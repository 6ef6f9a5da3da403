"""Codes to the latent signal and back: the stored rows of the codebooks, projected and summed.

Knows nothing of streams: a frame's latent and its codes depend on each other alone.
"""

import torch
from torch import Tensor
from torch.nn import functional

from declaim.codec.config import CodecConfig
from declaim.codec.layers import Weights
from declaim.codec.names import quantizer_prefixes


class Quantizers:
    """The Q codebooks and their output projections."""

    def __init__(self, config: CodecConfig, weights: Weights) -> None:
        self.parts = [
            (
                weights[f"{prefix}codebook.weight"],
                weights[f"{prefix}out_proj.weight"].squeeze(-1),
                weights[f"{prefix}out_proj.bias"],
            )
            for prefix in quantizer_prefixes(config)
        ]

    def latent(self, codes: Tensor) -> Tensor:
        """Codes int64 [batch, Q, frames] -> float32 [batch, frames, latent_dim].

        A code outside its codebook means the nearest entry: a model's residual codes may be drawn
        from a wider range than the residual codebooks have entries.
        """
        parts = [
            functional.linear(book[codes[:, i].clamp(0, book.shape[0] - 1)], weight, bias)
            for i, (book, weight, bias) in enumerate(self.parts)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


class CodeSearch:
    """Latents to codes: each codebook takes the nearest row to what the ones before it left."""

    def __init__(self, config: CodecConfig, weights: Weights) -> None:
        self.parts = Quantizers(config, weights).parts
        self.inward = [
            (weights[f"{prefix}in_proj.weight"].squeeze(-1), weights[f"{prefix}in_proj.bias"])
            for prefix in quantizer_prefixes(config)
        ]
        self.directions = [functional.normalize(book, dim=-1) for book, _, _ in self.parts]

    def codes(self, latent: Tensor) -> Tensor:
        """Float32 [batch, frames, latent_dim] -> codes int64 [batch, Q, frames].

        Nearest is by the cosine; of equal ones the lowest index. What is taken from the latent is
        the stored row, not the normalised one, projected back.
        """
        codes = []
        for inward, directions, (book, weight, bias) in zip(
            self.inward, self.directions, self.parts, strict=True
        ):
            narrow = functional.normalize(functional.linear(latent, *inward), dim=-1)
            code = _cosines(narrow, directions).argmax(-1)
            codes.append(code)
            latent = latent - functional.linear(book[code], weight, bias)
        return torch.stack(codes, 1)


def _cosines(narrow: Tensor, directions: Tensor) -> Tensor:
    """[batch, frames, width] and [entries, width] -> [batch, frames, entries].

    Summed column by column, because a matrix product may round equal entries differently.
    """
    total = narrow[..., :1] * directions[:, 0]
    for column in range(1, directions.shape[1]):
        total.addcmul_(narrow[..., column : column + 1], directions[:, column])
    return total
