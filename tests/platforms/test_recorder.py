"""What may stand between op calls while they are recorded, and where the buffers come to lie."""

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from declaim.ops.reference import ReferenceOps
from declaim.parallel.ranks import Ranks
from declaim.platforms.guard import UnrecordedWork
from declaim.platforms.recorder import Program, Recorder

Body = Callable[[Tensor], object]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(ReferenceOps(Ranks()))


def discard(body: Body, x: Tensor) -> None:
    """A body that gives nothing back, as a recorder takes it."""
    body(x)


def split_alone(x: Tensor) -> object:
    return [x.split((1, 3), -1), x.chunk(2), x[:, 1], x[0], x[1:3], x.view(-1), x.t(), x.unbind()]


def free_of_charge(x: Tensor) -> object:
    return x.float(), x.contiguous(), x.shape[0], x.dim(), len(x), x.dtype, x.device, x.numel()


@pytest.mark.parametrize("body", [split_alone, free_of_charge])
def test_views_and_metadata_are_free(recorder: Recorder, body: Body) -> None:
    x = torch.randn(4, 4)
    with torch.inference_mode():
        program = recorder.record(partial(discard, body, x), whole=True)
    assert program.calls == ()


FAULTS: dict[str, Body] = {
    "clone": lambda x: x.clone(),
    "copy into": lambda x: x[0].copy_(x[1]),
    "cast": lambda x: x.double(),
    "copying reshape": lambda x: x.t().reshape(-1),
    "contiguous copy": lambda x: x.t().contiguous(),
    "factory": lambda x: torch.zeros(3),
    "like": lambda x: torch.empty_like(x),
    "from a list": lambda x: torch.tensor([1, 2]),
    "from numpy": lambda x: torch.from_numpy(np.zeros(3)),
    "product": lambda x: x @ x,
    "sum": lambda x: x + 1,
    "in place": lambda x: x.add_(1),
    "into out": lambda x: torch.add(x, x, out=x),
    "assignment": lambda x: x.__setitem__(0, 1.0),
    "gather": lambda x: x[[1, 0]],
    "item": lambda x: x[0, 0].item(),
    "int": lambda x: int(x[0, 0]),
    "bool": lambda x: bool(x[0, 0]),
    "bool of many": lambda x: bool(x),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "array": lambda x: np.asarray(x),
    "comparison": lambda x: torch.equal(x, x),
    "text": lambda x: f"{x[0, 0]}",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_work_outside_ops_is_refused_with_its_line(recorder: Recorder, fault: str) -> None:
    body, x = FAULTS[fault], torch.eye(4)
    line = body.__code__.co_firstlineno
    with torch.inference_mode(), pytest.raises(UnrecordedWork) as caught:
        recorder.record(partial(discard, body, x), whole=True)
    assert f"{__file__}:{line}: " in str(caught.value)
    assert torch.equal(x, torch.eye(4)), "a refused write was carried out"


def test_a_refusal_leaves_the_table_as_it_was(recorder: Recorder) -> None:
    x = torch.ones(2, 4)
    weight = recorder.ops.prepare_vector(torch.zeros(4))
    with torch.inference_mode(), pytest.raises(UnrecordedWork):
        recorder.record(partial(discard, Tensor.clone, x), whole=True)
    y = recorder.ops.rms_norm(x, weight, eps=0.0, zero_centred=True)
    assert torch.equal(y, x)
    assert torch.equal(x + 1, torch.full((2, 4), 2.0))


def norms(recorder: Recorder, x: Tensor, out: Tensor, *, count: int, eps: float = 0.0) -> Program:
    """A chain of norms, the last into out."""
    weight = torch.ones(x.shape[1])
    handle = recorder.ops.prepare_vector(weight)

    def body() -> None:
        y = x
        for _ in range(count - 1):
            y = recorder.ops.rms_norm(y, handle, eps=eps, zero_centred=False)
        recorder.ops.rms_norm(y, handle, eps=eps, zero_centred=False, out=out)

    with torch.inference_mode():
        return recorder.record(body, whole=True)


def test_nothing_is_computed_while_recording(recorder: Recorder) -> None:
    x, out = torch.full((2, 16), 3.0), torch.zeros(2, 16)
    program = norms(recorder, x, out, count=3)
    assert torch.equal(out, torch.zeros(2, 16))
    recorder.finish()
    program.replay()
    assert torch.equal(out, torch.ones(2, 16))
    x.fill_(-5.0)
    program.replay()
    assert torch.equal(out, -torch.ones(2, 16))


def test_buffers_are_used_again_once_they_are_read(recorder: Recorder) -> None:
    """A chain needs two buffers at any time, whatever its length; programs share one arena."""
    x, out = torch.ones(2, 16), torch.zeros(2, 16)
    long = norms(recorder, x, out, count=50)
    short = norms(recorder, x[:1], out[:1], count=4)
    assert recorder.finish() == 2 * 2 * 16 * 4
    assert (long.buffer_bytes, short.buffer_bytes) == (2 * 2 * 16 * 4, 2 * 16 * 4)


def test_buffers_that_live_together_lie_apart(recorder: Recorder) -> None:
    """Random programs of sums over earlier results; every replay gives what plain calls give."""
    generator = np.random.default_rng(0)
    weight = recorder.ops.prepare_linear(torch.eye(8))
    for _ in range(20):
        x, out = torch.randn(3, 8), torch.zeros(3, 8)
        picks = [tuple(generator.integers(0, step + 1, 2)) for step in range(12)]

        def body(x: Tensor = x, out: Tensor = out, picks: list[tuple[int, int]] = picks) -> None:
            made = [x]
            for left, right in picks:
                base = made[right]
                made.append(recorder.ops.linear(made[left], weight, base, epilogue="add"))
            recorder.ops.linear(made[-1], weight, made[-2], epilogue="add", out=out)

        with torch.inference_mode():
            body()
            wanted = out.clone()
            out.zero_()
            program = recorder.record(body, whole=True)
            recorder.finish()
            program.replay()
        assert torch.equal(out, wanted)


def test_equality_sees_arguments_addresses_and_static_values(recorder: Recorder) -> None:
    x, out = torch.ones(2, 16), torch.zeros(2, 16)
    weight = recorder.ops.prepare_vector(torch.ones(16))

    def one(x: Tensor, eps: float) -> Program:
        def body() -> None:
            recorder.ops.rms_norm(x, weight, eps=eps, zero_centred=True, out=out)

        with torch.inference_mode():
            return recorder.record(body, whole=True)

    first = one(x, 1e-6)
    assert first == one(x, 1e-6) and hash(first) == hash(one(x, 1e-6))
    assert first != one(x, 1e-5)
    assert first != one(torch.ones(2, 16), 1e-6)
    assert first != one(x[:, :8], 1e-6)
    assert [str(call) for call in first.calls] == ["rms_norm [2, 16] -> [2, 16]"]


def test_an_operand_comes_back_from_one_rank(recorder: Recorder) -> None:
    x = torch.ones(2, 2)
    with torch.inference_mode():
        program = recorder.record(
            lambda: None if recorder.ops.all_reduce(x) is x else sys.exit("copied"), whole=True
        )
    assert program.calls == ()
