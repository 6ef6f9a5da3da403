"""The books of device memory: which slot and which pages belong to whom.

Slots and pages are numbers here; the memory behind them lives in `state`. Knows no request.
"""

import heapq
from collections import Counter

from declaim.contracts.step import PageCopy


class MemoryBooks:
    """Slots, pages granted as rows need them, and kept prefixes that own pages too.

    A page is free, or owned by one slot, or by one prefix and any number of slots that share it;
    it is free again when its last owner lets go. Slots and pages are given out lowest number
    first. Every method either does all of its work or changes nothing.

    tables: pages by slot, in order: its block table. prefixes: pages by kept prefix, in order.
    pages_in_use: how many pages slots own, alone or with others. All three are to read only.
    """

    def __init__(self, slots: int, pages: int, page_size: int) -> None:
        self.slots = slots
        self.pages = pages
        self.page_size = page_size
        self._free_slots = list(range(slots))
        self._free_pages = list(range(pages))
        self._owners = [0] * pages
        self._sharing_slots = [0] * pages
        self.tables: dict[int, list[int]] = {}
        self.prefixes: dict[int, tuple[int, ...]] = {}
        self.pages_in_use = 0

    @property
    def free_slots(self) -> int:
        """Slots without an owner."""
        return len(self._free_slots)

    @property
    def free_pages(self) -> int:
        """Pages without an owner."""
        return len(self._free_pages)

    def pages_for(self, rows: int) -> int:
        """Pages that so many rows fill, the last one perhaps in part."""
        return -(-rows // self.page_size)

    def open(self) -> int | None:
        """A slot, with no page yet; None without one."""
        if not self._free_slots:
            return None
        slot = heapq.heappop(self._free_slots)
        self.tables[slot] = []
        return slot

    def lacks(self, slot: int, rows: int) -> int:
        """Pages that the slot lacks to hold `rows`."""
        return max(self.pages_for(rows) - len(self.tables[slot]), 0)

    def grow(self, slot: int, rows: int) -> tuple[int, ...]:
        """Grant the slot the pages it lacks to hold `rows`, in order; they must be free."""
        wanted = self.lacks(slot, rows)
        assert wanted <= len(self._free_pages), f"slot {slot} grows past the free pages"
        granted = tuple(heapq.heappop(self._free_pages) for _ in range(wanted))
        self._add_to_slot(slot, granted)
        return granted

    def share(self, slot: int, prefix: int, rows: int) -> tuple[int, ...]:
        """Give an empty slot the pages that the `rows` of a kept prefix fill; these, in order."""
        assert not self.tables[slot], f"slot {slot} holds rows already"
        shared = self.prefixes[prefix][: rows // self.page_size]
        self._add_to_slot(slot, shared)
        return shared

    def _add_to_slot(self, slot: int, pages: tuple[int, ...]) -> None:
        self.tables[slot].extend(pages)
        for page in pages:
            self._owners[page] += 1
            self._sharing_slots[page] += 1
            self.pages_in_use += self._sharing_slots[page] == 1

    def release(self, slot: int) -> None:
        """Take back the slot; its pages are free unless they are shared."""
        for page in self.tables.pop(slot):
            self._sharing_slots[page] -= 1
            self.pages_in_use -= self._sharing_slots[page] == 0
            self._let_go(page)
        heapq.heappush(self._free_slots, slot)

    def keep(self, prefix: int, slot: int, rows: int) -> PageCopy | None:
        """Make a prefix an owner of the slot's first `rows`.

        Pages that they fill are shared; a partly filled last one is to be copied into a page of
        the prefix's own, which must be free: the copy to make, or None where there is none.
        """
        assert prefix not in self.prefixes, f"the prefix {prefix} is kept already"
        whole, rest = divmod(rows, self.page_size)
        table = self.tables[slot]
        pages = tuple(table[:whole])
        copy = None
        if rest:
            assert self._free_pages, f"no page for the end of the prefix {prefix}"
            copy = PageCopy(table[whole], heapq.heappop(self._free_pages))
            pages += (copy.target,)
        for page in pages:
            self._owners[page] += 1
        self.prefixes[prefix] = pages
        return copy

    def drop(self, prefix: int) -> None:
        """End a prefix's ownership; pages that no slot shares are free."""
        for page in self.prefixes.pop(prefix):
            self._let_go(page)

    def _let_go(self, page: int) -> None:
        self._owners[page] -= 1
        if not self._owners[page]:
            heapq.heappush(self._free_pages, page)

    def shared(self, prefix: int) -> bool:
        """Whether a slot shares a page of a kept prefix."""
        return any(self._sharing_slots[page] for page in self.prefixes[prefix])

    def check(self) -> None:
        """Assert that the books balance: each page free or owned by what stands in a table."""
        slots = [*self.tables, *self._free_slots]
        assert sorted(slots) == list(range(self.slots)), "slots do not balance"
        in_slots = Counter(page for table in self.tables.values() for page in table)
        in_prefixes = Counter(page for table in self.prefixes.values() for page in table)
        for table in [*self.tables.values(), *self.prefixes.values()]:
            assert len(set(table)) == len(table), "a page twice in one table"
        for page in range(self.pages):
            owners = in_slots[page] + in_prefixes[page]
            assert self._owners[page] == owners, f"page {page} has lost count of its owners"
            assert self._sharing_slots[page] == in_slots[page], f"page {page}: slots do not add up"
            assert in_prefixes[page] <= 1, f"page {page} has two prefixes"
            assert in_slots[page] <= 1 or in_prefixes[page], f"page {page} has two slots, no prefix"
        free = [page for page, owners in enumerate(self._owners) if not owners]
        assert sorted(self._free_pages) == free, "pages do not balance"
        assert self.pages_in_use == len(in_slots), "pages in use do not add up"
