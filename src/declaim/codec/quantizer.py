"""Codes to the latent signal: the stored rows of the codebooks, projected and summed.

Knows nothing of streams: a frame's latent depends on its own codes alone.
"""

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
