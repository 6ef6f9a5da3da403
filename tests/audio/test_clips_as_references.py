"""A real spoken clip, in the forms that people have, as the voice of a request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from declaim.api import Setup, say
from declaim.contracts.errors import DeclaimError

FORMS: dict[str, tuple[int, dict[str, Any]]] = {
    "a.mp3": (1, {"container": "mp3", "codec": "libmp3lame"}),
    "b.flac": (2, {"container": "flac", "codec": "flac", "rate": 48_000}),
    "c.wav": (1, {"container": "wav", "codec": "pcm_s16le", "rate": 8_000}),
    "d.wav": (1, {"container": "wav", "codec": "pcm_f32le"}),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_clip_goes_in_as_a_reference(
    checkpoint: Callable[[str], Path],
    encode: Callable[..., bytes],
    spoken: NDArray[np.float32],
    tmp_path: Path,
    name: str,
) -> None:
    """It conditions the speech: the same seed without it, or with its start alone, says other."""
    channels, form = FORMS[name]
    path, start = tmp_path / name, tmp_path / f"start-{name}"
    path.write_bytes(encode(np.tile(spoken, (channels, 1)), **form))
    start.write_bytes(encode(np.tile(spoken[:33_000], (channels, 1)), **form))
    setup = Setup(model=checkpoint("micro"))
    made = {
        say("Same.", setup=setup, references=references, seed=11, max_frames=12).outcome
        for references in ((), [(path, "Words.")], [(start, "Words.")])
    }
    assert len({outcome.frames_sha256 for outcome in made}) == 3
    frames = len(spoken) / 1024
    rows = sorted(outcome.prompt_rows for outcome in made)
    assert rows[2] - rows[0] >= frames


BROKEN: dict[str, tuple[Callable[[NDArray[np.float32]], NDArray[np.float32]], str]] = {
    "overlong": (lambda clip: np.tile(clip, 21), "60"),
    "short": (lambda clip: clip[:9_000], "1 "),
    "silent": (lambda clip: clip * 0, "silent"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_clips_that_cannot_be_used(
    checkpoint: Callable[[str], Path],
    encode: Callable[..., bytes],
    spoken: NDArray[np.float32],
    tmp_path: Path,
    name: str,
) -> None:
    change, said = BROKEN[name]
    path = tmp_path / "a.wav"
    path.write_bytes(encode(change(spoken)[None], container="wav", codec="pcm_s16le"))
    with pytest.raises(DeclaimError, match=said):
        say("Same.", setup=Setup(model=checkpoint("micro")), references=[(path, "Words.")])


@pytest.mark.parametrize("content", [b"", b"RIFF", b"not a clip at all" * 99])
def test_files_that_hold_no_clip(
    checkpoint: Callable[[str], Path], tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(DeclaimError, match="reference"):
        say("Same.", setup=Setup(model=checkpoint("micro")), references=[(path, "Words.")])
