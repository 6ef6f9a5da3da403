"""Which published tensor goes where: nothing missing, nothing unknown, everything used once.

Compares names, shapes and dtypes of the files with the network's parameters; reads no values.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from declaim.checkpoint.files import TensorEntry
from declaim.checkpoint.names import (
    IGNORED_OF_TEXT_MODEL,
    PREFIXES,
    Parameter,
    expert_names,
    network_parameters,
    scale_name,
    scale_shape,
    stacked_expert_names,
)
from declaim.config.model import ModelConfig
from declaim.contracts.errors import InvalidCheckpoint

ExpertLayout = Literal["stacked", "per_expert"]

FP8 = "F8_E4M3"
DENSE = ("BF16", "F16", "F32")
SCALES = ("BF16", "F32")
SHOWN = 5
"""How many names of a kind an error shows."""


@dataclass(frozen=True)
class Match:
    """A checkpoint's tensors, matched.

    layouts: expert layout by the stem of an experts parameter. ignored: names that are there but
    not of the network.
    """

    parameters: tuple[Parameter, ...]
    prefix: str
    layouts: Mapping[str, ExpertLayout]
    ignored: tuple[str, ...]


@dataclass
class _Findings:
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)


def match_tensors(config: ModelConfig, entries: Mapping[str, TensorEntry]) -> Match:
    """Match the files' tensors with the network that config describes.

    Raises one InvalidCheckpoint that names what is missing, unexpected and wrong.
    """
    prefix = _prefix(entries)
    parameters = network_parameters(config, prefix)
    layouts = _layouts(parameters, entries)
    findings = _Findings()
    for parameter in parameters:
        for name, shape, fp8 in _expected(config, parameter, layouts):
            _check(name, shape, fp8, entries, findings)
    rest = [name for name in entries if name not in findings.used]
    ignored = [n for n in rest if config.plain_text_model and n.startswith(IGNORED_OF_TEXT_MODEL)]
    unexpected = sorted(set(rest).difference(ignored))
    _report(findings, unexpected)
    return Match(parameters, prefix, layouts, tuple(sorted(ignored)))


def _prefix(entries: Mapping[str, TensorEntry]) -> str:
    for prefix in PREFIXES:
        if any(name.startswith(f"{prefix}layers.") for name in entries):
            return prefix
    return PREFIXES[0]


def _layouts(
    parameters: tuple[Parameter, ...], entries: Mapping[str, TensorEntry]
) -> dict[str, ExpertLayout]:
    single = re.compile(r"(.*\.experts)\.\d+\.")
    found = {match[1] for match in map(single.match, entries) if match}
    layouts: dict[str, ExpertLayout] = {}
    for parameter in parameters:
        if parameter.kind == "experts":
            stacked = set(stacked_expert_names(parameter.stem)) & set(entries)
            per_expert = parameter.stem in found and not stacked
            layouts[parameter.stem] = "per_expert" if per_expert else "stacked"
    return layouts


def _expected(
    config: ModelConfig, parameter: Parameter, layouts: Mapping[str, ExpertLayout]
) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """(name, shape, may be FP8) of each tensor that a parameter is made from."""
    method = config.quantization.method if config.quantization else None
    if parameter.kind != "experts":
        for source in parameter.sources:
            yield source.name, source.shape, parameter.kind == "linear" and method == "fp8"
        return
    count, width, hidden = parameter.shape
    fp8 = method is not None
    if layouts[parameter.stem] == "stacked":
        gate_up, down = stacked_expert_names(parameter.stem)
        yield gate_up, (count, 2 * width, hidden), fp8
        yield down, (count, hidden, width), fp8
        return
    for expert in range(count):
        gate, up, down = expert_names(parameter.stem, expert)
        yield gate, (width, hidden), fp8
        yield up, (width, hidden), fp8
        yield down, (hidden, width), fp8


def _check(
    name: str,
    shape: tuple[int, ...],
    fp8: bool,
    entries: Mapping[str, TensorEntry],
    findings: _Findings,
) -> None:
    entry = entries.get(name)
    scales = scale_name(name)
    if entry is None:
        findings.missing.append(name)
        return
    findings.used.add(name)
    _compare(name, entry, shape, DENSE + (FP8,) * fp8, findings)
    if entry.dtype == FP8 and fp8:
        if scales in entries:
            findings.used.add(scales)
            _compare(scales, entries[scales], scale_shape(shape), SCALES, findings)
        else:
            findings.wrong.append(f"{name} is {FP8} without {scales}")
    elif scales in entries:
        findings.used.add(scales)
        findings.wrong.append(f"{scales} scales {name}, which is {entry.dtype}")


def _compare(
    name: str,
    entry: TensorEntry,
    shape: tuple[int, ...],
    dtypes: tuple[str, ...],
    findings: _Findings,
) -> None:
    if entry.shape != shape:
        findings.wrong.append(f"{name} has shape {list(entry.shape)} instead of {list(shape)}")
    if entry.dtype not in dtypes:
        findings.wrong.append(f"{name} is {entry.dtype} instead of {' or '.join(dtypes)}")


def _report(findings: _Findings, unexpected: list[str]) -> None:
    parts = [
        f"{len(names)} {word}: {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
        for word, names in (
            ("missing", findings.missing),
            ("unexpected", unexpected),
            ("wrong", findings.wrong),
        )
        if names
    ]
    if parts:
        first = (*findings.missing, *unexpected, *findings.wrong)[0].split(" ")[0]
        raise InvalidCheckpoint(
            f"the tensors do not fit config.json ({'; '.join(parts)})", param=first
        )
