"""The checkers: each lives a story on a store and says what is wrong afterwards. Nothing is wrong with healthy code.

traffic          concurrent and single appends, groups, rotation, floors, checkpoints, kill, restart: its calls are
                 judged by order.py and power_loss.py
flips            a flipped bit of a record that is known to have been synced is reported, or changes nothing (hazard 5)
past             the old bytes of a recycled file never come back as messages (hazards 5, 16)
reuse            next offsets, topics and producers survive the reuse of their files (hazard 4)
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

from icestream import errors
from icestream.model.block import Numbering
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.model.sync_mode import SyncMode
from icestream.wal.appender import Placed, PlacedGroup, require_placed
from icestream.wal.producer_sequences import Duplicate
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.planted.messages import batch, group, tokens_in
from tests.planted.order import RECORDS_START, OrderedRecord, records_in
from tests.planted.stores import PlantedStore, StoreProcess, Work, options
from tests.support.syscall_recorder import Call, Event

A, B = ShardKey(1, 0), ShardKey(2, 3)


def declare(log: WriteAheadLog) -> None:
    log.declare_topic(TopicIdentity(A.topic_id, "/default/a"))
    log.declare_topic(TopicIdentity(B.topic_id, "/default/b"))


# --- traffic ----------------------------------------------------------------------------------------------------------


def traffic(store: PlantedStore, mode: SyncMode, **others: Any) -> list[str]:
    """Three processes: one is killed with work in flight, one recovers and closes, one finds a log in order."""

    async def first(life: StoreProcess) -> None:
        log = await _opened(life, mode, others)
        await _beside_a_sync(life, log)
        for round_ in range(3):
            await _round(life, log, f"1.{round_}")
        for number in range(5):
            log.submit([batch(log, A, f"1.late.{number}", 900)])
            await asyncio.sleep(0)

    async def second(life: StoreProcess) -> None:
        log = await _opened(life, mode, others)
        await _round(life, log, "2.0")
        await life.close(log)

    async def third(life: StoreProcess) -> None:
        log = await _opened(life, mode, others)
        await _round(life, log, "3.0")

    def trouble_of(work: Work) -> Work:
        async def watched(life: StoreProcess) -> list[str]:
            try:
                await work(life)
            except errors.IcestreamError as error:
                return [f"the {work.__name__} process did not get through: {error}"]
            return []

        return watched

    return [text for work in (first, second, third) for text in store.live(trouble_of(work))]


async def _opened(life: StoreProcess, mode: SyncMode, others: dict[str, Any]) -> WriteAheadLog:
    log = await life.open(options(mode, **others))
    declare(log)
    return log


async def _produce(life: StoreProcess, log: WriteAheadLog, key: ShardKey, token: str) -> None:
    (result,) = require_placed(await log.append([batch(log, key, token, 1500)]))
    life.say(f"ack {result.lsn} {key.topic_id} {key.shard} {result.base_offset} {token}")


async def _produce_group(life: StoreProcess, log: WriteAheadLog, token: str) -> None:
    """One message for each shard, as a burst of the native wire is stored."""
    keys = (A, B)
    (placed,) = await log.append([group(log, keys, token, 700)])
    assert isinstance(placed, PlacedGroup)
    for key, base in zip(keys, placed.base_offsets, strict=True):
        life.say(f"ack {placed.lsn} {key.topic_id} {key.shard} {base} {token}.{key.topic_id}")


async def _beside_a_sync(life: StoreProcess, log: WriteAheadLog) -> None:
    """The loop hears of a sync while the next record is written and not yet synced."""
    with life.held_syncs():
        first = asyncio.ensure_future(_produce(life, log, A, "held.0"))
        await life.until_held(first)
        second = asyncio.ensure_future(_produce(life, log, B, "held.1"))
        group_behind = asyncio.ensure_future(_produce_group(life, log, "held.2"))
        await _turns(6)
        life.pass_one_sync()
        await first
        await _turns(6)
    await asyncio.gather(second, group_behind)


async def _turns(count: int) -> None:
    """Lets the loop do all that is ready: news of the writer, then the answers, then the tasks that wait for them."""
    for _ in range(count):
        await asyncio.sleep(0)


async def _round(life: StoreProcess, log: WriteAheadLog, name: str) -> None:
    """Producers beside each other, then one alone, then a floor and a checkpoint."""

    async def produce(producer: int, count: int) -> None:
        for number in range(count):
            await _produce(life, log, (A, B)[(producer + number) % 2], f"{name}.{producer}.{number}")

    async def produce_groups(count: int) -> None:
        for number in range(count):
            await _produce_group(life, log, f"{name}.group.{number}")

    await asyncio.gather(*(produce(producer, 12) for producer in range(4)), produce_groups(8))
    await produce(4, 8)
    await log.sync()
    floors = {key: log.shard(*key).synced - 20 for key in (A, B) if log.shard(*key).synced > 20}
    for key, offset in floors.items():
        life.say(f"floor {key.topic_id} {key.shard} {offset}")
    await log.advance_floor(floors)
    await log.checkpoint()


# --- flips ------------------------------------------------------------------------------------------------------------

ENOUGH = 10  # flips that were not reported


def flips(store: PlantedStore) -> list[str]:
    async def write(life: StoreProcess) -> list[list[Any]]:
        log = await life.open(options())
        declare(log)
        return [await _append(log, A, f"flip.{number}", 200 + 40 * number) for number in range(6)]

    acked = {(*A, offset): token for _, offset, token in store.live(write)}
    (name,) = [name for name in store.names() if _records(store, name)]
    violations = []
    for what, bit in _bits(store.content(name), _records(store, name)[2]):
        copy = store.copy()
        content = bytearray(copy.content(name))
        content[bit >> 3] ^= 1 << (bit & 7)
        copy.replace(name, bytes(content))
        trouble = copy.live(lambda life: _start_trouble(life, acked))
        if trouble:
            violations.append(f"{name} position {bit >> 3}, bit {bit & 7} flipped ({what}): not reported, {trouble}")
        if len(violations) == ENOUGH:
            break
    return violations


def _records(store: PlantedStore, name: str) -> list[OrderedRecord]:
    """The data records at the beginning of a file."""
    if not name.startswith("log-"):
        return []
    content = store.content(name)[RECORDS_START:]
    return list(records_in(Event(0, 0, Call.WRITE, name, position=RECORDS_START, data=content)))


def _bits(content: bytes, record: OrderedRecord) -> Iterator[tuple[str, int]]:
    """The bits of a record to flip: all bits of its lengths, some of everything else."""
    start = record.position
    header_bytes, record_bytes, count = struct.unpack_from("<III", content, start + 40)
    for byte in range(header_bytes, record_bytes - 8, 61):
        yield f"body of record {record.lsn}", 8 * (start + byte) + byte % 8
    for byte in range(0, header_bytes, 11):
        yield f"header of record {record.lsn}", 8 * (start + byte) + byte % 8
    for bit in range(32):
        yield f"record_bytes of record {record.lsn}", 8 * (start + 44) + bit
    for section in range(count):
        for bit in range(16):
            yield f"body_bytes of a section of record {record.lsn}", 8 * (start + 64 + 64 * section + 48) + bit


async def _start_trouble(life: StoreProcess, acked: dict[tuple[int, int, int], str]) -> str:
    """The fault of a start on a damaged log; empty if it reports the damage or loses nothing."""
    try:
        log = await life.open(options())
    except errors.LogDamaged:
        return ""
    try:
        there = await tokens_in(log)
    except errors.LogDamaged:
        there = acked
    wrong = [place for place, token in acked.items() if there.get(place) != token]
    await life.close(log)
    return f"and {len(wrong)} acked messages are gone or changed, the first at offset {wrong[0][2]}" if wrong else ""


async def _append(
    log: WriteAheadLog, key: ShardKey, token: str, size: int, numbering: Numbering | None = None
) -> list[Any]:
    """LSN, offset and token of a message that was acked."""
    (result,) = require_placed(await log.append([batch(log, key, token, size, numbering)]))
    return [result.lsn, result.base_offset, token]


# --- the past of a recycled file --------------------------------------------------------------------------------------

SLOT = 512  # every small record of this story takes exactly one
FAILED = 32


def past(store: PlantedStore) -> list[str]:
    """A write of many records fails: their numbers are given again, while their bytes stay in the file. The file is
    recycled. Its new record ends exactly where one of the old ones begins that has the next number. Then a kill.
    """

    async def first(life: StoreProcess) -> dict[str, Any]:
        log = await life.open(options(align_bytes=SLOT))
        declare(log)
        return await _write_over_the_past(life, log)

    async def second(life: StoreProcess) -> list[str]:
        try:
            log = await life.open(options(align_bytes=SLOT))
        except errors.LogDamaged as error:
            return [f"the log does not open after a kill: {error}"]
        violations = []
        if log.report.rewritten_file != first_life["file"]:
            violations.append(
                f"{first_life['file']} was not sealed, but recovery rewrote {log.report.rewritten_file or 'nothing'}"
            )
        behind = (
            f"from position {first_life['end']} on, behind record {first_life['lsn']}, "
            f"{first_life['file']} holds its past"
        )
        try:
            there = {offset: token for (_, _, offset), token in (await tokens_in(log)).items()}
        except errors.LogDamaged as error:
            return [*violations, f"what was taken for the log cannot be read: {error}: {behind}"]
        acked = {offset: token for _, offset, token in first_life["acked"]}
        violations += [
            f"offset {offset} is {token!r}, which was never acked: {behind}"
            for offset, token in there.items()
            if acked.get(offset) != token
        ]
        floor = min(there, default=0)
        violations += [
            f"offset {offset} ({token!r}) was acked and is gone"
            for offset, token in acked.items()
            if offset >= floor and offset not in there
        ]
        return violations

    first_life = store.live(first)
    return [*first_life["trouble"], *store.live(second)]


async def _write_over_the_past(life: StoreProcess, log: WriteAheadLog) -> dict[str, Any]:
    acked = [await _append(log, A, "first", 100)]
    file = log.appender.file
    assert file is not None
    while log.appender.next_file is None:  # noqa: ASYNC110 - it is made off the loop; no event says when
        await asyncio.sleep(0)
    # The first one keeps the writer busy, so that all the others are one write. It fails inside the last one's padding.
    end = file.position + SLOT * (FAILED + 1) - SLOT // 4
    with life.held_syncs():
        answers = [log.submit([batch(log, A, "failed.0", 100)])]
        await life.until_held(answers[0])
        for number in range(1, FAILED + 1):
            answers.append(log.submit([batch(log, A, f"failed.{number}", 100)]))
            await asyncio.sleep(0)
        life.write_fails(end)
    for number, answer in enumerate(await asyncio.gather(*answers, return_exceptions=True)):
        if not isinstance(answer, BaseException):
            assert isinstance(answer[0], Placed)
            acked.append([answer[0].lsn, answer[0].base_offset, f"failed.{number}"])
    life.heal()
    first_lsn = log.state.lsn
    recycled = file.number
    acked += [await _append(log, A, "after the failure", 100)]
    await log.checkpoint()
    acked += [await _append(log, A, "second checkpoint", 100)]
    await log.advance_floor({A: log.shard(*A).synced})
    await log.checkpoint()
    # The file that is prepared by now is a fresh one; the one after it is made of the freed file.
    for _ in range(2):
        acked += await _fill(log)
        # ends where the old record with the next number begins: record n stood in slot n - 1
        lsn = log.state.lsn + 1
        acked.append(await _append(log, A, f"exactly.{lsn}", SLOT * lsn - 400))
    file = log.appender.file
    assert file is not None
    trouble = (
        []
        if first_lsn + 2 < lsn < FAILED
        else [f"the story did not come to its point: {first_lsn=} {lsn=} {recycled=}"]
    )
    name = f"log-{file.number:016d}.wal"
    return {"acked": acked, "lsn": lsn, "end": file.position, "file": name, "trouble": trouble}


async def _fill(log: WriteAheadLog) -> list[list[Any]]:
    """Leaves less room than the next record needs."""
    acked = []
    while log.appender.file is not None and log.appender.file.room > 4096:
        size = min(log.appender.file.room - 3000, 11_000)
        acked.append(await _append(log, A, f"filler.{log.state.lsn}", size))
    return acked


# --- reuse ------------------------------------------------------------------------------------------------------------

PRODUCER = 7


def reuse(store: PlantedStore) -> list[str]:
    """Files are freed as soon as the log may. Each start knows what was known, even without the newest checkpoint."""

    async def at_once(life: StoreProcess) -> dict[str, Any]:
        log = await life.open(options())
        declare(log)
        log.state.producers.open(PRODUCER, 1)
        sent = [await _append(log, B, f"n.{number}", 100, Numbering(PRODUCER, 1, number)) for number in range(3)]
        await _fill_files(log, 3)
        await log.advance_floor({key: log.shard(*key).synced for key in (A, B)})
        return _log_report(log, sent[-1][1])

    async def with_checkpoints(life: StoreProcess) -> dict[str, Any]:
        log = await life.open(options())
        for _ in range(2):
            await _fill_files(log, 2)
            await log.advance_floor({key: log.shard(*key).synced for key in (A, B)})
            await log.checkpoint()
        return _log_report(log, report["duplicate"])

    report = store.live(at_once)
    violations = [f"files freed at once: {text}" for text in _restart(store, report)]
    if violations:
        return violations
    report = store.live(with_checkpoints)
    if not any(name.startswith("spare-") for name in store.names()):
        violations.append("no file was freed: the story did not come to its point")
    violations += [f"files freed under two checkpoints: {text}" for text in _restart(store, report)]
    for newest in [name for name in store.names() if name.startswith("checkpoint-")][-1:]:
        older = store.copy()
        older.remove(newest)
        violations += [f"files freed, newest checkpoint {newest} lost: {text}" for text in _restart(older, report)]
    return violations


async def _fill_files(log: WriteAheadLog, files: int) -> None:
    start = log.appender.sealed_count
    while log.appender.sealed_count < start + files:
        await _append(log, A, f"filler.{log.state.lsn}", 8000)


def _log_report(log: WriteAheadLog, duplicate: int) -> dict[str, Any]:
    return {
        "next": {str(key): log.shard(*key).assigned for key in (A, B)},
        "topics": {str(topic.id): topic.name for topic in log.state.topics.values()},
        "duplicate": duplicate,
    }


def _restart(store: PlantedStore, report: dict[str, Any]) -> list[str]:
    async def look(life: StoreProcess) -> list[str]:
        try:
            log = await life.open(options())
        except errors.LogDamaged as error:
            return [f"the log does not open after a kill: {error}"]
        now = _log_report(log, 0) if A in log.state.shards and B in log.state.shards else {"next": {}, "topics": {}}
        violations = [
            f"{what} was {report[what]} and is {now[what]}" for what in ("next", "topics") if report[what] != now[what]
        ]
        if not violations:
            log.state.producers.open(PRODUCER, 1)
            (answer,) = await log.append([batch(log, B, "n.2", 100, Numbering(PRODUCER, 1, 2))])
            if not isinstance(answer, Duplicate) or answer.base_offset != report["duplicate"]:
                violations.append(f"a retry of the batch at offset {report['duplicate']} of {B} got {answer!r}")
        return violations

    return list(store.copy().live(look))
