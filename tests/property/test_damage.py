"""Every flipped bit, cut and missing file of a small log either costs nothing or is reported (hazards 5, 19, 20).

The one exception is in format.py: a flip inside the very last synced batch leaves no evidence anywhere.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.files import LocalDirectory
from icestream.runtime.simulated_disk import SimulatedFile
from icestream.wal.damage import plan_repair
from icestream.wal.format import ENTRY_BYTES, HEADER_BYTES, RECORDS_START
from icestream.wal.log_file import SEAL_POSITION, SECTOR
from icestream.wal.log_repair import apply_repair
from icestream.wal.recovery import examine
from icestream.wal.survey import survey
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.damage import Damage, FlippedBit, MissingFile, TruncatedFile, flips
from tests.support.hypothesis_effort import QUARTER
from tests.support.sample_logs import LOGS, picture
from tests.support.small_log import A, LogImage, Messages, contents, open_small, read_shard

NAMES_THE_PLACE = re.compile(
    r"log-\d{16}\.wal is damaged at position \d+: |log file \d+ is damaged at position \d+"
    r"|log-\d{16}\.wal begins with record \d+, expected \d+: a log file or a checkpoint is missing"
    r"|offsets \d+ to \d+ of topic \d+ shard \d+ are not in the log and were never freed"
    r"|offsets \d+ to \d+ of topic \d+ shard \d+ are not in the log"
    r"|the log ends at record \d+, but a checkpoint covers record \d+"
)


def check_all(drawn: LogImage, damages: Iterable[Damage]) -> None:
    """A log that was opened lives as long as its loop, with its disk: some at a time, or they fill the memory."""

    async def check(some: list[Damage]) -> None:
        for damage in some:
            await check_open(drawn, damage)

    waiting = iter(damages)
    while some := list(itertools.islice(waiting, 100)):
        asyncio.run(check(some))


async def check_open(drawn: LogImage, damage: Damage) -> None:
    """Opens the damaged log and reads all of it: nothing is missing, or it is said and nothing was changed."""
    disk = drawn.disk()
    damage.do(disk)
    before = contents(disk)
    try:
        log = await open_small(disk, drawn.mode)
    except errors.LogDamaged as error:
        check_says_where(damage, error)
        assert contents(disk) == before, f"{damage}: the start was refused, but changed something"
        return
    try:
        stored = await read_all(log, drawn)
    except errors.LogDamaged as error:
        check_says_where(damage, error)
        return
    check_messages(drawn, damage, stored)


def check_says_where(damage: Damage, error: errors.LogDamaged) -> None:
    assert NAMES_THE_PLACE.search(error.message), f"{damage}: {error.message}"
    assert "icestream wal repair" in error.hint, f"{damage}: {error.hint}"


async def read_all(log: WriteAheadLog, drawn: LogImage) -> Messages:
    return {key: await read_shard(log, key) for key in drawn.acked}


def check_messages(drawn: LogImage, damage: Damage, stored: Messages) -> None:
    excused = without_evidence(drawn, damage)
    for key, messages in drawn.acked.items():
        lost = [offset for offset, payload in messages.items() if stored[key].get(offset) != payload]
        assert set(lost) <= excused.get(key, set()), f"{damage}: {lost} of {key} are gone and not reported"
        strange = {offset for offset in stored[key] if offset >= drawn.floors[key]} - messages.keys()
        assert not strange, f"{damage}: {strange} of {key} came from nowhere"


def without_evidence(drawn: LogImage, damage: Damage) -> dict[object, set[int]]:
    """The offsets in the very last record, when it is not sealed and the flip is inside it."""
    *_, last = drawn.places()
    if not isinstance(damage, FlippedBit) or damage.file != last.file or damage.bit >> 3 not in last.record:
        return {}
    if drawn.seal(last.file):
        return {}
    return {place.key: set(place.offsets) for place in drawn.places() if place.lsn == last.lsn}


def test_the_logs_open_without_damage() -> None:
    for name in LOGS:
        drawn = picture(name)
        stored = asyncio.run(read_back(drawn))
        assert {key: {at: stored[key][at] for at in acked} for key, acked in drawn.acked.items()} == drawn.acked, name


async def read_back(drawn: LogImage) -> Messages:
    return await read_all(await open_small(drawn.disk(), drawn.mode), drawn)


# --- flips ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stopped", "killed"])
def test_hazard_05_every_bit_of_the_file_header_and_the_seal(name: str) -> None:
    drawn = picture(name)
    file = drawn.logs()[0]
    fields = ((0, 72), (SEAL_POSITION, SEAL_POSITION + 56))
    sums = ((end - 4, end) for end in (SECTOR, SEAL_POSITION + SECTOR))
    for start, end in (*fields, *sums):
        check_all(drawn, flips(drawn, file, range(start, end), every_bit=True))
    check_all(drawn, flips(drawn, file, range(72, RECORDS_START, 53)))


@pytest.mark.parametrize(("name", "number"), [("killed", 0), ("stopped", 0), ("stopped then killed", 1)])
def test_hazard_05_every_bit_of_a_record_header_and_a_section_entry(name: str, number: int) -> None:
    """That includes the length fields, which would turn a middle into an end."""
    drawn = picture(name)
    file = drawn.logs()[number]
    record = next(place.record for place in drawn.places() if place.file == file and len(place.record) < 300)
    head = range(record.start, record.start + HEADER_BYTES + ENTRY_BYTES)
    check_all(drawn, flips(drawn, file, head, every_bit=True))


@pytest.mark.parametrize(
    ("name", "step"), [("killed", 1), ("stopped", 1), ("stopped then killed", 3), ("killed often", 11), ("freed", 5)]
)
def test_hazard_05_every_byte_of_every_record_and_of_the_footer(name: str, step: int) -> None:
    drawn = picture(name)
    for file in drawn.logs():
        check_all(drawn, flips(drawn, file, range(RECORDS_START, drawn.used(file) + 16, step)))


@pytest.mark.parametrize(("name", "step"), [("stopped", 1), ("stopped then killed", 5)])
def test_hazard_04_every_byte_of_the_checkpoints(name: str, step: int) -> None:
    drawn = picture(name)
    for file in drawn.files:
        if file.startswith("checkpoint"):
            check_all(drawn, flips(drawn, file, range(0, len(drawn.files[file]), step)))


@pytest.mark.parametrize("name", ["write failed", "first write failed"])
def test_hazard_05_a_flip_in_the_seal_before_a_reverted_record_is_reported_or_harmless(name: str) -> None:
    drawn = picture(name)
    check_all(drawn, flips(drawn, drawn.logs()[0], range(SEAL_POSITION, SEAL_POSITION + 56)))


@QUARTER
@given(data=st.data())
@pytest.mark.parametrize("name", LOGS)
def test_hazard_05_any_bit_of_any_file(name: str, data: st.DataObject) -> None:
    drawn = picture(name)
    file = data.draw(st.sampled_from(sorted(name for name, content in drawn.files.items() if content)))
    used = st.integers(0, 8 * max(drawn.used(file), 1) - 1)
    check_all(drawn, [FlippedBit(file, data.draw(used | st.integers(0, 8 * len(drawn.files[file]) - 1)))])


def test_hazard_06_every_byte_of_the_header_of_a_copy_beside_its_original_is_checked() -> None:
    """Recovery died before it removed the original, and the header that says so is hit."""
    before = picture("killed")

    async def recover_again() -> LogImage:
        disk = before.disk()
        await open_small(disk)
        return dataclasses.replace(before, files={**contents(disk), **before.files})

    drawn = asyncio.run(recover_again())
    copy = next(file for file in drawn.logs() if drawn.seal(file))
    check_all(drawn, flips(drawn, copy, range(72)))


def test_hazard_19_a_cyclic_section_chain_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """`previous` of a section is not verified before its body is: it must not keep a reader for ever."""
    drawn = picture("stopped")
    second = next(place for place in drawn.places() if place.key == A and place.offsets.start == 2)
    disk = drawn.disk()
    content = bytearray(disk.content(second.file))
    content[second.entry.start + 52 : second.entry.start + 56] = second.entry.start.to_bytes(4, "little")
    disk.replace(second.file, bytes(content))
    reads = itertools.count()
    read_at = SimulatedFile.read_at

    def read_patiently(file: SimulatedFile, position: int, length: int) -> bytes:
        assert next(reads) < 1000, "the reader does not advance"
        return read_at(file, position, length)

    async def read_from_the_first() -> None:
        log = await open_small(disk)
        monkeypatch.setattr(SimulatedFile, "read_at", read_patiently)
        await log.reader.read(A, 0)

    with pytest.raises(errors.LogDamaged, match=rf"log file 1 is damaged at position {second.entry.start}"):
        asyncio.run(read_from_the_first())


# --- cuts and missing files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "step"), [("killed", 1), ("stopped", 3), ("stopped then killed", 7)])
def test_hazard_05_every_cut_through_records_and_footer(name: str, step: int) -> None:
    drawn = picture(name)
    for file in drawn.logs():
        check_all(drawn, (TruncatedFile(file, size) for size in range(RECORDS_START, drawn.used(file) + 8, step)))


@pytest.mark.parametrize("name", LOGS)
def test_hazard_05_cuts_in_the_first_page_and_far_after_the_records_are_reported_or_harmless(name: str) -> None:
    drawn = picture(name)
    for file in drawn.files:
        size = len(drawn.files[file])
        edges = {0, 1, SECTOR - 1, SECTOR, SEAL_POSITION + SECTOR - 1, SEAL_POSITION + SECTOR, RECORDS_START - 1}
        check_all(
            drawn,
            [TruncatedFile(file, edge) for edge in sorted({*edges, size // 3, size // 2, size - 1}) if edge < size],
        )


@pytest.mark.parametrize("name", LOGS)
def test_hazard_05_every_missing_file(name: str) -> None:
    drawn = picture(name)
    check_all(drawn, [MissingFile(file) for file in drawn.files])


def test_hazard_04_the_oldest_file_may_be_missing_only_if_it_was_freed() -> None:
    """A checkpoint that covers it says nothing against that: only the floors do."""
    drawn = picture("rotated")
    disk = drawn.disk()
    disk.remove(drawn.logs()[0])
    with pytest.raises(errors.LogDamaged, match="offsets 0 to 14 of topic 1 shard 0 are not in the log"):
        asyncio.run(open_small(disk))
    asyncio.run(open_small(picture("recycled").disk()))


def test_hazard_05_a_cut_file_on_a_real_disk_is_reported_too(tmp_path: Path) -> None:
    """A real disk refuses to read a negative length."""
    drawn = picture("stopped then killed")
    for number, size in enumerate((0, SECTOR, 600, RECORDS_START - 1, RECORDS_START, RECORDS_START + 100)):
        for file in drawn.logs()[:2]:
            path = drawn.write_to(tmp_path / f"{number}-{file}")
            (path / file).write_bytes(drawn.files[file][:size])
            directory = LocalDirectory(path)
            with pytest.raises(errors.LogDamaged):
                examine(directory, survey(directory))
            directory.close()


# --- several at once --------------------------------------------------------------------------------------------------


@st.composite
def several(draw: st.DrawFn, drawn: LogImage) -> list[Damage]:
    files = sorted(name for name in drawn.files if drawn.files[name] and name.startswith(("log-", "checkpoint-")))
    damages: list[Damage] = []
    for file in draw(st.lists(st.sampled_from(files), min_size=1, max_size=4)):
        used = max(drawn.used(file), 1)
        flip = st.integers(0, 8 * used - 1).map(lambda bit, file=file: FlippedBit(file, bit))  # type: ignore[misc]
        cut = st.integers(0, used + 8).map(lambda size, file=file: TruncatedFile(file, size))  # type: ignore[misc]
        damages.append(draw(flip | flip | cut | st.just(MissingFile(file))))
    return damages


@QUARTER
@given(data=st.data())
@pytest.mark.parametrize("name", LOGS)
def test_any_combination_of_damage_is_repaired_in_one_run(name: str, data: st.DataObject) -> None:
    """Afterwards the log opens, holds nothing that was never there, and needs no second repair. Only a record that was
    taken back can be there again, when its seal and everything behind it is gone: no trace of the rollback is left."""
    drawn = picture(name)
    disk = drawn.disk()
    for damage in data.draw(several(drawn)):
        if damage.file in disk.names():
            damage.do(disk)
    apply_repair(disk, SimulatedClock(), plan_repair(disk))
    again = plan_repair(disk)
    assert (again.is_needed, again.refusal) == (False, None)

    async def check() -> None:
        log = await open_small(disk, drawn.mode)
        for key, stored in (await read_all(log, drawn)).items():
            there = {offset: payload for offset, payload in stored.items() if offset >= drawn.floors[key]}
            assert "write failed" in name or there.items() <= drawn.acked[key].items()

    asyncio.run(check())


# Payloads of 5,000 equal bytes are nine tenths of the larger logs, and each of their bytes is under the same CRC: all
# of them took an hour. Both ends count in full, and so many bytes between them stand for the rest.
_EQUAL_BYTES = re.compile(rb"(.)\1{3999,}", re.DOTALL)
_EDGE_BYTES, _STEP_BYTES = 64, 97


def worth_a_look(content: bytes) -> Iterator[range]:
    """The places of a file, without most of what is inside of long payloads."""
    at = 0
    for run in _EQUAL_BYTES.finditer(content):
        start, end = run.start() + _EDGE_BYTES, run.end() - _EDGE_BYTES
        yield range(at, start)
        yield range(start, end, _STEP_BYTES)
        at = end
    yield range(at, len(content))


def test_damage_is_tried_everywhere_but_inside_payloads() -> None:
    content = bytes(range(256)) + b"x" * 5000 + bytes(range(255, -1, -1))
    looked = [at for places in worth_a_look(content) for at in places]
    assert looked == sorted(set(looked))
    assert {*range(256 + 64), *range(5256 - 64, 5512)} <= set(looked)
    assert len(looked) < 512 + 2 * 64 + 5000 // 90
    assert [*worth_a_look(bytes(3000))] == [range(3000)]


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["bits", "cuts"])
@pytest.mark.parametrize("name", LOGS)
def test_every_single_bit_and_every_cut(name: str, kind: str) -> None:
    """The whole space that `make test` samples: each bit that was ever written, each length of each file."""
    drawn = picture(name)
    for file in drawn.logs():
        for places in worth_a_look(drawn.files[file].rstrip(b"\0")):
            if kind == "bits":
                check_all(drawn, flips(drawn, file, places, every_bit=True))
            else:
                check_all(drawn, (TruncatedFile(file, size) for size in places))
