"""Voices to copy in a request body: every spelling, and what is refused."""

import base64
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from fake_engine import FakeEngine

from declaim.contracts.errors import InvalidRequest

Ask = Callable[..., httpx.Response]

CLIP = bytes(range(256)) * 300
ENCODED = base64.b64encode(CLIP).decode()
CODES = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]


@pytest.mark.parametrize(
    "audio",
    [
        ENCODED,
        f"data:audio/wav;base64,{ENCODED}",
        f"DATA:;base64,{ENCODED}",
        "\n".join(ENCODED[i : i + 76] for i in range(0, len(ENCODED), 76)),
    ],
    ids=["base64", "data URL", "bare data URL", "base64 in lines"],
)
@pytest.mark.parametrize("listed", [True, False])
def test_every_spelling_gives_the_same_samples(
    speak: Ask, engine: FakeEngine, audio: str, listed: bool
) -> None:
    """Bodies here are also large enough to be read in a thread."""
    fields: dict[str, object] = {"ref_audio": audio, "ref_text": "What it says."}
    if listed:
        fields = {"references": [{"audio": audio, "text": "What it says."}]}
    assert speak(engine, voice="alloy", **fields).status_code == 200
    (reference,) = engine.requests[0].references
    assert reference.text == "What it says."
    assert reference.samples is not None and reference.codes is None
    assert reference.samples.dtype == np.float32
    assert np.array_equal(reference.samples * 256, np.frombuffer(CLIP, dtype=np.uint8))


def test_codes(speak: Ask, engine: FakeEngine) -> None:
    answer = speak(engine, references=[{"text": "Hi.", "vq_codes": CODES, "note": 1}])
    assert answer.status_code == 200
    assert answer.headers["x-ignored-fields"] == "references[0].note"
    (reference,) = engine.requests[0].references
    assert reference.samples is None and reference.codes is not None
    assert reference.codes.dtype == np.int64
    assert reference.codes.tolist() == CODES


def test_several_references_are_different_speakers(speak: Ask, engine: FakeEngine) -> None:
    """A tag of the transcript's own stays, then `speaker` counts, then the place in the list."""
    answer = speak(
        engine,
        references=[
            {"text": "First.", "audio": ENCODED},
            {"text": "<|speaker:7|>Second.", "vq_codes": CODES},
            {"text": "Third.", "vq_codes": CODES, "speaker": 9},
            {"text": "Fourth.", "vq_codes": CODES},
        ],
    )
    assert answer.status_code == 200
    assert [reference.text for reference in engine.requests[0].references] == [
        "<|speaker:0|>First.",
        "<|speaker:7|>Second.",
        "<|speaker:9|>Third.",
        "<|speaker:3|>Fourth.",
    ]


@pytest.mark.parametrize("missing", [{}, {"text": None}, {"text": ""}, {"text": "  "}])
@pytest.mark.parametrize("sound", [{"audio": ENCODED}, {"vq_codes": CODES}])
def test_no_transcript(
    speak: Ask, engine: FakeEngine, missing: dict[str, object], sound: dict[str, object]
) -> None:
    """Absent, null and empty are one case, in either place."""
    answer = speak(engine, references=[{**missing, **sound}])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "references[0].text"
    assert "transcript" in answer.json()["error"]["message"]
    if "audio" in sound:
        text = {"ref_text": missing["text"]} if "text" in missing else {}
        answer = speak(engine, ref_audio=ENCODED, **text)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "ref_text"
    assert engine.streams == []
    assert speak(engine).status_code == 200


def test_no_reference_in_empty_strings(speak: Ask, engine: FakeEngine) -> None:
    assert speak(engine, ref_audio="", ref_text="", references=[]).status_code == 200
    assert engine.requests[0].references == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ref_text": "Hi."}, "ref_audio"),
        (
            {
                "ref_audio": ENCODED,
                "ref_text": "Hi.",
                "references": [{"text": "Hi.", "vq_codes": CODES}],
            },
            "ref_audio",
        ),
        ({"ref_audio": "@@@@", "ref_text": "Hi."}, "ref_audio"),
        ({"ref_audio": "YQ", "ref_text": "Hi."}, "ref_audio"),
        ({"ref_audio": "\ud800", "ref_text": "Hi."}, "ref_audio"),
        ({"ref_audio": " ", "ref_text": "Hi."}, "ref_audio"),
        ({"ref_audio": "data:audio/wav,abc", "ref_text": "Hi."}, "ref_audio"),
        ({"ref_audio": "data:audio/wav;base64,", "ref_text": "Hi."}, "ref_audio"),
        ({"ref_audio": "https://host/a.wav", "ref_text": "Hi."}, "ref_audio"),
        ({"ref_audio": "file:///etc/passwd", "ref_text": "Hi."}, "ref_audio"),
        ({"ref_audio": base64.b64encode(b"bad").decode(), "ref_text": "Hi."}, "ref_audio"),
        ({"references": [{"text": "Hi."}]}, "references[0].audio"),
        ({"references": [{"text": "Hi.", "audio": "@"}]}, "references[0].audio"),
        (
            {"references": [{"text": "Hi.", "audio": ENCODED, "vq_codes": CODES}]},
            "references[0].audio",
        ),
        ({"references": [{"text": "Hi.", "vq_codes": []}]}, "references[0].vq_codes"),
        ({"references": [{"text": "Hi.", "vq_codes": [[]]}]}, "references[0].vq_codes"),
        ({"references": [{"text": "Hi.", "vq_codes": [[1], [1, 2]]}]}, "references[0].vq_codes"),
        ({"references": [{"text": "Hi.", "vq_codes": [[-1]]}]}, "references[0].vq_codes[0][0]"),
        ({"references": [{"text": "Hi.", "vq_codes": [[0.5]]}]}, "references[0].vq_codes[0][0]"),
        ({"references": [{"text": 5, "vq_codes": CODES}]}, "references[0].text"),
        (
            {"references": [{"text": "Hi.", "vq_codes": CODES, "speaker": 16}]},
            "references[0].speaker",
        ),
        ({"references": [{"text": "Hi.", "vq_codes": CODES}] * 17}, "references"),
    ],
)
def test_refusals(speak: Ask, engine: FakeEngine, fields: dict[str, object], param: str) -> None:
    answer = speak(engine, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert len(answer.json()["error"]["message"]) < 200
    assert engine.streams == []


def test_a_clip_that_the_decoder_refuses(speak: Ask, engine: FakeEngine) -> None:
    """The field's name stands in place of the decoder's own."""
    audio = base64.b64encode(b"bad").decode()
    error = speak(engine, ref_audio=audio, ref_text="Hi.").json()["error"]
    assert error["message"] == "ref_audio: this is no audio"


def test_a_clip_that_the_engine_refuses(speak: Ask, engine: FakeEngine) -> None:
    """The engine counts references; a body that has only ref_audio knows no such count."""
    engine.refusal = InvalidRequest("references[0]: the clip is silent", param="references[0]")
    error = speak(engine, ref_audio=ENCODED, ref_text="Hi.").json()["error"]
    assert (error["param"], error["message"]) == ("ref_audio", "ref_audio: the clip is silent")
    item = {"audio": ENCODED, "text": "Hi."}
    error = speak(engine, references=[item]).json()["error"]
    assert error["param"] == "references[0]"


@pytest.mark.parametrize(
    ("engines", "fields", "named"),
    [
        ("references[0].text", {"ref_audio": "AAAA", "ref_text": "Hi."}, "ref_text"),
        ("references[0].text", {"references": [{"text": "a", "audio": "AAAA"}]}, None),
        (
            "references[1].codes",
            {"references": [{"text": "a", "vq_codes": CODES}] * 2},
            "references[1].vq_codes",
        ),
        ("max_frames", {"max_tokens": 9}, "max_tokens"),
        ("max_frames", {"max_new_tokens": 9, "max_tokens": 9}, "max_new_tokens"),
    ],
)
def test_the_engines_names_become_the_bodys(
    speak: Ask, engine: FakeEngine, engines: str, fields: dict[str, Any], named: str | None
) -> None:
    engine.refusal = InvalidRequest(f"{engines} cannot be used", param=engines)
    error = speak(engine, **fields).json()["error"]
    assert (error["param"], error["message"]) == (
        named or engines,
        f"{named or engines} cannot be used",
    )
