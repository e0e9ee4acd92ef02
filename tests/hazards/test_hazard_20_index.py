"""Hazard 20: a start reads footers, not records; a missing footer is rebuilt; what stays in memory is bounded.

The 16 GiB backlog with its 3 s is measured by `make bench`.
"""

from __future__ import annotations

import pytest

from icestream import limits
from icestream.model import ShardKey
from icestream.wal.file_summary import FileSummary
from icestream.wal.format import RECORDS_START
from icestream.wal.log_file import log_name
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.counting_directory import CountingDirectory
from tests.support.machine import A, B, Machine, messages, publish

pytestmark = pytest.mark.asyncio


async def fill(log: WriteAheadLog, files: int) -> None:
    """Appends until this many more files are sealed."""
    target = len(log.lifecycle.files) + files
    while len(log.lifecycle.files) < target:
        await publish(log, A, b"%d." % log.shard(*A).assigned + bytes(6000))
        await publish(log, B, b"b")


def footer_and_page(file: FileSummary) -> int:
    return file.seal.footer_bytes + RECORDS_START


async def test_hazard_20_a_start_scans_only_records_after_the_checkpoint() -> None:
    machine = Machine()
    disk = machine.view = CountingDirectory(machine.disk)
    log = await machine.start()
    await fill(log, 20)
    await log.checkpoint()
    covered = list(log.lifecycle.files)
    await fill(log, 2)
    behind = log.lifecycle.files[len(covered) :]
    before = await messages(log, A)
    await machine.kill()

    disk.reset()
    log = await machine.start()
    for file in covered:
        assert disk.read_bytes[log_name(file.number)] <= footer_and_page(file), f"file {file.number} was scanned"
    unsealed = 2 * machine.options.file_bytes  # the one in use and the one prepared for it
    bound = sum(map(footer_and_page, covered)) + sum(file.size for file in behind) + 2 * unsealed
    assert disk.total("log-") <= bound < 12 * machine.options.file_bytes
    assert log.report.bytes_scanned <= len(behind) * machine.options.file_bytes + unsealed
    assert await messages(log, A) == before


async def test_hazard_20_a_start_after_a_stop_in_order_reads_footers_only() -> None:
    machine = Machine()
    disk = machine.view = CountingDirectory(machine.disk)
    log = await machine.start()
    await fill(log, 20)
    await log.close()
    disk.reset()
    log = await machine.start()
    assert log.report.clean
    assert (log.report.records_scanned, log.report.bytes_scanned) == (0, 0)
    assert disk.total("log-") <= sum(map(footer_and_page, log.lifecycle.files))


@pytest.mark.parametrize("damage", ["flip", "zero", "cut off", "header flip"])
async def test_hazard_20_a_missing_or_bad_footer_is_rebuilt_for_its_file(damage: str) -> None:
    machine = Machine()
    log = await machine.start()
    await fill(log, 5)
    before = {key: await messages(log, key) for key in (A, B)}
    ranges = {file.number: list(file.ranges()) for file in log.lifecycle.files}
    await log.checkpoint()
    victim = log.lifecycle.files[2]
    await machine.kill()
    name, seal = log_name(victim.number), victim.seal
    content = machine.disk.content(name)
    match damage:
        case "flip":
            machine.disk.flip(name, 8 * (seal.footer_position + seal.footer_bytes - 20))
        case "header flip":
            machine.disk.flip(name, 8 * (seal.footer_position + 44))
        case "zero":
            after = seal.footer_position + seal.footer_bytes
            machine.disk.replace(name, content[: seal.footer_position] + bytes(seal.footer_bytes) + content[after:])
        case "cut off":
            machine.disk.replace(name, content[: seal.footer_position])
    log = await machine.start()
    assert {file.number: list(file.ranges()) for file in log.lifecycle.files if file.number in ranges} == ranges
    assert {key: await messages(log, key) for key in (A, B)} == before


async def test_hazard_20_footers_in_memory_are_bounded_and_read_again_on_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FOOTERS_RESIDENT_MAX", 4)
    machine = Machine()
    disk = machine.view = CountingDirectory(machine.disk)
    log = await machine.start()
    await fill(log, 10)

    async def reads_of(number: int) -> int:
        """Bytes read beyond the message itself when one message of a file is read."""
        file = next(file for file in log.lifecycle.files if file.number == number)
        extent = file.find(A)
        assert extent is not None
        disk.reset()
        await log.reader.read(A, extent.first, 1)
        return disk.total(log_name(number)) - 7000

    footers = {file.number: file.seal.footer_bytes for file in log.lifecycle.files}
    numbers = list(footers)[:10]
    first, second = await reads_of(numbers[0]), await reads_of(numbers[0])
    assert first - second == footers[numbers[0]], "the footer stays in memory for the next read"
    for number in numbers[1:6]:
        await reads_of(number)
    assert await reads_of(numbers[0]) == first, "five others came since: it was dropped, and is read again"
    assert await reads_of(numbers[5]) == second, "the last ones are still there"


async def test_hazard_20_an_index_has_at_most_one_entry_for_each_64_kib_of_a_shard() -> None:
    machine = Machine(file_bytes=4 * limits.MIB, message_bytes_max=100_000)
    log = await machine.start()
    for _ in range(3000):
        await publish(log, A, bytes(400))
    await publish(log, ShardKey(1, 1), b"a single one")
    assert log.appender.file is not None
    shards = log.appender.file.index.shards
    assert len(shards[A].positions) <= shards[A].own_bytes // limits.INDEX_STRIDE_BYTES + 1
    assert len(shards[ShardKey(1, 1)].positions) == 1
    assert shards[A].own_bytes > 20 * limits.INDEX_STRIDE_BYTES
