"""The frame stage's thread: takes requests, steps while there is work, hands frames on.

It alone touches the frame engine. Other threads leave orders, which are carried out between two
steps.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from declaim.contracts.errors import DeadlineExceeded, DeclaimError, EngineFailed
from declaim.contracts.request import Frame, FrameRequest
from declaim.engine.frames import FrameEngine
from declaim.scheduler.record import Outcome

FRAMES_AHEAD = 128
"""Frames a request may be ahead of what its caller has taken before it is held: six seconds."""


@dataclass(frozen=True)
class FrameEvents:
    """What the frame stage tells; called in its thread.

    admitted: a request got a slot, also anew after a preemption. frame: a frame was made, in order.
    ended: the last of a request. failed: a request was refused or broken; error says why.
    gone: no frame follows of a request that was aborted. broken: the stage itself ended; nothing
    follows.
    """

    admitted: Callable[[str], None]
    frame: Callable[[str, Frame], None]
    ended: Callable[[Outcome], None]
    failed: Callable[[str, DeclaimError], object]
    gone: Callable[[str], None]
    broken: Callable[[EngineFailed], None]


@dataclass
class _Running:
    """One unfinished request as the loop sees it; deadline in time.monotonic seconds."""

    deadline: float | None
    made: int = 0
    taken: int = 0
    held: bool = False


def stage_failure(stage: str, error: Exception) -> EngineFailed:
    """What a broken stage tells its requests: no path and no traceback, which are its cause."""
    failure = EngineFailed(f"the {stage} stage failed: {type(error).__name__}")
    failure.__cause__ = error
    return failure


@dataclass
class LoopPulse:
    """When a loop last came round, and whether it had work then; seconds of time.monotonic."""

    at: float = field(default_factory=time.monotonic)
    working: bool = False

    def beat(self, working: bool) -> None:
        """Note one round."""
        self.working = working
        self.at = time.monotonic()

    def age(self) -> float:
        """Seconds since the last round of a loop that has work; 0 for one that waits."""
        return time.monotonic() - self.at if self.working else 0.0


class FrameLoop:
    """Runs a FrameEngine in a thread of its own.

    prepare: run first in the thread (torch's threads). frames_ahead: see FRAMES_AHEAD. steps and
    seconds: totals of the steps run so far. Orders: submit, abort, taken, stop.
    """

    def __init__(
        self, engine: FrameEngine, events: FrameEvents, prepare: Callable[[], None]
    ) -> None:
        self.engine = engine
        self.events = events
        self.frames_ahead = FRAMES_AHEAD
        self.steps = 0
        self.seconds = 0.0
        self.pulse = LoopPulse()
        self._prepare = prepare
        self._orders: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._moving = False  # whether the last step had work; only orders and time change it
        self._running: dict[str, _Running] = {}
        self._thread = threading.Thread(target=self._run, name="declaim-frames", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step under way."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def submit(self, request: FrameRequest, deadline: float | None) -> None:
        """Queue a request; what cannot be served comes back by `failed`."""
        self._order(lambda: self._submit(request, deadline))

    def abort(self, request_id: str) -> None:
        """End a request, at any moment; `gone` follows."""
        self._order(lambda: self._abort(request_id))

    def taken(self, request_id: str, frames: int) -> None:
        """Say how many frames of a request its caller has taken in all."""
        self._order(lambda: self._taken(request_id, frames))

    def _order(self, order: Callable[[], None]) -> None:
        with self._wake:
            self._orders.append(order)
            self._wake.notify()

    def _run(self) -> None:
        try:
            self._prepare()
            while self._wait():
                self._round()
        except Exception as error:  # noqa: BLE001 - whatever broke the loop ends every request
            self.pulse.beat(False)
            self.events.broken(stage_failure("frame", error))

    def _wait(self) -> bool:
        """Carry out all orders; False when it is time to stop."""
        with self._wake:
            while not (self._orders or self._stopping or self._moving):
                self.pulse.beat(False)
                self._wake.wait(timeout=self._next_deadline())
                if self._expired():
                    break
            orders, self._orders = self._orders, deque()
            stopping = self._stopping
        for order in orders:
            order()
        return not stopping

    def _round(self) -> None:
        self.pulse.beat(True)
        for request_id in self._expired():
            late = DeadlineExceeded("the request's deadline passed", param="deadline_seconds")
            self._abort(request_id)
            self.events.failed(request_id, late)
        report = self.engine.step()
        self._moving = report is not None
        if report is None:
            return
        self.steps += 1
        self.seconds += sum(report.seconds)
        admitted = {admission.slot for admission in report.plan.admissions}
        for span in report.plan.spans:
            if span.slot in admitted:
                self.events.admitted(span.request_id)
        for update in report.updates:
            if update.frame is not None:
                self._made(update.request_id, update.frame)
            if update.outcome is not None:
                del self._running[update.request_id]
                self.events.ended(self.engine.outcome(update.request_id))

    def _made(self, request_id: str, frame: Frame) -> None:
        running = self._running[request_id]
        running.made += 1
        self.events.frame(request_id, frame)
        self._balance(request_id, running)

    def _balance(self, request_id: str, running: _Running) -> None:
        ahead = running.made - running.taken
        most = self.frames_ahead
        held = ahead >= most or (running.held and ahead > most // 2)
        if held != running.held:
            running.held = held
            self.engine.scheduler.hold(request_id, held)

    def _submit(self, request: FrameRequest, deadline: float | None) -> None:
        try:
            self.engine.submit(request)
        except DeclaimError as error:
            self.events.failed(request.id, error)
            return
        self._running[request.id] = _Running(deadline)

    def _abort(self, request_id: str) -> None:
        if self._running.pop(request_id, None) is not None:
            self.engine.abort(request_id)
            self.engine.outcome(request_id)
        self.events.gone(request_id)

    def _taken(self, request_id: str, frames: int) -> None:
        running = self._running.get(request_id)
        if running is not None:
            running.taken = max(running.taken, frames)
            self._balance(request_id, running)

    def _deadlines(self) -> dict[str, float]:
        return {
            request_id: running.deadline
            for request_id, running in self._running.items()
            if running.deadline is not None
        }

    def _next_deadline(self) -> float | None:
        soonest = min(self._deadlines().values(), default=None)
        return None if soonest is None else max(0.0, soonest - time.monotonic())

    def _expired(self) -> list[str]:
        now = time.monotonic()
        return [name for name, deadline in self._deadlines().items() if deadline <= now]
