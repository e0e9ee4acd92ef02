"""Which consumer has a key: stable, even enough, and safe against hostile patterns."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.broker.dispatch.hash_ring import DepartedFilters, HashRing, KeyFilter, ring_distance, ring_point

KEYS = [b"key-%d" % number for number in range(3_000)]


def ring_of(*consumers: int) -> HashRing:
    ring = HashRing()
    for consumer in consumers:
        ring.join(consumer, KeyFilter())
    return ring


def owners(ring: HashRing) -> dict[bytes, int]:
    owner_by_key = {key: ring.owner(key, ring_point(key)) for key in KEYS}
    return {key: owner.consumer_id for key, owner in owner_by_key.items() if owner is not None}


# --- the ring ---------------------------------------------------------------------------------------------------------


def test_an_empty_ring_owns_no_key() -> None:
    assert HashRing().owner(b"a", ring_point(b"a")) is None


def test_a_joining_consumer_takes_its_share_and_moves_nothing_else() -> None:
    before, after = owners(ring_of(1, 2, 3)), owners(ring_of(1, 2, 3, 4))
    moved = {key for key in KEYS if before[key] != after[key]}
    assert {after[key] for key in moved} == {4}
    assert 0.15 < len(moved) / len(KEYS) < 0.35


def test_a_leaving_consumer_gives_its_share_to_the_others_and_moves_nothing_else() -> None:
    ring = ring_of(1, 2, 3, 4)
    before = owners(ring)
    ring.leave(2)
    after = owners(ring)
    assert all(after[key] == before[key] for key in KEYS if before[key] != 2)
    assert {after[key] for key in KEYS if before[key] == 2} == {1, 3, 4}


def test_shares_are_even_enough() -> None:
    counts = Counter(owners(ring_of(*range(10))).values())
    assert len(counts) == 10
    assert max(counts.values()) < 2 * min(counts.values())


@given(st.permutations([1, 2, 3, 4, 5]), st.sets(st.integers(1, 5)))
def test_the_order_of_joins_and_leaves_does_not_matter(order: list[int], gone: set[int]) -> None:
    ring = ring_of(*order)
    for consumer in gone:
        ring.leave(consumer)
    assert owners(ring) == owners(ring_of(*(consumer for consumer in range(1, 6) if consumer not in gone)))
    assert len(ring) == 5 - len(gone)


def test_removing_an_unknown_consumer_is_allowed() -> None:
    ring = ring_of(1)
    assert ring.leave(2) is None
    assert set(owners(ring).values()) == {1}


def test_a_key_goes_to_the_next_consumer_that_accepts_it() -> None:
    ring = ring_of(1, 2)
    ring.join(3, KeyFilter(["key-1*"]))
    assert {key for key, owner in owners(ring).items() if owner == 3} <= {
        key for key in KEYS if key.startswith(b"key-1")
    }
    ring.leave(1)
    ring.leave(2)
    assert owners(ring) == {key: 3 for key in KEYS if key.startswith(b"key-1")}
    ring.leave(3)
    assert not owners(ring)


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_the_circle_is_closed(place: int, places: list[int]) -> None:
    assert ring_distance(place, sorted(places)) == min((other - place) % 2**64 for other in places)


# --- filters ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.text(alphabet="ab*?\\.[", max_size=8), min_size=1, max_size=3),
    st.binary(max_size=8) | st.text(alphabet="ab.\\[\n", max_size=8).map(str.encode),
)
@example(["*"], b"")
@example([""], b"")
@example(["a*b*a"], b"aba")
@example(["*ab"], b"aabab")
@example(["\\?"], b"\\x")
@example(["?"], b"\n")
def test_filters_are_globs(patterns: list[str], key: bytes) -> None:
    """Patterns work as in fnmatch, without its character classes in brackets."""
    plain = [re.sub(r"\[", "[[]", pattern) for pattern in patterns]
    expected = any(fnmatch.fnmatchcase(key.decode("latin-1"), pattern) for pattern in plain)
    assert KeyFilter(patterns).accepts(key) == expected


def test_without_a_pattern_every_key_matches() -> None:
    assert KeyFilter().accepts(b"")
    assert KeyFilter().accepts(b"\xff\x00")


@pytest.mark.parametrize("pattern", ["*a" * 100 + "b", "a*" * 100 + "b", "?*" * 100 + "b", "*" * 200 + "b"])
def test_a_hostile_pattern_costs_no_more_than_an_ordinary_one(pattern: str) -> None:
    """Tried in all ways, the first of these takes longer than the universe is old."""
    assert not KeyFilter([pattern]).accepts(b"a" * 5_000 + b"c")


@pytest.mark.parametrize(
    "patterns",
    [
        ["x"] * (limits.KEY_FILTERS_MAX + 1),
        ["x" * (limits.NAME_BYTES_MAX + 1)],
        ["ß" * limits.NAME_BYTES_MAX],
        ["\ud800"],
    ],
)
def test_filters_are_bounded(patterns: list[str]) -> None:
    with pytest.raises(errors.InvalidInput, match="filter"):
        KeyFilter(patterns)


# --- consumers that left ----------------------------------------------------------------------------------------------


def test_keys_of_a_departed_filter_are_reserved_for_a_while() -> None:
    absent = DepartedFilters(100)
    absent.add(KeyFilter(["a*"]), 0)
    absent.add(KeyFilter(["*b"]), 50)
    assert absent.until_ms(b"a", 60) == 100
    assert absent.until_ms(b"ab", 60) == 150
    assert absent.until_ms(b"c", 60) == 60
    assert absent.until_ms(b"a", 100) == 100
    assert absent.until_ms(b"ab", 100) == 150


def test_a_filter_that_departed_twice_is_kept_from_the_second_time() -> None:
    absent = DepartedFilters(100)
    absent.add(KeyFilter(["a"]), 0)
    absent.add(KeyFilter(["b"]), 1)
    absent.add(KeyFilter(["a"]), 50)
    assert absent.until_ms(b"a", 60) == 150


def test_the_number_of_departed_filters_is_bounded() -> None:
    absent = DepartedFilters(100)
    for number in range(limits.KEY_ABSENT_FILTERS_MAX + 1):
        absent.add(KeyFilter([str(number)]), 0)
    assert absent.until_ms(b"0", 50) == 50
    assert absent.until_ms(b"1", 50) == 100
