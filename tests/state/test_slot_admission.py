"""Admission leaves nothing of a slot's former owner, and touches no other slot."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from declaim.config.checkpoint import parse_model_config
from declaim.config.model import ModelConfig
from declaim.contracts.request import SamplingParams
from declaim.contracts.step import Admission
from declaim.nano.shapes import GENERATION, SHAPES
from declaim.state.device import DeviceState, allocate
from declaim.state.frames import FrameState
from declaim.state.layout import StateLayout

SLOTS = 3
WINDOW = 5


@pytest.fixture
def state() -> DeviceState:
    """State of three slots that all hold something of a former owner."""
    config: ModelConfig = parse_model_config(SHAPES["micro"].config, GENERATION)
    layout = StateLayout(
        slots=SLOTS,
        pages=2,
        page_size=16,
        window=WINDOW,
        dtype=torch.float32,
        recurrent_dtype=torch.float32,
    )
    made = allocate(config, layout, torch.device("cpu"))
    for number, tensor in enumerate(tensors(made)):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) % 90 + 7 + number)
    return made


def tensors(state: DeviceState) -> list[Tensor]:
    """Everything that stands by slot."""
    recurrent = [part for layer in state.recurrent for part in (layer.tail, layer.matrix)]
    frames = state.frames
    return [
        *recurrent,
        *(getattr(frames, name) for name in ("last", "window", "counter", "seed")),
        *vars(frames.sampling).values(),
    ]


def admission(**options: Any) -> Admission:
    """An admission in which every value differs from what the slots hold."""
    sampling = SamplingParams(
        temperature=0.25,
        top_p=0.5,
        top_k=3,
        codebook_top_k=2,
        ras_temperature=0.75,
        ras_top_k=4,
        ras_top_p=0.625,
        repetition_aware=True,
    )
    return replace(Admission(1, sampling, 2**40 + 5, 6, (901, 902)), **options)


def of_slot(frames: FrameState, slot: int) -> dict[str, Any]:
    """What the slot draws with, as plain numbers."""
    named = {name: getattr(frames, name) for name in ("last", "window", "counter", "seed")}
    return {name: part[slot].tolist() for name, part in (named | vars(frames.sampling)).items()}


def test_a_slot_is_what_its_admission_says(state: DeviceState) -> None:
    state.admit(admission())
    assert of_slot(state.frames, 1) == {
        "last": [0] * state.frames.last.shape[1],
        "window": [-1, -1, -1, 901, 902],
        "counter": 6,
        "seed": 2**40 + 5,
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 3,
        "code_top_k": 2,
        "ras_temperature": 0.75,
        "ras_top_p": 0.625,
        "ras_top_k": 4,
        "ras_enabled": 1,
    }
    for layer in state.recurrent:
        assert not layer.tail[1].any() and not layer.matrix[1].any()


@pytest.mark.parametrize("known", [0, 1, WINDOW, WINDOW + 3])
def test_the_window_holds_the_newest_tokens_last(state: DeviceState, known: int) -> None:
    tokens = tuple(range(900, 900 + known))
    state.admit(admission(window=tokens))
    wanted = [-1] * max(WINDOW - known, 0) + list(tokens[-WINDOW:])
    assert state.frames.window[1].tolist() == wanted


def test_unlimited_candidates_leave_the_codes_their_own_limit(state: DeviceState) -> None:
    state.admit(admission(sampling=SamplingParams(top_k=None, codebook_top_k=30)))
    found = of_slot(state.frames, 1)
    assert (found["top_k"], found["code_top_k"]) == (2**31 - 1, 30)


def test_other_slots_stay(state: DeviceState) -> None:
    before = [tensor.clone() for tensor in tensors(state)]
    state.admit(admission())
    others = [0, 2, SLOTS]
    for old, new in zip(before, tensors(state), strict=True):
        assert torch.equal(old[others], new[others])
        assert not torch.equal(old[1], new[1])
