"""Everything that a deploy file can say: its sections, keys, kinds of value and defaults.

The names are the file's. Knows no file, no environment and no platform: whether a device can do
what a value asks for is not decided here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from declaim.config.values import (
    ByteSize,
    Count,
    Devices,
    Port,
    Seconds,
    Share,
    Sizes,
    Temperature,
    Text,
    choices_of,
    invalid,
    rule_of,
    unknown,
)
from declaim.contracts.errors import InvalidConfig
from declaim.contracts.request import SamplingParams

PLATFORMS = ("cpu", "cuda", "npu", "null")
DEFAULT_PRESET = "nano-cpu"
"""What stands below everything where no deploy file is given."""

Platform = Literal["cpu", "cuda", "npu", "null"]
Runner = Literal["frames", "codec"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class Settings(BaseModel):
    """A section of the file: strict, frozen, without unknown keys. Wrong ones: InvalidConfig."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refusal(type(self), error, values) from None

    def replaced(self, **changes: Any) -> Self:
        """A copy with other values, checked as new ones are."""
        return type(self)(**{**dict(self), **changes})


class SamplingDefaults(Settings):
    """Sampling of requests that do not say otherwise; null: the checkpoint's own value."""

    temperature: Temperature | None = Field(None, description="0 is arg max in every draw")
    top_p: Share | None = Field(None, description="mass that the candidates of a draw keep")
    top_k: Count | None = Field(None, description="most candidates of a draw")
    codebook_top_k: Count | None = Field(None, description="most candidates of a code's draw")
    ras_temperature: Temperature | None = Field(
        None, description="temperature of the repetition-aware second draw"
    )
    ras_top_k: Count | None = Field(None, description="most candidates of the second draw")
    ras_top_p: Share | None = Field(None, description="mass that the second draw keeps")
    repetition_aware: bool | None = Field(None, description="whether the second draw may be taken")

    def over(self, base: SamplingParams) -> SamplingParams:
        """The parameters with every value that is given here in place of the base's."""
        return replace(base, **self.model_dump(exclude_none=True))


class FrameStage(Settings):
    """The frame stage: text rows in, frames out. `seed` is of random weights and no key."""

    stage_id: Literal[0] = Field(0, description="the entry's name: 0 is the frame stage")
    runner: Runner = Field("frames", description="what the stage runs")
    platform: Platform = Field("cpu", description="the kind of device it runs on")
    devices: Devices = Field((0,), description="numbers of the devices")
    threads: Count = Field(1, description="host threads of the arithmetic")
    dtype: Dtype = Field("auto", description="type of weights and pages; auto: the platform's")
    load_format: Literal["safetensors", "random"] = Field(
        "safetensors", description="random: weights made from config.json alone"
    )
    max_num_seqs: Count = Field(8, description="most requests that run at once")
    max_num_batched_tokens: Count = Field(512, description="most rows of one step")
    max_model_len: Count = Field(4096, description="most rows of one stream, prompt and frames")
    kv_pages: Count | None = Field(
        None, description="pages of K and V; wins over kv_memory; null: what kv_memory holds"
    )
    kv_memory: ByteSize = Field(2**30, description="bytes for pages, used as far as they serve")
    page_size: Count | None = Field(None, description="rows of a page; null: the platform's")
    mamba_ssm_cache_dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="type of recurrent state; null: config.json's, else float32"
    )
    tensor_parallel_size: Count = Field(1, description="devices that share each layer")
    enable_expert_parallel: bool = Field(
        False, description="whether experts are spread over the devices"
    )
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"] = Field(
        "FULL_AND_PIECEWISE", description="which steps are recorded and replayed"
    )
    cudagraph_capture_sizes: Sizes | None = Field(
        None, description="padded sizes that are recorded; null: chosen by the runner"
    )
    default_sampling_params: SamplingDefaults = Field(
        SamplingDefaults(), description="sampling of requests that do not say otherwise"
    )
    seed: int = Field(0, ge=0, exclude=True, description="of random weights")


class CodecStage(Settings):
    """The codec stage: frames in, samples out."""

    stage_id: Literal[1] = Field(1, description="the entry's name: 1 is the codec stage")
    runner: Runner = Field("codec", description="what the stage runs")
    platform: Platform = Field("cpu", description="the kind of device it runs on")
    devices: Devices = Field((0,), description="numbers of the devices")
    threads: Count = Field(1, description="host threads of the arithmetic")
    dtype: Dtype = Field("auto", description="type of weights and state; auto: the platform's")
    max_num_seqs: Count = Field(8, description="most streams that are decoded at once")


class Server(Settings):
    """Where the server listens and how strict it is."""

    host: Text = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(8000, description="port to listen on; 0: any that is free")
    strict_fields: bool = Field(
        False, description="whether a request with an unknown field is refused"
    )


class Voices(Settings):
    """Stored voices."""

    directory: Text | None = Field(None, description="folder of stored voices; null: none")


class Limits(Settings):
    """What a request may ask for."""

    input_characters: Count = Field(4096, description="most characters of a text")
    reference_seconds: Seconds = Field(
        (1.0, 60.0), description="shortest and longest reference clip"
    )
    queue: Count = Field(256, description="most requests that wait; more are refused")


class Deploy(Settings):
    """A whole deploy file, resolved.

    platforms: the raw blocks of the file itself, kept as they stand there.
    """

    model: Text = Field("nano", description="model directory, or nano: the bundled checkpoint")
    base_config: Text | None = Field(
        None, description="deploy file or preset below this one; null: none"
    )
    stages: tuple[FrameStage, CodecStage] = Field(
        (FrameStage(), CodecStage()), description="the stages, known by their stage_id"
    )
    server: Server = Field(Server(), description="the HTTP server")
    voices: Voices = Field(Voices(), description="stored voices")
    limits: Limits = Field(Limits(), description="limits of a request")
    platforms: Mapping[str, Any] = Field(
        default_factory=dict, description="blocks that count where their platform is in use"
    )

    @property
    def frames(self) -> FrameStage:
        """The frame stage."""
        return self.stages[0]

    @property
    def codec(self) -> CodecStage:
        """The codec stage."""
        return self.stages[1]


def _refusal(
    section: type[Settings], error: ValidationError, values: Mapping[str, Any]
) -> InvalidConfig:
    """The first error of a section's values, in the words of its rule."""
    first = error.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0])
    field = section.model_fields.get(name)
    if field is None:
        return unknown("key", name, tuple(section.model_fields))
    rule = rule_of(field.annotation, field.metadata)
    return invalid(name, rule, values.get(name), choices=choices_of(field.annotation))
