"""What a scheduler may use, and what it tells of itself."""

from dataclasses import dataclass, fields

from declaim.contracts.errors import InvalidConfig
from declaim.contracts.request import shown


@dataclass(frozen=True)
class SchedulerLimits:
    """What a step and the device's memory hold.

    max_num_seqs: slots, hence most spans of a step. max_num_batched_tokens: most rows of a step.
    pages: pages without the null page. page_size: rows of a page. max_model_len: most rows of one
    request, prompt and frames. window: W, main tokens that the repetition rule looks at.
    prefixes: most prefixes that are kept, 0 for none.
    Raises InvalidConfig for a value that cannot work.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    pages: int
    page_size: int
    max_model_len: int
    window: int
    prefixes: int = 0

    def __post_init__(self) -> None:
        for item in fields(self):
            check_limit(
                item.name, getattr(self, item.name), item.name not in ("window", "prefixes")
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidConfig(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): every stream decodes a row in each step",
                param="max_num_batched_tokens",
                limit=self.max_num_seqs,
                value=self.max_num_batched_tokens,
            )


def check_limit(name: str, value: object, least: int) -> None:
    """Raise InvalidConfig unless value is a plain integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidConfig(
            f"{name} must be an integer of at least {least:d}, not {shown(value)}",
            param=name,
            limit=int(least),
            value=value,
        )


@dataclass(frozen=True)
class SchedulerStatistics:
    """Requests and pages at one moment, and counts since the start.

    pages_in_use: pages of running requests. pages_kept: pages that only kept prefixes own.
    prefix_hits, prefix_misses: requests that started behind their kept prefix, and that had one
    to compute; a request that is preempted starts anew. prefix_evictions: kept ones given up.
    """

    waiting: int = 0
    running: int = 0
    pages_in_use: int = 0
    pages_kept: int = 0
    preemptions: int = 0
    prefixes_kept: int = 0
    prefix_hits: int = 0
    prefix_misses: int = 0
    prefix_evictions: int = 0
