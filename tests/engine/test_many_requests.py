"""Many random requests, aborts and refusals: nothing is left behind, nobody else notices."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from poisoned import PoisonedEngine, request_of

from declaim.contracts.errors import Conflict, InvalidRequest
from declaim.contracts.request import FinishReason, FrameRequest, Prompt

MakeEngine = Callable[..., PoisonedEngine]


def random_request(chooser: random.Random, name: str) -> FrameRequest:
    """A short request with a seed of its own."""
    return request_of(
        name,
        rows=chooser.randint(1, 24),
        seed=chooser.randrange(2**40),
        frames=chooser.randint(1, 3),
    )


def test_two_thousand_requests_with_aborts(make_engine: MakeEngine) -> None:
    """Books are checked after every step, memory that nobody owns is NaN throughout."""
    chooser = random.Random(0)
    engine = make_engine(max_num_seqs=32, max_num_batched_tokens=192, kv_pages=70)
    made: dict[str, FrameRequest] = {}
    aborted = set()
    while len(made) < 2000:
        for _ in range(chooser.randint(0, 24)):
            name = str(len(made))
            made[name] = random_request(chooser, name)
            engine.submit(made[name])
        engine.step()
        if len(made) > 3 and chooser.random() < 0.5:
            for name in [*chooser.sample([*made], 3), [*made][-1]]:
                if engine.abort(name):
                    aborted.add(name)
    engine.run()
    assert len(aborted) > 50
    for name in made:
        reason = engine.outcomes[name].reason
        assert (reason is FinishReason.ABORT) == (name in aborted)
    survivors = [name for name in made if name not in aborted]
    for name in chooser.sample(survivors, 12):
        solo = make_engine(max_num_seqs=1)
        solo.submit(made[name])
        solo.run()
        left, right = engine.trace(name), solo.trace(name)
        assert [part for part in right if left[part].tobytes() != right[part].tobytes()] == [], name


BAD_ROWS = {
    "main token over the vocabulary": ([512, 0, 0, 0, 0], "main token 512"),
    "negative main token": ([-1, 0, 0, 0, 0], "main token -1"),
    "code over the codebook": ([320, 64, 0, 0, 0], "code 64"),
    "negative code": ([320, 0, 0, 0, -3], "code -3"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_refused_and_harm_nobody(make_engine: MakeEngine, case: str) -> None:
    row, named = BAD_ROWS[case]
    good = request_of("good", rows=20, seed=3, frames=6)
    alone = make_engine()
    alone.submit(good)
    alone.run()
    engine = make_engine()
    engine.submit(good)
    engine.step()
    rows = np.array([[65, 0, 0, 0, 0], row], dtype=np.int32)
    with pytest.raises(InvalidRequest, match=named) as caught:
        engine.submit(FrameRequest(id="bad", prompt=Prompt(rows, 0)))
    assert caught.value.param == "prompt"
    with pytest.raises(Conflict, match="good"):
        engine.submit(good)
    engine.run()
    assert engine.trace("good")["frames"].tobytes() == alone.trace("good")["frames"].tobytes()


def test_what_can_never_fit_is_refused_with_the_numbers(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_pages=3)
    with pytest.raises(InvalidRequest, match=r"\(200\).*\(100\) = 300.*256"):
        engine.submit(request_of("a", rows=200, seed=0, frames=100))
    with pytest.raises(InvalidRequest, match="need 4 pages of 16 rows.*the 3"):
        engine.submit(request_of("a", rows=40, seed=0, frames=9))
    engine.submit(request_of("a", rows=40, seed=0, frames=8))
    engine.run()
    assert engine.outcomes["a"].reason in (FinishReason.LENGTH, FinishReason.STOP)


def test_abort_in_every_state(make_engine: MakeEngine) -> None:
    """Queued, in the middle of the prompt, while decoding; the last request is not disturbed."""
    last = request_of("last", rows=30, seed=9, frames=10)
    alone = make_engine()
    alone.submit(last)
    alone.run()
    engine = make_engine(max_num_seqs=2, chunk_rows=lambda request, done: 5)
    for name in ("prompt", "decode", "queued"):
        rows = {"prompt": 60, "decode": 3, "queued": 8}[name]
        engine.submit(request_of(name, rows=rows, seed=1, frames=50))
    engine.step()
    engine.step()
    engine.submit(last)
    for name in ("queued", "prompt", "decode"):
        engine.abort(name)
    engine.run()
    assert engine.engine.scheduler.statistics().pages_in_use == 0
    assert engine.trace("last")["frames"].tobytes() == alone.trace("last")["frames"].tobytes()
