"""Entries against plain lists: extending an older version never changes another version."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.iceberg.shared_list import SharedList


def item(number: int) -> dict[str, int]:
    return {"snapshot-id": number}


def check(entries: SharedList, model: list[int], seen: int) -> None:
    assert [entry["snapshot-id"] for entry in entries] == model
    assert len(entries) == len(model)
    assert orjson.loads(b"[" + b"".join(entries.pieces()) + b"]") == [item(number) for number in model]
    for number in range(seen):
        assert (entries.find(number) is not None) == (number in model)


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["plus", "many", "first", "without", "kept"]), st.integers(0, 40), st.integers(0, 400)),
    max_size=12,
)


@given(STEPS)
def test_every_version_is_immutable(steps: list[Step]) -> None:
    """Each step derives a new version from any older one; in the end all versions are compared."""
    versions: list[tuple[SharedList, list[int]]] = [(SharedList([], "snapshot-id"), [])]
    seen = 0
    for kind, which, amount in steps:
        entries, model = versions[which % len(versions)]
        if kind in ("plus", "many"):
            for _ in range(1 if kind == "plus" else amount):
                entries, model = entries.plus(item(seen)), [*model, seen]
                seen += 1
        elif kind == "first":
            count = amount % (len(model) + 1)
            entries, model = entries.without_first(count), model[count:]
        elif kind == "without":
            gone = {number for number in model if number % 7 == amount % 7}
            entries, model = entries.without(gone), [number for number in model if number not in gone]
        else:
            entries = entries.filter(lambda entry, amount=amount: entry["snapshot-id"] < amount)  # type: ignore[misc]
            model = [number for number in model if number < amount]
        if amount % 2:
            entries.pieces()
        versions.append((entries, model))
    for entries, model in versions:
        check(entries, model, seen)


def test_a_version_with_successors_can_be_extended_independently() -> None:
    base = SharedList([item(1)], "snapshot-id")
    first, other = base.plus(item(2)), base.plus(item(3))
    assert (first.find(3), other.find(2)) == (None, None)
    assert [len(each) for each in (base, first, other)] == [1, 2, 2]


def test_the_ends_are_accessible_by_index() -> None:
    entries = SharedList([item(1), item(2), item(3)]).without_first(1)
    assert (entries[0], entries[-1]) == (item(2), item(3))
    for outside in (2, -3):
        with pytest.raises(IndexError):
            entries[outside]


def test_removing_the_oldest_copies_nothing() -> None:
    entries = SharedList([item(number) for number in range(1_000)], "snapshot-id")
    entries.pieces()
    shorter = entries.without({0, 1, 2})
    assert shorter._storage is entries._storage
    assert entries.without({0, 2})._storage is not entries._storage
