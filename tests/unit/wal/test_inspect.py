"""Inspection of a log shows its state, and changes nothing."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors
from icestream.model import SyncMode
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.simulated_disk import SimulatedDisk, SimulatedFile
from icestream.wal.damage import plan_repair
from icestream.wal.format import RECORDS_START
from icestream.wal.inspect import DAMAGED, LogView, records_of, view_log
from icestream.wal.log_repair import apply_repair
from tests.support.damage import FlippedBit, MissingFile
from tests.support.sample_logs import LOGS, picture
from tests.support.small_log import A, B, contents, open_small


def view(disk: SimulatedDisk) -> LogView:
    before = contents(disk)
    seen = view_log(disk)
    assert contents(disk) == before, "a look changed something"
    return seen


def test_an_empty_directory_is_an_empty_log() -> None:
    seen = view(SimulatedDisk(1))
    assert (seen.files, seen.shards, seen.last_lsn, seen.clean, seen.damage) == ([], [], 0, False, None)


@pytest.mark.parametrize("name", LOGS)
def test_an_inspection_agrees_with_a_start(name: str) -> None:
    drawn = picture(name)
    seen = view(drawn.disk())
    log = asyncio.run(open_small(drawn.disk(), drawn.mode))
    assert seen.damage is None
    assert seen.last_lsn == log.report.last_lsn
    assert seen.checkpoint_lsn == log.report.checkpoint_lsn
    assert seen.clean is log.report.clean
    ends = {key: max(messages, default=-1) + 1 for key, messages in drawn.acked.items()}
    assert {shard.key: max(shard.end, shard.floor) for shard in seen.shards} == ends


def test_files_are_shown_with_state_records_and_size() -> None:
    drawn = picture("stopped then killed")
    seen = view(drawn.disk())
    assert [(file.name, file.state, file.first_lsn, file.last_lsn, file.shards) for file in seen.files] == [
        ("log-0000000000000001.wal", "sealed", 1, 3, 2),
        ("log-0000000000000003.wal", "active", 4, 7, 0),
        ("log-0000000000000004.wal", "prepared", 0, 0, 0),
    ]
    assert [file.size for file in seen.files] == [len(drawn.files[name]) for name in drawn.logs()]
    assert seen.files[1].used_bytes == max(place.record.stop for place in drawn.places() if place.lsn == 7)
    assert view(picture("stopped").disk()).spares == 1


def test_shards_are_shown_with_topic_offsets_and_gaps() -> None:
    drawn = picture("stopped then killed")
    disk = drawn.disk()
    MissingFile("log-0000000000000001.wal").do(disk)
    apply_repair(disk, SimulatedClock(), plan_repair(disk))
    first, second = view(disk).shards
    assert (first.key, first.topic, first.floor, first.end, first.epoch) == (A, "/default/a", 0, 9, 0)
    assert [(gap.start, gap.end, gap.state.name) for gap in first.gaps] == [(0, 3, "LOST")]
    assert (second.key, second.topic) == (B, "/default/b")


def test_promises_are_shown() -> None:
    drawn = picture("periodic")
    assert drawn.mode is SyncMode.PERIODIC
    assert {shard.key: shard.reserved for shard in view(drawn.disk()).shards} == drawn.reserved


def test_damage_is_shown_and_not_raised() -> None:
    drawn = picture("killed often")
    disk = drawn.disk()
    disk.flip(drawn.logs()[1], 8 * (RECORDS_START + 8))
    seen = view(disk)
    assert isinstance(seen.damage, errors.LogDamaged)
    assert seen.damage.message == (
        f"sim:{drawn.logs()[1]} is damaged at position {RECORDS_START}: record 4 cannot be read, and the file is sealed"
    )
    assert [file.name for file in seen.files] == drawn.logs()


def test_a_file_without_a_valid_header_is_shown_as_damaged() -> None:
    """Both the file's header and that of its first record, which could replace it, are damaged."""
    drawn = picture("killed often")
    disk = drawn.disk()
    disk.flip(drawn.logs()[1], 8 * 40)
    disk.flip(drawn.logs()[1], 8 * (RECORDS_START + 8))
    seen = view(disk)
    assert [file.state for file in seen.files] == ["sealed", DAMAGED, "active", "prepared"]
    assert seen.damage is not None


def test_a_sealed_file_whose_index_cannot_be_rebuilt_is_shown() -> None:
    """Footer and records are damaged; a start reads the covered records only to rebuild the footer."""
    drawn = picture("stopped")
    disk = drawn.disk()
    disk.flip(drawn.logs()[0], 8 * (drawn.used(drawn.logs()[0]) - 20))
    disk.flip(drawn.logs()[0], 8 * (RECORDS_START + 8))
    seen = view(disk)
    assert [(file.state, file.shards) for file in seen.files] == [("sealed", 0)]
    assert seen.damage is not None


# --- records ----------------------------------------------------------------------------------------------------------


def test_records_are_listed_in_order() -> None:
    drawn = picture("stopped then killed")
    records = list(records_of(drawn.disk(), drawn.logs()[0], 1))
    assert [(record.lsn, record.kind, record.state, record.sections) for record in records] == [
        (1, "data", "good", 4),
        (2, "data", "good", 1),
        (3, "data", "good", 1),
    ]
    assert records[0].position == RECORDS_START
    assert [record.position + record.size for record in records[:-1]] == [record.position for record in records[1:]]
    assert [record.synced_through for record in records] == [0, 1, 2]
    assert len({record.append_time_us for record in records}) == 1


def test_records_after_a_bad_one_are_listed_too() -> None:
    drawn = picture("stopped then killed")
    disk = drawn.disk()
    second = next(place for place in drawn.places() if place.lsn == 2)
    FlippedBit(second.file, 8 * (second.record.start + 8)).do(disk)
    records = list(records_of(disk, second.file, 1))
    assert [(record.lsn, record.kind, record.state) for record in records] == [
        (1, "data", "good"),
        (0, "unreadable", "damaged"),
        (3, "data", "good"),
    ]
    assert range(records[1].position, records[1].position + records[1].size) == second.record


def test_a_record_with_a_bad_section_is_marked() -> None:
    drawn = picture("stopped then killed")
    disk = drawn.disk()
    first = next(drawn.places())
    FlippedBit(first.file, 8 * first.body.start).do(disk)
    assert [record.state for record in records_of(disk, first.file, 1)] == ["damaged", "good", "good"]


def test_an_empty_or_cut_file_has_no_records() -> None:
    drawn = picture("killed")
    disk = drawn.disk()
    assert list(records_of(disk, drawn.logs()[1], 2)) == []
    disk.replace(drawn.logs()[1], b"")
    assert list(records_of(disk, drawn.logs()[1], 2)) == []


# --- beside a running broker ------------------------------------------------------------------------------------------


class MovingDisk(SimulatedDisk):
    """Files disappear, or are half written, while the log is inspected: as often as the test sets."""

    gone = 0
    torn = 0

    def open(self, name: str) -> SimulatedFile:
        if self.gone and name.startswith("log"):
            self.gone -= 1
            raise FileNotFoundError(name)
        return super().open(name)

    def names(self) -> list[str]:
        """Each inspection begins with this call. A torn one misses the file in the middle."""
        names = super().names()
        if not self.torn:
            return names
        self.torn -= 1
        hidden = "log-0000000000000006.wal" if self.torn % 2 else "log-0000000000000003.wal"
        return [name for name in names if name != hidden]


def moving() -> MovingDisk:
    disk = MovingDisk(1)
    for name, content in picture("killed often").files.items():
        disk.replace(name, content)
    return disk


def test_a_file_removed_during_an_inspection_is_looked_up_again() -> None:
    disk = moving()
    disk.gone = 3
    assert view_log(disk).damage is None


def test_transient_damage_is_not_reported() -> None:
    disk = moving()
    disk.torn = 2
    assert view_log(disk).damage is None


def test_permanent_damage_is_reported_although_files_move() -> None:
    disk = moving()
    disk.torn = 2
    disk.flip("log-0000000000000006.wal", 8 * (RECORDS_START + 8))
    assert "log-0000000000000006.wal is damaged" in str(view_log(disk).damage)


def test_files_that_keep_moving_are_reported() -> None:
    disk = moving()
    disk.gone = 1000
    with pytest.raises(errors.StaleRead, match="change faster"):
        view_log(disk)
