"""`declaim verify`: whether every way to run the same requests gives the same output."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from declaim.cli.outputs import prepare_output
from declaim.contracts.errors import EXIT_DIFFERENCE


def verify(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    set_name: Annotated[
        str, typer.Option("--set", help="Requests to run: short or long.")
    ] = "long",
    modes: Annotated[
        str, typer.Option(help="Graph modes, separated by commas.")
    ] = "NONE,PIECEWISE,FULL,FULL_AND_PIECEWISE",
    seed: Annotated[int, typer.Option(help="Decides the requests.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write everything as JSON.")
    ] = None,
) -> int:
    """Show that no way of running changes a bit of the output.

    Runs the same seeded requests in every mode, batch and cut, and compares all of it.
    """
    from declaim.audio.files import write_whole
    from declaim.bench.equivalence import CaseResult
    from declaim.bench.verify import verify as run

    if output is not None:
        prepare_output(output, "-o")
    heading = [f"{'mode':18} {'case':26} {'draws':>6} {'replays':>8} {'misses':>7}  result"]

    def show(result: CaseResult) -> None:
        while heading:
            print(heading.pop())
        verdict = "equal" if result.difference is None else "DIFFERS"
        if result.difference is None and result.largest:
            verdict = f"within {result.largest:.1e}"
        print(
            f"{result.mode:18} {result.name:26} {result.draws:6} {result.replays:8} "
            f"{result.misses:7}  {verdict}",
            flush=True,
        )

    chosen = [mode.strip().upper() for mode in modes.split(",") if mode.strip()]
    found = run(model, set_name=set_name, modes=chosen, seed=seed, on_result=show)
    if output is not None:
        write_whole(output, (json.dumps(found.as_json(), indent=1) + "\n").encode())
    for result in found.results:
        wrong = result.difference
        if wrong is not None:
            print(
                f"declaim: {result.mode}, {result.name}: request {wrong.request_id} differs at "
                f"draw {wrong.draw} in {wrong.what} by {wrong.largest:g}: "
                f"{wrong.reference} against {wrong.found}",
                file=sys.stderr,
            )
    return 0 if found.equal else EXIT_DIFFERENCE
