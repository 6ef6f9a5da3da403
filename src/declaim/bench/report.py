"""What a measurement says beside its numbers, and the one line that it prints.

Knows nothing of what is measured. Versions come from the packages' metadata, so that reading
them imports no package: a report can be made on a machine without torch.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import declaim

MEASURED_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers")
"""Packages whose version can change a number."""


def environment(threads: int | None = None) -> dict[str, Any]:
    """Everything around a measurement that its numbers depend on, ready for JSON.

    threads: how many the measured process computes with, which only the caller knows.
    Keys: declaim, commit (None outside a checkout; ends in "-dirty" where tracked files
    differ from it), python, one for each of MEASURED_PACKAGES (None where it is not installed),
    system, cpu, cores (those this process may use) and threads.
    """
    return {
        "declaim": declaim.__version__,
        "commit": commit(Path(__file__).parent),
        "python": platform.python_version(),
        **{name: installed_version(name) for name in MEASURED_PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(Path("/proc/cpuinfo")),
        "cores": available_cores(),
        "threads": threads,
    }


def print_line(result: Mapping[str, Any]) -> None:
    """Print a result as one compact line of JSON on stdout, keys in the mapping's order.

    Raises ValueError for NaN and infinities, which JSON does not have.
    """
    print(json.dumps(result, separators=(",", ":"), allow_nan=False), flush=True)


def installed_version(package: str) -> str | None:
    """Version of an installed package, by its metadata; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit(folder: Path) -> str | None:
    """Commit of the checkout that tracks `folder`; None where none does or git is absent.

    A folder that merely lies inside a checkout (an installed package in a virtual environment)
    is not tracked by it.
    """
    tracked = _git(folder, "ls-files", "--", ".")
    if not tracked:
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    """A git command's output; None where it fails or cannot be run."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return finished.stdout.strip()


def cpu_model(cpuinfo: Path) -> str:
    """The processor's name as the kernel lists it in `cpuinfo`, else as Python knows it."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
