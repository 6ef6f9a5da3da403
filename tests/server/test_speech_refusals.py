"""Every field's refusal: a 400 in the error shape that names the field, and no engine work."""

import json
from collections.abc import Callable

import httpx
import pytest
from fake_engine import FakeEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from declaim.contracts.errors import Conflict, InvalidRequest, Overloaded, TooLarge
from declaim.server.body import SpeechBody
from declaim.server.settings import ServerSettings

Ask = Callable[..., httpx.Response]

NOT_SPEAKABLE = [
    "", " ", "  \n", "...", "-", "\u2011", "\u200b", "\x00", "\u0301", "?!\u2026", "\ufdd0",
    "<|speaker:3|>", "<|speaker:0|> ... <|speaker:1|>",
]  # fmt: skip

WRONG = [
    *(("input", text) for text in NOT_SPEAKABLE),
    ("input", "\ud800"),
    ("input", "a\udfffb"),
    ("input", "a" * 4097),
    ("input", " " * 4096 + "a"),
    ("input", 5),
    ("input", ["a"]),
    ("model", 5),
    ("voice", ""),
    ("voice", "nobody"),
    ("voice", "../../etc/passwd"),
    ("voice", "\ud800"),
    ("voice", 5),
    ("voice", {}),
    ("voice", {"id": "nobody"}),
    ("voice", {"id": 5}),
    ("voice", ["alloy"]),
    ("response_format", "mpeg"),
    ("response_format", ""),
    ("response_format", "mp3"),
    ("response_format", "opus"),
    ("response_format", "aac"),
    ("response_format", "flac"),
    ("response_format", "PCM"),
    ("response_format", 1),
    ("stream_format", "sse"),
    ("stream_format", ""),
    ("stream_format", 1),
    ("stream", "yes?"),
    ("stream", 1),
    ("sample_rate", 7999),
    ("sample_rate", 48001),
    ("sample_rate", 24000.0),
    ("sample_rate", "24000"),
    ("sample_rate", True),
    ("speed", "fast"),
    ("speed", 9),
    ("speed", 0.25),
    ("speed", True),
    ("speed", float("nan")),
    ("speed", float("inf")),
    ("speed", 10**400),
    ("instructions", 123),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", float("nan")),
    ("temperature", False),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_k", 0),
    ("top_k", -1),
    ("top_k", 2**31),
    ("top_k", 1.5),
    ("seed", -1),
    ("seed", 2**63),
    ("seed", 2**64),
    ("seed", 1.0),
    ("seed", True),
    ("max_new_tokens", 0),
    ("max_new_tokens", -1),
    ("max_new_tokens", 2049),
    ("max_new_tokens", 10**30),
    ("max_tokens", 0),
    ("repetition_penalty", 1.1),
    ("repetition_penalty", "1"),
    ("references", {}),
    ("references", ["a"]),
    ("ref_audio", 5),
    ("ref_text", 5),
]


def shown(value: object) -> str:
    return ascii(value)[:40]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=shown)
def test_a_wrong_value_is_refused(
    speak: Ask, engine: FakeEngine, field: str, value: object
) -> None:
    answer = speak(engine, **{field: value})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert error["param"].partition("[")[0] == field
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_request"
    assert field in error["message"]
    assert len(error["message"]) < 400
    assert engine.streams == []


@pytest.mark.parametrize("field", ["input", "response_format"])
def test_a_needed_field_is_missing(ask: Ask, engine: FakeEngine, field: str) -> None:
    body = {"input": "Hi", "response_format": "pcm"}
    for content in ({k: v for k, v in body.items() if k != field}, {**body, field: None}):
        answer = ask(engine, "POST", "/v1/audio/speech", json=content)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field


def test_the_formats_that_there_are_stand_in_the_message(speak: Ask, engine: FakeEngine) -> None:
    for name in ("mp3", None):
        message = speak(engine, response_format=name).json()["error"]["message"]
        assert "pcm and wav" in message


@pytest.mark.parametrize("model", ["", "tts-2", "FAKE", "\ud800"])
def test_an_unknown_model_is_not_found(speak: Ask, engine: FakeEngine, model: str) -> None:
    answer = speak(engine, model=model)
    assert answer.status_code == 404
    assert answer.json()["error"]["param"] == "model"


def test_two_names_with_two_values(speak: Ask, engine: FakeEngine) -> None:
    answer = speak(engine, max_tokens=5, max_new_tokens=6)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "max_tokens"
    assert speak(engine, max_tokens=5, max_new_tokens=5).status_code == 200


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("temprature", "temperature"),
        ("Top_P", None),
        ("zzzzzzzz", None),
        ("respnse_format", "response_format"),
    ],
)
def test_strict_fields(speak: Ask, engine: FakeEngine, name: str, near: str | None) -> None:
    strict = ServerSettings(strict_fields=True)
    answer = speak(engine, settings=strict, **{name: 1})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == name
    assert (f"did you mean {near}?" in error["message"]) == (near is not None)
    assert speak(engine, settings=strict, user="a").status_code == 200


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b'"a"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000,
        b'{"input":"a","input"}', b"1" * 5000,
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object(ask: Ask, engine: FakeEngine, content: bytes) -> None:
    answer = ask(engine, "POST", "/v1/audio/speech", content=content)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body"


def test_huge_integers_are_named(ask: Ask, engine: FakeEngine) -> None:
    for field in ("seed", "speed", "sample_rate"):
        for sign in ("", "-"):
            content = f'{{"input": "a", "response_format": "pcm", "{field}": {sign}{"9" * 5000}}}'
            answer = ask(engine, "POST", "/v1/audio/speech", content=content.encode())
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("content-type", "text/plain"),
        ("content-type", "multipart/form-data; boundary=x"),
        ("content-type", "application/msgpack"),
        ("content-encoding", "gzip"),
    ],
)
def test_other_kinds_of_body(ask: Ask, engine: FakeEngine, name: str, value: str) -> None:
    answer = ask(engine, "POST", "/v1/audio/speech", content=b"{}", headers={name: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


def test_a_body_over_the_limit(ask: Ask, engine: FakeEngine) -> None:
    """With its length declared, and without."""
    small = ServerSettings(body_bytes=1000)
    body = json.dumps({"input": "Hi", "response_format": "pcm", "x": ""}).encode()
    body = body.replace(b'""', b'"' + b"a" * (1000 - len(body)) + b'"')
    assert len(body) == 1000

    async def parts() -> object:
        yield body[:500]
        yield body[500:] + b" "

    assert ask(engine, "POST", "/v1/audio/speech", content=body, settings=small).is_success
    for content in (body + b" ", parts()):
        answer = ask(engine, "POST", "/v1/audio/speech", content=content, settings=small)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "too_large"
    assert len(engine.streams) == 1


def test_what_the_engine_refuses(speak: Ask, engine: FakeEngine) -> None:
    """Its errors keep their status; its names become the body's."""
    engine.refusal = TooLarge("the prompt is too long", param="text", limit=9, value=10)
    answer = speak(engine)
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "input")
    engine.refusal = InvalidRequest("prompt and max_frames do not fit", param="max_frames")
    answer = speak(engine)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_new_tokens")
    engine.refusal = Conflict("in use", param="id")
    assert speak(engine).status_code == 409
    engine.refusal = Overloaded("the queue is full")
    answer = speak(engine)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    engine.refusal = None
    assert speak(engine).status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from([*SpeechBody.model_fields, "other", "\ud800"])
BODIES = st.dictionaries(FIELDS, JSON, max_size=6)
SANE = {"input": "Hi", "response_format": "wav"}


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(body=BODIES, sane=st.booleans())
def test_no_body_is_a_fault_of_ours(ask: Ask, body: dict[str, object], sane: bool) -> None:
    """Whatever JSON comes, the answer is sound or a refusal in the one shape."""
    content = json.dumps(body | SANE if sane else body).encode()
    answer = ask(FakeEngine(), "POST", "/v1/audio/speech", content=content)
    if answer.status_code == 200:
        assert answer.headers["content-type"] in ("audio/wav", "audio/pcm")
    else:
        assert answer.status_code in (400, 404)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.json()["error"]["param"]
