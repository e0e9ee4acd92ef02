"""The rule about the rows of a rewrite, on random files: what keeps every row is accepted; what loses, doubles or moves
one is refused, as far as manifests can tell."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.catalog.topic_rules.rewritten_rows import Bounds, DataFile, FileChanges, bands, check_same_rows

Row = tuple[int, int]  # shard, offset
File = list[Row]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[File], random.Random]:
    """Some files of a table: rows of up to three shards, with holes, each file a few rows in a stretch."""
    chance = draw(st.randoms(use_true_random=False))
    files: list[File] = []
    for shard in range(draw(st.integers(1, 3))):
        offset = chance.randrange(5)
        for _ in range(draw(st.integers(1, 5))):
            count = chance.randint(1, 6)
            rows = sorted(chance.sample(range(offset, offset + 2 * count), count))
            files.append([(shard, row) for row in rows])
            offset += 2 * count + chance.choice([0, 0, 7])
    if draw(st.booleans()) and len(files) > 1:  # a file of several shards
        files = [files[0] + files[-1], *files[1:-1]]
    return files, chance


def described(name: str, rows: File) -> DataFile:
    shards, offsets = [shard for shard, _ in rows], [offset for _, offset in rows]
    return DataFile(name, len(rows), Bounds(min(shards), max(shards)), Bounds(min(offsets), max(offsets)), 1)


def changes(old: list[File], new: list[File]) -> FileChanges:
    return FileChanges(
        [described(f"old{number}", rows) for number, rows in enumerate(old)],
        [described(f"new{number}", rows) for number, rows in enumerate(new) if rows],
    )


def compacted(files: list[File], chance: random.Random) -> list[File]:
    """The same rows in other files: cut anywhere, in the order of shard and offset."""
    rows = sorted(row for file in files for row in file)
    cuts = sorted(chance.sample(range(len(rows) + 1), min(len(rows), chance.randrange(4))))
    return [file for file in (rows[low:high] for low, high in zip([0, *cuts], [*cuts, None], strict=True)) if file]


def tells(files: FileChanges) -> bool:
    """The same rule as plain code: it compares each pair of files, without an order and without grouping by shard."""
    everything = [*files.removed, *files.added]
    group = {file.location: number for number, file in enumerate(everything)}

    def join(is_linked: dict[str, int], first: str, second: str) -> None:
        before, after = is_linked[first], is_linked[second]
        for name, number in is_linked.items():
            if number == before:
                is_linked[name] = after

    def overlap(bounds: Bounds | None, other: Bounds | None) -> bool:
        assert bounds is not None
        assert other is not None
        return bounds.low <= other.high and other.low <= bounds.high

    by_shard = dict(group)
    for file in everything:
        for other in everything:
            if overlap(file.shards, other.shards):
                join(by_shard, file.location, other.location)
    for file in everything:
        for other in everything:
            if by_shard[file.location] == by_shard[other.location] and overlap(file.offsets, other.offsets):
                join(group, file.location, other.location)
    for number in set(group.values()):
        sides = [[file for file in side if group[file.location] == number] for side in (files.removed, files.added)]
        if sum(file.rows for file in sides[0]) != sum(file.rows for file in sides[1]) or not all(sides):
            return False
        for corner in ("shards", "offsets"):
            ends = [
                (min(getattr(file, corner).low for file in side), max(getattr(file, corner).high for file in side))
                for side in sides
            ]
            if ends[0] != ends[1]:
                return False
    return True


def is_accepted(files: FileChanges) -> bool:
    try:
        check_same_rows(files)
    except errors.Contradiction:
        return False
    return True


@given(tables())
def test_a_rewrite_that_keeps_every_row_is_accepted(table: tuple[list[File], random.Random]) -> None:
    files, chance = table
    assert is_accepted(changes(files, compacted(files, chance)))


@given(tables())
def test_a_rewrite_that_drops_or_doubles_a_row_is_refused(table: tuple[list[File], random.Random]) -> None:
    files, chance = table
    new = compacted(files, chance)
    victim = chance.choice(new)
    row = chance.choice(victim)
    if chance.random() < 0.5:
        victim.remove(row)
    else:
        victim.append(row)
    if any(new):
        assert not is_accepted(changes(files, new))


@given(tables())
def test_the_rule_is_the_one_of_its_definition(table: tuple[list[File], random.Random]) -> None:
    """Arbitrary rows in the new files: an accepted change agrees with every band, and a refused one does not."""
    files, chance = table
    rows = sorted(row for file in files for row in file)
    wrong = [row if chance.random() < 0.9 else (row[0], row[1] + chance.randint(-2, 2)) for row in rows]
    change = changes(files, compacted([wrong], chance))
    assert is_accepted(change) == tells(change)
    for band in bands(change):
        assert Counter(file.location for file in band.files).most_common(1)[0][1] == 1


def test_a_row_that_moves_to_another_band_is_refused_although_the_total_is_right() -> None:
    low = [(0, offset) for offset in range(10)]
    high = [(0, offset) for offset in range(100, 110)]
    assert is_accepted(changes([low[:5], low[5:], high], [low, high]))
    assert not is_accepted(changes([low[:5], low[5:], high], [[*low, low[5]], high[:5] + high[6:]]))


def test_rows_that_manifests_do_not_describe_are_accepted() -> None:
    """A row dropped and another one doubled inside a band: it takes a digest of the rows to see that (hazard 83)."""
    rows = [(0, offset) for offset in range(10)]
    mutant = [row for row in rows if row != (0, 4)] + [(0, 5)]
    assert is_accepted(changes([rows[:5], rows[5:]], [mutant]))


def test_many_files_are_judged_in_a_moment() -> None:
    files = [[(0, 10 * number)] for number in range(10_000)]
    change = changes(files, [[row for file in files[low : low + 100] for row in file] for low in range(0, 10_000, 100)])
    assert len(bands(change)) == 100
    check_same_rows(change)


@pytest.mark.parametrize("missing", ["shards", "offsets"])
def test_a_file_without_bounds_is_left_alone(missing: str) -> None:
    old = described("old", [(0, 1)])._replace(**{missing: None})
    with pytest.raises(errors.Contradiction, match="old has no bounds"):
        check_same_rows(FileChanges([old], [described("new", [(0, 1)])]))
