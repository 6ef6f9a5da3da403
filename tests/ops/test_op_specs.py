"""Every op keeps its spec: shapes, dtypes, `out`, what it changes and what it leaves alone."""

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest
import torch
from op_memory import Memory, Part, same_bytes
from torch import Tensor

from declaim.ops.plain import PlainOps
from declaim.ops.reference import ReferenceOps
from declaim.ops.specs import SPECS, op_specs
from declaim.ops.table import OpTable
from declaim.parallel.ranks import Ranks
from declaim.state.frames import FrameState, SamplingTensors

Normal = Callable[..., Tensor]
Arguments = dict[str, Any]

ROWS, HIDDEN, HEADS, KV_HEADS, WIDTH, SLOTS = 6, 33, 4, 2, 24, 4
BAND = (10, 21)


@pytest.fixture(params=[ReferenceOps, PlainOps], ids=["reference", "plain"])
def ops(request: pytest.FixtureRequest) -> ReferenceOps:
    """Every table in turn."""
    table: ReferenceOps = request.param(Ranks())
    return table


@dataclass(frozen=True)
class Cases:
    """Arguments of every op, by name; each call makes them anew."""

    ops: ReferenceOps
    normal: Normal
    dtype: torch.dtype

    def rows(self, *shape: int) -> Tensor:
        return self.normal(ROWS, *shape).to(self.dtype)

    def memory(self) -> Memory:
        return Memory(slots=SLOTS, pages=6)

    def spans(self) -> Any:
        return self.memory().spans([Part(0, 0, 2, (4,)), Part(2, 0, 3, (1,))], padding=1)

    def frame_rows(self) -> Tensor:
        rows = torch.arange(ROWS * 5, dtype=torch.int32).view(ROWS, 5)
        return torch.cat([rows[:, :1] + 5, rows[:, 1:] % 12], 1)

    def sampling(self) -> SamplingTensors:
        def ones(name: str) -> Tensor:
            real = name.endswith(("temperature", "top_p"))
            return torch.ones(SLOTS + 1, dtype=torch.float32 if real else torch.int32)

        return SamplingTensors(
            **{field.name: ones(field.name) for field in fields(SamplingTensors)}
        )

    def slot(self) -> Tensor:
        return torch.tensor([3, 1, 4, 0, 4, 2], dtype=torch.int32)

    def linear(self) -> Arguments:
        w = self.ops.prepare_linear(self.normal(10, HIDDEN))
        return {"x": self.rows(HIDDEN), "w": w, "base": self.rows(10), "scale": self.rows(1)}

    def rms_norm(self) -> Arguments:
        weight = self.ops.prepare_vector(self.normal(HIDDEN))
        return {"x": self.rows(HIDDEN), "weight": weight, "eps": 1e-6, "zero_centred": True}

    def causal_conv(self) -> Arguments:
        tail = self.memory().slot_state(3, HIDDEN, dtype=self.dtype)
        tail[:3] = 0.0
        weight = self.ops.prepare_conv(self.normal(HIDDEN, 4))
        return {"x": self.rows(HIDDEN), "weight": weight, "spans": self.spans(), "tail": tail}

    def delta_rule(self) -> Arguments:
        state = self.memory().slot_state(HEADS, WIDTH, 16)
        state[:3] = 0.0
        return {
            "qkv": self.rows(2 * KV_HEADS * WIDTH + HEADS * 16),
            "b": self.rows(HEADS),
            "a": self.rows(HEADS),
            "a_log": self.ops.prepare_vector(self.normal(HEADS)),
            "dt_bias": self.ops.prepare_vector(self.normal(HEADS)),
            "spans": self.spans(),
            "state": state,
            "heads": (KV_HEADS, HEADS),
            "widths": (WIDTH, 16),
        }

    delta_rule_chunked = delta_rule

    def gated_norm(self) -> Arguments:
        weight = self.ops.prepare_vector(self.normal(WIDTH))
        z = self.rows(HEADS * WIDTH)
        return {"o": self.rows(HEADS, WIDTH), "z": z, "weight": weight, "eps": 1e-6}

    def qk_norm_rope(self) -> Arguments:
        return {
            "q": self.rows(HEADS * WIDTH),
            "k": self.rows(KV_HEADS * WIDTH),
            "q_weight": self.ops.prepare_vector(self.normal(WIDTH)),
            "k_weight": self.ops.prepare_vector(self.normal(WIDTH)),
            "position": self.spans().position,
            "eps": 1e-6,
            "rotary": 8,
            "theta": 1e4,
            "interleaved": True,
        }

    def attend(self) -> Arguments:
        return {
            "q": self.rows(HEADS, WIDTH),
            "k": self.rows(KV_HEADS, WIDTH),
            "v": self.rows(KV_HEADS * WIDTH),
            "gate": self.rows(HEADS * WIDTH),
            "spans": self.spans(),
            "pages": self.memory().page_state(KV_HEADS, WIDTH, self.dtype),
        }

    def router(self) -> Arguments:
        w = self.ops.prepare_linear(self.normal(8, HIDDEN))
        return {"x": self.rows(HIDDEN), "w": w, "top_k": 3}

    def experts(self) -> Arguments:
        w = self.ops.prepare_experts(
            list(self.normal(4, 32, HIDDEN)), list(self.normal(4, HIDDEN, 16))
        )
        ids = self.normal(ROWS, 4).argsort(-1)[:, :2].int()
        weights, base = self.normal(ROWS, 2).abs(), self.rows(HIDDEN)
        return {"x": self.rows(HIDDEN), "weights": weights, "ids": ids, "w": w, "base": base}

    def embed(self) -> Arguments:
        return {
            "rows": self.frame_rows(),
            "table": self.ops.prepare_table(self.normal(40, HIDDEN)),
            "codebooks": self.ops.prepare_table(self.normal(48, HIDDEN)),
            "band": BAND,
            "codes": 2,
        }

    def extra_codes(self) -> Arguments:
        codebooks = self.ops.prepare_table(self.normal(48, HIDDEN))
        return {"rows": self.frame_rows(), "codebooks": codebooks, "band": BAND, "first": 3}

    def tower_input(self) -> Arguments:
        return {
            "h": self.rows(HIDDEN),
            "frames": self.frame_rows(),
            "table": self.ops.prepare_table(self.normal(12, HIDDEN)),
            "extra": self.rows(HIDDEN),
            "enorm": self.ops.prepare_vector(self.normal(HIDDEN)),
            "hnorm": self.ops.prepare_vector(self.normal(HIDDEN)),
            "column": 2,
            "band": BAND,
            "eps": 1e-6,
        }

    def gather_rows(self) -> Arguments:
        index = torch.tensor([3, -1, 0, 5], dtype=torch.int32)
        return {"source": self.rows(3, 2), "index": index}

    def noise(self) -> Arguments:
        rows = torch.arange(SLOTS + 1)
        return {"seed": rows, "counter": rows, "slot": self.slot(), "draws": 3, "width": 15}

    def draw_main(self) -> Arguments:
        return {
            "logits": self.normal(ROWS, 13),
            "u": self.normal(3, ROWS, 15).sigmoid(),
            "parameters": self.sampling(),
            "window": torch.full((SLOTS + 1, 4), 12, dtype=torch.int32),
            "candidates": torch.arange(9, 22, dtype=torch.int32),
            "slot": self.slot(),
            "band": BAND,
        }

    def draw_code(self) -> Arguments:
        u = self.normal(ROWS, 15).sigmoid()
        logits = self.normal(ROWS, 12)
        return {"logits": logits, "u": u, "parameters": self.sampling(), "slot": self.slot()}

    def write_frame(self) -> Arguments:
        rows = SLOTS + 1
        state = FrameState(
            last=torch.zeros(rows, 5, dtype=torch.int32),
            window=torch.full((rows, 4), -1, dtype=torch.int32),
            counter=torch.zeros(rows, dtype=torch.int64),
            seed=torch.zeros(rows, dtype=torch.int64),
            sampling=self.sampling(),
        )
        return {"frames": self.frame_rows(), "slot": self.slot(), "state": state}

    def all_reduce(self) -> Arguments:
        return {"x": self.rows(HIDDEN)}

    all_gather = all_reduce


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor inside an argument."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors(item)


def unchanged(found: Any, wanted: Any) -> bool:
    pairs = zip(tensors(found), tensors(wanted), strict=True)
    return all(same_bytes(one.flatten(), other.flatten()) for one, other in pairs)


def results(made: Any) -> tuple[Tensor, ...]:
    return () if made is None else made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SPECS)
def test_an_op_keeps_its_spec(
    ops: ReferenceOps, normal: Normal, name: str, dtype: torch.dtype
) -> None:
    spec, op = SPECS[name], getattr(ops, name)
    arguments: Arguments = getattr(Cases(ops, normal, dtype), name)()
    before, again = copy.deepcopy(arguments), copy.deepcopy(arguments)
    found = results(op(**arguments))
    outputs = spec.outputs(**before)
    assert [(tuple(each.shape), each.dtype) for each in found] == list(outputs)
    for argument, value in arguments.items():
        assert unchanged(value, before[argument]) == (argument not in spec.effects), argument

    if not outputs:
        return
    buffers = tuple(torch.full(shape, 77, dtype=kind) for shape, kind in outputs)
    out = buffers if len(buffers) > 1 else buffers[0]
    written = op(**again, out=out)
    assert all(one is other for one, other in zip(results(written), buffers, strict=True))
    for one, other in zip(buffers, found, strict=True):
        assert same_bytes(one.flatten(), other.flatten())
    assert unchanged(again, arguments), "with out, the op has the same effects"


@pytest.mark.parametrize("epilogue", ["store", "add", "silu_mul", "scaled_add"])
def test_linear_keeps_its_spec_with_every_epilogue(
    ops: ReferenceOps, normal: Normal, epilogue: str
) -> None:
    arguments = Cases(ops, normal, torch.float32).linear() | {"epilogue": epilogue}
    found = ops.linear(**arguments)
    assert ((tuple(found.shape), found.dtype),) == SPECS["linear"].outputs(**arguments)


def test_outputs_need_no_data(ops: ReferenceOps, normal: Normal) -> None:
    """Tensors on the meta device, given by position as a call gives them."""
    cases = Cases(ops, normal, torch.float32)
    for name, spec in SPECS.items():
        arguments: Arguments = getattr(cases, name)()
        signature = inspect.signature(getattr(ops, name))
        wanted = spec.outputs(**arguments)
        bound = signature.bind(
            **{
                key: value.to("meta") if isinstance(value, Tensor) else value
                for key, value in arguments.items()
            }
        )
        assert spec.outputs(*bound.args, **bound.kwargs, out=None) == wanted, name


def test_there_is_a_spec_for_every_op() -> None:
    ops = {
        name
        for name, method in vars(OpTable).items()
        if inspect.isfunction(method) and not name.startswith(("_", "prepare_"))
    }
    assert set(SPECS) == ops
    assert all(spec.name == name for name, spec in SPECS.items())
    for name, spec in SPECS.items():
        parameters = inspect.signature(getattr(OpTable, name)).parameters
        arguments = {each.partition(".")[0] for each in spec.host_arguments}
        assert {*spec.effects, *arguments} <= set(parameters)
        assert ("out" in parameters) == (name != "write_frame")


def test_joined_results_are_as_wide_as_there_are_ranks() -> None:
    x = torch.empty(5, 7, device="meta")
    assert op_specs(ranks=3)["all_gather"].outputs(x) == (((5, 21), torch.float32),)
    assert op_specs(ranks=3)["all_reduce"].outputs(x) == (((5, 7), torch.float32),)
