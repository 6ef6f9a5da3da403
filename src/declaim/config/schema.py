"""Everything that a deploy file can say: its sections, keys, kinds of value and defaults.

The names are the file's. Knows no file, no environment and no platform: whether a device can do
what a value asks for is not decided here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from declaim.config.values import (
    ByteBudget,
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


def as_platform(name: object) -> object:
    """A platform's name as YAML gives it: an unquoted null is the platform of that name."""
    return "null" if name is None else name


Platform = Annotated[Literal["cpu", "cuda", "npu", "null"], BeforeValidator(as_platform)]
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

    temperature: Temperature | None = Field(
        default=None, description="0: arg max in first and code draws"
    )
    top_p: Share | None = Field(default=None, description="mass that a draw keeps")
    top_k: Count | None = Field(default=None, description="most candidates of a draw")
    codebook_top_k: Count | None = Field(default=None, description="most entries of a code's draw")
    ras_temperature: Temperature | None = Field(
        default=None, description="temperature of the repetition-aware second draw"
    )
    ras_top_k: Count | None = Field(default=None, description="most of the second draw")
    ras_top_p: Share | None = Field(default=None, description="mass that the second draw keeps")
    repetition_aware: bool | None = Field(
        default=None, description="whether the second draw counts"
    )

    def over(self, base: SamplingParams) -> SamplingParams:
        """The parameters with every value that is given here in place of the base's."""
        return replace(base, **self.model_dump(exclude_none=True))


class FrameStage(Settings):
    """The frame stage: text rows in, frames out. `seed` is of random weights and no key."""

    stage_id: Literal[0] = Field(default=0, description="the entry's name: 0 is the frame stage")
    runner: Runner = Field(default="frames", description="what the stage runs")
    platform: Platform = Field(default="cpu", description="the kind of device it runs on")
    devices: Devices = Field(default=(0,), description="numbers of the devices")
    threads: Count = Field(default=1, description="host threads of the arithmetic")
    dtype: Dtype = Field(default="auto", description="of weights and pages; auto: the platform's")
    load_format: Literal["safetensors", "random"] = Field(
        default="safetensors", description="random: weights made from config.json alone"
    )
    max_num_seqs: Count = Field(default=8, description="most requests that run at once")
    max_num_batched_tokens: Count = Field(default=512, description="most rows of one step")
    max_model_len: Count = Field(
        default=4096, description="most rows of a stream, prompt and frames"
    )
    kv_pages: Count | None = Field(
        default=None, description="pages; wins over kv_memory; null: what kv_memory holds"
    )
    kv_memory: ByteSize = Field(default=2**30, description="bytes for pages of K and V")
    prefix_cache_bytes: ByteBudget = Field(
        default=2**28, description="bytes for recurrent state of voices to start from"
    )
    page_size: Count | None = Field(
        default=None, description="rows a page holds; null: the platform's"
    )
    mamba_ssm_cache_dtype: Literal["float32", "bfloat16"] | None = Field(
        default=None, description="type of recurrent state; null: config.json's, else float32"
    )
    tensor_parallel_size: Count = Field(default=1, description="devices that share each layer")
    enable_expert_parallel: bool = Field(
        default=False, description="whether experts are spread over the devices"
    )
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"] = Field(
        default="FULL_AND_PIECEWISE", description="which steps are recorded and replayed"
    )
    cudagraph_capture_sizes: Sizes | None = Field(
        default=None, description="padded sizes that are recorded; null: chosen by the runner"
    )
    default_sampling_params: SamplingDefaults = Field(
        default=SamplingDefaults(), description="sampling of requests that do not say otherwise"
    )
    seed: int = Field(default=0, ge=0, exclude=True, description="of random weights")


class CodecStage(Settings):
    """The codec stage: frames in, samples out."""

    stage_id: Literal[1] = Field(default=1, description="the entry's name: 1 is the codec stage")
    runner: Runner = Field(default="codec", description="what the stage runs")
    platform: Platform = Field(default="cpu", description="the kind of device it runs on")
    devices: Devices = Field(default=(0,), description="numbers of the devices")
    threads: Count = Field(default=1, description="host threads of the arithmetic")
    dtype: Dtype = Field(default="auto", description="of weights and state; auto: the platform's")
    max_num_seqs: Count = Field(default=8, description="most streams that are decoded at once")


class Server(Settings):
    """Where the server listens and how strict it is."""

    host: Text = Field(default="127.0.0.1", description="address to listen on")
    port: Port = Field(default=8000, description="port to listen on; 0: any that is free")
    strict_fields: bool = Field(
        default=False, description="whether a request with an unknown field is refused"
    )


class Voices(Settings):
    """Stored voices."""

    directory: Text | None = Field(default=None, description="folder of stored voices; null: none")


class Limits(Settings):
    """What a request may ask for."""

    input_characters: Count = Field(default=4096, description="most characters of a text")
    reference_seconds: Seconds = Field(
        default=(1.0, 60.0), description="shortest and longest reference clip"
    )
    queue: Count = Field(default=256, description="most requests that wait; more are refused")


class Deploy(Settings):
    """A whole deploy file, resolved.

    platforms: the raw blocks of the file itself, kept as they stand there.
    """

    model: Text = Field(default="nano", description="a directory, or nano: the bundled one")
    base_config: Text | None = Field(
        default=None, description="deploy file or preset below this one; null: none"
    )
    stages: tuple[FrameStage, CodecStage] = Field(
        default=(FrameStage(), CodecStage()), description="the stages, known by their stage_id"
    )
    server: Server = Field(default=Server(), description="the HTTP server")
    voices: Voices = Field(default=Voices(), description="stored voices")
    limits: Limits = Field(default=Limits(), description="limits of a request")
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
