"""Random network parameters from a configuration alone, with scales that keep draws lively.

Each parameter, and each expert, has its own generator keyed by (seed, name), so a value depends
on nothing else; torch's global generator is never touched. Values are rounded to the checkpoint's
dtype, so that a written and reloaded random checkpoint holds the same numbers.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from declaim.checkpoint.names import Parameter, network_parameters
from declaim.checkpoint.weights import Experts, LazyExperts, NetworkWeight, prepare_weights
from declaim.config.model import ModelConfig
from declaim.ops.table import Handle, OpTable

HEAD_SPREAD = 2.0
"""Standard deviation of main and code logits: neither uniform nor certain."""

DTYPES: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
"""torch's dtype by the name in config.json."""


def random_weights(config: ModelConfig, ops: OpTable, seed: int = 0) -> dict[str, Handle]:
    """Weight handles of every network parameter, random, by the network's names."""
    return prepare_weights(random_parameters(config, seed), ops)


def random_parameters(
    config: ModelConfig, seed: int = 0
) -> Iterator[tuple[Parameter, NetworkWeight]]:
    """Every network parameter with a random value in the checkpoint's dtype."""
    dtype = DTYPES[config.dtype]
    for parameter in network_parameters(config):
        if parameter.kind == "experts":
            yield parameter, _experts(parameter, seed, dtype)
        else:
            yield parameter, _value(parameter, seed).to(dtype)


def named_generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator that depends on the seed and the name alone."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _experts(parameter: Parameter, seed: int, dtype: torch.dtype) -> Experts:
    count, width, hidden = parameter.shape

    def make(part: str, rows: int, columns: int, expert: int) -> Tensor:
        generator = named_generator(seed, f"{parameter.name}.{expert}.{part}")
        return _normal(generator, (rows, columns), columns**-0.5).to(dtype)

    return Experts(
        LazyExperts(count, lambda expert: make("gate_up", 2 * width, hidden, expert)),
        LazyExperts(count, lambda expert: make("down", hidden, width, expert)),
    )


def _value(parameter: Parameter, seed: int) -> Tensor:
    """float32, of the parameter's shape."""
    generator = named_generator(seed, parameter.name)
    last = parameter.name.rpartition(".")[2]
    if parameter.kind == "table":
        return _normal(generator, parameter.shape, 1.0)
    if parameter.kind == "conv":
        return _normal(generator, parameter.shape, 0.5)
    if parameter.kind == "linear":
        spread = HEAD_SPREAD if last in ("lm_head", "head") else 1.0
        return _normal(generator, parameter.shape, spread * parameter.shape[1] ** -0.5)
    if last == "a_log":
        return torch.empty(parameter.shape).uniform_(1.0, 16.0, generator=generator).log()
    if last == "dt_bias":
        low, high = math.log(0.001), math.log(0.1)
        step = torch.empty(parameter.shape).uniform_(low, high, generator=generator).exp()
        return step.expm1().log()
    centre = 1.0 if parameter.name.endswith("delta.norm") else 0.0
    return centre + _normal(generator, parameter.shape, 0.1)


def _normal(generator: torch.Generator, shape: tuple[int, ...], spread: float) -> Tensor:
    return torch.randn(shape, generator=generator) * spread
