"""What a deploy file, a variable or an assignment may not say, and how it is refused."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from declaim.config.keys import KEYS
from declaim.config.load import load_deploy
from declaim.config.schema import FrameStage
from declaim.contracts.errors import InvalidConfig, NotFound

Write = Callable[[str, object], Path]

SETTABLE = [name for name in KEYS if not name.endswith("stage_id")]
INT = "an integer in [1, 2147483647]"


def refused(
    *assignments: str, deploy: Path | None = None, environment: Mapping[str, str] | None = None
) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        load_deploy(deploy, assignments, environment=environment or {})
    return caught.value


def document(key: str, value: object) -> dict[str, Any]:
    """A file with one value."""
    parts: list[str] = key.split(".")
    if parts[0] == "stages":
        inner = document(".".join(parts[2:]), value)
        return {"stages": [{"stage_id": int(parts[1]), **inner}]}
    for part in reversed(parts):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def typo(name: str) -> str:
    """The name with two letters of its middle the other way round, or with one too many."""
    middle = len(name) // 2
    for index in (*range(middle, len(name) - 1), *range(middle)):
        if name[index] != name[index + 1]:
            return name[:index] + name[index + 1] + name[index] + name[index + 2 :]
    return f"{name}s"


@pytest.mark.parametrize("key", SETTABLE)
def test_a_typo_in_any_key_is_refused_wherever_it_stands(write: Write, key: str) -> None:
    section, _, name = key.rpartition(".")
    wrong = f"{section}.{typo(name)}".lstrip(".")
    content = document(wrong, None)
    write("base.yaml", content)
    files = {
        "file.yaml": content,
        "above.yaml": {"base_config": "base.yaml"},
        "block.yaml": {"platforms": {"npu": content}},
    }
    errors = [refused(deploy=write(file, text)) for file, text in files.items()]
    errors.append(refused(f"{wrong}=1"))
    errors.append(refused(environment={"DECLAIM_" + wrong.upper().replace(".", "__"): "1"}))
    sources = ("file.yaml)", "base.yaml)", "block.yaml, platforms.npu)", "(--set)", "DECLAIM_")
    for error, source in zip(errors, sources, strict=True):
        assert error.message.endswith(f"; did you mean {key}?"), error.message
        assert f"there is no key {wrong} " in error.message
        assert source in error.message
        assert error.param == wrong
        assert name in str(error.limit).split(", ")


@pytest.mark.parametrize("section", ["stages", "server", "voices", "limits", "platforms"])
def test_a_typo_in_a_section_is_refused(write: Write, section: str) -> None:
    wrong = typo(section)
    error = refused(deploy=write("file.yaml", {wrong: {}}))
    assert error.message.endswith(f"; did you mean {section}?")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("max_num_seqs", "stages.0.max_num_seqs"),
        ("port", "server.port"),
        ("stages.1.page_size", "stages.0.page_size"),
        ("stages.0.temperature", "stages.0.default_sampling_params.temperature"),
        ("server.queue", "limits.queue"),
        ("MODEL", "model"),
        ("stages.0.engine_args.max_num_seqs", None),
    ],
)
def test_a_key_of_another_section_is_named_with_its_own(wrong: str, meant: str | None) -> None:
    message = refused(f"{wrong}=1").message
    assert message.endswith(f"did you mean {meant}?") or meant is None
    assert "there is no key" in message


WRONG_VALUES = [
    ("model", "''", "a text that is not blank", "''"),
    ("model", "null", "a text that is not blank", "null"),
    ("model", "[a]", "a text that is not blank", "['a']"),
    ("base_config", "' '", "null or a text that is not blank", "' '"),
    ("stages.0.runner", "frame", "frames or codec", "'frame' (--set); did you mean frames?"),
    ("stages.0.platform", "cdua", "cpu, cuda, npu or null", "'cdua' (--set); did you mean cuda?"),
    ("stages.1.platform", "gpu", "cpu, cuda, npu or null", "'gpu' (--set); did you mean cpu?"),
    ("stages.0.dtype", "bf16", "auto, float32, bfloat16 or float16", "did you mean bfloat16?"),
    ("stages.0.load_format", "Random", "safetensors or random", "did you mean random?"),
    ("stages.0.devices", "0", "a list of device numbers", "0"),
    ("stages.0.devices", "[]", "a list of device numbers", "[]"),
    ("stages.0.devices", "[1, 1]", "a list of device numbers", "[1, 1]"),
    ("stages.0.devices", "[-1]", "a list of device numbers", "[-1]"),
    ("stages.0.devices", "[true]", "a list of device numbers", "[true]"),
    ("stages.0.threads", "0", INT, "0"),
    ("stages.0.threads", "1.0", INT, "1.0"),
    ("stages.0.threads", "true", INT, "true"),
    ("stages.0.threads", "'1'", INT, "'1'"),
    ("stages.0.threads", "null", INT, "null"),
    ("stages.0.threads", "2147483648", INT, "2147483648"),
    ("stages.0.kv_pages", "0", f"null or {INT}", "0"),
    ("stages.0.kv_memory", "0", "a number of bytes", "0"),
    ("stages.0.kv_memory", "null", "a number of bytes", "null"),
    ("stages.0.kv_memory", "1gib", "a number of bytes", "'1gib'"),
    ("stages.0.kv_memory", "1.5GiB", "a number of bytes", "'1.5GiB'"),
    ("stages.0.kv_memory", "-1GiB", "a number of bytes", "'-1GiB'"),
    ("stages.0.kv_memory", "GiB", "a number of bytes", "'GiB'"),
    ("stages.0.kv_memory", "9223372036854775807KiB", "a number of bytes", "KiB'"),
    ("stages.0.mamba_ssm_cache_dtype", "float16", "null or float32 or bfloat16", "float16'"),
    ("stages.0.enable_expert_parallel", "1", "true or false", "1"),
    (
        "stages.0.cudagraph_mode",
        "none",
        "NONE, PIECEWISE, FULL or",
        "'none' (--set); did you mean NONE?",
    ),
    ("stages.0.cudagraph_capture_sizes", "[0]", "null or a list of integers", "[0]"),
    ("stages.0.cudagraph_capture_sizes", "[[1]]", "null or a list", "a list of 1 entries"),
    ("stages.0.default_sampling_params", "3", "a mapping", "3"),
    ("stages.0.default_sampling_params.temperature", "2.1", "null or a number in [0, 2]", "2.1"),
    ("stages.0.default_sampling_params.temperature", ".nan", "null or a number in [0", "nan"),
    ("stages.0.default_sampling_params.top_p", "0", "null or a number in (0, 1]", "0"),
    ("stages.0.default_sampling_params.top_k", "0", f"null or {INT}", "0"),
    ("server.port", "65536", "an integer in [0, 65535]", "65536"),
    ("server.port", "-1", "an integer in [0, 65535]", "-1"),
    ("server", "null", "a mapping", "null"),
    ("limits.reference_seconds", "[60, 1]", "a list of two numbers", "[60, 1]"),
    ("limits.reference_seconds", "[0, 1]", "a list of two numbers", "[0, 1]"),
    ("limits.reference_seconds", "[1]", "a list of two numbers", "[1]"),
    ("limits.reference_seconds", "[1, .inf]", "a list of two numbers", "[1, inf]"),
    ("limits.reference_seconds", "{a: 1}", "a list of two numbers", "a mapping"),
    ("stages", "null", "a list of entries with a stage_id", "null"),
    ("stages.0", "3", "a mapping", "3"),
    ("stages.0.stage_id", "1", "0", "1"),
]


@pytest.mark.parametrize(("key", "text", "rule", "found"), WRONG_VALUES)
def test_a_wrong_value_is_refused_with_key_rule_and_value(
    write: Write, key: str, text: str, rule: str, found: str
) -> None:
    error = refused(f"{key}={text}")
    assert error.message.startswith(f"{key} must be {rule}")
    assert found in error.message.partition("; found ")[2]
    assert "(--set)" in error.message
    assert error.param == key
    assert str(error.limit).startswith(rule)
    if key not in ("stages", "stages.0", "stages.0.stage_id"):
        content = document(key, yaml.safe_load(text))
        hidden = write("file.yaml", {"platforms": {"npu": content}})
        if key != "base_config":
            assert refused(deploy=hidden).param == key
        assert refused(deploy=write("file.yaml", content)).param == key


def test_a_number_that_python_cannot_print(write: Write) -> None:
    text = "0x" + "F" * 5000
    file = write("file.yaml", f"stages: [{{stage_id: 0, devices: [{text}]}}]\n")
    for error in (refused(f"stages.0.threads={text}"), refused(deploy=file)):
        assert "an integer of more than 256 bits" in error.message
    for content in (
        f"stages: [{{stage_id: {text}}}]",
        f"? {text}\n: 1",
        f"platforms:\n  ? {text}\n  : 1",
    ):
        assert "did you mean" in refused(deploy=write("file.yaml", content)).message


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("'12'", 12),
        ("3KB", 3000),
        ("3 KiB", 3072),
        ("2MB", 2_000_000),
        ("2MiB", 2_097_152),
        ("5GB", 5_000_000_000),
        ("5GiB", 5_368_709_120),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_byte_sizes(text: str, size: int) -> None:
    found = load_deploy(None, [f"stages.0.kv_memory={text}"], environment={})
    assert found.deploy.frames.kv_memory == size


def test_values_of_the_environment_are_yaml_and_numbers_may_be_names() -> None:
    environment = {
        "DECLAIM_MODEL": "2024",
        "DECLAIM_STAGES__0__KV_PAGES": "7",
        "DECLAIM_STAGES__0__DEVICES": "[2, 1]",
        "DECLAIM_STAGES__1": "{threads: 3}",
        "DECLAIM_SERVER": "{port: 1, strict_fields: true}",
        "DECLAIM_VOICES__DIRECTORY": "null",
        "OTHER": "x",
        "XDECLAIM_MODEL": "x",
    }
    deploy = load_deploy(environment=environment).deploy
    assert deploy.model == "2024"
    assert (deploy.frames.kv_pages, deploy.frames.devices) == (7, (2, 1))
    assert deploy.codec.threads == 3
    assert (deploy.server.port, deploy.server.strict_fields) == (1, True)
    assert deploy.voices.directory is None


def test_the_process_s_environment_is_read_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DECLAIM_SERVER__PORT", "4321")
    assert load_deploy().deploy.server.port == 4321


BAD_FILES = {
    "not a mapping": ("- a\n", "must be a mapping"),
    "empty": ("", "must be a mapping of keys to values; found null"),
    "a text": ("model nano", "must be a mapping"),
    "no YAML": ("model: [a\n", "is not YAML: .* at line 2, column 1"),
    "a tab": ("server:\n\tport: 1\n", "is not YAML"),
    "two documents": ("model: a\n---\nmodel: b\n", "is not YAML"),
    "a key twice": ("model: a\nmodel: b\n", "'model' stands there twice at line 2"),
    "a deep key twice": ("server: {port: 1, port: 1}\n", "'port' stands there twice"),
    "a Python object": ("model: !!python/object:os.system {}\n", "is not YAML"),
    "a wrong tag": ("model: !!timestamp soon\n", "is not YAML"),
    "a wrong number": ("model: !!int soon\n", "is not YAML"),
    "a list as key": ("? [a]\n: b\n", "is not YAML"),
    "a control character": ("model: a\x00b\n", "is not YAML"),
    "too deep": ("model: " + "[" * 600, "is not YAML"),
    "a circle": ("model: &a [*a]\n", "model must be a text"),
    "a number as key": ("1: 2\n", "there is no key 1 "),
    "stages by name": ("stages: {frames: {}}\n", "stages must be a list"),
    "an entry without id": ("stages: [{threads: 1}]\n", "must be a mapping with a stage_id"),
    "an entry that is none": ("stages: [3]\n", "must be a mapping with a stage_id; found 3"),
    "a stage twice": ("stages: [{stage_id: 0}, {stage_id: 0}]\n", "each one once; found 0"),
    "an unknown stage": ("stages: [{stage_id: 2}]\n", "no stage 2 .*did you mean 1?"),
    "a stage below": ("stages: [{stage_id: -1}]\n", "no stage -1 .*did you mean 0?"),
    "a stage by name": ("stages: [{stage_id: codec}]\n", "no stage 'codec' .*did you mean 1?"),
    "a true stage": ("stages: [{stage_id: true}]\n", "no stage true"),
    "platforms as list": ("platforms: [npu]\n", "platforms must be a mapping"),
    "no platforms": ("platforms:\n", "platforms must be a mapping .*found null"),
    "an unknown platform": ("platforms: {nup: {}}\n", "platform 'nup' .*did you mean npu?"),
    "an empty block": ("platforms: {npu: }\n", "platforms.npu must be a mapping; found null"),
    "a block's base": ("platforms: {npu: {base_config: a}}\n", "may not set base_config "),
    "blocks in a block": ("platforms: {npu: {platforms: {}}}\n", "may not set platforms "),
    "a block's platform": (
        "platforms: {npu: {stages: [{stage_id: 1, platform: cpu}]}}\n",
        r"may not set stages\.1\.platform \(file .*, platforms\.npu\)",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files(write: Write, text: str, message: str) -> None:
    for name in ("file.yaml", "above.yaml"):
        write("file.yaml", text)
        write("above.yaml", {"base_config": "file.yaml"})
        error = refused(deploy=write("file.yaml", text).with_name(name))
        assert re.search(message, error.message), error.message
        assert "file.yaml" in error.message
        assert len(error.message) < 600


def test_files_that_cannot_be_read(write: Write, tmp_path: Path) -> None:
    assert "Is a directory" in refused(deploy=tmp_path).message
    (tmp_path / "latin.yaml").write_bytes(b"model: \xe9\n")
    assert "UTF-8" in refused(deploy=tmp_path / "latin.yaml").message
    for path in (tmp_path / "absent.yaml", tmp_path / "absent" / "deploy", tmp_path / ("a" * 999)):
        with pytest.raises(NotFound, match=r"^deploy names .*, which is not there$"):
            load_deploy(path, environment={})
    above = write("above.yaml", {"base_config": "./absent"})
    with pytest.raises(NotFound, match=r"base_config names .*absent, which is not there"):
        load_deploy(above, environment={})


def test_unknown_presets_are_named_with_the_nearest(write: Write) -> None:
    error = refused(deploy=write("file.yaml", {"base_config": "nano_cpu"}))
    assert "'nano_cpu'" in error.message and error.message.endswith("did you mean nano-cpu?")
    assert error.param == "base_config"
    assert refused("base_config=nanocpu").message.endswith("did you mean nano-cpu?")


def test_bases_in_a_circle(write: Write, tmp_path: Path) -> None:
    write("a.yaml", {"base_config": "inner/b.yaml"})
    write("inner/b.yaml", {"base_config": "../c.yaml"})
    write("c.yaml", {"base_config": "./a.yaml"})
    message = refused(deploy=tmp_path / "a.yaml").message
    assert "circle" in message and message.count(" -> ") == 3
    own = write("own.yaml", {"base_config": "own.yaml"})
    assert "circle" in refused(deploy=own).message


def test_paths_are_relative_to_where_they_stand(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's base to the file; the environment's and the command line's to where one is."""
    write("base.yaml", {"model": "beside"})
    write("here/base.yaml", {"model": "here"})
    file = write("file.yaml", {"base_config": "base.yaml"})
    monkeypatch.chdir(tmp_path / "here")
    assert load_deploy(file, environment={}).deploy.model == "beside"
    assert load_deploy(file, ["base_config=base.yaml"], environment={}).deploy.model == "here"
    environment = {"DECLAIM_BASE_CONFIG": "base.yaml"}
    assert load_deploy(file, environment=environment).deploy.model == "here"
    assert load_deploy(file, ["base_config=null"], environment={}).deploy.model == "nano"
    assert load_deploy("base.yaml", environment={}).deploy.model == "here"
    preset = write("file.yaml", {"base_config": "nano-cpu"})
    assert load_deploy(preset, environment={}).settings["model"].source == "preset nano-cpu"


@pytest.mark.parametrize("text", ["model", "", "model nano"])
def test_assignments_need_an_equals_sign(text: str) -> None:
    assert refused(text).message.startswith("--set must be key=value")


@pytest.mark.parametrize(
    "path", ["", ".", "stages.", "stages.00.threads", "stages.0.", "stages..threads", "stages.2.x"]
)
def test_paths_that_lead_nowhere(path: str) -> None:
    assert "did you mean" in refused(f"{path}=1").message
    assert "there is no" in refused(f"{path}=1").message


def test_blocks_are_set_in_files_only() -> None:
    assert "in a deploy file only" in refused("platforms.npu={}").message
    assert "not by environment" in refused(environment={"DECLAIM_PLATFORMS": "{}"}).message


def test_a_bad_value_of_an_assignment_names_its_key() -> None:
    error = refused("server.port=[")
    assert error.message.startswith("the value of server.port (--set) is not YAML")
    assert error.param == "server.port"


def test_stages_are_refused_the_same_way_when_made_in_code() -> None:
    with pytest.raises(InvalidConfig, match=r"^max_num_seqs must be an integer in \[1, ") as caught:
        FrameStage(max_num_seqs=0)
    assert (caught.value.param, caught.value.value) == ("max_num_seqs", 0)
    with pytest.raises(InvalidConfig, match="did you mean max_num_seqs"):
        FrameStage(**{"max_num_seq": 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="^threads must be"):
        FrameStage().replaced(threads=0)
