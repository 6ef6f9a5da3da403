"""`declaim frames`: prompt rows in, generated frames out; needs no codec."""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer
from numpy.typing import NDArray

from declaim.cli.arrays import read_integers, write_integers
from declaim.cli.outputs import check_distinct, prepare_output
from declaim.contracts.errors import InvalidRequest
from declaim.contracts.request import (
    MAX_FRAMES,
    FrameRequest,
    Prompt,
    SamplingParams,
    check_integer,
)

if TYPE_CHECKING:
    from declaim.config.model import ModelConfig
    from declaim.engine.frames import FrameEngine


GraphMode = Literal["none", "piecewise", "full", "full_and_piecewise"]


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


PreemptEvery = Annotated[
    int | None, typer.Option(help="Preempt each request after every so many frames.")
]
PrefixCache = Annotated[
    Switch, typer.Option(help="Whether requests with a prefix in common share it.")
]
PrefixRows = Annotated[
    list[int] | None,
    typer.Option(help="Rows of each prefix, one per --rows; else up to the user turn's text."),
]


def frames(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    rows: Annotated[list[Path], typer.Option(help="Prompt rows, int64 [rows, 1 + Q]; repeat.")],
    output: Annotated[
        list[Path],
        typer.Option("--output", "-o", help="Frames, int64 [frames, 1 + Q]; one per --rows."),
    ],
    codes: Annotated[
        list[Path] | None, typer.Option(help="Codes too, int64 [Q, frames]; one per --rows.")
    ] = None,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Temperature 0, second main draw never taken.")
    ] = False,
    max_frames: Annotated[int, typer.Option(help="Most frames of a request.")] = MAX_FRAMES,
    max_batched_rows: Annotated[int, typer.Option(help="Most rows of a step.")] = 512,
    max_num_seqs: Annotated[int, typer.Option(help="Most requests that run at once.")] = 8,
    seed: Annotated[int | None, typer.Option(help="Request i draws with seed + i.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 to 2.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Above 0, at most 1.")] = None,
    top_k: Annotated[int | None, typer.Option(help="At least 1.")] = None,
    graph_mode: Annotated[
        GraphMode, typer.Option(help="Which steps are recorded and replayed.")
    ] = "full_and_piecewise",
    preempt_every: PreemptEvery = None,
    prefix_cache: PrefixCache = Switch.ON,
    prefix_rows: PrefixRows = None,
    steps: Annotated[Path | None, typer.Option(help="Write one JSON line a step.")] = None,
) -> None:
    """Generate frames for one or more prompts, as concurrent requests."""
    for given, name in ((output, "-o"), (codes, "--codes"), (prefix_rows, "--prefix-rows")):
        _check_counts(rows, given or rows, name)
    for limit, name in ((max_num_seqs, "--max-num-seqs"), (max_batched_rows, "--max-batched-rows")):
        check_integer(name, limit, 1, 2**31 - 1)
    _prepare_outputs(output, codes or [], steps)
    from declaim.config.checkpoint import load_model_config
    from declaim.config.schema import FrameStage
    from declaim.engine.frames import load_frame_engine

    config = load_model_config(model)
    arrays = [_int32(read_integers(path, "--rows"), path) for path in rows]
    keeping = prefix_cache is Switch.ON
    prompts = _prompts(model, config, arrays, prefix_rows, keeping=keeping)
    sampling = _sampling(
        config.generation.sampling, greedy, temperature=temperature, top_p=top_p, top_k=top_k
    )
    requests = [
        FrameRequest(str(index), prompt, sampling, own_seed, max_frames)
        for index, (prompt, own_seed) in enumerate(_with_seeds(prompts, seed))
    ]
    stage = FrameStage(  # no more memory than these requests can use
        max_num_seqs=min(max_num_seqs, max_batched_rows, len(rows)),
        max_num_batched_tokens=min(max_batched_rows, sum(max(len(array), 1) for array in arrays)),
        cudagraph_mode=graph_mode.upper(),  # type: ignore[arg-type]
        max_model_len=min(config.context, max(map(len, arrays)) + max_frames),
        prefix_cache_bytes=FrameStage().prefix_cache_bytes if keeping else 0,
    )
    engine = load_frame_engine(model, stage, config, preempt_every=preempt_every)
    _write(_run(engine, requests, steps), output, codes or [])


def _run(
    engine: "FrameEngine", requests: Sequence[FrameRequest], steps: Path | None
) -> list[NDArray[np.int64]]:
    """The frames of each request."""
    with ExitStack() as stack:
        log = stack.enter_context(steps.open("w", encoding="utf-8")) if steps else None
        for request in requests:
            engine.submit(request)
        for report in engine.steps():
            if log is not None:
                log.write(json.dumps(report.as_json(), separators=(",", ":")) + "\n")
    return [engine.outcome(request.id).frames.astype(np.int64) for request in requests]


def _write(
    made: Sequence[NDArray[np.int64]], output: Sequence[Path], codes: Sequence[Path]
) -> None:
    for path, array in zip(output, made, strict=True):
        write_integers(path, array)
    for path, array in zip(codes, made, strict=False):
        write_integers(path, array[:, 1:].T)


def _prepare_outputs(output: Sequence[Path], codes: Sequence[Path], steps: Path | None) -> None:
    outputs = [("-o", path) for path in output] + [("--codes", path) for path in codes]
    if steps is not None:
        outputs.append(("--steps", steps))
    for param, path in outputs:
        prepare_output(path, param)
    check_distinct(outputs)


def _prompts(
    model: Path,
    config: "ModelConfig",
    arrays: Sequence[NDArray[np.int32]],
    given: Sequence[int] | None,
    *,
    keeping: bool,
) -> list[Prompt]:
    """The prompts with their prefixes, which are checked if they are given."""
    from declaim.engine.frames import check_prefix
    from declaim.text.prompt import prefix_of
    from declaim.text.tokenizer import FILE, load_tokenizer

    prompts = []
    for rows, prefix_rows in zip(arrays, given or (), strict=False):
        if not 0 < prefix_rows < len(rows):
            raise InvalidRequest(
                f"--prefix-rows must be in [1, {len(rows) - 1}] for a prompt of {len(rows)} rows, "
                f"not {prefix_rows}",
                param="--prefix-rows",
                limit=f"[1, {len(rows) - 1}]",
                value=prefix_rows,
            )
        prompts.append(Prompt(rows, prefix_rows))
        check_prefix(config, prompts[-1], "--prefix-rows")
    if given or not keeping or not (model / FILE).is_file():
        return prompts or [Prompt(rows, 0) for rows in arrays]
    tokenizer = load_tokenizer(model, config)
    for rows in arrays:
        end = prefix_of(rows, tokenizer) if rows.ndim == 2 and rows.shape[1] else 0
        text = end < len(rows) and not config.band[0] <= rows[end, 0] <= config.band[1]
        prompts.append(Prompt(rows, end if text else 0))
    return prompts


def _check_counts(rows: Sequence[Path], other: Sequence[object], name: str) -> None:
    if len(rows) != len(other):
        raise InvalidRequest(
            f"{name} must be given once per --rows: {len(rows)} rows, {len(other)} {name}",
            param=name,
            limit=len(rows),
            value=len(other),
        )


def _int32(rows: NDArray[np.int64], path: Path) -> NDArray[np.int32]:
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    if rows.size and (rows.min() < low or rows.max() > high):
        raise InvalidRequest(
            f"--rows: {path} holds a value outside [{low}, {high}]",
            param="--rows",
            limit=f"[{low}, {high}]",
            value=int(rows.max()),
        )
    return rows.astype(np.int32)


def _sampling(
    defaults: SamplingParams,
    greedy: bool,
    *,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
) -> SamplingParams:
    given = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    changes = {name: value for name, value in given.items() if value is not None}
    if greedy and temperature not in (None, 0):
        raise InvalidRequest(
            f"--greedy is temperature 0; --temperature {temperature} contradicts it",
            param="--temperature",
            limit=0,
            value=temperature,
        )
    if greedy:
        changes |= {"temperature": 0.0, "repetition_aware": False}
    return replace(defaults, **changes)  # type: ignore[arg-type]


def _with_seeds(prompts: Sequence[Prompt], seed: int | None) -> list[tuple[Prompt, int]]:
    """Each prompt with seed + its number, or with a fresh seed, which is printed."""
    from declaim.engine.frames import fresh_seed

    if seed is not None:
        return [(prompt, seed + index) for index, prompt in enumerate(prompts)]
    seeds = [fresh_seed() for _ in prompts]
    for index, value in enumerate(seeds):
        print(f"seed {index} {value}", file=sys.stderr)
    return list(zip(prompts, seeds, strict=True))
