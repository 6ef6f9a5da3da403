"""The books of slots and pages, alone."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declaim.contracts.step import PageCopy
from declaim.scheduler.memory import MemoryBooks


def books_of(slots: int, pages: int, page_size: int = 4) -> MemoryBooks:
    return MemoryBooks(slots, pages, page_size)


def test_slots_and_pages_go_out_lowest_first() -> None:
    books = books_of(slots=3, pages=8)
    assert [books.open() for _ in range(4)] == [0, 1, 2, None]
    assert books.grow(1, 5) == (0, 1)
    assert books.grow(0, 1) == (2,)
    books.release(1)
    books.release(0)
    assert books.open() == 0
    assert books.grow(0, 8) == (0, 1)
    assert books.tables[0] == [0, 1]
    assert books.tables.keys() == {0, 2}
    books.check()


def test_growing_within_a_page_grants_nothing() -> None:
    books = books_of(slots=1, pages=3)
    assert books.open() == 0
    assert [books.lacks(0, rows) for rows in (0, 1, 4, 5)] == [0, 1, 1, 2]
    grants = [books.grow(0, rows) for rows in (1, 2, 4, 5, 8, 9, 3)]
    assert grants == [(0,), (), (), (1,), (), (2,), ()]
    assert (books.pages_in_use, books.free_pages) == (3, 0)


def test_growing_past_the_free_pages_is_our_bug() -> None:
    books = books_of(slots=1, pages=2)
    assert books.open() == 0
    with pytest.raises(AssertionError, match="past the free pages"):
        books.grow(0, 9)
    books.check()


def test_a_prefix_shares_whole_pages_and_copies_the_rest() -> None:
    books = books_of(slots=3, pages=8)
    books.open(), books.open()
    books.grow(0, 10)
    assert books.keep(7, slot=0, rows=10) == PageCopy(2, 3)
    assert books.prefixes[7] == (0, 1, 3)
    assert books.share(1, 7, rows=10) == (0, 1)
    assert books.grow(1, 10) == (4,)
    assert (books.pages_in_use, books.free_pages) == (4, 3)
    books.check()
    books.release(0)
    assert books.shared(7) and (books.pages_in_use, books.free_pages) == (3, 4)
    books.release(1)
    assert not books.shared(7) and (books.pages_in_use, books.free_pages) == (0, 5)
    books.check()
    books.drop(7)
    assert (books.free_pages, books.prefixes) == (8, {})
    books.check()


def test_a_prefix_of_whole_pages_needs_none_of_its_own() -> None:
    books = books_of(slots=1, pages=2)
    books.open()
    books.grow(0, 8)
    assert books.keep(0, slot=0, rows=8) is None
    books.release(0)
    assert (books.free_pages, books.pages_in_use) == (0, 0)
    books.check()


def test_a_dropped_prefix_leaves_shared_pages_to_the_slot() -> None:
    books = books_of(slots=1, pages=3)
    books.open()
    books.grow(0, 6)
    assert books.keep(0, slot=0, rows=6) == PageCopy(1, 2)
    books.drop(0)
    assert (books.free_pages, books.tables[0]) == (1, [0, 1])
    books.check()


@pytest.mark.parametrize(
    "fault", ["page twice", "page lost", "slot lost", "owner lost", "owner gained", "two slots"]
)
def test_check_finds_books_that_do_not_balance(fault: str) -> None:
    books = books_of(slots=2, pages=4, page_size=1)
    books.open(), books.open()
    books.grow(0, 2)
    books.keep(0, slot=0, rows=1)
    books.release(1)
    books.check()
    faults: dict[str, Any] = {
        "page twice": lambda: books._free_pages.append(0),
        "page lost": lambda: books._free_pages.pop(),
        "slot lost": lambda: books._free_slots.pop(),
        "owner lost": lambda: books._owners.__setitem__(0, 1),
        "owner gained": lambda: books._owners.__setitem__(1, 2),
        "two slots": lambda: books.tables[0].append(0),
    }
    faults[fault]()
    with pytest.raises(AssertionError):
        books.check()


def share(books: MemoryBooks, slot: int, prefix: int, rows: int) -> int:
    """Rows that the slot holds then."""
    shared = books.share(slot, prefix, rows)
    assert shared == books.prefixes[prefix][: rows // 2]
    return 2 * len(shared)


def drop_one(books: MemoryBooks, kept: dict[int, int], data: st.DataObject) -> None:
    prefix = data.draw(st.sampled_from(sorted(kept)))
    if not any(books.prefixes[prefix][0] in table for table in books.tables.values()):
        assert not books.shared(prefix)
        books.drop(prefix)
        del kept[prefix]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_order_of_calls_balances(data: st.DataObject) -> None:
    slots, pages = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    books = MemoryBooks(slots, pages, page_size=2)
    rows: dict[int, int] = {}
    kept: dict[int, int] = {}
    prefixed: set[int] = set()
    for number in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["open", "grow", "release", "keep", "drop", "share"]))
        if action in ("open", "share"):
            slot = books.open()
            assert (slot is None) == (len(rows) == slots)
            if slot is not None:
                assert slot not in rows
                rows[slot] = 0
                if action == "share" and kept:
                    prefix = data.draw(st.sampled_from(sorted(kept)))
                    rows[slot] = share(books, slot, prefix, kept[prefix])
                    prefixed.add(slot)
        elif action == "drop" and kept:
            drop_one(books, kept, data)
        elif rows:
            slot = data.draw(st.sampled_from(sorted(rows)))
            if action == "grow":
                most = rows[slot] + 2 * books.free_pages
                rows[slot] = data.draw(st.integers(rows[slot], most))
                books.grow(slot, rows[slot])
                assert len(books.tables[slot]) == -(-rows[slot] // 2)
            elif action == "release":
                books.release(slot)
                del rows[slot]
                prefixed.discard(slot)
            elif action == "keep" and slot not in prefixed and rows[slot] and books.free_pages:
                books.keep(number, slot, rows[slot])
                kept[number] = rows[slot]
                prefixed.add(slot)
        books.check()
    for slot in rows:
        books.release(slot)
    assert books.pages_in_use == 0
    for prefix in kept:
        books.drop(prefix)
    books.check()
    assert (books.free_slots, books.free_pages) == (slots, pages)
