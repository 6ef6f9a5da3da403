"""The bench report: what it says of the machine, and its one line of JSON."""

import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import declaim
from declaim.bench import report


def test_environment_names_versions_machine_and_threads() -> None:
    found = report.environment(threads=2)
    assert found["declaim"] == declaim.__version__
    assert found["python"] == platform.python_version()
    assert found["torch"] == metadata.version("torch")
    assert found["numpy"] == metadata.version("numpy")
    assert found["threads"] == 2
    assert found["cores"] >= 1
    assert found["cpu"]
    assert json.loads(json.dumps(found)) == found


def test_a_report_needs_no_torch() -> None:
    script = (
        "import sys; from declaim.bench import report; report.environment();"
        "assert 'torch' not in sys.modules"
    )
    source = str(Path(report.__file__).parents[2])
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": source})


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert report.installed_version("declaim-no-such-package") is None


def test_print_line_is_one_compact_line(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_line({"step_ms": 1.5, "seeds": [1, 2], "name": "text\nbreak"})
    captured = capsys.readouterr()
    assert captured.out == '{"step_ms":1.5,"seeds":[1,2],"name":"text\\nbreak"}\n'
    assert captured.err == ""


def test_print_line_refuses_what_json_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        report.print_line({"step_ms": float("nan")})
    assert capsys.readouterr().out == ""


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_commit_of_a_checkout_says_whether_it_was_changed(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    package = tmp_path / "package"
    package.mkdir()
    module = package / "module.py"
    module.write_text("x = 1\n")
    assert report.commit(package) is None

    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert report.commit(package) == head

    module.write_text("x = 2\n")
    assert report.commit(package) == f"{head}-dirty"

    untracked = tmp_path / "environment"
    untracked.mkdir()
    assert report.commit(untracked) is None


def test_a_folder_outside_every_checkout_has_no_commit(tmp_path: Path) -> None:
    assert report.commit(tmp_path) is None


def test_cpu_model_reads_the_kernels_list(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor\t: 0\nmodel name\t: Example 9000\n\nmodel name\t: other\n")
    assert report.cpu_model(listing) == "Example 9000"
    assert report.cpu_model(tmp_path / "absent") == (platform.processor() or platform.machine())
