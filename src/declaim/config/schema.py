"""The settings of a stage, with their defaults; names are the deploy file's."""

from dataclasses import dataclass

from declaim.contracts.errors import InvalidConfig


@dataclass(frozen=True)
class FrameStage:
    """The frame stage on one device.

    threads: torch's threads. load_format: safetensors, or random (weights from config.json).
    max_num_seqs: most requests that run at once. max_num_batched_tokens: most rows of a step.
    max_model_len: most rows of a stream. kv_pages: pages, or None: what kv_memory (bytes) holds,
    at most what max_num_seqs streams of max_model_len rows need. page_size: rows a page holds,
    or None: the platform's. seed: of random weights.
    """

    threads: int = 1
    load_format: str = "safetensors"
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    max_model_len: int = 4096
    kv_pages: int | None = None
    kv_memory: int = 2**30
    page_size: int | None = None
    mamba_ssm_cache_dtype: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("threads", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_memory")
        for name in (*counts, "kv_pages", "page_size"):
            value = getattr(self, name)
            if value is None and name not in counts:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidConfig(
                    f"{name} must be an integer of at least 1, not {value!r}",
                    param=name,
                    limit=1,
                    value=value,
                )
        self._check_choice("load_format", ("safetensors", "random"))
        self._check_choice("mamba_ssm_cache_dtype", (None, "float32", "bfloat16"))

    def _check_choice(self, name: str, choices: tuple[str | None, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            listed = ", ".join(str(choice) for choice in choices)
            raise InvalidConfig(
                f"{name} must be one of {listed}, not {value!r}",
                param=name,
                limit=choices,
                value=value,
            )
