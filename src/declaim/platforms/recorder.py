"""The CPU's graph: a program of op calls with fixed buffers, replayed in order.

While recording, ops are noted and not computed, as on a device: outputs get buffers by the op's
spec, whose memory is never touched. All programs are then placed into one arena, where a buffer
lives from the call that writes it to the last that reads it; programs share the arena, since one
runs at a time and hands nothing over but by the step's own tensors.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from declaim.ops.specs import op_specs
from declaim.ops.table import OpSpec, OpTable
from declaim.platforms.guard import RecordingGuard, storage_of, tensors_in

ALIGNMENT = 64
"""Bytes: every buffer starts at a multiple, so that any dtype can view it."""

COLLECTIVES = frozenset({"all_reduce", "all_gather"})
"""Ops that give their operand back at one rank."""


@dataclass(frozen=True)
class Place:
    """A tensor as a program knows it.

    buffer: number of the program's own buffer, or None: memory that it was given. start: the first
    element in the buffer, or the address of given memory.
    """

    buffer: int | None
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Opaque:
    """A weight handle, known by its identity."""

    identity: int


Role = Any
"""A Place, an Opaque, a static value, or a tuple of roles."""


@dataclass(frozen=True)
class Call:
    """One op call by the roles of its arguments. stateful: it changes state besides its outputs."""

    name: str
    arguments: tuple[Role, ...]
    keywords: tuple[tuple[str, Role], ...]
    outputs: tuple[Place, ...]
    stateful: bool

    def __str__(self) -> str:
        """The op and the shapes it reads and writes."""
        read = " ".join(str(list(role.shape)) for role in self.arguments if isinstance(role, Place))
        written = " ".join(str(list(place.shape)) for place in self.outputs)
        return f"{self.name} {read} -> {written or 'state'}"


@dataclass(frozen=True)
class Piece:
    """Calls that one graph replays; `stateful` pieces are single calls between graphs."""

    calls: tuple[Call, ...]
    stateful: bool


Bound = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A method of the real table, its arguments and its keywords, `out` among them."""


class Program:
    """What one recording noted. Two programs are equal if their calls are.

    whole: stateful ops belong to the one piece; else they stand between pieces.
    """

    def __init__(self, calls: tuple[Call, ...], bound: Sequence[Bound], *, whole: bool) -> None:
        self.calls = calls
        self.whole = whole
        self.buffer_bytes = 0
        self._bound = bound
        self._replayed: tuple[Callable[[], Any], ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and (self.calls, self.whole) == (other.calls, other.whole)

    def __hash__(self) -> int:
        return hash((self.calls, self.whole))

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The calls in order, cut at stateful ops unless the program is whole."""
        if self.whole:
            return (Piece(self.calls, stateful=False),)
        pieces: list[Piece] = []
        for call in self.calls:
            if pieces and not call.stateful and not pieces[-1].stateful:
                pieces[-1] = Piece((*pieces[-1].calls, call), stateful=False)
            else:
                pieces.append(Piece((call,), stateful=call.stateful))
        return tuple(pieces)

    def replay(self) -> None:
        """Compute every call again, into the same outputs."""
        for call in self._replayed:
            call()

    def layout(self) -> tuple[dict[int, int], int]:
        """First byte of every buffer, by number, and bytes in all: first fit, call by call."""
        born, died, size = _lifetimes(self.calls)
        starts: dict[int, int] = {}
        live: list[tuple[int, int, int]] = []
        total = 0
        for buffer in sorted(born, key=lambda number: (born[number], number)):
            live = [entry for entry in live if entry[2] >= born[buffer]]
            start = 0
            for low, high, _ in live:
                if start + size[buffer] <= low:
                    break
                start = max(start, high)
            starts[buffer] = start
            total = max(total, start + size[buffer])
            insort(live, (start, start + size[buffer], died[buffer]))
        return starts, total

    def place(self, arena: Tensor, starts: Mapping[int, int], buffers: Mapping[int, int]) -> None:
        """Move every buffer into the arena uint8 [bytes]; buffers: their numbers by storage."""

        def moved(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(moved(item) for item in value)
            if not isinstance(value, Tensor) or storage_of(value) not in buffers:
                return value
            start = starts[buffers[storage_of(value)]] // value.element_size()
            whole = arena.view(value.dtype)
            first = start + value.storage_offset()
            return whole.as_strided(value.shape, value.stride(), first)

        self._replayed = tuple(
            partial(
                method,
                *(moved(value) for value in arguments),
                **{name: moved(value) for name, value in keywords.items()},
            )
            for method, arguments, keywords in self._bound
        )
        self._bound = ()


def _lifetimes(calls: Sequence[Call]) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """By buffer: the call that writes it first, the last that uses it, and its padded bytes."""
    born: dict[int, int] = {}
    died: dict[int, int] = {}
    size: dict[int, int] = {}
    for number, call in enumerate(calls):
        for place in _places((call.arguments, call.keywords, call.outputs)):
            if place.buffer is not None:
                born.setdefault(place.buffer, number)
                died[place.buffer] = number
        for place in call.outputs:
            if place.buffer is not None and place.buffer not in size:
                count = torch.Size(place.shape).numel() * place.dtype.itemsize
                size[place.buffer] = -(-count // ALIGNMENT) * ALIGNMENT
    return born, died, size


def _places(role: Role) -> Iterator[Place]:
    if isinstance(role, Place):
        yield role
    elif isinstance(role, tuple):
        for item in role:
            yield from _places(item)


class _Recording:
    """Notes the calls of one body."""

    def __init__(self, guard: RecordingGuard, *, alone: bool) -> None:
        self.guard = guard
        self.alone = alone
        self.calls: list[Call] = []
        self.bound: list[Bound] = []
        self.made: list[Tensor] = []
        self.buffers: dict[int, int] = {}
        self.groups: dict[int, Role] = {}

    def call(self, spec: OpSpec, method: Any, *arguments: Any, **keywords: Any) -> Any:
        """Note one call; its outputs are buffers of the program unless `out` is given."""
        with self.guard.inside_op():
            out = keywords.pop("out", None)
            if self.alone and spec.name in COLLECTIVES and out is None:
                return arguments[0]
            outputs = spec.outputs(*arguments, **keywords)
            if outputs:
                out = self._buffers(outputs, arguments[0].device) if out is None else out
                keywords["out"] = out
            static = {name: value for name, value in keywords.items() if name != "out"}
            self.calls.append(
                Call(
                    name=spec.name,
                    arguments=tuple(self._role(value) for value in arguments),
                    keywords=tuple(
                        (name, self._role(value)) for name, value in sorted(static.items())
                    ),
                    outputs=tuple(self._place(tensor) for tensor in tensors_in(out)),
                    stateful=bool(spec.effects),
                )
            )
            self.bound.append((method, arguments, keywords))
            return out

    def _buffers(
        self, outputs: Sequence[tuple[tuple[int, ...], torch.dtype]], device: torch.device
    ) -> Tensor | tuple[Tensor, ...]:
        made = tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in outputs)
        for tensor in made:
            self.buffers[storage_of(tensor)] = len(self.made)
            self.made.append(tensor)
        return made[0] if len(made) == 1 else made

    def _place(self, tensor: Tensor) -> Place:
        buffer = self.buffers.get(storage_of(tensor))
        start = tensor.data_ptr() if buffer is None else int(tensor.storage_offset())
        return Place(buffer, start, tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def _role(self, value: Any) -> Role:
        if isinstance(value, Tensor):
            return self._place(value)
        if isinstance(value, tuple):
            return tuple(self._role(item) for item in value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if is_dataclass(value) and type(value).__module__.startswith("declaim.state."):
            if id(value) not in self.groups:
                parts = (getattr(value, field.name) for field in fields(value))
                self.groups[id(value)] = tuple(self._role(part) for part in parts)
            return self.groups[id(value)]
        return Opaque(id(value))


class RecordingOps:
    """An op table behind a recorder: calls reach the table itself, but while it records."""

    def __init__(self, table: OpTable) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


class Recorder:
    """Records programs of one op table. ops: what model code must compute with."""

    def __init__(self, table: OpTable) -> None:
        self.specs = op_specs(table.collectives.size)
        self.alone = table.collectives.size == 1
        self._methods = {name: getattr(table, name) for name in self.specs}
        self._noted = RecordingOps(table)
        vars(self._noted).update(self._methods)
        self.ops = cast(OpTable, self._noted)
        self._waiting: list[tuple[Program, _Recording]] = []

    def record(self, body: Callable[[], None], *, whole: bool) -> Program:
        """Note what the body computes, without computing it; `finish` makes it replayable.

        whole: stateful ops are inside the graph. Raises UnrecordedWork if the body works on
        tensors by itself.
        """
        guard = RecordingGuard()
        recording = _Recording(guard, alone=self.alone)
        vars(self._noted).update(
            {
                name: partial(recording.call, spec, self._methods[name])
                for name, spec in self.specs.items()
            }
        )
        try:
            with guard.watching():
                body()
        finally:
            vars(self._noted).update(self._methods)
        program = Program(tuple(recording.calls), recording.bound, whole=whole)
        self._waiting.append((program, recording))
        return program

    def finish(self) -> int:
        """Place the programs recorded since the last time into one arena; its bytes."""
        layouts = [program.layout() for program, _ in self._waiting]
        total = max((size for _, size in layouts), default=0)
        arena = torch.empty(total, dtype=torch.uint8, device=self._device())
        for (program, recording), (starts, size) in zip(self._waiting, layouts, strict=True):
            program.place(arena, starts, recording.buffers)
            program.buffer_bytes = size
        self._waiting = []
        return total

    def _device(self) -> torch.device | None:
        made = (tensor for _, recording in self._waiting for tensor in recording.made)
        return next((tensor.device for tensor in made), None)
