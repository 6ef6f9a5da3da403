"""The other routes: health, models, outcomes, and what is not there."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from fake_engine import FakeEngine, Step, sound

from declaim.contracts.engine import EngineHealth
from declaim.contracts.errors import EngineFailed
from declaim.server.settings import ServerSettings

Ask = Callable[..., httpx.Response]


@pytest.mark.parametrize(
    ("health", "ready"),
    [
        (EngineHealth(True, None, 0.0), True),
        (EngineHealth(True, None, 29.9), True),
        (EngineHealth(True, None, 30.1), False),
        (EngineHealth(False, None, 0.0), False),
        (EngineHealth(False, "the frame stage failed", 0.0), False),
    ],
)
def test_health(ask: Ask, engine: FakeEngine, health: EngineHealth, ready: bool) -> None:
    engine.state = health
    assert ask(engine, "GET", "/health/live").status_code == 200
    for path in ("/health/ready", "/health"):
        answer = ask(engine, "GET", path)
        assert answer.status_code == (200 if ready else 503)
        assert answer.json()["ready"] is ready
        assert answer.json()["failure"] == health.failure


def test_models(ask: Ask, engine: FakeEngine) -> None:
    listed = ask(engine, "GET", "/v1/models").json()
    assert listed["object"] == "list"
    names = [entry["id"] for entry in listed["data"]]
    assert names == ["fake", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    assert {(entry["object"], entry["owned_by"]) for entry in listed["data"]} == {
        ("model", "declaim")
    }
    for path in ("/v1/audio/models", "/audio/models"):
        assert ask(engine, "GET", path).json() == {"models": [{"id": name} for name in names]}


def test_what_is_not_there(ask: Ask, engine: FakeEngine) -> None:
    answer = ask(engine, "GET", "/v1/nothing")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    answer = ask(engine, "GET", "/v1/audio/speech")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json()["error"]["param"] == "method"
    answer = ask(engine, "POST", "/v1/audio/speech/", content=b"{}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    answer = ask(engine, "GET", "/v1/audio/speech/unknown")
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "request_id"


def test_the_schema_of_a_speech_request(ask: Ask, engine: FakeEngine) -> None:
    paths = ask(engine, "GET", "/openapi.json").json()["paths"]
    body = paths["/v1/audio/speech"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["required"] == ["input"]
    assert "sample_rate" in body["schema"]["properties"]


def speech(**fields: object) -> tuple[str, str, dict[str, object]]:
    body = {"input": "Hi", "response_format": "pcm", "seed": 4, **fields}
    return "POST", "/v1/audio/speech", {"json": body}


def outcome(engine: FakeEngine, index: int) -> Callable[[], tuple[str, str, dict[str, object]]]:
    return lambda: ("GET", f"/v1/audio/speech/{engine.requests[index].id}", {})


def test_outcomes(converse: Callable[..., list[httpx.Response]]) -> None:
    """A finished, a failed and a half failed request can be asked about."""
    scripts: Iterator[list[Step]] = iter(
        [
            [*sound(3)],
            [EngineFailed("the stage failed")],
            [*sound(1), EngineFailed("the stage died")],
        ]
    )
    engine = FakeEngine(lambda request: next(scripts))
    steps = [speech(), speech(response_format="wav"), speech(response_format="wav")]
    records = [outcome(engine, index) for index in range(3)]
    answers = converse(engine, [*steps, *records])
    assert [answer.status_code for answer in answers] == [200, 500, 500, 200, 200, 200]
    finished, failed, half = (answer.json() for answer in answers[3:])
    assert finished == {
        "id": engine.requests[0].id,
        "status": "finished",
        "seed": 4,
        "finish_reason": "stop",
        "usage": {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10},
        "frames": 3,
        "frames_sha256": finished["frames_sha256"],
        "timings": {"admitted": 0.1, "first_audio": 0.2, "finished": 0.3},
    }
    assert len(finished["frames_sha256"]) == 64
    assert (failed["status"], failed["finish_reason"]) == ("failed", "error")
    assert failed["error"]["message"] == "the stage failed"
    assert half["error"]["message"] == "the stage died"


def test_old_outcomes_are_forgotten(converse: Callable[..., list[httpx.Response]]) -> None:
    engine = FakeEngine()
    records = [outcome(engine, index) for index in range(3)]
    answers = converse(
        engine, [speech(), speech(), speech(), *records], settings=ServerSettings(kept_outcomes=2)
    )
    assert [answer.status_code for answer in answers[3:]] == [404, 200, 200]
