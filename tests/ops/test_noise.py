"""Philox4x32-10 against known answers, and the noise against a plain Philox in Python."""

import pytest
import torch
from torch import Tensor

from declaim.ops.philox import philox
from declaim.ops.reference import ReferenceOps

KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip
"""Counter, key and result, published with the generator."""


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds in Python's integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            second // 2**32 ^ c1 ^ k0,
            second % 2**32,
            first // 2**32 ^ c3 ^ k1,
            first % 2**32,
        )
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


def plain_noise(seed: int, frame: int, draw: int, candidate: int) -> float:
    block = plain_philox([candidate // 4, draw, frame, 0], [seed % 2**32, seed // 2**32])
    return (block[candidate % 4] // 512 + 0.5) / 2**23


def noise(ops: ReferenceOps, seeds: list[int], frames: list[int], draws: int, width: int) -> Tensor:
    slots = len(seeds)
    return ops.noise(
        torch.tensor([*seeds, 0]),
        torch.tensor([*frames, 0]),
        torch.arange(slots, dtype=torch.int32),
        draws=draws,
        width=width,
    )


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter: str, key: str, result: str) -> None:
    assert plain_philox(words(counter), words(key)) == words(result)
    c0, c1, c2, c3 = (torch.tensor(word) for word in words(counter))
    k0, k1 = (torch.tensor(word) for word in words(key))
    assert philox((c0, c1, c2, c3), (k0, k1)).tolist() == words(result)


def test_noise_is_a_function_of_seed_frame_draw_and_candidate(ops: ReferenceOps) -> None:
    seeds, frames = [0, 1, 2**32, 2**63 - 1, 0x123456789ABCDEF], [0, 1, 2047, 3, 2**31]
    found = noise(ops, seeds, frames, draws=3, width=11)
    assert found.dtype == torch.float32 and found.shape == (3, 5, 11)
    wanted = [
        [
            [plain_noise(s, f, draw, c) for c in range(11)]
            for s, f in zip(seeds, frames, strict=True)
        ]
        for draw in range(3)
    ]
    assert found.double().tolist() == wanted


def test_noise_does_not_depend_on_slot_place_number_or_width(
    ops: ReferenceOps, threads: int
) -> None:
    """Nor on how many draws are made, nor on who else draws."""
    seeds, frames = torch.arange(40) * 977, torch.arange(40) % 7
    slot = torch.randperm(40, generator=torch.Generator().manual_seed(1)).int()
    whole = ops.noise(seeds, frames, slot, draws=6, width=257)
    for count in (1, 2, 3, 17, 40):
        for width in (1, 3, 4, 255, 257):
            for draws in (1, 6):
                part = slot[40 - count :]
                found = ops.noise(seeds, frames, part, draws=draws, width=width)
                assert torch.equal(found, whole[:draws, 40 - count :, :width])
    moved = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    elsewhere = moved.argsort()[slot.long()].int()
    found = ops.noise(seeds[moved], frames[moved], elsewhere, draws=6, width=257)
    assert torch.equal(found, whole)


def test_noise_is_uniform_inside_the_open_interval(ops: ReferenceOps) -> None:
    found = noise(ops, list(range(50)), [0] * 50, draws=4, width=5000).flatten()
    assert found.min() > 0.0 and found.max() < 1.0
    counts = torch.histc(found, 64, 0.0, 1.0)
    expected = len(found) / 64
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert 63 - 4.5 * 126**0.5 < chi_square < 63 + 4.5 * 126**0.5


def test_the_ends_of_the_interval_are_half_a_step_away() -> None:
    """The smallest and largest words stay inside, as float32, and give finite Gumbel numbers."""
    ends = (torch.tensor([0, 2**23 - 1]).float() + 0.5) * 2.0**-23
    assert ends.tolist() == [2.0**-24, 1 - 2.0**-24]
    assert torch.log(-torch.log(ends)).isfinite().all()


@pytest.mark.parametrize("axis", ["candidate", "draw", "seed", "frame"])
def test_neighbours_are_independent(ops: ReferenceOps, axis: str) -> None:
    """Correlation and a joint chi-square of numbers that differ by one in one coordinate."""
    if axis == "frame":
        grid = noise(ops, [11] * 200, list(range(200)), draws=2, width=400).transpose(0, 1)
    elif axis == "seed":
        grid = noise(ops, list(range(200)), [5] * 200, draws=2, width=400).transpose(0, 1)
    elif axis == "draw":
        grid = noise(ops, [3, 4, 5, 6], [9] * 4, draws=100, width=400)
    else:
        grid = noise(ops, list(range(100)), [9] * 100, draws=4, width=400).permute(2, 0, 1)
    first, second = grid[:-1].flatten(), grid[1:].flatten()
    correlation = torch.corrcoef(torch.stack([first, second]))[0, 1]
    assert abs(float(correlation)) < 4.5 / len(first) ** 0.5
    cells = (first * 8).long() * 8 + (second * 8).long()
    counts = torch.bincount(cells, minlength=64).double()
    expected = len(first) / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - 63) < 4.5 * 126**0.5
