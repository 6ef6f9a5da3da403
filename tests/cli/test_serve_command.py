"""`declaim serve` with a real engine: it speaks, streams, and ends when told to."""

import io
import os
import re
import signal
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from whole import speak_whole

from declaim.cli.main import run

WAIT_SECONDS = 60


@contextmanager
def served(*options: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A server in a process of its own, on a free port; gives its URL."""
    program = "from declaim.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", "--port", "0", *options],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"is served at (http://127\.0\.0\.1:\d+)$", line):
                yield found.group(1), process
                break
        else:
            pytest.fail("the server never came up")
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT_SECONDS)


def test_speech_over_http_is_what_say_makes(checkpoint: Callable[[str], Path]) -> None:
    """The same text and seed give the same sound, whole and streamed, and the server ends well."""
    micro = checkpoint("micro")
    with served("--model", str(micro), "--set", "stages.0.max_model_len=512") as (url, process):
        assert httpx.get(f"{url}/health/ready").status_code == 200
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "micro"
        body = {
            "model": "tts-1",
            "input": "Hello there.",
            "voice": "alloy",
            "response_format": "wav",
            "seed": 3,
            "max_new_tokens": 12,
        }
        whole = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=WAIT_SECONDS)
        assert whole.status_code == 200
        with wave.open(io.BytesIO(whole.content)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        speech = speak_whole(micro, "Hello there.", 3, 12)
        assert len(samples) == len(speech.samples)
        assert np.abs(samples - np.rint(speech.samples * 32767)).max() <= 1
        body |= {"stream": True}
        streamed = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=WAIT_SECONDS)
        pieces = np.frombuffer(streamed.content[44:], dtype="<i2")
        assert len(pieces) == len(samples)  # the cuts follow the load: values within 1
        assert np.abs(pieces.astype(int) - samples).max() <= 1
        record = httpx.get(f"{url}/v1/audio/speech/{whole.headers['x-request-id']}").json()
        assert record["frames"] == len(speech.frames)
        refused = httpx.post(f"{url}/v1/audio/speech", json=body | {"input": "<|im_end|> a"})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "input"
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 130


def test_what_cannot_start(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    assert run(["serve", "--model", str(tmp_path / "nothing"), "--port", "0"]) == 2
    assert run(["serve", "--port", "99999"]) == 3
    assert run(["serve", "--host", "192.0.2.1"]) == 3
    assert run(["serve", "--set", "server.prot=1"]) == 3
