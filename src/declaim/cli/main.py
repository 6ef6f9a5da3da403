"""The command `declaim`: registers the commands and maps errors to exit codes, once."""

import sys
import traceback
from collections.abc import Sequence

import typer

from declaim import __version__
from declaim.cli.bench import bench
from declaim.cli.codec import commands as codec_commands
from declaim.cli.config import config
from declaim.cli.frames import frames
from declaim.cli.inspect import inspect
from declaim.cli.make_checkpoint import make_checkpoint
from declaim.cli.prompt import prompt
from declaim.cli.say import say
from declaim.cli.serve import serve
from declaim.cli.verify import verify
from declaim.contracts.errors import (
    Cancelled,
    DeclaimError,
    EngineFailed,
    NotFound,
    OutOfMemory,
    row_of,
)

app = typer.Typer(
    name="declaim",
    help="Serve expressive speech models as a stream.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets in a help text are shapes
)
app.command()(say)
app.command()(serve)
app.command()(prompt)
app.command()(frames)
app.command()(inspect)
app.command()(make_checkpoint)
app.command()(bench)
app.command()(verify)
app.command()(config)
app.add_typer(codec_commands(), name="codec")


def _print_version(value: bool) -> None:
    if value:
        print(f"declaim {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Options of the command itself."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code of the error table."""
    try:
        result = app(list(arguments), prog_name="declaim", standalone_mode=False)
    except DeclaimError as error:
        print(f"declaim: {error.message}", file=sys.stderr)
        return row_of(error).exit_code
    except (typer.Abort, KeyboardInterrupt):
        return row_of(Cancelled("interrupted")).exit_code
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        print(f"declaim: {place}{error.strerror or error}", file=sys.stderr)
        return row_of(NotFound(str(error))).exit_code
    except MemoryError:
        print("declaim: the memory does not hold what was asked for", file=sys.stderr)
        return row_of(OutOfMemory("memory")).exit_code
    except typer.TyperException as error:
        if message := error.format_message():
            print(f"declaim: {message}", file=sys.stderr)
        return error.exit_code
    except Exception:  # noqa: BLE001 - a fault of ours: all of it, and its own exit code
        traceback.print_exc()
        return row_of(EngineFailed("a fault in declaim itself")).exit_code
    return result if isinstance(result, int) else 0


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
