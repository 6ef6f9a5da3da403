"""The causal depthwise convolution of the delta-net layers, with its tail per slot."""

from dataclasses import dataclass

import torch
from torch import Tensor

from declaim.ops.elementwise import silu, store
from declaim.ops.host_spans import HostSpans, read_spans
from declaim.state.step import Spans


@dataclass(frozen=True)
class ConvolutionWeight:
    """Taps float32 [kernel, channels], oldest first; shape is (channels, kernel), as stored."""

    taps: Tensor
    shape: tuple[int, int]


class ConvolutionOps:
    """`causal_conv` and its weight."""

    def prepare_conv(self, weight: Tensor) -> ConvolutionWeight:
        """See OpTable."""
        channels, kernel = weight.shape
        return ConvolutionWeight(weight.float().t().contiguous(), (channels, kernel))

    def causal_conv(
        self,
        x: Tensor,
        weight: ConvolutionWeight,
        spans: Spans,
        tail: Tensor | None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """See OpTable; taps are added from the oldest to the newest."""
        taps = read_taps(x, weight.shape[1], spans, tail)
        products = taps.float() * weight.taps
        total = torch.zeros_like(products[:, 0])
        for tap in products.unbind(1):
            total.add_(tap)
        return store(silu(total).to(x.dtype), out)


def read_taps(x: Tensor, kernel: int, spans: Spans, tail: Tensor | None) -> Tensor:
    """Each row's inputs [n, kernel, channels], oldest first; the tail is moved on."""
    rows, channels = x.shape
    host = read_spans(spans, rows)
    if tail is None:
        history = x.new_zeros(len(host.numbers), kernel - 1, channels)
        return gather_history(x, history, host)[0]
    assert spans.slot is not None
    slots = spans.slot if host.single else spans.slot[list(host.numbers)]
    history = tail.index_select(0, slots)
    taps, newest = gather_history(x.to(tail.dtype), history, host)
    tail.index_copy_(0, slots.long(), newest)
    return taps


def gather_history(x: Tensor, history: Tensor, host: HostSpans) -> tuple[Tensor, Tensor]:
    """Each row's inputs [n, kernel, channels], oldest first, and each span's new tail.

    x [n, channels]; history [spans, kernel - 1, channels] as it was before the spans.
    """
    if host.single:
        taps = torch.cat((history, x[:, None]), dim=1)
        return taps, taps[:, 1:]
    rows, (spans, past, channels) = x.shape[0], history.shape
    source = torch.cat((history.reshape(spans * past, channels), x))
    starts = torch.tensor(host.starts, device=x.device)
    counts = torch.tensor(host.counts, device=x.device)
    span = torch.repeat_interleave(torch.arange(spans, device=x.device), counts)
    local = torch.arange(rows, device=x.device) - starts[span]

    def inputs(span: Tensor, local: Tensor, taps: int) -> Tensor:
        """Rows of source at local - past .. local - past + taps - 1 of a span."""
        wanted = local[:, None] + torch.arange(taps, device=x.device) - past
        old = span[:, None] * past + past + wanted
        new = spans * past + starts[span][:, None] + wanted
        index = torch.where(wanted < 0, old, new)
        return source.index_select(0, index.flatten()).view(*index.shape, channels)

    newest = inputs(torch.arange(spans, device=x.device), counts, past)
    return inputs(span, local, past + 1), newest
