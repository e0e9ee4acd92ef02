"""Leases: what a round holds is not freed, but never for longer than it was asked for (hazards 29, 33)."""

from __future__ import annotations

import pytest

from icestream import errors, limits
from icestream.runtime.clock import SimulatedClock
from icestream.wal.file_leases import FileLeases
from icestream.wal.file_summary import FileSummary
from icestream.wal.index import FileIndex
from icestream.wal.log_file import Seal

FILES = [FileSummary.of(Seal(number, number, number, 8192, 0, 0), 8192, FileIndex()) for number in range(1, 6)]


def numbers(files: list[FileSummary]) -> list[int]:
    return [file.number for file in files]


def test_hazard_29_a_leased_file_and_later_ones_are_kept() -> None:
    leases = FileLeases(SimulatedClock())
    assert leases.unleased_prefix(FILES) == FILES
    leases.hold("a", 1, [3, 4], 1000)
    leases.hold("b", 1, [4], 1000)
    assert numbers(leases.unleased_prefix(FILES)) == [1, 2]
    leases.hold("a", 1, [], 0)
    assert numbers(leases.unleased_prefix(FILES)) == [1, 2, 3]
    leases.hold("b", 1, [], 0)
    assert leases.unleased_prefix(FILES) == FILES
    leases.hold("b", 1, [], 0)  # twice is harmless


def test_hazard_33_a_lease_that_is_not_renewed_expires() -> None:
    clock = SimulatedClock()
    leases = FileLeases(clock)
    leases.hold("a", 1, [1], 1000)
    clock.advance(0.9)
    leases.hold("a", 1, [1], 1000)
    clock.advance(0.9)
    leases.check("a", 1)
    assert leases.unleased_prefix(FILES) == []
    clock.step(-3600)  # the wall clock says nothing about it
    clock.advance(0.1)
    assert len(leases) == 0
    assert leases.unleased_prefix(FILES) == FILES
    with pytest.raises(errors.LeaseLost):
        leases.check("a", 1)


def test_hazard_29_only_the_files_of_a_lease_may_be_read_under_it() -> None:
    leases = FileLeases(SimulatedClock())
    leases.hold("a", 1, [1, 2], 1000)
    leases.check("a", 2)
    for lease, number in (("a", 3), ("b", 1), ("", 1)):
        with pytest.raises(errors.LeaseLost):
            leases.check(lease, number)
    leases.hold("a", 1, [2], 1000)
    with pytest.raises(errors.LeaseLost):
        leases.check("a", 1)


def test_hazard_29_a_newer_pipeline_ends_the_leases_of_the_older_one() -> None:
    leases = FileLeases(SimulatedClock())
    leases.hold("old", 4, [1], 1000)
    leases.hold("new", 5, [2], 1000)
    with pytest.raises(errors.LeaseLost):
        leases.check("old", 1)
    for files in ([1], []):
        with pytest.raises(errors.LeaseLost, match="epoch 5 has taken over"):
            leases.hold("old", 4, files, 1000)
    assert numbers(leases.unleased_prefix(FILES)) == [1]


def test_leases_are_bounded() -> None:
    leases = FileLeases(SimulatedClock())
    for number in range(limits.LEASES_MAX):
        leases.hold(str(number), 1, [1], 1000)
    with pytest.raises(errors.Refused):
        leases.hold("more", 1, [1], 1000)
    leases.hold("0", 1, [2], 1000)  # one that is held can always be renewed
    leases.hold("0", 1, [], 0)
    leases.hold("more", 1, [1], 1000)
