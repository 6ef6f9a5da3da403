"""Output paths, checked before the work whose results they are to hold."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from declaim.contracts.errors import InvalidRequest, NotFound


def prepare_output(path: Path, param: str) -> None:
    """Make the folder of a file to write.

    Raises NotFound, naming `param`, where the file could not be written.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        reason = "it is a directory"
    elif not path.parent.is_dir():
        reason = f"{path.parent} is no directory and cannot be made one"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "writing there is not allowed"
    else:
        return
    raise NotFound(f"{param}: {path} cannot be written: {reason}", param=param, value=str(path))


def check_distinct(outputs: Iterable[tuple[str, Path]]) -> None:
    """Raise InvalidRequest if two outputs, (parameter, path) each, are one file.

    A device or a pipe may be named as often as one likes.
    """
    seen: dict[str, str] = {}
    for param, path in outputs:
        target = os.path.realpath(path)
        if os.path.exists(target) and not os.path.isfile(target):
            continue
        if target in seen:
            raise InvalidRequest(
                f"{param}: {path} is written by {seen[target]} already",
                param=param,
                limit="a file for each output",
                value=str(path),
            )
        seen[target] = param
