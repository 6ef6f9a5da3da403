"""declaim prompt as a command: the file, the line and the exit codes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from declaim.cli.prompt import prompt
from declaim.contracts.errors import DeclaimError, InvalidCheckpoint, InvalidRequest, row_of

PREFIX = "<|im_start|>system\nconvert the provided text to speech<|im_end|>\n<|im_start|>user\n"
REST = "<|im_end|>\n<|im_start|>assistant\n<|voice|>"


@pytest.fixture
def call(checkpoint: Callable[[str], Path]) -> Callable[..., Result]:
    """Run the command on the `micro` checkpoint."""
    app = typer.Typer()
    app.command()(prompt)

    def run(*arguments: object) -> Result:
        words = ["--model", str(checkpoint("micro")), *map(str, arguments)]
        return CliRunner().invoke(app, words)

    return run


def byte_ids(text: str) -> list[int]:
    """Ids of the micro tokenizer, which has no merges: bytes, and special tokens from 256."""
    names = {"<|im_start|>": 256, "<|im_end|>": 257, "<|voice|>": 258, "<|speaker:0|>": 261}
    ids: list[int] = []
    while text:
        name = next((name for name in names if text.startswith(name)), None)
        ids += [names[name]] if name else text[0].encode()
        text = text[len(name) if name else 1 :]
    return ids


def save(path: Path, codes: NDArray[np.integer]) -> Path:
    np.save(path, codes)
    return path


def test_a_text(call: Callable[..., Result], tmp_path: Path) -> None:
    output = tmp_path / "made" / "rows.npy"
    result = call("Grüße", "-o", output)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"prefix_rows {len(byte_ids(PREFIX))}\n"
    rows = np.load(output)
    assert rows.dtype == np.int64
    assert rows.shape[1] == 5
    assert not rows[:, 1:].any()
    assert rows[:, 0].tolist() == byte_ids(PREFIX + "<|speaker:0|> Grüße" + REST)


def test_references_in_order(call: Callable[..., Result], tmp_path: Path) -> None:
    first = save(tmp_path / "first.npy", np.array([[1, 2], [3, 4], [5, 6], [7, 8]], dtype=np.int16))
    second = save(tmp_path / "second.npy", np.full((4, 1), 63))
    output = tmp_path / "rows.npy"
    voices = ["--reference-codes", first, "--reference-text", "One"]
    voices += ["--reference-codes", second, "--reference-text", "Two"]
    result = call("Hi", *voices, "--output", output)
    assert result.exit_code == 0, result.output
    rows = np.load(output)
    before = byte_ids(
        "<|im_start|>system\nconvert the provided text to speech reference to the following:"
        "\n\n[Reference 1]\nText: <|speaker:0|> One\nSpeech: "
    )
    between = byte_ids("\n\n[Reference 2]\nText: <|speaker:0|> Two\nSpeech: ")
    after = byte_ids("<|im_end|>\n<|im_start|>user\n")
    end = byte_ids("<|speaker:0|> Hi" + REST)
    assert rows[:, 0].tolist() == [*before, 321, 322, *between, 383, *after, *end]
    assert rows[len(before) : len(before) + 2, 1:].tolist() == [[1, 3, 5, 7], [2, 4, 6, 8]]
    prefix = len(before) + 2 + len(between) + 1 + len(after)
    assert result.stdout == f"prefix_rows {prefix}\n"


def refusal(result: Result, output: Path) -> DeclaimError:
    """The error of a run, which printed and wrote nothing."""
    assert isinstance(result.exception, DeclaimError)
    assert result.stdout == ""
    assert not output.exists()
    return result.exception


def test_counts_that_differ(call: Callable[..., Result], tmp_path: Path) -> None:
    codes, output = save(tmp_path / "a.npy", np.zeros((4, 1), dtype=int)), tmp_path / "rows.npy"
    for voices, said in (
        (["--reference-codes", codes], "1 codes, 0 texts"),
        (["--reference-text", "One"], "0 codes, 1 texts"),
        (["--reference-codes", codes, "--reference-text", "a", "--reference-text", "b"], "1 codes"),
    ):
        error = refusal(call("Hi", *voices, "-o", output), output)
        assert isinstance(error, InvalidRequest)
        assert error.param == "--reference-text"
        assert said in error.message
        assert row_of(error).exit_code == 2


def test_refused_text_and_codes(call: Callable[..., Result], tmp_path: Path) -> None:
    output = tmp_path / "rows.npy"
    error = refusal(call("a<|voice|>", "-o", output), output)
    assert (error.param, row_of(error).exit_code) == ("text", 2)
    wide = save(tmp_path / "wide.npy", np.full((4, 1), 64))
    voice = ["--reference-codes", wide, "--reference-text", "One"]
    error = refusal(call("Hi", *voice, "-o", output), output)
    assert error.param == "references[0].codes"
    voice[1] = tmp_path / "absent.npy"
    error = refusal(call("Hi", *voice, "-o", output), output)
    assert (error.param, row_of(error).exit_code) == ("--reference-codes", 2)


def test_a_model_without_a_tokenizer(
    call: Callable[..., Result], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    config = (checkpoint("micro") / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(config)
    output = tmp_path / "rows.npy"
    error = refusal(call("Hi", "--model", tmp_path, "-o", output), output)
    assert isinstance(error, InvalidCheckpoint)
    assert row_of(error).exit_code == 3
