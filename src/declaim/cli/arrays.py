"""Reading and writing the integer arrays that commands exchange as .npy files."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from declaim.audio.files import write_whole
from declaim.contracts.errors import InvalidRequest, NotFound


def read_integers(path: Path, param: str) -> NDArray[np.int64]:
    """A 2-dimensional integer array, as int64.

    Raises NotFound, or InvalidRequest naming `param` for anything that is not such a file.
    """
    if not path.is_file():
        raise NotFound(f"{param}: there is no file {path}", param=param, value=str(path))
    try:
        with path.open("rb") as file:
            array = np.load(file, allow_pickle=False)
    except Exception as error:  # numpy's readers of headers and archives raise nothing narrower
        raise InvalidRequest(
            f"{param}: {path} is not a readable .npy file", param=param, value=str(path)
        ) from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "iu":
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else "an archive"
        raise InvalidRequest(
            f"{param}: {path} must hold a 2-dimensional integer array, not {found}",
            param=param,
            limit="integers [rows, columns]",
            value=found,
        )
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise InvalidRequest(
            f"{param}: {path} holds {int(array.max())}, more than a signed 64-bit integer",
            param=param,
            limit=np.iinfo(np.int64).max,
            value=int(array.max()),
        )
    return array.astype(np.int64)


def write_integers(path: Path, array: NDArray[np.int64]) -> None:
    """Write int64, whole or not at all."""
    content = io.BytesIO()
    np.save(content, np.ascontiguousarray(array, dtype=np.int64))
    write_whole(path, content.getvalue())
