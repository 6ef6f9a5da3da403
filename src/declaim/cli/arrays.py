"""Reading and writing the integer arrays that commands exchange as .npy files."""

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from declaim.audio.files import open_whole, write_whole
from declaim.contracts.errors import InvalidRequest, NotFound
from declaim.contracts.request import IntArray


def open_integers(path: Path, param: str) -> IntArray:
    """A 2-dimensional integer array of any integer type, memory-mapped.

    Raises NotFound, or InvalidRequest naming `param` for anything that is not such a file.
    """
    if not path.is_file():
        raise NotFound(f"{param}: there is no file {path}", param=param, value=str(path))
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # numpy's readers of headers and archives raise nothing narrower
        raise InvalidRequest(
            f"{param}: {path} is not a readable .npy file", param=param, value=str(path)
        ) from error
    if array.ndim != 2 or array.dtype.kind not in "iu":
        found = f"{array.dtype} {array.shape}"
        raise InvalidRequest(
            f"{param}: {path} must hold a 2-dimensional integer array, not {found}",
            param=param,
            limit="integers [rows, columns]",
            value=found,
        )
    return array


def read_integers(path: Path, param: str) -> NDArray[np.int64]:
    """A 2-dimensional integer array, as int64; raises what `open_integers` raises."""
    array = open_integers(path, param)
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


@contextlib.contextmanager
def integer_columns(
    path: Path, shape: tuple[int, int]
) -> Iterator[Callable[[NDArray[np.int64]], None]]:
    """Write int64 [rows, columns], some columns [rows, k] at a time; whole or not at all.

    The array lies in the file column after column. Folders on the way are made.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    header = {"descr": "<i8", "fortran_order": True, "shape": shape}
    with open_whole(path) as file:
        np.lib.format.write_array_header_1_0(file, header)

        def write(columns: NDArray[np.int64]) -> None:
            file.write(np.ascontiguousarray(columns.T, dtype="<i8").tobytes())

        yield write
