"""Damage of a metadata log is told from its tail: each flipped bit, cut or missing file is harmless or reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache

import pytest

from icestream import errors, limits
from icestream.metadata.command import decode_envelope
from icestream.metadata.core import HardState
from icestream.metadata.eraftpb import decode_entry, encode_entry
from icestream.metadata.log_format import Identity
from icestream.metadata.log_plan import LogPlan
from icestream.metadata.log_recovery import RecoveredLog, recover
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.wal.appender import PlannedWrite
from icestream.wal.format import RECORDS_START
from icestream.wal.log_file import SEAL_POSITION, SECTOR, FileHeader, encode_first_page, log_name
from tests.support.metadata_machine import MetadataMachine, contents, state_bytes
from tests.support.metadata_world import MetadataWorld, live

Life = tuple[dict[str, bytes], dict[str, bytes], int]
LIVES = {"killed": (False, 0), "closed": (True, 0), "with snapshots": (False, 2)}
ANY_LIFE = pytest.mark.parametrize("life", LIVES)


@cache
def lived(life: str) -> Life:
    """Files, contents and revision of a small store: some records, perhaps snapshots, ended in order or not."""
    close, snapshots = LIVES[life]

    async def run() -> Life:
        machine = MetadataMachine(log_file_bytes=8 * limits.KIB)
        store = await machine.start()
        for number in range(6):
            await store.put(f"/{number % 3}", b"%d" % number + bytes(40))
            if number in range(2, 2 + snapshots):
                await store.snapshots.take()
        state, revision = await contents(store), await store.revision()
        if close:
            await store.close()
        await machine.kill()
        names = [name for name in machine.disk.names() if name != "LOCK"]
        return {name: machine.disk.content(name) for name in names}, state, revision

    return asyncio.run(run())


def disk_of(files: dict[str, bytes]) -> SimulatedDisk:
    disk = SimulatedDisk(1)
    for name, content in files.items():
        disk.replace(name, content)
    return disk


def last_log(files: dict[str, bytes]) -> str:
    """The last log file with a record in it."""
    return max(name for name, data in files.items() if name.startswith("log-") and any(data[RECORDS_START:]))


def recovered_or_damaged(disk: SimulatedDisk) -> RecoveredLog | errors.LogDamaged:
    try:
        return recover(disk, SimulatedClock(), bytes(16))
    except errors.LogDamaged as error:
        return error


def check_found(disk: SimulatedDisk, life: str, what: str, *, may_lose_the_last: bool = False) -> bool:
    """Recovers it: everything is there, or it is said and nothing was changed; True when it was said."""
    _, expected, revision = lived(life)
    before = {name: disk.content(name) for name in disk.names()}
    recovered = recovered_or_damaged(disk)
    if isinstance(recovered, errors.LogDamaged):
        assert {name: disk.content(name) for name in disk.names()} == before, what
        assert "nothing was changed" in recovered.hint, what
        return True
    for data in recovered.entries:
        if content := decode_entry(data).data:
            recovered.machine.apply(decode_envelope(content))
    if not (may_lose_the_last and recovered.machine.revision == revision - 1):
        assert {key: entry.value for key, entry in recovered.machine.entries.items()} == expected, what
    return False


def flips(files: dict[str, bytes], name: str) -> Iterator[int]:
    """Every bit of the sectors in front; one bit of each byte of the records; some of what is empty."""
    data = files[name]
    if not name.startswith("log-"):
        yield from (8 * byte + byte % 8 for byte in range(len(data)))
        return
    for start, end in ((0, 80), (SECTOR - 4, SEAL_POSITION + 64), (SEAL_POSITION + SECTOR - 4, SEAL_POSITION + SECTOR)):
        yield from range(8 * start, 8 * end)
    end = max(len(data.rstrip(b"\0")), RECORDS_START)
    yield from (8 * byte + byte % 8 for byte in range(RECORDS_START, end))
    yield from (8 * byte + 3 for byte in range(end, len(data), 97))


@ANY_LIFE
def test_hazard_05_every_flipped_bit_is_harmless_or_reported(life: str) -> None:
    files, _, _ = lived(life)
    verdicts = []
    # the logs of the others are flipped already
    names = [name for name in files if life != "with snapshots" or name.startswith("snapshot-")]
    for name in names:
        for bit in flips(files, name):
            disk = disk_of(files)
            disk.flip(name, bit)
            last = name == last_log(files) and bit >> 3 >= RECORDS_START
            verdicts.append(check_found(disk, life, f"bit {bit} of {name}", may_lose_the_last=last))
    assert verdicts.count(False) > 100
    assert verdicts.count(True) > 500 or life == "with snapshots"


@ANY_LIFE
def test_hazard_05_every_cut_and_missing_file_is_harmless_or_reported(life: str) -> None:
    files, _, _ = lived(life)
    for name, data in files.items():
        cuts = [
            check_found(disk_of(files | {name: data[:size]}), life, f"{name} cut at {size}")
            for size in [*range(0, len(data), 41), len(data) - 1]
        ]
        assert all(cuts) or not name.startswith("log-"), "a file had all its space before its name"
        others = {other: content for other, content in files.items() if other != name}
        if any(other.startswith("log-") for other in others):
            is_harmless = check_found(disk_of(others), life, f"{name} gone")
            assert is_harmless or not (name.startswith("log-") and any(data[RECORDS_START:]))


@pytest.mark.asyncio
async def test_a_damaged_newest_snapshot_is_harmless_and_reported() -> None:
    machine, world = MetadataMachine(), MetadataWorld()
    store = await machine.start()
    await live(store, world)
    before = state_bytes(store)
    await machine.kill()
    newest = max(name for name in machine.disk.names() if name.startswith("snapshot-"))
    machine.disk.flip(newest, 8 * 700)
    store = await machine.start()
    assert store.report.bad_snapshots == [newest]
    assert state_bytes(store) == before
    world.check(store)
    await store.snapshots.take()
    assert newest not in machine.disk.names()


@pytest.mark.asyncio
async def test_two_damaged_snapshots_are_reported_when_the_log_does_not_reach_back() -> None:
    machine, world = MetadataMachine(), MetadataWorld()
    store = await machine.start()
    await live(store, world)
    await store.snapshots.take()
    await machine.kill()
    assert "log-0000000000000001.wal" not in machine.disk.names(), "files were freed"
    for name in machine.disk.names():
        if name.startswith("snapshot-"):
            machine.disk.flip(name, 8 * 700)
    with pytest.raises(errors.LogDamaged, match="no valid snapshot reaches it"):
        await machine.start()


@pytest.mark.asyncio
async def test_a_log_that_ends_before_a_snapshot_is_damaged() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    await store.put("/a", b"")
    early = {name: machine.disk.content(name) for name in machine.disk.names()}
    await store.put("/b", b"")
    await store.snapshots.take()
    await machine.kill()
    for name, data in early.items():
        machine.disk.replace(name, data)
    with pytest.raises(errors.LogDamaged, match="ends at entry 2, but there is a snapshot of entry 3"):
        await machine.start()


@pytest.mark.asyncio
async def test_a_seal_that_was_never_on_disk_is_harmless_when_the_next_file_continues() -> None:
    """The sync of the seal failed, a start read it from the page cache, and then the power was lost."""
    machine, world = MetadataMachine(), MetadataWorld()
    store = await machine.start()
    await world.put(store, "/a")
    await store.close()
    store = await machine.start()
    await world.put(store, "/b")
    await store.close()
    first = "log-0000000000000001.wal"
    content = machine.disk.content(first)
    machine.disk.replace(first, content[:SEAL_POSITION] + bytes(SECTOR) + content[SEAL_POSITION + SECTOR :])
    store = await machine.start()
    world.check(store)
    assert first in machine.disk.names()


def log_of(records: list[tuple[int, int, int]]) -> SimulatedDisk:
    """A closed log of one file, of records (first index, entries, term)."""
    plan = LogPlan(Identity(1, bytes(16), b""), HardState(1, 1, 0), 0)
    plan.file_ready(1, 8 * limits.KIB)
    for first, count, term in records:
        plan.append([(index, encode_entry(index, term, 0, b"")) for index in range(first, first + count)], None, 0)
    plan.seal()
    return disk_with(plan.take_writes())


def disk_with(writes: list[PlannedWrite]) -> SimulatedDisk:
    """Log files with these writes, all of them done."""
    contents: dict[int, bytearray] = {}
    for write in writes:
        page = encode_first_page(FileHeader(bytes(16), write.number, 0, 0, 0, 8 * limits.KIB))
        content = contents.setdefault(write.number, bytearray(page.ljust(8 * limits.KIB, b"\0")))
        content[write.position : write.position + len(write.data)] = write.data
    disk = SimulatedDisk(1)
    for number, content in contents.items():
        disk.replace(log_name(number), bytes(content))
    return disk


def test_hazard_05_a_file_that_begins_too_late_is_damage_without_any_other_evidence() -> None:
    """When these records were built nothing was synced, but a file gets its first record only after that."""
    plan = LogPlan(Identity(1, bytes(16), b""), HardState(1, 1, 0), 0)
    plan.file_ready(1, 8 * limits.KIB)
    for index in (1, 2, 3):
        plan.append([(index, encode_entry(index, 1, 0, bytes(3000)))], None, 0)
        if plan.next_file is None:
            plan.file_ready(index + 1, 8 * limits.KIB)
    writes = plan.take_writes()
    assert {write.number for write in writes} == {1, 2, 3}
    assert recover(disk_with(writes), SimulatedClock(), bytes(16)).report.last_index == 3
    with pytest.raises(errors.LogDamaged, match="record 2 cannot be read, and record 3 is there instead"):
        recover(disk_with([write for write in writes if write.number != 2]), SimulatedClock(), bytes(16))


@pytest.mark.parametrize(
    ("records", "terms"),
    [
        ([(1, 3, 1), (4, 2, 1)], [1, 1, 1, 1, 1]),
        ([(1, 3, 1), (3, 2, 2)], [1, 1, 2, 2]),
        ([(1, 5, 1), (2, 1, 2)], [1, 2]),
        ([(1, 5, 1), (2, 1, 2), (3, 2, 3), (1, 1, 4)], [4]),
    ],
)
def test_of_entries_with_one_index_the_last_counts_and_later_ones_are_dropped(
    records: list[tuple[int, int, int]], terms: list[int]
) -> None:
    recovered = recover(log_of(records), SimulatedClock(), bytes(16))
    entries = [decode_entry(data) for data in recovered.entries]
    assert [entry.index for entry in entries] == list(range(1, len(terms) + 1))
    assert [entry.term for entry in entries] == terms


@pytest.mark.parametrize("records", [[(1, 2, 1), (4, 1, 1)], [(2, 1, 1)]])
def test_a_hole_between_entries_is_damage(records: list[tuple[int, int, int]]) -> None:
    with pytest.raises(errors.LogDamaged, match=r"entries are missing|no valid snapshot reaches it"):
        recover(log_of(records), SimulatedClock(), bytes(16))


@pytest.mark.asyncio
async def test_no_term_is_used_twice_whichever_files_are_missing() -> None:
    machine, terms = MetadataMachine(), list[int]()
    for _ in range(6):
        store = await machine.start()
        terms.append(store.node._term)
        for number in range(8):
            await store.put(f"/{number % 2}", bytes(2000))
        await store.snapshots.take()
        await machine.power_loss()
    assert terms == [1, 2, 3, 4, 5, 6]
    assert "log-0000000000000001.wal" not in machine.disk.names()


@pytest.mark.asyncio
async def test_files_of_two_logs_are_not_mixed() -> None:
    first, second = MetadataMachine(), MetadataMachine()
    await (await first.start()).close()
    store = await second.start()
    store.node._log.log_id = bytes(16)
    await store.snapshots.take()
    await store.close()
    name = next(name for name in second.disk.names() if name.startswith("snapshot-"))
    content = second.disk.content(name)
    first.disk.replace(name, content)
    await first.kill()
    with pytest.raises(errors.LogDamaged, match="snapshots of another log"):
        await first.start()
