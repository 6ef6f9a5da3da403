"""The real engine behind a real socket: sound while it is made, slots that come free, failure."""

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from fake_engine import WAIT_SECONDS

from declaim.config.schema import Deploy
from declaim.contracts.step import StepPlan, StepResult
from declaim.engine.engine import Engine
from declaim.engine.load import load_engine

Address = tuple[str, int]
Serve = Callable[..., AbstractContextManager[Address]]


class Held:
    """An engine of one slot that cannot begin its third step before it is let go.

    error: what the third step raises then.
    """

    def __init__(self, model: Path, error: Exception | None = None) -> None:
        base = Deploy()
        stage = base.frames.replaced(max_num_seqs=1, max_model_len=512, cudagraph_mode="NONE")
        self.engine, _ = load_engine(base.replaced(stages=(stage, base.codec)), model)
        self.reached, self.opened = threading.Event(), threading.Event()
        runner = self.engine._parts.frames.runner
        inner, steps = runner.step, iter(range(10**6))

        def step(plan: StepPlan) -> StepResult:
            if next(steps) == 2:
                self.reached.set()
                self.opened.wait(WAIT_SECONDS)
                if error is not None:
                    raise error
            result = inner(plan)
            for frame in result.frames.values():
                object.__setattr__(frame, "end", False)
            return result

        runner.step = step  # type: ignore[method-assign]
        self.engine.start()


@contextmanager
def posted(address: Address, frames: int, name: str) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(*address, timeout=WAIT_SECONDS)
    fields = {"response_format": name, "stream": True, "max_new_tokens": frames}
    try:
        connection.request("POST", "/v1/audio/speech", json.dumps({"input": "Hello.", **fields}))
        yield connection
    finally:
        connection.close()


def slots(engine: Engine) -> float:
    statistics = engine.statistics()
    return statistics["requests_running"] + statistics["codec_streams"]


@pytest.mark.parametrize("name", ["pcm", "wav"])
def test_sound_arrives_while_the_runner_is_held(
    serve: Serve, checkpoint: Callable[[str], Path], name: str
) -> None:
    held = Held(checkpoint("micro"))
    with serve(held.engine) as address, posted(address, 12, name) as connection:
        answer = connection.getresponse()
        first = answer.read(1000)
        assert len(first) == 1000 and any(first[44:])
        assert held.reached.wait(WAIT_SECONDS) and not held.opened.is_set()
        held.opened.set()
        rate = int(answer.headers["x-sample-rate"])
        samples = round(12 * held.engine.info.hop * rate / held.engine.info.rate)
        assert len(first + answer.read()) == 2 * samples + (44 if name == "wav" else 0)


def test_a_client_that_leaves_makes_room(serve: Serve, checkpoint: Callable[[str], Path]) -> None:
    """Of two, one heard some sound and one still waits for the only slot."""
    held = Held(checkpoint("micro"))
    with serve(held.engine) as address:
        with posted(address, 400, "pcm") as first, posted(address, 400, "pcm"):
            first.getresponse().read(1000)
            while held.engine.statistics()["requests_waiting"] == 0:
                assert httpx.get(f"http://{address[0]}:{address[1]}/health/live").is_success
        held.opened.set()
        with posted(address, 3, "pcm") as last:
            assert len(last.getresponse().read()) > 1000
        while slots(held.engine):
            assert httpx.get(f"http://{address[0]}:{address[1]}/health/ready").is_success


def test_an_engine_that_fails(serve: Serve, checkpoint: Callable[[str], Path]) -> None:
    """The stream breaks off, the next request is refused at once, and health says why."""
    held = Held(checkpoint("micro"), RuntimeError("/a/path broke"))
    with serve(held.engine) as address:
        url = f"http://{address[0]}:{address[1]}"
        with posted(address, 12, "pcm") as connection:
            answer = connection.getresponse()
            answer.read(1000)
            held.opened.set()
            with pytest.raises(http.client.IncompleteRead):
                answer.read()
        refused = httpx.post(
            f"{url}/v1/audio/speech", json={"input": "Hi.", "response_format": "pcm"}
        )
        assert (refused.status_code, refused.headers["x-should-retry"]) == (500, "false")
        health = httpx.get(f"{url}/health/ready")
        assert (health.status_code, health.json()["failure"]) == (
            503,
            "the frame stage failed: RuntimeError",
        )
        assert httpx.get(f"{url}/health/live").status_code == 200
