"""Log files are whole before they have a name, lose it before they are used again, and leave nothing when they fail."""

from __future__ import annotations

import errno

import pytest

from icestream import limits
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.simulated_disk import Crash, SimulatedDisk
from icestream.wal import log_file
from icestream.wal.format import RECORDS_START
from icestream.wal.log_file import FileHeader, Seal
from icestream.wal.provision import Provisioner

LOG_ID = b"0123456789abcdef"
FILE_BYTES = 16 * 1024
NOW_US = 1_700_000_000_000_000


def provisioner(
    disk: SimulatedDisk, spares: dict[str, int] | None = None, *, spare_files: int = 2, file_bytes: int = FILE_BYTES
) -> Provisioner:
    return Provisioner(disk, SimulatedClock(NOW_US), LOG_ID, file_bytes, spares or {}, spare_files)


def old_file(disk: SimulatedDisk, name: str, *, size: int = FILE_BYTES) -> None:
    """A file with a past: header and seal of file 3, then bytes that look like anything."""
    page = bytearray(log_file.encode_first_page(FileHeader(LOG_ID, 3, 0, 7, 1, size)))
    page[512:1024] = log_file.encode_seal(Seal(3, 1, 9, 8192, 0, 0))
    disk.replace(name, bytes(page) + b"\xaa" * (size - len(page)))


def check_prepared(disk: SimulatedDisk, number: int, synced_through: int) -> bytes:
    content = disk.content(log_file.log_name(number))
    expected = FileHeader(LOG_ID, number, 0, synced_through, NOW_US, FILE_BYTES)
    assert log_file.decode_header(content) == expected
    assert not any(content[512:RECORDS_START])
    assert len(content) >= FILE_BYTES
    return content


# --- prepare ----------------------------------------------------------------------------------------------------------


def test_a_fresh_file_has_its_header_its_name_and_all_its_space() -> None:
    disk = SimulatedDisk(1)
    file, capacity = provisioner(disk).prepare(5, 99)
    assert capacity == FILE_BYTES
    assert disk.names() == ["log-0000000000000005.wal"]
    check_prepared(disk, 5, 99)
    file.write_at(RECORDS_START, b"record")
    assert disk.content(log_file.log_name(5))[RECORDS_START:][:6] == b"record"


@pytest.mark.parametrize("seed", range(10))
def test_a_prepared_file_survives_a_power_loss_whole(seed: int) -> None:
    disk = SimulatedDisk(seed)
    provisioner(disk).prepare(5, 99)
    disk.power_loss()
    check_prepared(disk, 5, 99)


def test_hazard_36_a_recycled_file_keeps_its_old_bytes_but_not_its_seal() -> None:
    """The file is not zeroed again; the file number in every record makes that safe."""
    disk = SimulatedDisk(1)
    old_file(disk, log_file.spare_name(3))
    _, capacity = provisioner(disk, {log_file.spare_name(3): FILE_BYTES}).prepare(6, 99)
    assert disk.names() == [log_file.log_name(6)]
    content = check_prepared(disk, 6, 99)
    assert content[RECORDS_START:] == b"\xaa" * (FILE_BYTES - RECORDS_START)
    assert log_file.decode_seal(content[512:], 6) is None
    assert log_file.decode_seal(content[512:], 3) is None
    assert capacity == FILE_BYTES


def test_a_larger_spare_is_used_to_its_end() -> None:
    disk = SimulatedDisk(1)
    old_file(disk, log_file.spare_name(3), size=2 * FILE_BYTES)
    _, capacity = provisioner(disk, {log_file.spare_name(3): 2 * FILE_BYTES}).prepare(6, 0)
    assert capacity == 2 * FILE_BYTES


@pytest.mark.parametrize("recycled", [False, True])
@pytest.mark.parametrize("operation", ["allocate", "write", "sync", "rename"])
def test_hazard_16_a_full_disk_leaves_no_file(operation: str, recycled: bool) -> None:
    disk = SimulatedDisk(1)
    if recycled:
        old_file(disk, log_file.spare_name(3))
    files = provisioner(disk, {log_file.spare_name(3): FILE_BYTES} if recycled else {})
    disk.fail(operation, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        files.prepare(6, 0)
    assert disk.names() == []
    files.prepare(7, 0)
    check_prepared(disk, 7, 0)


def test_hazard_16_a_disk_too_small_for_the_file_is_reported_before_any_record() -> None:
    disk = SimulatedDisk(1, capacity=FILE_BYTES - 1)
    with pytest.raises(OSError, match="No space"):
        provisioner(disk).prepare(1, 0)
    assert disk.used_bytes() == 0


def test_a_name_whose_directory_could_not_be_synced_is_removed() -> None:
    """The caller continues with another number: this file would never be used or freed."""
    disk = SimulatedDisk(1)
    files = provisioner(disk)
    disk.fail("sync_directory", errno.EIO)
    with pytest.raises(OSError, match="error"):
        files.prepare(6, 0)
    assert disk.names() == []


@pytest.mark.parametrize("recycled", [False, True])
@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_step_leaves_no_named_file_without_a_header(recycled: bool, power: bool) -> None:
    finished = 0
    for moment in range(12):
        for seed in range(6):
            disk = SimulatedDisk(seed)
            if recycled:
                old_file(disk, log_file.spare_name(3))
            files = provisioner(disk, {log_file.spare_name(3): FILE_BYTES} if recycled else {})
            disk.crash_after(moment)
            try:
                files.prepare(6, 42)
                finished += 1
            except Crash:
                pass
            if power:
                disk.power_loss()
            else:
                disk.kill()
            names = disk.names()
            if log_file.log_name(6) in names:
                check_prepared(disk, 6, 42)
            assert [log_file.log_number(name) for name in names if name.startswith("log-")] in ([], [6])
            assert not recycled or len(names) == 1  # its bytes are never in two files, nor in none
    assert finished


# --- take back --------------------------------------------------------------------------------------------------------


def test_a_freed_file_becomes_a_spare_and_the_next_file() -> None:
    disk = SimulatedDisk(1)
    files = provisioner(disk)
    files.prepare(5, 0)
    files.recycle([log_file.log_name(5)])
    assert disk.names() == [log_file.spare_name(5)]
    files.prepare(6, 3)
    assert disk.names() == [log_file.log_name(6)]
    check_prepared(disk, 6, 3)


@pytest.mark.parametrize("seed", range(8))
def test_a_freed_file_has_durably_lost_its_name_before_reuse(seed: int) -> None:
    disk = SimulatedDisk(seed)
    files = provisioner(disk)
    for number in (1, 2, 3):
        files.prepare(number, 0)
    files.recycle([log_file.log_name(1), log_file.log_name(2)])
    disk.power_loss()
    assert disk.names() == [log_file.log_name(3), log_file.spare_name(1), log_file.spare_name(2)]


def test_several_files_cost_one_sync_of_the_directory() -> None:
    disk = SimulatedDisk(1)
    files = provisioner(disk)
    for number in (1, 2, 3):
        files.prepare(number, 0)
    disk.operations.clear()
    files.recycle([log_file.log_name(number) for number in (1, 2, 3)])
    assert [operation for operation, _ in disk.operations] == ["rename", "rename", "rename", "sync_directory"]


def test_a_file_that_is_too_small_is_deleted() -> None:
    """Such a file was trimmed at a clean stop, or created under a smaller setting."""
    disk = SimulatedDisk(1)
    old_file(disk, log_file.log_name(3), size=FILE_BYTES - 512)
    files = provisioner(disk)
    files.recycle([log_file.log_name(3)])
    assert (disk.names(), files.spares) == ([], [])


def test_hazard_36_free_files_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPARE_BYTES_MAX", 3 * FILE_BYTES)
    disk = SimulatedDisk(1)
    files = provisioner(disk)
    names = [log_file.log_name(number) for number in range(1, 7)]
    for name in names:
        old_file(disk, name)
    files.recycle(names)
    assert disk.names() == [log_file.spare_name(number) for number in (1, 2, 3)]
    assert disk.names() == sorted(files.spares)


def test_hazard_36_spares_found_at_start_are_bounded_and_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPARE_BYTES_MAX", 2 * FILE_BYTES)
    disk = SimulatedDisk(1)
    sizes = {log_file.spare_name(number): FILE_BYTES - (number == 2) for number in range(1, 6)}
    for name, size in sizes.items():
        disk.replace(name, bytes(size))
    files = provisioner(disk, sizes)
    assert disk.names() == [log_file.spare_name(1), log_file.spare_name(3)]
    assert sorted(files.spares) == disk.names()


# --- zeroed spares ----------------------------------------------------------------------------------------------------


def test_hazard_36_a_spare_is_zeroed_in_slices_each_on_disk_before_the_next() -> None:
    disk = SimulatedDisk(1)
    size = 2 * limits.ZERO_SLICE_BYTES + 4096
    files = provisioner(disk, file_bytes=size)
    steps = 0
    for _ in files.zero_spare(4):
        steps += 1
        assert files.spares == []  # it must not be used before it is synced
    assert steps == 3
    assert disk.names() == files.spares == [log_file.spare_name(4)]
    content = disk.content(log_file.spare_name(4))
    assert (len(content), any(content)) == (size, False)
    writes = [operation for operation, _ in disk.operations]
    assert writes == ["create", *["write", "sync"] * 3, "rename", "sync_directory"]


def test_spares_are_prepared_up_to_the_setting() -> None:
    disk = SimulatedDisk(1)
    files = provisioner(disk, spare_files=2)
    for number in (1, 2):
        assert files.needs_spare
        assert list(files.zero_spare(number))
    assert not files.needs_spare
    files.prepare(3, 0)
    assert files.needs_spare
    assert not provisioner(disk, spare_files=0).needs_spare


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_hazard_16_a_failed_spare_leaves_no_file(operation: str) -> None:
    disk = SimulatedDisk(1)
    files = provisioner(disk)
    disk.fail(operation, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        list(files.zero_spare(4))
    assert (disk.names(), files.spares) == ([], [])
