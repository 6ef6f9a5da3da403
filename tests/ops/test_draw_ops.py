"""The draws: distribution, both top-p rules, ties, temperature 0 and the repetition choice."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from declaim.ops.reference import ReferenceOps
from declaim.state.frames import SamplingTensors

Normal = Callable[..., Tensor]

DRAWS = 50_000
UNLIMITED = 2**31 - 1
BAND = (10, 21)
CANDIDATES = torch.tensor([4, *range(10, 22)], dtype=torch.int32)
"""The end token, then twelve semantic ones."""

LOGITS = torch.linspace(-2.0, 2.5, 13)[
    torch.randperm(13, generator=torch.Generator().manual_seed(2))
]


@dataclass(frozen=True)
class Settings:
    """What a stream draws with; `ras` is (temperature, top_p, top_k) of the second draw."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = UNLIMITED
    ras: tuple[float, float, int] = (1.0, 1.0, UNLIMITED)
    enabled: bool = False

    def tensors(self, slots: int) -> SamplingTensors:
        """The same for every slot; the null slot holds what is safe to draw with."""

        def filled(value: float, dtype: torch.dtype) -> Tensor:
            made = torch.full((slots + 1,), value, dtype=dtype)
            made[-1] = 1
            return made

        temperature, top_p, top_k = self.ras
        return SamplingTensors(
            temperature=filled(self.temperature, torch.float32),
            top_p=filled(self.top_p, torch.float32),
            top_k=filled(self.top_k, torch.int32),
            code_top_k=filled(self.top_k, torch.int32),
            ras_temperature=filled(temperature, torch.float32),
            ras_top_p=filled(top_p, torch.float32),
            ras_top_k=filled(top_k, torch.int32),
            ras_enabled=filled(int(self.enabled), torch.int32),
        )


def slots_of(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.int32)


def noise(ops: ReferenceOps, count: int, width: int, draws: int = 2) -> Tensor:
    """Numbers of streams with distinct seeds."""
    seeds, frames = torch.arange(count + 1) * 7919 + 1, torch.zeros(count + 1, dtype=torch.int64)
    return ops.noise(seeds, frames, slots_of(count), draws=draws, width=width)


def draw_main(
    ops: ReferenceOps,
    settings: Settings,
    count: int,
    *,
    logits: Tensor = LOGITS,
    window: Tensor | None = None,
    u: Tensor | None = None,
) -> Tensor:
    """Main token and code 0 of streams that differ in their seed alone."""
    if window is None:
        window = torch.full((count + 1, 4), -1, dtype=torch.int32)
    return ops.draw_main(
        logits.expand(count, -1),
        noise(ops, count, len(CANDIDATES)) if u is None else u,
        settings.tensors(count),
        window,
        CANDIDATES,
        slots_of(count),
        band=BAND,
    )


def draw_code(ops: ReferenceOps, settings: Settings, count: int, logits: Tensor = LOGITS) -> Tensor:
    u = noise(ops, count, len(logits) + 5, draws=1)[0]
    return ops.draw_code(logits.expand(count, -1), u, settings.tensors(count), slots_of(count))


def exact(
    logits: Tensor, temperature: float, top_p: float, top_k: int, *, keep_crossing: bool
) -> list[float]:
    """Probability of every candidate, by the rules in Python's floats."""
    values = np.array(logits.tolist()) / temperature
    weights = np.exp(values - values.max())
    probability = weights / weights.sum()
    ranked = sorted(range(len(values)), key=lambda i: (-probability[i], i))
    kept, before = [], 0.0
    for rank, candidate in enumerate(ranked):
        crossed = before if keep_crossing else before + probability[candidate]
        if rank == 0 or (rank < top_k and (top_p == 1.0 or crossed <= top_p)):
            kept.append(candidate)
        before += probability[candidate]
    total = sum(probability[candidate] for candidate in kept)
    return [probability[i] / total if i in kept else 0.0 for i in range(len(values))]


def check_distribution(drawn: Tensor, probability: list[float]) -> None:
    """Nothing that is dropped is drawn; the rest is drawn as often as it should be."""
    counts = torch.bincount(drawn.long(), minlength=len(probability)).double()
    wanted = torch.tensor(probability, dtype=torch.float64)
    assert counts[wanted == 0].sum() == 0
    assert int((wanted > 0).sum()) > 1
    found = chisquare(counts[wanted > 0].numpy(), (wanted[wanted > 0] * len(drawn)).numpy())
    assert found.pvalue > 1e-4, found


RULES = [
    (1.0, 1.0, UNLIMITED),
    (0.6, 1.0, UNLIMITED),
    (2.0, 1.0, 5),
    (1.0, 0.9, UNLIMITED),
    (1.0, 0.6, UNLIMITED),
    (0.8, 0.8, 4),
    (1.7, 0.95, 30),
]
"""temperature, top_p, top_k."""


def places(tokens: Tensor) -> Tensor:
    """Main tokens as candidate indices."""
    return torch.searchsorted(CANDIDATES, tokens.contiguous())


@pytest.mark.parametrize("rule", RULES)
def test_the_main_draw_keeps_the_crossing_candidate(
    ops: ReferenceOps, rule: tuple[float, float, int]
) -> None:
    drawn = draw_main(ops, Settings(*rule), DRAWS)
    assert drawn.dtype == torch.int32 and drawn.shape == (DRAWS, 2)
    check_distribution(places(drawn[:, 0]), exact(LOGITS, *rule, keep_crossing=True))
    assert torch.equal(drawn[:, 1], (drawn[:, 0] - BAND[0]).clamp(0, 11))


@pytest.mark.parametrize("rule", RULES)
def test_a_code_draw_drops_the_crossing_candidate(
    ops: ReferenceOps, rule: tuple[float, float, int]
) -> None:
    drawn = draw_code(ops, Settings(*rule), DRAWS)
    assert drawn.dtype == torch.int32 and drawn.shape == (DRAWS,)
    check_distribution(drawn, exact(LOGITS, *rule, keep_crossing=False))


@pytest.mark.parametrize("rule", RULES[3:])
def test_the_repetition_draw_has_its_own_rule(
    ops: ReferenceOps, rule: tuple[float, float, int]
) -> None:
    """Every semantic token stands in the window, so that the second draw is always taken."""
    window = torch.arange(BAND[0], BAND[1] + 1, dtype=torch.int32).expand(DRAWS + 1, -1)
    settings = Settings(temperature=0.0, ras=rule, enabled=True)
    drawn = draw_main(ops, settings, DRAWS, window=window)
    assert int(LOGITS.argmax()) > 0, "the first draw is semantic"
    check_distribution(places(drawn[:, 0]), exact(LOGITS, *rule, keep_crossing=True))


def test_when_the_second_draw_is_taken(ops: ReferenceOps) -> None:
    """Enabled, semantic and in the window; all three."""
    count = 400
    u = noise(ops, count, 13)
    swapped = u[[1, 0]]
    seen = torch.full((count + 1, 4), -1, dtype=torch.int32)
    seen[:, 2] = 14
    seen[:, 0] = 4
    first = draw_main(ops, Settings(), count, u=u)[:, 0]
    second = draw_main(ops, Settings(), count, u=swapped)[:, 0]
    found = draw_main(ops, Settings(enabled=True), count, u=u, window=seen)[:, 0]
    assert torch.equal(found, torch.where(first == 14, second, first))
    assert (first == 14).any() and (first == 4).any(), "the end token is no repetition"
    assert (found[first == 14] == 14).any(), "a repeated second draw stands"
    disabled = draw_main(ops, Settings(enabled=False), count, u=u, window=seen)[:, 0]
    assert torch.equal(disabled, first)


def test_temperature_zero_takes_the_lowest_of_the_largest(ops: ReferenceOps) -> None:
    tied = torch.zeros(13)
    tied[[3, 5, 12]] = 1.0
    drawn = draw_main(ops, Settings(temperature=0.0), 300, logits=tied)
    assert drawn[:, 0].eq(CANDIDATES[3]).all()
    assert draw_code(ops, Settings(temperature=0.0), 300, tied).eq(3).all()


def test_at_temperature_zero_the_repetition_draw_still_draws(ops: ReferenceOps) -> None:
    window = torch.full((301, 4), int(CANDIDATES[LOGITS.argmax()]), dtype=torch.int32)
    settings = Settings(temperature=0.0, enabled=True)
    drawn = draw_main(ops, settings, 300, window=window)[:, 0]
    assert len(drawn.unique()) > 5


def test_nothing_is_dropped_at_top_p_one(ops: ReferenceOps, normal: Normal) -> None:
    """Even where the running sum is rounded to more than 1 before the smallest candidate."""
    logits = normal(2000, 13)
    assert (logits.sort(descending=True).values.softmax(-1).cumsum(-1) > 1.0).any()
    smallest = logits.argmin(-1)
    u = torch.full((2, 2000, 13), 2.0**-24)
    u[:, torch.arange(2000), smallest] = 1 - 2.0**-24
    settings = Settings(top_p=1.0)
    found = ops.draw_code(logits, u[0], settings.tensors(2000), slots_of(2000))
    assert torch.equal(found.long(), smallest)
    drawn = draw_main(ops, settings, 2000, logits=logits, u=u)
    assert torch.equal(drawn[:, 0], CANDIDATES[smallest])


@pytest.mark.parametrize("settings", [Settings(top_p=1e-6), Settings(top_k=1)])
def test_the_largest_candidate_always_stays(ops: ReferenceOps, settings: Settings) -> None:
    largest = int(LOGITS.argmax())
    assert draw_main(ops, settings, 300)[:, 0].eq(CANDIDATES[largest]).all()
    assert draw_code(ops, settings, 300).eq(largest).all()


def test_noise_belongs_to_candidates_not_to_ranks(ops: ReferenceOps) -> None:
    """A candidate whose number is large wins, wherever ties and order put it."""
    u = torch.full((2, 13, 13), 0.01) + torch.eye(13) * 0.98
    for logits in (torch.zeros(13), LOGITS * 0.1, -LOGITS * 0.1):
        drawn = draw_main(ops, Settings(), 13, logits=logits, u=u)
        assert torch.equal(drawn[:, 0], CANDIDATES)
        found = ops.draw_code(logits.expand(13, -1), u[0], Settings().tensors(13), slots_of(13))
        assert found.tolist() == list(range(13))


def test_a_change_below_leaves_the_race_of_the_others(ops: ReferenceOps) -> None:
    """Two tied logits that swap rank do not change who wins."""
    tied = LOGITS.clone()
    tied[2] = tied[9]
    apart = tied.clone()
    apart[9] += 1e-6
    before = draw_main(ops, Settings(), 2000, logits=tied)
    after = draw_main(ops, Settings(), 2000, logits=apart)
    assert torch.equal(before, after)


def test_rows_stand_alone(ops: ReferenceOps, threads: int, normal: Normal) -> None:
    """A stream draws the same in any place, in any slot, beside anyone, and alone."""
    count, width = 40, 300
    logits, u = normal(count, width, scale=2.0), noise(ops, count, width)
    candidates = torch.arange(width, dtype=torch.int32)
    settings = Settings(temperature=0.9, top_p=0.9, top_k=200, enabled=True).tensors(count)
    window = torch.randint(
        0, width, (count + 1, 200), dtype=torch.int32, generator=torch.Generator()
    )

    def draws(rows: Tensor) -> tuple[Tensor, Tensor]:
        slot = rows.int()
        main = ops.draw_main(
            logits[rows], u[:, rows], settings, window, candidates, slot, band=(1, 299)
        )
        return main, ops.draw_code(logits[rows], u[0, rows], settings, slot)

    main, code = draws(torch.arange(count))
    for n in (1, 2, 3, 17, 39):
        rows = torch.randperm(count, generator=torch.Generator().manual_seed(n))[:n]
        found = draws(rows)
        assert torch.equal(found[0], main[rows]) and torch.equal(found[1], code[rows])
    logits[::2] = torch.nan
    found = draws(torch.arange(count))
    assert torch.equal(found[0][1::2], main[1::2]) and torch.equal(found[1][1::2], code[1::2])


def test_padding_streams_draw_on_the_null_slot(ops: ReferenceOps) -> None:
    slot = torch.tensor([5, 0, 5, 5, 3], dtype=torch.int32)
    settings = Settings(top_p=0.9).tensors(5)
    window = torch.full((6, 4), -1, dtype=torch.int32)
    logits = LOGITS.repeat(5, 1)
    logits[[0, 2, 3]] = 0.0
    u = ops.noise(torch.arange(6), torch.zeros(6).long(), slot, draws=2, width=13)
    before = window.clone()
    drawn = ops.draw_main(logits, u, settings, window, CANDIDATES, slot, band=BAND)
    live = torch.tensor([1, 4])
    alone = ops.draw_main(
        logits[live], u[:, live], settings, window, CANDIDATES, slot[live], band=BAND
    )
    assert torch.equal(drawn[live], alone)
    assert torch.isin(drawn[:, 0], CANDIDATES).all()
    assert torch.equal(window, before)


def test_no_draw_touches_torch_s_own_generator(ops: ReferenceOps) -> None:
    before = torch.get_rng_state()
    draw_main(ops, Settings(enabled=True), 5)
    draw_code(ops, Settings(), 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_stream_draws_with_its_own_parameters(ops: ReferenceOps) -> None:
    """Streams of one step with unlike parameters draw what each draws among its like."""
    rules = [Settings(), Settings(0.0), Settings(0.5, 0.6), Settings(1.5, 1.0, 2)]
    rules += [Settings(0.0, ras=(1.0, 0.5, 3), enabled=True), Settings(ras=(0.1, 1.0, 9))]
    count = len(rules)
    each = [rule.tensors(count) for rule in rules]
    mixed = SamplingTensors(
        **{
            field: torch.stack([vars(each[slot % count])[field][slot] for slot in range(count + 1)])
            for field in vars(each[0])
        }
    )
    u = noise(ops, 400, 13)
    slots = torch.arange(400, dtype=torch.int32) % count
    window = torch.arange(BAND[0], BAND[1] + 1, dtype=torch.int32).expand(count + 1, -1)
    logits = LOGITS.expand(400, -1)
    main = ops.draw_main(logits, u, mixed, window, CANDIDATES, slots, band=BAND)
    code = ops.draw_code(logits, u[0], mixed, slots)
    for slot, alike in enumerate(each):
        own = slots == slot
        alone = ops.draw_main(logits, u, alike, window, CANDIDATES, slots, band=BAND)
        assert torch.equal(main[own], alone[own])
        assert torch.equal(code[own], ops.draw_code(logits, u[0], alike, slots)[own])
