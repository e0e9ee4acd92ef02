"""Where records of the metadata log go: files, seals, tickets, and which files are no longer needed."""

from __future__ import annotations

from icestream import limits
from icestream.metadata import eraftpb
from icestream.metadata.core import HardState
from icestream.metadata.log_format import Base, Identity, LogRecord, decode_record
from icestream.metadata.log_plan import LogFile, LogPlan
from icestream.wal.appender import PlannedWrite
from icestream.wal.format import RECORDS_START, decode_header
from icestream.wal.log_file import SEAL_POSITION, decode_seal

IDENTITY = Identity(1, bytes(16), b"conf")
CAPACITY = 8 * limits.KIB


def planned(*, files: int = 1) -> LogPlan:
    plan = LogPlan(IDENTITY, HardState(3, 1, 0), 10)
    for number in range(1, files + 1):
        plan.file_ready(number, CAPACITY)
    return plan


def entry(index: int, size: int = 10) -> tuple[int, bytes]:
    return index, eraftpb.encode_entry(index, 3, 0, bytes(size))


def decoded(write: PlannedWrite) -> LogRecord:
    header = decode_header(write.data, 0, write.position)
    assert header.generation == write.number
    return decode_record(write.data, 0, write.position, header.section_count)


def test_the_first_record_of_a_file_has_identity_term_and_vote() -> None:
    plan = planned(files=2)
    plan.append([entry(1)], None, 0)
    plan.append([entry(2, 2000)], None, 0)
    plan.append([entry(3, 2000)], HardState(4, 1, 2), 0)
    plan.append([entry(4)], HardState(4, 1, 3), 0)
    first, second, seal, third, fourth = plan.take_writes()
    assert (decoded(first).identity, decoded(first).state) == (IDENTITY, HardState(3, 1, 0))
    assert (decoded(second).identity, decoded(second).state) == (None, None)
    assert (decoded(third).identity, decoded(third).state) == (IDENTITY, HardState(4, 1, 2))
    assert (decoded(fourth).identity, decoded(fourth).state) == (None, None), "the commit index is no reason to write"
    assert (third.number, third.position, seal.number, seal.position) == (2, RECORDS_START, 1, SEAL_POSITION)


def test_a_seal_describes_its_file_and_precedes_the_next() -> None:
    plan = planned(files=2)
    for index in (1, 2, 3):
        plan.append([entry(index, 1500)], None, 0)
    writes = plan.take_writes()
    assert [write.number for write in writes] == [1, 1, 1, 2]
    assert [write.ticket for write in writes] == [1, 2, 3, 4]
    assert all(write.sync for write in writes)
    seal = decode_seal(writes[2].data, 1)
    assert seal is not None
    assert (seal.first_lsn, seal.last_lsn, seal.end_position) == (11, 12, writes[1].position + len(writes[1].data))


def test_a_term_that_changes_is_written_without_entries_too() -> None:
    plan = planned()
    plan.append([entry(1)], None, 0)
    plan.append([], HardState(4, 2, 1), 0)
    record = decoded(plan.take_writes()[1])
    assert (record.state, record.entries) == (HardState(4, 2, 1), [])


def test_records_contain_the_synced_index_before_them() -> None:
    plan = planned()
    plan.append([entry(1)], None, 0)
    plan.append([entry(2)], None, 0)
    plan.synced(1)
    plan.append([entry(3)], None, 0)
    headers = [decode_header(write.data, 0, write.position) for write in plan.take_writes()]
    assert [(header.lsn, header.synced_through) for header in headers] == [(11, 10), (12, 10), (13, 11)]


def test_there_is_room_for_what_fits_the_current_or_the_next_file() -> None:
    plan = planned()
    assert plan.room_for(3000, 1)
    assert not plan.room_for(3100, 1)
    plan.append([entry(1, 2500)], None, 0)
    assert not plan.room_for(2500, 1)
    assert plan.wants_file
    plan.file_ready(2, CAPACITY)
    assert plan.room_for(2500, 1)
    assert not plan.wants_file


def test_hazard_06_no_file_is_removed_before_a_later_one_has_term_and_vote_on_disk() -> None:
    plan = planned(files=2)
    for index in (1, 2, 3):
        plan.append([entry(index, 1500)], None, 0)
    (sealed,) = plan.synced(3)
    assert sealed == LogFile(1, 2)
    assert plan.coverable([sealed], 99, 2) == [], "the next file has no synced record yet"
    plan.synced(4)
    assert plan.coverable([sealed], 99, 2) == [sealed]
    assert plan.coverable([sealed], 1, 1) == []


def test_files_are_removed_from_the_oldest_without_a_hole() -> None:
    plan = planned()
    plan.append([entry(30)], None, 0)
    plan.synced(1)
    files = [LogFile(1, 10), LogFile(2, 25), LogFile(3, 20)]
    assert plan.coverable(files, 22, 22) == files[:1]
    assert plan.coverable(files, 25, 30) == files


def test_nothing_is_in_flight_when_everything_is_synced() -> None:
    plan = planned()
    assert plan.is_settled
    plan.append([entry(1)], None, 0)
    assert not plan.is_settled
    plan.take_writes()
    plan.seal()
    plan.take_writes()
    plan.synced(1)
    assert not plan.is_settled
    plan.synced(2)
    assert plan.is_settled


def test_a_file_without_a_record_is_not_sealed() -> None:
    plan = planned()
    plan.seal()
    assert plan.take_writes() == []


def test_the_file_with_the_last_entry_of_the_newest_snapshot_is_kept_until_a_later_entry_is_synced() -> None:
    """The record of that entry proves that nothing behind the snapshot is missing; a vote alone does not."""
    plan = planned()
    plan.append([], HardState(4, 2, 0), 0)
    plan.synced(1)
    files = [LogFile(1, 10), LogFile(2, 20)]
    assert plan.coverable(files, 20, 20) == files[:1]
    plan.append([entry(21)], None, 0)
    assert plan.coverable(files, 20, 20) == files[:1], "written, not synced"
    plan.synced(2)
    assert plan.coverable(files, 20, 20) == files


def test_a_snapshot_of_another_node_counts_as_entries_up_to_its_own() -> None:
    plan = planned()
    plan.append([], None, 0, Base(50, 3, bytes(32)))
    (write,) = plan.take_writes()
    assert decoded(write).base == Base(50, 3, bytes(32))
    plan.synced(1)
    assert plan.file is not None
    assert plan.file.synced_index == 50


def test_the_identity_of_a_log_can_be_set_later() -> None:
    plan = planned()
    plan.append([entry(1)], None, 0)
    plan.identify(Identity(7, bytes([1] * 16), b"other"), 0)
    first, second = plan.take_writes()
    assert decoded(first).identity == IDENTITY
    assert decoded(second).identity == Identity(7, bytes([1] * 16), b"other")
