"""Tensors as codec files hold them -> the plain weights of the network.

A weight may be stored plain or as a magnitude g and a direction v (weight norm, two spellings);
then it is g * v / ||v||, the norm taken over every dimension but the first. Knows no file.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.codec.names import IGNORED_SUFFIXES, Shapes
from declaim.contracts.errors import InvalidCheckpoint

_SHOWN = 8

_PLAIN, _MAGNITUDE, _DIRECTION = "plain", "magnitude", "direction"
_SPELLINGS = (
    (".parametrizations.weight.original0", _MAGNITUDE),
    (".parametrizations.weight.original1", _DIRECTION),
    (".weight_g", _MAGNITUDE),
    (".weight_v", _DIRECTION),
)


@dataclass(frozen=True)
class StoredWeight:
    """Where one weight comes from: the stored names of its parts."""

    plain: str | None = None
    magnitude: str | None = None
    direction: str | None = None

    def fold(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The weight as a float32 tensor of its own memory."""
        if self.plain is not None:
            return tensors[self.plain].to(torch.float32, copy=True).contiguous()
        assert self.magnitude is not None and self.direction is not None
        direction = tensors[self.direction].to(torch.float32)
        norm = direction.flatten(1).square().sum(1).sqrt()
        shape = (-1, *[1] * (direction.dim() - 1))
        scale = tensors[self.magnitude].to(torch.float32).reshape(shape) / norm.reshape(shape)
        return (direction * scale).contiguous()


def match_weights(tensors: Mapping[str, object], shapes: Shapes) -> dict[str, StoredWeight]:
    """Weight name -> where it comes from, for every name of `shapes`.

    Raises one InvalidCheckpoint naming all tensors that are missing, that nothing uses, or whose
    shape or type is wrong. Buffers that nothing needs (IGNORED_SUFFIXES) may be there.
    """
    parts: dict[str, dict[str, str]] = {}
    unexpected = []
    for stored in sorted(tensors):
        if stored.rsplit(".", 1)[-1] in IGNORED_SUFFIXES:
            continue
        name, part = _weight_of(stored)
        if name not in shapes or part in parts.setdefault(name, {}):
            unexpected.append(stored)
        else:
            parts[name][part] = stored
    missing, wrong, found = [], [], {}
    for name, shape in shapes.items():
        have = parts.get(name, {})
        if _PLAIN in have:
            unexpected += [stored for part, stored in have.items() if part != _PLAIN]
            have = {_PLAIN: have[_PLAIN]}
        elif len(have) < 2:
            missing.append(name if not have else f"{name} (only {next(iter(have.values()))})")
            continue
        wrong += [
            problem
            for part, stored in have.items()
            if (problem := _problem(stored, tensors[stored], shape, part))
        ]
        found[name] = StoredWeight(**have)
    _report(missing, sorted(unexpected), wrong)
    return found


def _weight_of(stored: str) -> tuple[str, str]:
    for suffix, part in _SPELLINGS:
        if stored.endswith(suffix):
            return f"{stored.removesuffix(suffix)}.weight", part
    return stored, _PLAIN


def _problem(stored: str, tensor: object, shape: tuple[int, ...], part: str) -> str | None:
    """What is wrong with a stored tensor of a weight of this shape, if anything."""
    wanted = (shape[0], *[1] * (len(shape) - 1)) if part == _MAGNITUDE else shape
    if not isinstance(tensor, Tensor):
        return f"{stored} is no tensor"
    if tensor.shape != wanted:
        return f"{stored} is {list(tensor.shape)}, not {list(wanted)}"
    if not tensor.dtype.is_floating_point or tensor.layout != torch.strided:
        return f"{stored} is {tensor.dtype} ({tensor.layout}), not dense floating point"
    return None


def _report(missing: list[str], unexpected: list[str], wrong: list[str]) -> None:
    kinds = (("missing", missing), ("unexpected", unexpected), ("wrong", wrong))
    if not any(names for _, names in kinds):
        return
    said = "; ".join(f"{len(names)} {kind}: {_listed(names)}" for kind, names in kinds if names)
    raise InvalidCheckpoint(
        f"the codec's tensors do not match its configuration: {said}",
        param="codec",
        limit="every tensor of the configuration once, and no other",
        value=dict(kinds),
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
