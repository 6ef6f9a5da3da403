"""Kept prefixes: an index by content, with least-recently-used eviction.

A kept prefix is a number, under which `state.prefixes` has the recurrent state, and pages, of
which MemoryBooks knows the owners. Knows no request and no content but bytes to compare.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from declaim.contracts.step import PageCopy, PrefixSave
from declaim.scheduler.memory import MemoryBooks


@dataclass(frozen=True)
class KeptPrefix:
    """One entry of the index. rows: how many rows it holds."""

    number: int
    rows: int


class PrefixIndex:
    """At most `capacity` prefixes by the bytes of their rows, which are compared in full.

    A prefix is in use while a slot shares a page of it; such a prefix is not evicted by `evict`
    and `save`. hits, misses, evictions: counts since the start.
    """

    def __init__(self, capacity: int, memory: MemoryBooks) -> None:
        self.capacity = capacity
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self._memory = memory
        self._kept: OrderedDict[bytes, KeptPrefix] = OrderedDict()
        self._free_numbers = list(range(capacity))

    def __len__(self) -> int:
        return len(self._kept)

    def wants(self, content: bytes) -> bool:
        """Whether a prefix with this content is worth saving: one, not kept yet, with room."""
        return bool(content) and self.capacity > 0 and content not in self._kept

    def find(self, content: bytes) -> KeptPrefix | None:
        """The prefix of exactly this content, if it is kept."""
        return self._kept.get(content)

    def count(self, content: bytes, *, hit: bool) -> None:
        """Count a request's start, with its prefix or without; a hit makes it the newest used."""
        if hit:
            self.hits += 1
            self._kept.move_to_end(content)
        elif content and self.capacity:
            self.misses += 1

    def save(
        self, content: bytes, rows: int, slot: int
    ) -> tuple[PrefixSave, PageCopy | None] | None:
        """Keep a slot's first `rows`, which are all that it has computed.

        Prefixes that are not in use make room for it; None, and nothing kept, without room.
        """
        page = bool(rows % self._memory.page_size)
        while not self._free_numbers or self._memory.free_pages < page:
            if not self.evict():
                return None
        number = heapq.heappop(self._free_numbers)
        self._kept[content] = KeptPrefix(number, rows)
        return PrefixSave(slot, number), self._memory.keep(number, slot, rows)

    def evict(self) -> bool:
        """Evict the prefix that is not in use and was used longest ago; False without one."""
        for content, kept in self._kept.items():
            if not self._memory.shared(kept.number):
                self._drop(content)
                return True
        return False

    def evict_any(self) -> None:
        """Evict the prefix used longest ago even if it is in use: slots keep pages they share."""
        self._drop(next(iter(self._kept)))

    def _drop(self, content: bytes) -> None:
        kept = self._kept.pop(content)
        self._memory.drop(kept.number)
        heapq.heappush(self._free_numbers, kept.number)
        self.evictions += 1

    def evictable_pages(self, spared: KeptPrefix | None) -> int:
        """Pages that evicting all prefixes not in use, but for the spared one, would free."""
        return sum(
            len(self._memory.prefixes[kept.number])
            for kept in self._kept.values()
            if kept is not spared and not self._memory.shared(kept.number)
        )

    def check(self) -> None:
        """Assert that the index agrees with the books, and that each number is used once."""
        numbers = [kept.number for kept in self._kept.values()]
        assert sorted(numbers + self._free_numbers) == list(range(self.capacity)), "numbers"
        assert set(numbers) == self._memory.prefixes.keys(), "prefixes and pages disagree"
        for kept in self._kept.values():
            pages = len(self._memory.prefixes[kept.number])
            assert pages == self._memory.pages_for(kept.rows), "a prefix with too few pages"
