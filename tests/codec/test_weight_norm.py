"""Weight norm folded away: both spellings, against torch's own modules."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from declaim.codec.weight_norm import match_weights
from declaim.contracts.errors import InvalidCheckpoint

MODULES: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Conv1d(5, 3, 7),
    "depthwise": lambda: nn.Conv1d(4, 4, 3, groups=4),
    "transposed": lambda: nn.ConvTranspose1d(6, 2, 4, stride=2),
    "linear": lambda: nn.Linear(3, 5),
}


def scaled(tensors: dict[str, Tensor], ending: str) -> dict[str, Tensor]:
    """Magnitudes that are no longer the directions' own norms."""
    for name, value in tensors.items():
        if name.endswith(ending):
            value.mul_(torch.linspace(0.5, 2, value.numel()).reshape(value.shape))
    return tensors


def folded(tensors: dict[str, Tensor], weight: Tensor) -> Tensor:
    shapes = {f"part.{k}": tuple(v.shape) for k, v in tensors.items() if k == "bias"}
    shapes["part.weight"] = tuple(weight.shape)
    stored = {f"part.{name}": value for name, value in tensors.items()}
    return match_weights(stored, shapes)["part.weight"].fold(stored)


@pytest.mark.parametrize("kind", list(MODULES))
def test_parametrized_spelling(kind: str) -> None:
    module = nn.utils.parametrizations.weight_norm(MODULES[kind]())
    with torch.no_grad():
        tensors = scaled(module.state_dict(), "original0")
    assert set(tensors) == {
        "bias",
        "parametrizations.weight.original0",
        "parametrizations.weight.original1",
    }
    weight = module.weight
    assert isinstance(weight, Tensor)
    torch.testing.assert_close(folded(tensors, weight), weight.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", list(MODULES))
def test_legacy_spelling(kind: str) -> None:
    module = nn.utils.weight_norm(MODULES[kind]())
    with torch.no_grad():
        tensors = scaled(module.state_dict(), "weight_g")
    assert set(tensors) == {"bias", "weight_g", "weight_v"}
    weight = torch._weight_norm(tensors["weight_v"], tensors["weight_g"], 0)
    torch.testing.assert_close(folded(tensors, weight), weight, rtol=1e-6, atol=1e-7)


def test_a_plain_weight_is_a_copy_in_float32() -> None:
    stored: dict[str, Tensor] = {"a.weight": torch.randn(2, 3, 1).to(torch.bfloat16)}
    weight = match_weights(stored, {"a.weight": (2, 3, 1)})["a.weight"].fold(stored)
    assert weight.dtype == torch.float32
    assert torch.equal(weight, stored["a.weight"].float())
    stored = {"a.weight": torch.ones(2)}
    weight = match_weights(stored, {"a.weight": (2,)})["a.weight"].fold(stored)
    stored["a.weight"].zero_()
    assert weight.tolist() == [1.0, 1.0]


SHAPES = {"a.weight": (4, 2, 3), "a.bias": (4,), "b.weight": (2,)}


def test_everything_that_does_not_fit_is_one_report() -> None:
    stored = {
        "a.weight_g": torch.ones(4, 1, 1),
        "a.bias": torch.ones(5),
        "b.weight": torch.ones(2, dtype=torch.int64),
        "c.weight": torch.ones(1),
        "d.freqs_cis": torch.ones(1),
        "causal_mask": torch.ones(1),
    }
    with pytest.raises(InvalidCheckpoint) as caught:
        match_weights(stored, SHAPES)
    error = caught.value
    assert error.param == "codec"
    assert "1 missing: a.weight (only a.weight_g)" in error.message
    assert "1 unexpected: c.weight" in error.message
    assert "2 wrong: a.bias is [5], not [4]" in error.message
    assert "b.weight is torch.int64" in error.message
    assert "freqs_cis" not in error.message and "causal_mask" not in error.message
    assert isinstance(error.value, dict)
    assert error.value["missing"] == ["a.weight (only a.weight_g)"]


def test_a_long_report_is_cut_but_its_value_is_whole() -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        match_weights({}, {f"layer.{index}": (1,) for index in range(100)})
    assert "100 missing" in caught.value.message and "92 more" in caught.value.message
    assert len(caught.value.message) < 400
    assert isinstance(caught.value.value, dict)
    assert len(caught.value.value["missing"]) == 100


@pytest.mark.parametrize(
    ("magnitude", "found"), [((4,), r"\[4\]"), ((1, 1, 1), r"\[1, 1, 1\]"), ((4, 2, 1), "4, 2, 1")]
)
def test_a_magnitude_of_another_shape_is_refused(magnitude: tuple[int, ...], found: str) -> None:
    stored = {"a.weight_g": torch.ones(magnitude), "a.weight_v": torch.ones(4, 2, 3)}
    with pytest.raises(InvalidCheckpoint, match=f"weight_g is .*{found}.*, not .4, 1, 1"):
        match_weights(stored, {"a.weight": (4, 2, 3)})


def test_a_weight_stored_twice_is_refused() -> None:
    direction = torch.ones(4, 2, 3)
    both = {
        "a.weight": direction,
        "a.weight_g": torch.ones(4, 1, 1),
        "a.weight_v": direction,
    }
    with pytest.raises(InvalidCheckpoint, match="2 unexpected: a.weight_g, a.weight_v"):
        match_weights(both, {"a.weight": (4, 2, 3)})
    spelled_twice = {
        "a.parametrizations.weight.original0": torch.ones(4, 1, 1),
        "a.parametrizations.weight.original1": direction,
        "a.weight_v": direction,
    }
    with pytest.raises(InvalidCheckpoint, match="1 unexpected: a.weight_v"):
        match_weights(spelled_twice, {"a.weight": (4, 2, 3)})
