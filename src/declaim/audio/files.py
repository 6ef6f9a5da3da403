"""Output files that appear as a whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from declaim.contracts.errors import NotFound


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or replace it, in one go, as `open_whole` does."""
    with open_whole(path) as file:
        file.write(content)


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which stands at `path` once the block has ended without an error.

    A link keeps pointing where it did. What is there and is no regular file (a device, a pipe) is
    written to, never replaced. Raises NotFound where the path cannot be written; after any error
    an old file is as it was.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                yield file
        else:
            with _replacing(target) as file:
                yield file
    except OSError as error:
        raise NotFound(
            f"{path} cannot be written: {error.strerror or error}", param="output", value=str(path)
        ) from error


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
