"""Philox4x32-10, a counter-based generator, in int64 tensors that hold 32-bit words.

J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011. No state: the words
are a function of counter and key.
"""

import torch
from torch import Tensor

ROUNDS = 10
WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(even: Tensor, odd: Tensor, key: Tensor) -> Tensor:
    """Four random words for each counter, int64 [..., 4] with values below 2^32.

    even [2, ...]: words 0 and 2 of the counters; odd [2, ...]: words 1 and 3; key [2, ...]:
    words 0 and 1. All int64 with values below 2^32, shapes that broadcast.
    """
    ones = (1,) * (even.dim() - 1)
    multiplier = torch.tensor(MULTIPLIERS, device=even.device).view(2, *ones)
    step = torch.tensor(WEYL, device=even.device).view(2, *ones)
    for turn in range(ROUNDS):
        # The product wraps at 2^64; its low 64 bits are right whatever the sign.
        product = even * multiplier
        # Word 0 takes the high half of word 2's product, and word 2 that of word 0's.
        even = (product >> 32).flip(0) ^ odd ^ (key + turn * step)
        even = even & WORD
        odd = product.flip(0) & WORD
    return torch.stack((even[0], odd[0], even[1], odd[1]), dim=-1)


def uniform(words: Tensor) -> Tensor:
    """float32 in (0, 1) from the upper 23 bits of words; neither 0 nor 1 can occur."""
    return ((words >> 9).float() + 0.5) * 2.0**-23
