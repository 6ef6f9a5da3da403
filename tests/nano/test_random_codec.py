"""Random codec weights: every tensor of the table, by its role, keyed by seed and name."""

import torch
from torch import Tensor

from declaim.nano.codec import random_codec

SHAPES: dict[str, tuple[int, ...]] = {
    "decoder.model.1.block.0.alpha": (1, 64, 1),
    "decoder.model.1.block.1.conv.weight": (64, 32, 16),
    "decoder.model.1.block.2.block.1.conv.weight": (32, 32, 7),
    "decoder.model.1.block.2.block.3.conv.weight": (32, 32, 1),
    "decoder.model.2.conv.weight": (1, 32, 7),
    "decoder.model.2.conv.bias": (1,),
    "quantizer.upsample.0.0.conv.weight": (64, 64, 2),
    "quantizer.upsample.0.1.gamma": (64,),
    "quantizer.post_module.layers.0.attention.wqkv.weight": (192, 64),
    "quantizer.post_module.norm.weight": (64,),
    "quantizer.semantic_quantizer.quantizers.0.codebook.weight": (64, 8),
}


def _made(seed: int = 0) -> dict[str, Tensor]:
    return dict(random_codec(SHAPES, seed))


def test_names_shapes_and_dtype() -> None:
    made = _made()
    assert {name: tuple(value.shape) for name, value in made.items()} == SHAPES
    assert {value.dtype for value in made.values()} == {torch.bfloat16}


def test_the_seed_and_the_name_decide() -> None:
    first, again, other = _made(1), _made(1), _made(2)
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert not torch.equal(value, other[name])
    fewer = {name: SHAPES[name] for name in list(SHAPES)[4:6]}
    for name, value in random_codec(fewer, 1):
        assert torch.equal(value, first[name])


def test_each_output_sums_to_about_one() -> None:
    made = {name: value.float() for name, value in _made().items()}
    fan_in = {
        "decoder.model.1.block.1.conv.weight": (64 * 2, 1.0),
        "decoder.model.1.block.2.block.1.conv.weight": (32 * 7, 1.0),
        "decoder.model.1.block.2.block.3.conv.weight": (32, 0.3),
        "decoder.model.2.conv.weight": (32 * 7, 0.1),
        "quantizer.upsample.0.0.conv.weight": (64, 1.0),
        "quantizer.post_module.layers.0.attention.wqkv.weight": (64, 1.0),
    }
    for name, (inputs, gain) in fan_in.items():
        spread = gain * inputs**-0.5
        assert abs(made[name].std() / spread - 1) < 5 * made[name].numel() ** -0.5, name
    alpha, gamma = made["decoder.model.1.block.0.alpha"], made["quantizer.upsample.0.1.gamma"]
    assert 0.5 <= alpha.min() and alpha.max() <= 1.5
    assert 0.1 <= gamma.min() + 1e-3 and gamma.max() <= 1.0
    assert abs(made["quantizer.post_module.norm.weight"].mean() - 1) < 0.1
    book = made["quantizer.semantic_quantizer.quantizers.0.codebook.weight"]
    assert abs(book.std() - 1) < 0.15
