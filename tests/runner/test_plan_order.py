"""What a plan changes before its rows is changed in the plan's order."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from declaim.contracts.request import SamplingParams
from declaim.contracts.step import (
    Admission,
    PageCopy,
    PageGrant,
    PrefixLoad,
    PrefixSave,
    Span,
    StepKind,
    StepPlan,
)
from declaim.runner.runner import Runner


@pytest.fixture
def runner(checkpoint: Callable[[str], Path], build: Callable[..., Runner]) -> Runner:
    """Two slots and two prefixes; every number of the state says where it stands."""
    made = build(checkpoint("micro"), max_num_seqs=2, prefix_cache_bytes=2**17)
    assert made.state.layout.prefixes >= 2
    for holder, base in ((made.state, 0.25), (made.state.prefixes, 0.5)):
        for layer in holder.recurrent:
            for part in (layer.tail, layer.matrix):
                numbers = torch.arange(len(part)).view(-1, *[1] * (part.dim() - 1))
                part.copy_((base + numbers / 1000).expand(part.shape))
    for pages in made.state.pages:
        for part in (pages.k, pages.v):
            part.copy_(torch.arange(len(part)).view(-1, 1, 1, 1).expand(part.shape) / 100)
    return made


def plan(**changes: object) -> StepPlan:
    """One prompt row in slot 0 on page 0, after the changes."""
    rows = np.array([[65, 0, 0, 0, 0]], dtype=np.int32)
    span = Span("a", 0, 0, 1, False, rows, rows[0])
    return StepPlan(StepKind.PREFILL, (span,), **changes)  # type: ignore[arg-type]


def admission(slot: int) -> Admission:
    return Admission(slot, SamplingParams(), 0, 0, ())


def test_a_prefix_is_saved_before_its_slot_is_reset(runner: Runner) -> None:
    runner.step(
        plan(
            prefix_saves=(PrefixSave(0, 1),),
            releases=(0,),
            admissions=(admission(0),),
            page_grants=(PageGrant(0, (0,)),),
        )
    )
    for kept in runner.state.prefixes.recurrent:
        assert (kept.tail[1] == 0.25).all() and (kept.matrix[1] == 0.25).all()
        assert (kept.tail[0] == 0.5).all() and (kept.matrix[0] == 0.5).all()


def test_a_prefix_is_loaded_after_its_slot_was_reset(runner: Runner) -> None:
    """Into the slot that is named, whose rows then run on from there."""
    runner.step(
        plan(
            admissions=(admission(0), admission(1)),
            prefix_loads=(PrefixLoad(1, 1),),
            page_grants=(PageGrant(0, (0,)),),
        )
    )
    for layer in runner.state.recurrent:
        assert torch.equal(layer.tail[1], torch.full_like(layer.tail[1], 0.501))
        assert torch.equal(layer.matrix[1], torch.full_like(layer.matrix[1], 0.501))
        assert not (layer.tail[0, :-1]).any(), "one row after a reset"


def test_pages_are_copied_before_rows_are_stored(runner: Runner) -> None:
    runner.step(
        plan(
            admissions=(admission(0),),
            page_copies=(PageCopy(0, 3), PageCopy(5, 0)),
            page_grants=(PageGrant(0, (0,)),),
        )
    )
    for pages in runner.state.pages:
        for part in (pages.k, pages.v):
            assert (part[3] == 0).all(), "a copy of page 0 as it was"
            assert torch.equal(part[0, :, 1:], part[5, :, 1:]), "a copy of page 5"
            assert not torch.equal(part[0, :, 0], part[5, :, 0]), "and a row stored over it"
