"""declaim inspect: what a checkpoint is and what would be loaded from it."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from declaim.checkpoint.inspect import CodecFiles, Inspection


def inspect(
    directory: Annotated[Path, typer.Argument(help="The checkpoint's directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what a checkpoint is and what would be loaded."""
    from declaim.checkpoint.inspect import inspect_checkpoint

    found = inspect_checkpoint(directory)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _lines(found):
        table.add_row(Text(name), Text(value))
    Console(soft_wrap=False).print(table)


def _lines(found: "Inspection") -> Iterator[tuple[str, str]]:
    yield "checkpoint", found.directory
    yield "kind", f"fish_omni, {found.kind}, {found.dtype}, prefix {found.stored.prefix}"
    yield "quantization", found.quantization or "none"
    yield "experts", found.stored.expert_layout.replace("_", " ")
    yield "layers", ", ".join(f"{count} {kind}" for kind, count in found.layers.items())
    for name, value in found.sizes.items():
        yield f"  {name}", f"{value:,}"
    yield "context", f"{found.context:,} rows"
    for file, size in found.stored.files.items():
        yield "file", f"{file}, {size:,} bytes"
    for dtype, total in found.stored.dtypes.items():
        yield (
            f"  {dtype}",
            f"{total.tensors:,} tensors, {total.elements:,} elements, {total.bytes:,} bytes",
        )
    yield (
        "to load",
        f"{found.loaded.parameters:,} parameters, {found.loaded.elements:,} elements "
        f"(lm_head cut to {found.loaded.candidates:,} rows)",
    )
    yield "weights on disk", f"{found.stored.bytes:,} bytes"
    yield "weights as float32", f"{found.loaded.bytes:,} bytes"
    yield "state of a stream", f"{found.loaded.stream_bytes:,} bytes"
    yield "pages of a row", f"{found.loaded.row_bytes:,} bytes in float32"
    yield "ignored tensors", _some(found.stored.ignored)
    yield "unknown keys", _some(found.unknown_keys)
    yield "codec", _codec(found.codec)
    yield "fingerprint", found.stored.fingerprint


def _some(names: tuple[str, ...]) -> str:
    if not names:
        return "none"
    return f"{len(names)}: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"


def _codec(codec: "CodecFiles | None") -> str:
    if codec is None:
        return "none"
    facts = [f"{codec.file}, {codec.bytes:,} bytes"]
    if codec.elements is not None:
        facts.append(f"{codec.tensors:,} tensors, {codec.elements:,} elements")
    if codec.sample_rate is not None:
        facts.append(f"{codec.sample_rate:,} Hz")
    facts.append("codec_config.json" if codec.config else "no codec_config.json")
    return ", ".join(facts)
