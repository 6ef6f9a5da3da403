"""The whole file as it is documented: every key, the values it gives, and back to a file."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from declaim.config.documents import preset_names, to_yaml
from declaim.config.keys import KEYS
from declaim.config.load import fit_context, load_deploy
from declaim.config.schema import (
    DEFAULT_PRESET,
    CodecStage,
    Deploy,
    FrameStage,
    Limits,
    SamplingDefaults,
    Server,
    Voices,
)
from declaim.config.values import rule_of
from declaim.contracts.request import SamplingParams

Write = Callable[[str, object], Path]

EXAMPLE = """\
model: nano                      # a directory, or the bundled checkpoint
base_config: nano-cpu
stages:                          # entries are known by their stage_id, in base_config and platform blocks too
  - {stage_id: 0, runner: frames, platform: cpu, devices: [0], threads: 1, dtype: auto, load_format: safetensors, max_num_seqs: 8, max_num_batched_tokens: 512, max_model_len: 4096,
     kv_pages: null, kv_memory: 1GiB, prefix_cache_bytes: 256MiB, page_size: null, mamba_ssm_cache_dtype: null, tensor_parallel_size: 1, enable_expert_parallel: false,
     cudagraph_mode: FULL_AND_PIECEWISE, cudagraph_capture_sizes: null, default_sampling_params: {temperature: 1.0, top_p: 0.9}}
  - {stage_id: 1, runner: codec, platform: cpu, devices: [0], threads: 1, dtype: auto, max_num_seqs: 8}
server: {host: 127.0.0.1, port: 8000, strict_fields: false}
voices: {directory: null}
limits: {input_characters: 4096, reference_seconds: [1, 60], queue: 256}
platforms:                       # merged key by key, deep, into what stands above where that platform is in use
  npu: {stages: [{stage_id: 0, dtype: bfloat16, page_size: 128}, {stage_id: 1, devices: [1]}]}
"""  # noqa: E501

BLOCKS = {
    "npu": {
        "stages": [
            {"stage_id": 0, "dtype": "bfloat16", "page_size": 128},
            {"stage_id": 1, "devices": [1]},
        ]
    }
}


def test_the_example_gives_these_values(write: Write) -> None:
    found = load_deploy(write("example.yaml", EXAMPLE), environment={})
    assert found.deploy == Deploy(
        model="nano",
        base_config="nano-cpu",
        stages=(
            FrameStage(
                stage_id=0,
                runner="frames",
                platform="cpu",
                devices=(0,),
                threads=1,
                dtype="auto",
                load_format="safetensors",
                max_num_seqs=8,
                max_num_batched_tokens=512,
                max_model_len=4096,
                kv_pages=None,
                kv_memory=1073741824,
                prefix_cache_bytes=268435456,
                page_size=None,
                mamba_ssm_cache_dtype=None,
                tensor_parallel_size=1,
                enable_expert_parallel=False,
                cudagraph_mode="FULL_AND_PIECEWISE",
                cudagraph_capture_sizes=None,
                default_sampling_params=SamplingDefaults(temperature=1.0, top_p=0.9),
            ),
            CodecStage(
                stage_id=1,
                runner="codec",
                platform="cpu",
                devices=(0,),
                threads=1,
                dtype="auto",
                max_num_seqs=8,
            ),
        ),
        server=Server(host="127.0.0.1", port=8000, strict_fields=False),
        voices=Voices(directory=None),
        limits=Limits(input_characters=4096, reference_seconds=(1.0, 60.0), queue=256),
        platforms=BLOCKS,
    )
    assert found.notes == ()


def test_the_example_holds_every_key_and_shows_the_defaults(write: Write) -> None:
    found = load_deploy(write("example.yaml", EXAMPLE), environment={})
    source = f"file {write('example.yaml', EXAMPLE)}"
    sampling = "stages.0.default_sampling_params."
    stated = {f"{sampling}temperature", f"{sampling}top_p"}
    unstated = {key for key in KEYS if key.startswith(sampling)} - stated
    silent = {key for key, setting in found.settings.items() if setting.source != source}
    assert silent == {"stages.0.stage_id", "stages.1.stage_id", *unstated}
    defaults = Deploy()
    assert found.deploy.codec == defaults.codec
    assert found.deploy.frames.replaced(default_sampling_params=SamplingDefaults()) == (
        defaults.frames
    )
    for name in ("model", "server", "voices", "limits"):
        assert getattr(found.deploy, name) == getattr(defaults, name)
    assert (defaults.base_config, defaults.platforms) == (None, {})


@pytest.mark.parametrize("platform", ["cpu", "npu"])
def test_what_is_printed_resolves_to_the_same(write: Write, platform: str) -> None:
    """On npu too, where the block's values are plain ones now and the block is gone."""
    text = EXAMPLE.replace("platform: cpu", f"platform: {platform}")
    deploy = load_deploy(write("example.yaml", text), ["server.port=77"], environment={}).deploy
    printed = to_yaml(deploy)
    again = load_deploy(write("again.yaml", printed), environment={}).deploy
    kept = BLOCKS if platform == "cpu" else {}
    assert again == deploy.replaced(base_config=None, platforms=kept)
    assert to_yaml(again) == printed
    assert again.frames.page_size == (None if platform == "cpu" else 128)
    assert again.codec.devices == ((0,) if platform == "cpu" else (1,))


def test_the_document_repeats_the_example_in_other_lines() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    assert yaml.safe_load(block) == yaml.safe_load(EXAMPLE)


def test_every_key_is_documented_with_what_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    rows = {cells[0].strip("`"): cells[1:] for line in lines for cells in [line[2:-2].split(" | ")]}
    for key in KEYS.values():
        rule, default, meaning = rows[key.name]
        assert (rule, meaning) == (key.rule, key.meaning), key.name
        shown = load_deploy("nano-cpu", [f"{key.name}={default.strip('`')}"], environment={})
        assert shown.settings[key.name].value == key.default
    assert set(KEYS) | {"platforms", *preset_names()} == set(rows)


def test_every_field_says_what_it_is() -> None:
    for section in (Deploy, FrameStage, CodecStage, SamplingDefaults, Server, Voices, Limits):
        assert section.__doc__
        for name, model_field in section.model_fields.items():
            assert model_field.description, (section, name)
    assert all(key.rule == rule_of(key.annotation) for key in KEYS.values())


def test_without_a_file_the_default_preset_counts() -> None:
    found = load_deploy(environment={})
    assert DEFAULT_PRESET in preset_names()
    assert found.deploy == Deploy(base_config=DEFAULT_PRESET)
    assert found.settings["model"].source == f"preset {DEFAULT_PRESET}"
    assert found.settings["stages.0.max_num_seqs"].source == "default"
    assert load_deploy(DEFAULT_PRESET, environment={}).deploy == Deploy()


@pytest.mark.parametrize("name", preset_names())
def test_presets_load(name: str) -> None:
    assert load_deploy(name, environment={}).notes == ()


def test_fewer_rows_than_requests_lower_the_requests(write: Write) -> None:
    stage = {"stage_id": 0, "max_num_seqs": 6, "max_num_batched_tokens": 6}
    file = write("file.yaml", {"stages": [stage]})
    assert load_deploy(file, environment={}).notes == ()
    found = load_deploy(file, ["stages.0.max_num_batched_tokens=5"], environment={})
    assert found.deploy.frames.max_num_seqs == 5
    assert found.settings["stages.0.max_num_seqs"].source == f"file {file}"
    assert found.notes == (
        "stages.0.max_num_seqs is lowered from 6 to 5, since stages.0.max_num_batched_tokens is 5 "
        "(--set)",
    )


@pytest.mark.parametrize(("context", "rows", "notes"), [(4096, 4096, 0), (4095, 4095, 1)])
def test_a_stream_is_no_longer_than_the_context(context: int, rows: int, notes: int) -> None:
    found = fit_context(load_deploy(environment={}), context)
    assert found.deploy.frames.max_model_len == rows
    assert found.settings["stages.0.max_model_len"].value == rows
    assert len(found.notes) == notes
    assert all("from 4096 to" in note and f"context of {context}" in note for note in found.notes)


def test_sampling_stands_above_the_checkpoint_s_own() -> None:
    base = SamplingParams(temperature=0.7, top_p=0.8, top_k=5)
    given = SamplingDefaults(top_p=0.5, repetition_aware=False)
    assert given.over(base) == SamplingParams(
        temperature=0.7, top_p=0.5, top_k=5, repetition_aware=False
    )
    assert SamplingDefaults().over(base) == base
