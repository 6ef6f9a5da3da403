"""Watches model code while it is recorded: views are free, any other work on tensors is an error.

Judges by storage: what comes back must lie in memory that went in, and nothing may be written.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

HOST_READS = frozenset({"tolist", "numpy", "__array__", "__dlpack__", "data_ptr"})
"""Methods of a tensor that hand its memory to the host without an operator that could be seen."""

UNSEEN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
"""Folders whose lines are never the culprit: torch's and the recorder's own."""


class UnrecordedWork(RuntimeError):
    """Model code worked on tensors outside the op table; the message names its line."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested sequences and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from tensors_in(item)


def storage_of(tensor: Tensor) -> int:
    """What tells one piece of memory from another, while both are alive."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


class RecordingGuard:
    """`watching` refuses work on tensors in its body; `inside_op` lifts that for an op's own."""

    def __init__(self) -> None:
        self.lifted = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Raises UnrecordedWork where the body works on tensors."""
        with ExitStack() as stack:
            stack.enter_context(_Operators(self))
            stack.enter_context(_Methods(self))
            yield

    @contextmanager
    def inside_op(self) -> Iterator[None]:
        """The body belongs to the recorder."""
        self.lifted = True
        try:
            with torch._C.DisableTorchFunction():
                yield
        finally:
            self.lifted = False

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The operator's result if it is a view, else UnrecordedWork."""
        schema = func._schema
        gives_tensors = any("Tensor" in str(part.type) for part in schema.returns)
        if schema.is_mutable or not gives_tensors or func is torch.ops.aten.lift_fresh.default:
            self.refuse(str(func))
        result = func(*args, **kwargs)
        given = {storage_of(tensor) for tensor in tensors_in((args, kwargs))}
        made = [storage_of(tensor) for tensor in tensors_in(result)]
        if not given.issuperset(made):
            self.refuse(str(func))
        return result

    def refuse(self, what: str) -> None:
        """Name what was done and the innermost line that is neither torch's nor ours."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(UNSEEN):
            frame = frame.f_back
        where = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}: "
        raise UnrecordedWork(f"{where}{what} outside the op table while a graph is recorded")


class _Operators(TorchDispatchMode):
    """Sees every operator, whatever it is called."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing here is compiled, and torch's compiler is not loaded for it."""
        return False

    def __init__(self, guard: RecordingGuard) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.guard = guard

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Pass a view on."""
        if self.guard.lifted:
            return func(*args, **(kwargs or {}))
        return self.guard.run(func, args, kwargs or {})


class _Methods(TorchFunctionMode):
    """Sees the host reads that no operator stands behind."""

    def __init__(self, guard: RecordingGuard) -> None:
        super().__init__()
        self.guard = guard

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Refuse a host read, pass on the rest."""
        name = getattr(func, "__name__", "")
        if name in HOST_READS:
            self.guard.refuse(name)
        return func(*args, **(kwargs or {}))
