"""From what a caller asks for to what the frame stage takes: checks, defaults, prompts, voices.

Everything here is quick but encoding a reference clip, which the codec's thread does. Encoded
clips are kept by content.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from declaim.codec.config import CodecConfig
from declaim.contracts.engine import EngineInfo
from declaim.contracts.errors import InvalidRequest, TooLarge
from declaim.contracts.request import (
    FloatArray,
    FrameRequest,
    IntArray,
    Reference,
    SpeechRequest,
)
from declaim.text.prompt import PromptBuilder

KEPT_REFERENCES = 64
"""Encoded clips that are kept; the one that was used least recently goes first."""

SILENCE = 1e-4
"""A clip whose largest sample is below this (-80 dB) holds nothing to imitate."""


class ReferenceCodes:
    """Codes of reference clips, kept by the content of their samples. Safe from any thread."""

    def __init__(self, encode: Callable[[FloatArray], IntArray]) -> None:
        self._encode = encode
        self._kept: OrderedDict[bytes, IntArray] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def kept(self, samples: FloatArray) -> IntArray | None:
        """The codes of a clip that was encoded before."""
        key = self._key(samples)
        with self._lock:
            codes = self._kept.get(key)
            if codes is not None:
                self._kept.move_to_end(key)
                self.hits += 1
        return codes

    def encode(self, samples: FloatArray) -> IntArray:
        """Encode a clip and keep its codes, read-only int64 [Q, frames]."""
        codes = self._encode(samples)
        codes.flags.writeable = False
        with self._lock:
            self.misses += 1
            self._kept[self._key(samples)] = codes
            while len(self._kept) > KEPT_REFERENCES:
                self._kept.popitem(last=False)
        return codes

    def _key(self, samples: FloatArray) -> bytes:
        return hashlib.sha256(np.ascontiguousarray(samples, dtype=np.float32).tobytes()).digest()


class Admission:
    """Checks requests against one model, codec and set of limits."""

    def __init__(self, info: EngineInfo, codec: CodecConfig, builder: PromptBuilder) -> None:
        self.info = info
        self.codec = codec
        self.builder = builder

    def check(self, request: SpeechRequest) -> None:
        """Raise for what can be refused before any reference is encoded.

        InvalidRequest or TooLarge, naming `text` or `references[i]`.
        """
        if len(request.text) > self.info.input_characters:
            raise TooLarge(
                f"text must have at most {self.info.input_characters} characters, "
                f"not {len(request.text)}",
                param="text",
                limit=self.info.input_characters,
                value=len(request.text),
            )
        for index, reference in enumerate(request.references):
            if reference.samples is not None:
                self.check_samples(reference.samples, f"references[{index}]")
        prompt = self.builder.build(request.text, self._stand_ins(request.references))
        self._check_fits(len(prompt.rows), request.max_frames)

    def _check_fits(self, rows: int, max_frames: int | None) -> None:
        context = self.info.context
        if rows >= context:
            raise InvalidRequest(
                f"text and references make a prompt of {rows} rows, which leaves no room for a "
                f"frame in the {context} that a stream may have",
                param="text",
                limit=context - 1,
                value=rows,
            )
        if max_frames is not None and rows + max_frames > context:
            raise InvalidRequest(
                f"max_frames can be at most {context - rows} after a prompt of {rows} rows, "
                f"not {max_frames}: a stream may have {context}",
                param="max_frames",
                limit=context - rows,
                value=max_frames,
            )

    def _stand_ins(self, references: tuple[Reference, ...]) -> tuple[Reference, ...]:
        """The references with codes of the right number of frames for clips not encoded yet."""
        return tuple(
            reference
            if reference.samples is None
            else replace(reference, samples=None, codes=self._no_codes(len(reference.samples)))
            for reference in references
        )

    def _no_codes(self, samples: int) -> IntArray:
        frames = -(-samples // self.codec.hop)
        return np.zeros((self.codec.num_codebooks, frames), dtype=np.int64)

    def check_samples(self, samples: FloatArray, param: str) -> None:
        """Raise unless a clip is finite, audible and of a length that is allowed."""
        if samples.ndim != 1 or samples.dtype != np.float32:
            raise InvalidRequest(
                f"{param}: samples must be float32 [n], not {samples.dtype} {list(samples.shape)}",
                param=param,
                limit="float32 [n]",
                value=f"{samples.dtype} {list(samples.shape)}",
            )
        low, high = self.info.reference_seconds
        seconds = len(samples) / self.codec.sample_rate
        if not low <= seconds <= high:
            raise InvalidRequest(
                f"{param}: a reference clip must last {low:g} to {high:g} s, not {seconds:.2f} s",
                param=param,
                limit=f"[{low:g}, {high:g}] s",
                value=round(seconds, 3),
            )
        if not np.isfinite(samples).all():
            raise InvalidRequest(
                f"{param}: the clip holds samples that are not numbers", param=param
            )
        loudest = float(np.abs(samples).max())
        if loudest < SILENCE:
            raise InvalidRequest(
                f"{param}: the clip is silent (largest sample {loudest:g})",
                param=param,
                limit=SILENCE,
                value=loudest,
            )

    def frame_request(
        self, key: str, request: SpeechRequest, references: tuple[Reference, ...], seed: int
    ) -> FrameRequest:
        """The request under a key, with prompt and defaults; all references hold codes."""
        prompt = self.builder.build(request.text, references)
        wanted = request.max_frames
        if wanted is None:
            wanted = min(self.info.max_frames, self.info.context - len(prompt.rows))
        return FrameRequest(
            id=key,
            prompt=prompt,
            sampling=request.sampling or self.info.sampling,
            seed=seed,
            max_frames=wanted,
            priority=request.priority,
        )
