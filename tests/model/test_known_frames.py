"""Whole sequences with known frames: their logits are the steps', and everything learns from them.

The same model classes run on the reference table and on the differentiable one.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from oracle import Oracle
from poisoned import PoisonedEngine, request_of
from safetensors.torch import load_file
from torch import Tensor

from declaim.checkpoint.names import network_parameters, stacked_expert_names
from declaim.checkpoint.reader import load_weights
from declaim.checkpoint.weights import to_published
from declaim.config.checkpoint import load_model_config
from declaim.config.model import ModelConfig
from declaim.config.schema import FrameStage
from declaim.model.frame_lm import FrameLM
from declaim.ops.plain import PlainOps, trainable
from declaim.ops.reference import ReferenceOps
from declaim.ops.table import Collectives, Handle, OpTable
from declaim.parallel.ranks import Ranks
from declaim.platforms.cpu.platform import CpuPlatform
from declaim.runner.runner import Runner
from declaim.runner.worker import build_runner
from declaim.sampling.sampler import FrameSampler
from declaim.state.step import training_spans

LENGTHS = (19, 7)


class WatchedOps(PlainOps):
    """Remembers which experts each layer's rows chose, in the order of the calls."""

    def __init__(self, collectives: Collectives) -> None:
        super().__init__(collectives)
        self.chosen: list[set[int]] = []

    def router(
        self,
        x: Tensor,
        w: Handle,
        *,
        top_k: int,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        weights, ids = super().router(x, w, top_k=top_k, out=out)
        self.chosen.append(set(ids.flatten().tolist()))
        return weights, ids


class PlainPlatform(CpuPlatform):
    """The CPU with the differentiable table."""

    def op_table(self, collectives: Collectives) -> OpTable:
        return PlainOps(collectives)


def network(
    directory: Path, config: ModelConfig, ops: OpTable
) -> tuple[FrameLM, Mapping[str, Handle]]:
    weights = load_weights(directory, config, ops)
    candidates = torch.tensor(config.candidates, dtype=torch.int32)
    return FrameLM(config, ops, weights, FrameSampler(config, ops, candidates)), weights


@dataclass(frozen=True)
class Sequences:
    """Rows of known sequences one after another, and the frame after each."""

    rows: Tensor
    labels: Tensor
    lengths: tuple[int, ...]

    def logits(self, model: FrameLM) -> tuple[Tensor, Tensor]:
        return model.known_logits(self.rows, self.labels, training_spans(list(self.lengths)))

    def loss(self, config: ModelConfig, main: Tensor, codes: Tensor) -> Tensor:
        """Cross-entropy of main tokens and of codes 1, 2, ..., where the label is speech."""
        first, last = config.band
        speech = (self.labels[:, 0] >= first) & (self.labels[:, 0] <= last)
        labels = self.labels[speech].long()
        target = torch.searchsorted(torch.tensor(config.candidates), labels[:, 0].contiguous())
        total = F.cross_entropy(main[speech], target)
        for index, logits in enumerate(codes):
            total = total + F.cross_entropy(logits[speech], labels[:, 2 + index])
        return total


@pytest.fixture
def sequences() -> Sequences:
    """Text, then speech to the end, so that every row counts in the loss."""
    whole = []
    for length in LENGTHS:
        request = request_of("a", rows=2 * (length + 1), seed=length, frames=1)
        whole.append(torch.from_numpy(request.prompt.rows[: length + 1]))
    rows = torch.cat([each[:-1] for each in whole])
    return Sequences(rows, torch.cat([each[1:] for each in whole]), LENGTHS)


@pytest.mark.parametrize("make", [ReferenceOps, PlainOps])
def test_logits_are_the_steps(
    checkpoint: Callable[[str], Path],
    make_engine: Callable[..., PoisonedEngine],
    make: Callable[[Collectives], OpTable],
) -> None:
    """Two sequences in one pass, against prefill and decode over state and pages."""
    directory = checkpoint("micro")
    engine = make_engine()
    requests = [
        request_of(str(index), rows=70 - 40 * index, seed=index, frames=5 + index)
        for index in range(2)
    ]
    for request in requests:
        engine.submit(request)
    engine.run()
    traces = [engine.trace(request.id) for request in requests]
    whole = [
        torch.cat([torch.from_numpy(request.prompt.rows), torch.from_numpy(trace["frames"])])
        for request, trace in zip(requests, traces, strict=True)
    ]
    lengths = [len(each) - 1 for each in whole]
    known = Sequences(
        torch.cat([each[:-1] for each in whole]),
        torch.cat([each[1:] for each in whole]),
        tuple(lengths),
    )
    model, _ = network(directory, load_model_config(directory), make(Ranks()))
    with torch.no_grad():
        main, codes = known.logits(model)
    assert len(codes) == 3
    mains, all_codes = main.split(lengths), codes.split(lengths, 1)
    for trace, ours, our_codes in zip(traces, mains, all_codes, strict=True):
        frames = len(trace["frames"])
        assert frames > 1
        torch.testing.assert_close(
            ours[-frames:], torch.from_numpy(trace["main"]), atol=1e-3, rtol=0
        )
        wanted = torch.from_numpy(trace["codes"]).transpose(0, 1)
        torch.testing.assert_close(our_codes[:, -frames:], wanted, atol=1e-3, rtol=0)


def test_the_differentiable_table_serves_too(
    checkpoint: Callable[[str], Path],
    build: Callable[..., Runner],
    run_rows: Callable[[Runner, Tensor, list[int]], Tensor],
) -> None:
    """Over state and pages, under cuts."""
    directory = checkpoint("micro")
    rows = torch.from_numpy(request_of("a", rows=40, seed=5, frames=1).prompt.rows)
    stage = FrameStage(max_num_seqs=4, max_model_len=256, cudagraph_mode="NONE")
    plain = build_runner(directory, load_model_config(directory), stage, PlainPlatform())
    reference = build(directory)
    cuts = [22, 1, 17]
    wanted = run_rows(reference, rows, cuts)
    torch.testing.assert_close(run_rows(plain, rows, cuts), wanted, atol=1e-3, rtol=0)
    assert plain.tensors is not None and reference.tensors is not None
    torch.testing.assert_close(
        plain.tensors.main_logits[:1], reference.tensors.main_logits[:1], atol=1e-3, rtol=0
    )


def oracle_loss(oracle: Oracle, config: ModelConfig, sequences: Sequences) -> Tensor:
    """The same loss by the oracle, sequence by sequence."""
    mains, codes = [], []
    parts = [part.long().split(sequences.lengths) for part in (sequences.rows, sequences.labels)]
    for rows, labels in zip(*parts, strict=True):
        hidden = oracle.backbone(rows)
        mains.append(hidden @ oracle.get("lm_head.weight")[oracle.candidates].T)
        h, made = hidden, []
        for index in range(config.tower.layers):
            h, logits = oracle.tower_layer(index, h, rows, labels)
            if logits is not None:
                made.append(logits)
        codes.append(torch.stack(made))
    return sequences.loss(config, torch.cat(mains), torch.cat(codes, 1))


def published_gradients(
    config: ModelConfig, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor | None]:
    """Gradients of the network's parameters by the checkpoint's names."""
    found: dict[str, Tensor | None] = {}
    for parameter in network_parameters(config):
        if parameter.kind == "experts":
            for name, part in zip(
                stacked_expert_names(parameter.stem), ("gate_up", "down"), strict=True
            ):
                found[name] = tensors[f"{parameter.name}.{part}"].grad
            continue
        gradient = tensors[parameter.name].grad
        assert gradient is not None, parameter.name
        for source, part_of in to_published(parameter, gradient, config):
            found[source.name] = part_of
    return found


def test_every_gradient_is_the_oracles(
    checkpoint: Callable[[str], Path], sequences: Sequences
) -> None:
    """By the checkpoint's names, against autograd of the slow float64 network."""
    directory = checkpoint("micro")
    config = load_model_config(directory)
    file = {
        name: value.double().requires_grad_()
        for name, value in load_file(directory / "model.safetensors").items()
    }
    oracle = Oracle(json.loads((directory / "config.json").read_text()), file)
    wanted_loss = oracle_loss(oracle, config, sequences)
    wanted_loss.backward()
    model, weights = network(directory, config, PlainOps(Ranks()))
    tensors = trainable(weights)
    for tensor in tensors.values():
        tensor.requires_grad_()
    loss = sequences.loss(config, *sequences.logits(model))
    loss.backward()
    torch.testing.assert_close(loss.detach().double(), wanted_loss.detach(), rtol=1e-5, atol=0)
    found = published_gradients(config, tensors)
    assert set(found) == set(file)
    for name, tensor in file.items():
        gradient, wanted = found[name], tensor.grad
        assert gradient is not None and wanted is not None, name
        torch.testing.assert_close(
            gradient.double().reshape(wanted.shape),
            wanted,
            rtol=1e-3,
            atol=1e-4 * float(wanted.abs().max()),
            msg=name,
        )


def test_every_parameter_gets_a_gradient(
    checkpoint: Callable[[str], Path], sequences: Sequences
) -> None:
    """Finite, and not zero but for experts that no row chose."""
    directory = checkpoint("micro")
    config = load_model_config(directory)
    ops = WatchedOps(Ranks())
    model, weights = network(directory, config, ops)
    tensors = trainable(weights)
    for tensor in tensors.values():
        tensor.requires_grad_()
    sequences.loss(config, *sequences.logits(model)).backward()
    chosen = iter(ops.chosen)
    for name, tensor in tensors.items():
        assert tensor.grad is not None and tensor.grad.isfinite().all(), name
        assert tensor.grad.ne(0.0).any(), name
        if name.endswith(".gate_up"):
            learned = tensor.grad.flatten(1).ne(0.0).any(1)
            assert set(learned.nonzero().flatten().tolist()) == next(chosen), name
    assert next(chosen, None) is None


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_few_steps_lower_the_loss(
    checkpoint: Callable[[str], Path],
    sequences: Sequences,
    optimizer: Callable[..., torch.optim.Optimizer],
) -> None:
    """The handles themselves are optimised in place; nothing is kept from the step before."""
    directory = checkpoint("micro")
    config = load_model_config(directory)
    model, weights = network(directory, config, PlainOps(Ranks()))
    tensors = list(trainable(weights).values())
    for tensor in tensors:
        tensor.requires_grad_()
    rule = optimizer(tensors, lr=0.02 if optimizer is torch.optim.SGD else 0.003)
    losses = []
    for _ in range(6):
        rule.zero_grad()
        loss = sequences.loss(config, *sequences.logits(model))
        loss.backward()
        rule.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
