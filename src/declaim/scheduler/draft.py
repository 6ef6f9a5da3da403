"""A step plan while it is being made: what was decided so far, and can still be taken back."""

from dataclasses import dataclass, field

from declaim.contracts.step import (
    Admission,
    PageCopy,
    PageGrant,
    PrefixLoad,
    PrefixSave,
    Span,
    StepKind,
    StepPlan,
)
from declaim.scheduler.record import RequestRecord


@dataclass
class PlanDraft:
    """Parts of the next plan, each in the order of its decisions.

    Page numbers are taken and given back while a plan is made. Executed in order, each part still
    finds what it was decided on: saves, copies and loads all stand before the rows, and saves are
    decided before anything else.
    grants: pages by slot. work: the spans and their requests.
    """

    saves: list[PrefixSave] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    loads: list[PrefixLoad] = field(default_factory=list)
    grants: dict[int, tuple[int, ...]] = field(default_factory=dict)
    work: list[tuple[Span, RequestRecord]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows of the spans so far."""
        return sum(span.count for span, _ in self.work)

    def grant(self, slot: int, pages: tuple[int, ...]) -> None:
        """Add pages to a slot's table."""
        if pages:
            self.grants[slot] = self.grants.get(slot, ()) + pages

    def release(self, slot: int) -> None:
        """Free a slot; spans and grants that it has in this draft are taken back."""
        self.releases.append(slot)
        self.grants.pop(slot, None)
        self.work = [(span, record) for span, record in self.work if span.slot != slot]

    def plan(self) -> StepPlan:
        """The plan, which has at least one span."""
        spans = tuple(span for span, _ in self.work)
        return StepPlan(
            kind=_kind(spans),
            spans=spans,
            prefix_saves=tuple(self.saves),
            releases=tuple(self.releases),
            admissions=tuple(self.admissions),
            page_copies=tuple(self.copies),
            prefix_loads=tuple(self.loads),
            page_grants=tuple(PageGrant(slot, pages) for slot, pages in self.grants.items()),
        )


def _kind(spans: tuple[Span, ...]) -> StepKind:
    decoding = sum(span.rows is None for span in spans)
    if decoding == len(spans):
        return StepKind.DECODE
    return StepKind.MIXED if decoding else StepKind.PREFILL
