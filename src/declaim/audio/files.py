"""Output files that appear as a whole or not at all."""

import os
from pathlib import Path

from declaim.contracts.errors import NotFound


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or replace it, in one go; a link keeps pointing where it did.

    What is there and is no regular file (a device, a pipe) is written to, never replaced.
    Raises NotFound where the path cannot be written; then an old file is as it was.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
        else:
            _replace(target, content)
    except OSError as error:
        raise NotFound(
            f"{path} cannot be written: {error.strerror or error}", param="output", value=str(path)
        ) from error


def _replace(target: Path, content: bytes) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
