"""The books of slots and pages, alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declaim.scheduler.memory import MemoryBooks


def test_slots_and_pages_go_out_lowest_first() -> None:
    books = MemoryBooks(slots=3, pages=8, page_size=4)
    assert [books.reserve(8) for _ in range(3)] == [0, 1, 2]
    assert books.grow(1, 5) == (0, 1)
    assert books.grow(0, 1) == (2,)
    books.release(1)
    books.release(0)
    assert books.reserve(8) == 0
    assert books.grow(0, 8) == (0, 1)
    assert books.pages_of(0) == (0, 1)
    assert books.owned_slots() == {0, 2}
    books.check()


def test_growing_within_a_page_grants_nothing() -> None:
    books = MemoryBooks(slots=1, pages=3, page_size=4)
    assert books.reserve(9) == 0
    grants = [books.grow(0, rows) for rows in (1, 2, 4, 5, 8, 9)]
    assert grants == [(0,), (), (), (1,), (), (2,)]
    assert (books.pages_in_use, books.pages_reserved) == (3, 3)


def test_promised_pages_are_not_promised_again() -> None:
    books = MemoryBooks(slots=3, pages=5, page_size=4)
    assert books.reserve(16) == 0
    assert (books.pages_in_use, books.pages_reserved) == (0, 4)
    assert books.reserve(5) is None
    assert books.reserve(4) == 1
    assert books.reserve(1) is None
    books.check()


def test_a_failed_reservation_takes_nothing() -> None:
    books = MemoryBooks(slots=2, pages=2, page_size=4)
    for _ in range(5):
        assert books.reserve(9) is None
    assert (books.free_slots, books.pages_reserved) == (2, 0)
    assert books.reserve(8) == 0
    assert books.free_slots == 1
    assert books.reserve(1) is None
    assert books.free_slots == 1


def test_growing_past_the_reservation_is_our_bug() -> None:
    books = MemoryBooks(slots=1, pages=9, page_size=4)
    assert books.reserve(8) == 0
    with pytest.raises(AssertionError, match="past its reservation"):
        books.grow(0, 9)


@pytest.mark.parametrize("fault", ["page twice", "page lost", "slot lost", "promise lost"])
def test_check_finds_books_that_do_not_balance(fault: str) -> None:
    books = MemoryBooks(slots=2, pages=4, page_size=1)
    slot = books.reserve(3)
    assert slot is not None
    books.grow(slot, 2)
    books.check()
    if fault == "page twice":
        books._free_pages.append(0)
    elif fault == "page lost":
        books._free_pages.pop()
    elif fault == "slot lost":
        books._free_slots.pop()
    else:
        books._promised = 0
    with pytest.raises(AssertionError):
        books.check()


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_order_of_calls_balances(data: st.DataObject) -> None:
    slots, pages = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    books = MemoryBooks(slots, pages, page_size=2)
    rows: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["reserve", "grow", "release"]))
        if action == "reserve":
            wanted = data.draw(st.integers(1, 2 * pages))
            before = (books.free_slots, books.pages_reserved)
            slot = books.reserve(wanted)
            if slot is None:
                taken = sum(-(-held // 2) for held in rows.values())
                assert len(rows) == slots or taken + -(-wanted // 2) > pages
                assert (books.free_slots, books.pages_reserved) == before
            else:
                assert slot not in rows
                rows[slot] = wanted
        elif rows:
            slot = data.draw(st.sampled_from(sorted(rows)))
            if action == "grow":
                held = len(books.pages_of(slot))
                wanted = data.draw(st.integers(2 * held, max(rows[slot], 2 * held)))
                books.grow(slot, wanted)
                assert len(books.pages_of(slot)) == max(-(-wanted // 2), held)
            else:
                books.release(slot)
                del rows[slot]
        books.check()
    for slot in rows:
        books.release(slot)
    books.check()
    assert (books.free_slots, books.pages_reserved, books.pages_in_use) == (slots, 0, 0)
