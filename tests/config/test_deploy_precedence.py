"""Which layer decides a value: every pair of layers, and what platform blocks act on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from declaim.config.load import Resolved, load_deploy

Write = Callable[[str, object], Path]

LAYERS = ("default", "base", "base's block", "file", "block", "environment", "command line")
"""From the lowest to the highest."""

PLATFORM = "npu"
EVERY = {"stages": [{"stage_id": 0, "platform": PLATFORM}, {"stage_id": 1, "platform": PLATFORM}]}


@dataclass
class Case:
    """A key, and a value for it in every layer but the default."""

    key: str
    default: object
    values: Mapping[str, object]
    parsed: Callable[[Any], Any] = field(default=lambda value: value)


def values_of(make: Callable[[int], object]) -> dict[str, object]:
    return {layer: make(index) for index, layer in enumerate(LAYERS[1:], start=1)}


CASES = (
    Case("model", "nano", values_of(lambda index: f"model-{index}")),
    Case("server.port", 8000, values_of(lambda index: 9000 + index)),
    Case("stages.0.max_num_seqs", 8, values_of(lambda index: 10 + index)),
    Case("stages.1.devices", (0,), values_of(lambda index: [index]), tuple),
    Case(
        "stages.0.default_sampling_params.top_p",
        None,
        values_of(lambda index: round(index / 10, 1)),
    ),
)


def document(key: str, value: object) -> dict[str, Any]:
    """A file with one value."""
    if key.startswith("stages."):
        _, stage, *path = key.split(".")
        return {"stages": [{"stage_id": int(stage), **document(".".join(path), value)}]}
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def platform_of_all(content: dict[str, Any]) -> dict[str, Any]:
    """The same file with both stages on the platform."""
    entries = {entry["stage_id"]: entry for entry in content.get("stages", [])}
    stages = [{"platform": PLATFORM, **entries.get(n, {}), "stage_id": n} for n in (0, 1)]
    return {**content, "stages": stages}


def resolve(write: Write, case: Case, layers: Sequence[str]) -> Resolved:
    """The settings where these layers have a value for the key."""

    def content(plain: str, block: str) -> dict[str, Any]:
        made = document(case.key, case.values[plain]) if plain in layers else {}
        if block in layers:
            made["platforms"] = {PLATFORM: document(case.key, case.values[block])}
        return made

    write("base.yaml", platform_of_all(content("base", "base's block")))
    file = write("file.yaml", {**content("file", "block"), "base_config": "base.yaml"})
    name = "DECLAIM_" + case.key.upper().replace(".", "__")
    environment = {name: str(case.values["environment"])} if "environment" in layers else {}
    assignments = [f"{case.key}={case.values['command line']}"] if "command line" in layers else []
    return load_deploy(file, assignments, environment=environment)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
@pytest.mark.parametrize(("lower", "higher"), list(combinations(LAYERS, 2)))
def test_the_higher_layer_decides(
    write: Write, tmp_path: Path, case: Case, lower: str, higher: str
) -> None:
    found = resolve(write, case, (lower, higher)).settings[case.key]
    assert found.value == case.parsed(case.values[higher])
    source = {
        "base": f"file {tmp_path / 'base.yaml'}",
        "base's block": f"file {tmp_path / 'base.yaml'}, platforms.npu",
        "file": f"file {tmp_path / 'file.yaml'}",
        "block": f"file {tmp_path / 'file.yaml'}, platforms.npu",
        "environment": f"environment DECLAIM_{case.key.upper().replace('.', '__')}",
        "command line": "--set",
    }
    assert found.source == source[higher]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_alone(write: Write, case: Case, layer: str) -> None:
    found = resolve(write, case, (layer,)).settings[case.key]
    default = layer == "default"
    assert found.value == (case.default if default else case.parsed(case.values[layer]))
    assert (found.source == "default") is default


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_the_layer_below_shows_when_the_highest_goes(write: Write, case: Case) -> None:
    for count in range(len(LAYERS), 1, -1):
        highest = LAYERS[count - 1]
        found = resolve(write, case, LAYERS[:count]).settings[case.key]
        assert found.value == case.parsed(case.values[highest]), highest


def test_named_flags_are_above_set_and_the_last_set_counts() -> None:
    both = ["server.port=1", "server.port=2"]
    found = load_deploy(None, both, environment={})
    assert found.deploy.server.port == 2
    found = load_deploy(None, both, flags={"server.port": 3, "model": "m"}, environment={})
    assert (found.deploy.server.port, found.deploy.model) == (3, "m")
    assert found.settings["server.port"].source == "--port"


def test_bases_of_bases(write: Write) -> None:
    """Each one only shows where nothing above it says anything."""
    write("inner/far.yaml", {"model": "far", "server": {"port": 1, "host": "far"}})
    write("inner/near.yaml", {"base_config": "far.yaml", "server": {"port": 2}})
    file = write("file.yaml", {"base_config": "inner/near.yaml", "limits": {"queue": 3}})
    found = load_deploy(file, environment={})
    assert found.deploy.model == "far"
    assert (found.deploy.server.host, found.deploy.server.port) == ("far", 2)
    assert found.deploy.limits.queue == 3
    assert found.settings["model"].source == f"file {file.parent / 'inner' / 'far.yaml'}"
    assert found.deploy.base_config == "inner/near.yaml"


def test_sections_merge_deep_and_lists_are_replaced(write: Write) -> None:
    base = {
        "stages": [
            {
                "stage_id": 0,
                "threads": 3,
                "cudagraph_capture_sizes": [1, 2, 4],
                "default_sampling_params": {"temperature": 0.5, "top_p": 0.4},
            },
            {"stage_id": 1, "threads": 5},
        ]
    }
    own = {
        "base_config": "base.yaml",
        "stages": [
            {
                "stage_id": 0,
                "cudagraph_capture_sizes": [8],
                "default_sampling_params": {"top_p": 0.6, "top_k": 7},
            }
        ],
    }
    write("base.yaml", base)
    deploy = load_deploy(write("file.yaml", own), environment={}).deploy
    sampling = deploy.frames.default_sampling_params
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.6, 7)
    assert deploy.frames.cudagraph_capture_sizes == (8,)
    assert (deploy.frames.threads, deploy.codec.threads) == (3, 5)


def two_platforms(write: Write, first: str, second: str) -> Resolved:
    """A file with blocks for npu and cuda, and the stages on the given platforms."""
    content = {
        "stages": [{"stage_id": 0, "platform": first}, {"stage_id": 1, "platform": second}],
        "platforms": {
            "npu": {
                "server": {"port": 1},
                "stages": [{"stage_id": 0, "threads": 2}, {"stage_id": 1, "threads": 3}],
            },
            "cuda": {
                "limits": {"queue": 9},
                "stages": [{"stage_id": 0, "threads": 4}, {"stage_id": 1, "threads": 5}],
            },
        },
    }
    return load_deploy(write("file.yaml", content), environment={})


@pytest.mark.parametrize(
    ("first", "second", "threads", "port", "queue"),
    [
        ("cpu", "cpu", (1, 1), 8000, 256),
        ("npu", "npu", (2, 3), 1, 256),
        ("npu", "cpu", (2, 1), 1, 256),
        ("cpu", "npu", (1, 3), 1, 256),
        ("cuda", "npu", (4, 3), 1, 9),
        ("npu", "cuda", (2, 5), 1, 9),
    ],
)
def test_stage_entries_act_on_their_platform_and_other_keys_where_any_stage_does(
    write: Write, first: str, second: str, threads: tuple[int, int], port: int, queue: int
) -> None:
    deploy = two_platforms(write, first, second).deploy
    assert (deploy.frames.threads, deploy.codec.threads) == threads
    assert (deploy.server.port, deploy.limits.queue) == (port, queue)
    assert set(deploy.platforms) == {"npu", "cuda"}


def test_of_two_blocks_in_use_the_later_counts(write: Write) -> None:
    stages = "stages: [{stage_id: 0, platform: npu}, {stage_id: 1, platform: cuda}]\n"
    for first, second, port in (("npu", "cuda", 2), ("cuda", "npu", 1)):
        ports = {"npu": 1, "cuda": 2}
        lines = [f"  {name}: {{server: {{port: {ports[name]}}}}}\n" for name in (first, second)]
        file = write("file.yaml", stages + "platforms:\n" + "".join(lines))
        assert load_deploy(file, environment={}).deploy.server.port == port


@pytest.mark.parametrize("where", ["base", "environment", "command line"])
def test_the_platform_of_a_block_may_be_set_in_any_layer(write: Write, where: str) -> None:
    """A base's block counts too when the platform comes from above it."""
    block = {"platforms": {"npu": {"stages": [{"stage_id": 0, "threads": 6}]}}}
    base = EVERY if where == "base" else {}
    write("base.yaml", {**block, **base})
    file = write("file.yaml", {"base_config": "base.yaml"})
    environment = {"DECLAIM_STAGES__0__PLATFORM": "npu"} if where == "environment" else {}
    assignments = ["stages.0.platform=npu"] if where == "command line" else []
    found = load_deploy(file, assignments, environment=environment)
    assert found.deploy.frames.threads == 6
    assert load_deploy(file, ["stages.0.platform=cpu"], environment={}).deploy.frames.threads == 1


@pytest.mark.parametrize("spelling", ["null", '"null"'])
def test_the_null_platform_needs_no_quotes(write: Write, spelling: str) -> None:
    text = (
        f"stages: [{{stage_id: 0, platform: {spelling}}}]\n"
        f"platforms: {{{spelling}: {{stages: [{{stage_id: 0, threads: 2}}]}}}}\n"
    )
    deploy = load_deploy(write("file.yaml", text), environment={}).deploy
    assert (deploy.frames.platform, deploy.frames.threads) == ("null", 2)
