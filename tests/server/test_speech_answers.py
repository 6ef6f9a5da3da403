"""What a good request gets: bytes, headers, and the record of its end."""

import io
import wave
from collections.abc import Callable

import httpx
import numpy as np
import pytest
from fake_engine import RATE, FakeEngine, Gate, sound

from declaim.audio.resample import StreamResampler
from declaim.audio.wav import to_int16
from declaim.contracts.errors import (
    Cancelled,
    DeclaimError,
    EngineFailed,
    OutOfMemory,
    Overloaded,
)
from declaim.server.settings import ServerSettings

Ask = Callable[..., httpx.Response]


def expected(frames: int, rate: int) -> bytes:
    """The fake sound at a rate, converted as a whole."""
    resampler = StreamResampler(RATE, rate)
    samples = [resampler.feed(np.concatenate(sound(frames))), resampler.finish()]
    return to_int16(np.concatenate(samples))[0].astype("<i2").tobytes()


def test_pcm_is_24_khz(speak: Ask, engine: FakeEngine) -> None:
    answer = speak(engine, response_format="pcm", seed=5)
    assert answer.status_code == 200
    assert answer.content == expected(3, 24000)
    headers = answer.headers
    assert headers["content-type"] == "audio/pcm"
    assert headers["x-sample-rate"] == "24000"
    assert headers["x-channels"] == "1"
    assert headers["x-bit-depth"] == "16"
    assert headers["x-seed"] == "5"
    assert headers["x-request-id"] == engine.requests[0].id
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    for absent in ("content-length", "content-encoding", "x-warnings", "x-ignored-fields"):
        assert absent not in headers


@pytest.mark.parametrize("stream", [None, False])
def test_a_whole_wav_has_true_sizes(speak: Ask, engine: FakeEngine, stream: bool | None) -> None:
    answer = speak(engine, response_format="wav", stream=stream)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/wav"
    assert answer.headers["content-length"] == str(len(answer.content))
    assert "x-bit-depth" not in answer.headers
    with wave.open(io.BytesIO(answer.content)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        assert file.readframes(file.getnframes()) == expected(3, RATE)
    assert len(answer.content) == 44 + 2 * 3 * 2048


def test_a_streamed_wav_has_one_header_and_the_same_samples(speak: Ask, engine: FakeEngine) -> None:
    answer = speak(engine, response_format="wav", stream=True)
    whole = speak(engine, response_format="wav")
    assert "content-length" not in answer.headers
    assert answer.content[4:8] == answer.content[40:44] == b"\xff\xff\xff\xff"
    assert answer.content[44:] == whole.content[44:]
    assert answer.content.count(b"RIFF") == 1


@pytest.mark.parametrize("name", ["pcm", "wav"])
@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
def test_the_rate_is_as_asked(speak: Ask, engine: FakeEngine, name: str, rate: int) -> None:
    answer = speak(engine, response_format=name, sample_rate=rate)
    assert answer.headers["x-sample-rate"] == str(rate)
    data = answer.content[44:] if name == "wav" else answer.content
    assert data == expected(3, rate)
    assert len(data) == 2 * int(3 * 2048 * rate / RATE + 0.5)


def test_speed_one_is_the_same_as_none(speak: Ask, engine: FakeEngine) -> None:
    assert speak(engine, speed=1.0).content == speak(engine, speed=1).content
    assert speak(engine, speed=1.0).content == speak(engine).content


def test_fields_reach_the_engine(speak: Ask, engine: FakeEngine) -> None:
    answer = speak(
        engine,
        input="  <|speaker:2|>Hi <b>there</b>\n",
        temperature=0.25,
        top_p=0.5,
        top_k=7,
        seed=2**63 - 1,
        max_new_tokens=12,
        repetition_penalty=1.0,
    )
    assert answer.status_code == 200
    (request,) = engine.requests
    assert request.text == "  <|speaker:2|>Hi <b>there</b>\n"
    assert request.sampling is not None
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (
        0.25,
        0.5,
        7,
    )
    assert (request.seed, request.max_frames) == (2**63 - 1, 12)
    assert request.references == ()


def test_what_is_absent_takes_the_engines_defaults(
    speak: Ask, ask: Ask, engine: FakeEngine
) -> None:
    """Absent and null are the same; the seed is chosen here, since it is sent at once."""
    answer = speak(engine)
    content = b'{"input": "Hi", "response_format": "pcm", "temperature": null, "seed": null}'
    assert ask(engine, "POST", "/v1/audio/speech", content=content).status_code == 200
    first, second = engine.requests
    assert first.sampling == second.sampling == engine.info.sampling
    assert first.max_frames is None
    assert first.seed != second.seed
    assert answer.headers["x-seed"] == str(first.seed)


@pytest.mark.parametrize("name", ["max_new_tokens", "max_tokens"])
def test_both_names_of_the_most_frames(speak: Ask, engine: FakeEngine, name: str) -> None:
    assert speak(engine, **{name: 9}).status_code == 200
    assert engine.requests[0].max_frames == 9


@pytest.mark.parametrize("model", ["fake", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"])
@pytest.mark.parametrize("voice", ["alloy", "cedar", {"id": "verse"}])
def test_served_models_and_voices(
    speak: Ask, engine: FakeEngine, model: str, voice: object
) -> None:
    assert speak(engine, model=model, voice=voice).status_code == 200
    assert engine.requests[0].references == ()


def test_aliases_can_be_switched_off(speak: Ask, ask: Ask, engine: FakeEngine) -> None:
    settings = ServerSettings(aliases=False)
    assert speak(engine, model="tts-1", settings=settings).status_code == 404
    listed = ask(engine, "GET", "/v1/models", settings=settings).json()["data"]
    assert [entry["id"] for entry in listed] == ["fake"]


@pytest.mark.parametrize(
    "text", ["a", "7", "\U0001f600" * 4096, "€", "한", " " * 4095 + "x", "\x00a\u200b"]
)
def test_speakable_texts(speak: Ask, engine: FakeEngine, text: str) -> None:
    """A limit counts code points, and control characters beside a letter do no harm."""
    assert speak(engine, input=text).status_code == 200
    assert engine.requests[0].text == text


def test_instructions_are_reported_not_spoken(speak: Ask, engine: FakeEngine) -> None:
    assert "instructions" in speak(engine, instructions="Whisper.").headers["x-warnings"]
    assert "x-warnings" not in speak(engine, instructions=" ").headers
    assert engine.requests[0].text == "Hello there."


def test_tolerated_and_unknown_fields(speak: Ask, engine: FakeEngine) -> None:
    tolerated = {"user": 1, "language": "en", "backend": [], "features": {}, "task_type": "Base"}
    assert "x-ignored-fields" not in speak(engine, **tolerated).headers
    answer = speak(engine, volume=2, **{"évil\r\nx: \ud800": float("nan")})
    assert answer.status_code == 200
    assert answer.headers["x-ignored-fields"] == "volume, %C3%A9vil%0D%0Ax%3A %3F"


def test_any_accept_header_is_fine(ask: Ask, engine: FakeEngine) -> None:
    content = b'{"input": "Hi", "response_format": "wav", "voice": null, "seed": null}'
    for accept in ("application/octet-stream", "text/event-stream", "nonsense"):
        headers = {"accept": accept, "content-type": "Application/JSON; charset=utf-8"}
        answer = ask(engine, "POST", "/v1/audio/speech", content=content, headers=headers)
        assert answer.headers["content-type"] == "audio/wav"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ["pcm", "wav"])
@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (EngineFailed("the stage failed"), 500, {"x-should-retry": "false"}),
        (OutOfMemory("no memory"), 503, {"x-should-retry": "false"}),
        (Overloaded("full"), 503, {"retry-after": "1"}),
        (Cancelled("the request was aborted"), 499, {}),
    ],
)
def test_a_failure_before_the_first_audio_is_a_real_error(
    speak: Ask,
    name: str,
    stream: bool,
    error: DeclaimError,
    status: int,
    headers: dict[str, str],
) -> None:
    engine = FakeEngine(lambda request: [error])
    answer = speak(engine, response_format=name, stream=stream)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == engine.requests[0].id
    assert {key: answer.headers.get(key) for key in headers} == headers
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert answer.json()["error"] == {
        "message": error.message,
        "type": kind,
        "param": None,
        "code": error.code,
    }
    assert engine.streams[0].closed.is_set()


def test_a_whole_body_that_fails_late_is_a_real_error(speak: Ask) -> None:
    engine = FakeEngine(lambda request: [*sound(2), EngineFailed("the stage failed")])
    answer = speak(engine, response_format="wav")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "engine_failed"


def test_no_sound_at_all_is_an_error(speak: Ask) -> None:
    answer = speak(FakeEngine(lambda request: []), response_format="pcm", seed=9)
    assert answer.status_code == 500
    assert "another seed than 9" in answer.json()["error"]["message"]


def test_a_fault_of_ours_shows_nothing_of_itself(speak: Ask) -> None:
    answer = speak(FakeEngine(lambda request: [KeyError("/secret/path")]))
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text and "Traceback" not in answer.text


def test_gates_do_not_change_the_bytes(speak: Ask) -> None:
    """An open gate is passed: the fake engine's own check."""
    gate = Gate()
    gate.open()
    engine = FakeEngine(lambda request: [*sound(1), gate, *sound(3)[1:]])
    assert speak(engine).content == expected(3, 24000)
