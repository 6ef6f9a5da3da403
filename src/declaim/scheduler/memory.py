"""The books of device memory: which slot and which pages belong to whom.

Slots and pages are numbers here; the memory behind them lives in `state`. Knows no request.
"""

import heapq
from dataclasses import dataclass, field


@dataclass
class Holding:
    """What one slot owns: a reservation in pages, and the pages granted from it, in order."""

    reserved: int
    pages: list[int] = field(default_factory=list)


class MemoryBooks:
    """Slots, and pages that are reserved first and granted as rows need them.

    A reservation is a promise without page numbers: `grow` can never fail within it. Both slots
    and pages are given out lowest number first. Every method either does all of its work or
    changes nothing.
    """

    def __init__(self, slots: int, pages: int, page_size: int) -> None:
        self.slots = slots
        self.pages = pages
        self.page_size = page_size
        self._free_slots = list(range(slots))
        self._free_pages = list(range(pages))
        self._holdings: dict[int, Holding] = {}
        self._promised = 0

    @property
    def free_slots(self) -> int:
        """Slots without an owner."""
        return len(self._free_slots)

    @property
    def pages_in_use(self) -> int:
        """Pages that hold rows or are about to."""
        return self.pages - len(self._free_pages)

    @property
    def pages_reserved(self) -> int:
        """Pages in use and pages promised: what a new reservation cannot have."""
        return self.pages_in_use + self._promised

    def pages_for(self, rows: int) -> int:
        """Pages that so many rows fill, the last one perhaps in part."""
        return -(-rows // self.page_size)

    def reserve(self, rows: int) -> int | None:
        """Take a slot and promise it pages for `rows`; None, and nothing taken, without room."""
        pages = self.pages_for(rows)
        if not self._free_slots or self.pages_reserved + pages > self.pages:
            return None
        slot = heapq.heappop(self._free_slots)
        self._holdings[slot] = Holding(reserved=pages)
        self._promised += pages
        return slot

    def grow(self, slot: int, rows: int) -> tuple[int, ...]:
        """Grant the slot what it lacks to hold `rows`; the new pages, in order, often none."""
        holding = self._holdings[slot]
        wanted = self.pages_for(rows)
        assert wanted <= holding.reserved, f"slot {slot} grows past its reservation"
        granted = tuple(heapq.heappop(self._free_pages) for _ in range(wanted - len(holding.pages)))
        holding.pages.extend(granted)
        self._promised -= len(granted)
        return granted

    def release(self, slot: int) -> None:
        """Take back the slot, its pages and what was still promised to it."""
        holding = self._holdings.pop(slot)
        self._promised -= holding.reserved - len(holding.pages)
        for page in holding.pages:
            heapq.heappush(self._free_pages, page)
        heapq.heappush(self._free_slots, slot)

    def pages_of(self, slot: int) -> tuple[int, ...]:
        """The slot's pages in order: its block table."""
        return tuple(self._holdings[slot].pages)

    def owned_slots(self) -> set[int]:
        """Slots with an owner."""
        return set(self._holdings)

    def check(self) -> None:
        """Assert that the books balance: free and owned make all, each number exactly once."""
        owned = [page for holding in self._holdings.values() for page in holding.pages]
        assert sorted(owned + self._free_pages) == list(range(self.pages)), "pages do not balance"
        slots = [*self._holdings, *self._free_slots]
        assert sorted(slots) == list(range(self.slots)), "slots do not balance"
        promised = [holding.reserved - len(holding.pages) for holding in self._holdings.values()]
        assert all(rest >= 0 for rest in promised), "a slot owns more than its reservation"
        assert sum(promised) == self._promised, "promises do not add up"
        assert self._promised <= len(self._free_pages), "more pages promised than free"
