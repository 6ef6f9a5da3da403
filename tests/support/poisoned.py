"""An engine whose unused memory holds NaN, and which keeps what each request left behind."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from declaim.config.checkpoint import load_model_config
from declaim.config.schema import FrameStage
from declaim.contracts.request import FrameRequest, Prompt, SamplingParams
from declaim.contracts.step import StepKind, StepPlan, StepResult
from declaim.engine.frames import FrameEngine, StepReport, load_frame_engine
from declaim.runner.batch import StepSize
from declaim.runner.graphs import Graphs, Route
from declaim.runner.runner import Runner
from declaim.scheduler.record import Outcome

Array = NDArray[Any]


def request_of(
    name: str,
    *,
    rows: int,
    seed: int,
    frames: int,
    greedy: bool = False,
    codebooks: int = 4,
    first: int = 320,
    width: int = 64,
) -> FrameRequest:
    """A request for `micro`: text, speech and text rows from the seed."""
    generator = np.random.default_rng(seed)
    array = np.zeros((rows, 1 + codebooks), dtype=np.int32)
    array[:, 0] = generator.integers(0, 256, rows)
    speech = slice(rows // 4, rows // 2)
    array[speech, 1:] = generator.integers(0, width, array[speech, 1:].shape)
    array[speech, 0] = first + array[speech, 1]
    sampling = SamplingParams()
    if greedy:
        sampling = replace(sampling, temperature=0.0, repetition_aware=False)
    return FrameRequest(
        id=name,
        prompt=Prompt(rows=array, prefix_rows=0),
        sampling=sampling,
        seed=seed,
        max_frames=frames,
    )


class PoisonedEngine:
    """Runs a FrameEngine on memory that holds NaN wherever nothing live stands.

    Free slots, free pages and the unwritten tail of live pages are NaN before every step, those
    that a preempted request has left included; the null slot and the null page stay finite. The
    books are checked after every step, and what a kept prefix holds never changes.
    padding: rows, labelled rows and streams are padded by that many.
    """

    def __init__(
        self,
        directory: Path,
        *,
        padding: int = 0,
        chunk_rows: Callable[[FrameRequest, int], int] | None = None,
        preempt_every: int | None = None,
        **options: Any,
    ) -> None:
        stage = FrameStage(
            **{"max_num_seqs": 4, "max_model_len": 256, "cudagraph_mode": "NONE", **options}
        )
        self.config = load_model_config(directory)
        self.engine: FrameEngine = load_frame_engine(
            directory, stage, self.config, chunk_rows=chunk_rows, preempt_every=preempt_every
        )
        self.books = self.engine.scheduler._memory
        self._watch(self.engine.runner)
        self.state = self.engine.runner.state
        self.reports: list[StepReport] = []
        self.slots: dict[str, int] = {}
        self.running: dict[str, int] = {}
        self.rows: dict[str, int] = {}
        self.pages: dict[int, list[int]] = {}
        self.made: dict[str, dict[str, list[Array]]] = {}
        self.left: dict[str, dict[str, Array]] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.preempted: list[tuple[str, int]] = []
        self.kept: dict[int, list[Array]] = {}
        self.dead_pages: set[int] = set()
        if padding:
            pad_passes(self.engine.runner.graphs, padding, stage)
        layout = self.state.layout
        for slot in range(layout.slots):
            self._poison_slot(slot)
        self._poison_free_pages()

    def _watch(self, runner: Runner) -> None:
        """Poison what a plan frees before the plan runs."""
        run = runner.step

        def step(plan: StepPlan) -> StepResult:
            self._before(plan)
            return run(plan)

        runner.step = step  # type: ignore[method-assign]

    def submit(self, request: FrameRequest) -> None:
        """Queue a request."""
        self.engine.submit(request)

    def abort(self, request_id: str) -> bool:
        """End a request and poison what it owned; False if it was over."""
        aborted = self.engine.abort(request_id)
        if aborted:
            self.outcomes[request_id] = self.engine.outcome(request_id)
            self._forget(request_id)
        self.engine.scheduler.check()
        return aborted

    def run(self) -> None:
        """Step until every request is over."""
        while self.step():
            pass

    def step(self) -> bool:
        """One step; False when there is nothing to do."""
        report = self.engine.step()
        if report is None:
            assert self.engine.scheduler.statistics().pages_in_use == 0
            return False
        self.reports.append(report)
        for span in report.plan.spans:
            self.rows[span.request_id] = span.length
            self.slots[span.request_id] = self.running[span.request_id] = span.slot
        self._record(report)
        over = [update.request_id for update in report.updates if update.outcome is not None]
        for name in over:
            self._keep(name)
        for name in over:
            self._forget(name)
        self.engine.scheduler.check()
        self._poison_free_pages()
        self._check_kept()
        self._check_null()
        return True

    def _before(self, plan: StepPlan) -> None:
        saved = {save.slot for save in plan.prefix_saves}
        for slot in plan.releases:
            self.pages.pop(slot, None)
            for name in [name for name, owned in self.running.items() if owned == slot]:
                del self.running[name]
                self.preempted.append((name, slot))
            if slot not in saved:
                self._poison_slot(slot)
        for admission in plan.admissions:
            self.pages[admission.slot] = []
        granted = set()
        for grant in plan.page_grants:
            self.pages[grant.slot] += grant.pages
            granted |= {page for page in grant.pages if self.books._owners[page] == 1}
        for save in plan.prefix_saves:
            self.kept.pop(save.prefix, None)
        sources = {copy.source for copy in plan.page_copies}
        self._poison_free_pages(sources)
        self._poison_pages((granted | {copy.target for copy in plan.page_copies}) - sources)

    def _check_kept(self) -> None:
        """What a kept prefix holds is what it held when it was saved."""
        numbers = self.books.prefixes.keys()
        self.kept = {number: was for number, was in self.kept.items() if number in numbers}
        for number in numbers:
            pages = list(self.books.prefixes[number])
            parts = [part[pages] for layer in self.state.pages for part in (layer.k, layer.v)]
            for state in self.state.prefixes.recurrent:
                parts += [state.tail[number], state.matrix[number]]
            now = [part.numpy().copy() for part in parts]
            for old, new in zip(self.kept.setdefault(number, now), now, strict=True):
                assert old.tobytes() == new.tobytes(), "a kept prefix has changed"

    def slot_of(self, request_id: str) -> int:
        """The slot a request ran in."""
        return self.slots[request_id]

    def trace(self, request_id: str) -> dict[str, Array]:
        """All a finished request left behind: frames, logits, recurrent state, K and V."""
        outcome = self.outcomes[request_id]
        made = {name: np.stack(parts) for name, parts in self.made[request_id].items()}
        return {"frames": outcome.frames, **made, **self.left[request_id]}

    def _record(self, report: StepReport) -> None:
        tensors = self.engine.runner.tensors
        assert tensors is not None
        for stream, span in enumerate(report.plan.sampled):
            for logits in (tensors.main_logits[stream], tensors.code_logits[:, stream]):
                assert logits.isfinite().all(), f"{span.request_id} has met memory that is not its"
            made = self.made.setdefault(span.request_id, {"main": [], "codes": []})
            made["main"].append(tensors.main_logits[stream].numpy().copy())
            made["codes"].append(tensors.code_logits[:, stream].numpy().copy())

    def _keep(self, request_id: str) -> None:
        slot = self.slots[request_id]
        self.outcomes[request_id] = outcome = self.engine.outcome(request_id)
        rows = self.rows[request_id]
        left: dict[str, Array] = {"rows": np.array(rows), "reason": np.array(str(outcome.reason))}
        for layer, state in enumerate(self.state.recurrent):
            left[f"tail {layer}"] = state.tail[slot].numpy().copy()
            left[f"matrix {layer}"] = state.matrix[slot].float().numpy().copy()
        for layer, pages in enumerate(self.state.pages):
            for name, part in (("k", pages.k), ("v", pages.v)):
                whole = part[self.pages[slot]].transpose(1, 2).flatten(0, 1)
                assert whole[rows:].isnan().all(), "an unwritten row of a live page was written"
                left[f"{name} {layer}"] = whole[:rows].numpy().copy()
        self.left[request_id] = left

    def _forget(self, request_id: str) -> None:
        if request_id in self.running:
            slot = self.running.pop(request_id)
            self._poison_slot(slot)
            self.pages.pop(slot, None)
            self._poison_free_pages()

    def _poison_slot(self, slot: int) -> None:
        for state in self.state.recurrent:
            state.tail[slot] = torch.nan
            state.matrix[slot] = torch.nan
        frames = self.state.frames
        frames.last[slot] = -(2**31)
        frames.window[slot] = -(2**31)
        frames.sampling.temperature[slot] = torch.nan
        frames.sampling.top_p[slot] = torch.nan

    def _poison_free_pages(self, spared: Iterable[int] = ()) -> None:
        """Poison the pages without an owner that are not poisoned yet."""
        free = set(self.books._free_pages)
        self._poison_pages(free - self.dead_pages - set(spared))
        self.dead_pages = free - set(spared)

    def _poison_pages(self, pages: Iterable[int]) -> None:
        chosen = list(pages)
        for layer in self.state.pages:
            layer.k[chosen] = torch.nan
            layer.v[chosen] = torch.nan

    def _check_null(self) -> None:
        for state in self.state.recurrent:
            assert state.tail[-1].isfinite().all() and state.matrix[-1].isfinite().all()
        for layer in self.state.pages:
            assert layer.k[-1].isfinite().all() and layer.v[-1].isfinite().all()


def pad_passes(graphs: Graphs, extra: int, stage: FrameStage) -> None:
    """Route every step with that many rows, labelled rows and streams more, within the buffers."""
    route = graphs.route

    def padded(kind: StepKind, exact: StepSize) -> Route:
        streams = exact.streams and min(exact.streams + extra, stage.max_num_seqs)
        most = stage.max_num_batched_tokens
        size = StepSize(
            rows=streams if kind is StepKind.DECODE else min(exact.rows + extra, most),
            labelled=exact.labelled and min(exact.labelled + extra, most),
            streams=streams,
        )
        return Route(kind, size, route(kind, exact).passes)

    graphs.route = padded  # type: ignore[method-assign]
