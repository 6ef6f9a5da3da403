"""Philox4x32-10, the counter-based generator of all draws, in int64 tensors.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Four 32-bit words a counter: int64 [..., 4].

    counter, key: int64 tensors of 32-bit words that broadcast together.
    """
    c0, c1, c2, c3, k0, k1 = torch.broadcast_tensors(*counter, *key)
    even, odd = torch.stack([c0, c2]), torch.stack([c1, c3])
    keys = torch.stack([k0, k1])
    shape = (2, *[1] * c0.dim())
    multipliers = torch.tensor(MULTIPLIERS, device=c0.device).view(shape)
    weyl = torch.tensor(WEYL, device=c0.device).view(shape)
    for _ in range(ROUNDS):
        product = even * multipliers  # wraps; the bits are those of the unsigned product
        high, low = (product >> 32) & WORD, product & WORD
        even, odd = high.flip(0) ^ odd ^ keys, low.flip(0)
        keys = (keys + weyl) & WORD
    return torch.stack([even[0], odd[0], even[1], odd[1]], -1)


def uniform(seed: Tensor, frame: Tensor, *, draws: int, width: int) -> Tensor:
    """Noise of all draws of a frame: float32 [draws, streams, width] in (0, 1).

    seed, frame: int64 [streams]. Key: the seed, low word first. Counter:
    (candidate // 4, draw, frame, 0); word candidate % 4. 23 bits and a half: never 0 or 1.
    """
    device = seed.device
    block = torch.arange(-(-width // 4), device=device)
    draw = torch.arange(draws, device=device)[:, None, None]
    zero = torch.zeros((), dtype=torch.int64, device=device)
    counter = (block, draw, frame[None, :, None], zero)
    key = (seed & WORD, seed >> 32)
    words = philox(counter, (key[0][None, :, None], key[1][None, :, None]))
    return ((words.flatten(-2)[..., :width] >> 9).float() + 0.5) * 2.0**-23
