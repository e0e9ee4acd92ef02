"""The order checker: what must have happened on the disk before what, read from the calls of a whole run.

It knows the format only by the page at the top of format.py and by log_file.py, not through the code under test.

    ack        `always`: the record is written, then a sync of its file begins, then it returns, then the ack leaves
               otherwise: the record is written, then the ack leaves, and the offsets of the ack lie below a promise
               (RESERVE) that is synced
    name       a log file is complete and synced before it has its name; the name is synced before the first record
    seal       the records of a file are synced before its seal is written; the seal is synced before the next file gets
               its first record
    reuse      a log file loses its name only when two durable checkpoints cover it, or when a synced copy with a synced
               name replaces it; its new header is written only when its old name is durably gone
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from icestream.model.sync_mode import SyncMode
from tests.support.syscall_recorder import Call, Event

RECORDS_START = 4096
SEAL_POSITION = 512
_RECORD = struct.Struct("<IBBHQQQqIIII")
_ENTRY = struct.Struct("<QIBBHQqqIII")
_MAGIC = 0x52575349
_DATA, _RESERVE = 1, 3


class OrderedRecord(NamedTuple):
    """One data record in a write. `promises` are its RESERVE notes: (topic, shard) and the offset promised."""

    lsn: int
    position: int
    promises: list[tuple[tuple[int, int], int]]
    write: Event

    def __str__(self) -> str:
        return f"{self.write.name} position {self.position}: record {self.lsn}"


class OrderedAck(NamedTuple):
    lsn: int
    key: tuple[int, int]
    offset: int
    token: str
    event: Event


@dataclass(frozen=True)
class OrderedSeal:
    number: int
    first_lsn: int
    last_lsn: int
    write: Event


def records_in(write: Event) -> Iterator[OrderedRecord]:
    """The data records that a write puts into a file."""
    at = max(0, RECORDS_START - write.position)
    while at + 64 <= len(write.data):
        magic, _, kind, _, lsn, _, _, _, _, size, count, position = _RECORD.unpack_from(write.data, at)
        if magic != _MAGIC or position != write.position + at or not size:
            return
        if kind == _DATA:
            entries = [_ENTRY.unpack_from(write.data, at + 64 * number) for number in range(1, count + 1)]
            promises = [((entry[0], entry[1]), entry[6]) for entry in entries if entry[2] == _RESERVE]
            yield OrderedRecord(lsn, position, promises, write)
        at += size


def number_in(name: str) -> int:
    """The number of a log file, 0 for any other."""
    return int(name.removeprefix("log-").removesuffix(".wal")) if name.startswith("log-") else 0


def acks_in(events: Sequence[Event]) -> list[OrderedAck]:
    acks = []
    for event in events:
        kind, *words = event.data.decode().split() if event.call is Call.SAY else [""]
        if kind == "ack":
            lsn, topic, shard, offset, token = words
            acks.append(OrderedAck(int(lsn), (int(topic), int(shard)), int(offset), token, event))
    return acks


def order_violations(events: Sequence[Event], mode: SyncMode) -> list[str]:
    order = _OrderRules(events)
    return [*order.acks(mode), *order.file_names(), *order.seals(), *order.reuse()]


class _OrderRules:
    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.by_call: dict[Call, list[Event]] = defaultdict(list)
        self.syncs: dict[int, list[Event]] = defaultdict(list)
        self.writes: dict[int, list[Event]] = defaultdict(list)
        self.records: dict[int, list[OrderedRecord]] = defaultdict(list)  # by lsn
        for event in events:
            self.by_call[event.call].append(event)
            if event.call is Call.SYNC:
                self.syncs[event.inode].append(event)
            elif event.call is Call.WRITE:
                self.writes[event.inode].append(event)
                for record in records_in(event):
                    self.records[record.lsn].append(record)

    def synced(self, inode: int, after: int, before: int) -> bool:
        """True if a sync of the file began after one moment and returned before another."""
        return any(sync.begin > after and sync.end < before and sync.done for sync in self.syncs[inode])

    def name_synced(self, after: int, before: int) -> bool:
        return any(sync.begin > after and sync.end < before and sync.done for sync in self.by_call[Call.SYNC_DIRECTORY])

    def _syncs_shown(self, inode: int) -> str:
        return ", ".join(f"{sync}" if sync.done else f"{sync} failed" for sync in self.syncs[inode]) or "none"

    # --- acks ---

    def acks(self, mode: SyncMode) -> Iterator[str]:
        for ack in acks_in(self.events):
            before = ack.event.begin
            written = [record for record in self.records[ack.lsn] if record.write.end < before and record.write.done]
            if not written:
                yield f"record {ack.lsn} was acked at #{before}, but it was not written before that"
                continue
            record = max(written, key=lambda candidate: candidate.write.begin)
            if mode is SyncMode.ALWAYS:
                if not self.synced(record.write.inode, record.write.end, before):
                    yield (
                        f"{record} was written at {record.write} and acked at #{before} without a sync in between "
                        f"(syncs of the file: {self._syncs_shown(record.write.inode)})"
                    )
            elif not self._promised(ack):
                yield f"{record} was acked at #{before}, but no synced promise covers offset {ack.offset} of {ack.key}"

    def _promised(self, ack: OrderedAck) -> bool:
        return any(
            key == ack.key
            and offset > ack.offset
            and self.synced(record.write.inode, record.write.end, ack.event.begin)
            for records in self.records.values()
            for record in records
            for key, offset in record.promises
        )

    # --- names ---

    def first_records(self) -> dict[str, OrderedRecord]:
        """The first record that each log file got under its name."""
        first: dict[str, OrderedRecord] = {}
        for record in sorted(
            (record for records in self.records.values() for record in records), key=lambda record: record.write.begin
        ):
            if number_in(record.write.name):
                first.setdefault(record.write.name, record)
        return first

    def file_names(self) -> Iterator[str]:
        for name, record in self.first_records().items():
            begin = record.write.begin
            renames = [event for event in self.by_call[Call.RENAME] if event.target == name and event.end < begin]
            if not renames:
                yield f"{record} was written at {record.write}, but no recorded call gave the file its name"
                continue
            rename = renames[-1]
            if not self.name_synced(rename.end, begin):
                yield (
                    f"{record} was written at {record.write}, but the file's name, given at {rename}, was not synced "
                    "before that"
                )
            pages = [write for write in self.writes[rename.inode] if write.position == 0 and write.end < rename.begin]
            if not pages or not self.synced(rename.inode, pages[-1].end, rename.begin):
                yield f"{name} got its name at {rename}, but its header was not synced before that"

    # --- seals ---

    def seals_of(self, inode: int) -> list[OrderedSeal]:
        seals = []
        for write in self.writes[inode]:
            at = SEAL_POSITION - write.position
            if at >= 0 and write.data[at : at + 8] == b"ICESSEAL":
                seals.append(OrderedSeal(*struct.unpack_from("<QQQ", write.data, at + 8), write))
        return seals

    def seals(self) -> Iterator[str]:
        for name, record in self.first_records().items():
            before = [
                earlier
                for earlier in self.records[record.lsn - 1]
                if earlier.write.inode != record.write.inode and earlier.write.begin < record.write.begin
            ]
            if before:
                yield from self._sealed_before(max(before, key=lambda candidate: candidate.write.begin), record)
            for seal in self.seals_of(record.write.inode):
                if seal.number == number_in(name):
                    yield from self._synced_before(seal, name)

    def _sealed_before(self, last: OrderedRecord, first: OrderedRecord) -> Iterator[str]:
        """The file of record n - 1 is sealed and synced before record n begins the next file."""
        seals = [seal for seal in self.seals_of(last.write.inode) if seal.write.end < first.write.begin]
        if not seals:
            yield f"{first} was written at {first.write}, but {last.write.name} before it was not sealed"
        elif not self.synced(last.write.inode, seals[-1].write.end, first.write.begin):
            yield (
                f"{first} was written at {first.write}, but the seal of {last.write.name}, written at "
                f"{seals[-1].write}, was not synced before that"
            )

    def _synced_before(self, seal: OrderedSeal, name: str) -> Iterator[str]:
        """Every record that a seal counts is synced before the seal is written."""
        for lsn in range(seal.first_lsn, seal.last_lsn + 1):
            for record in self.records[lsn]:
                if record.write.name == name and not self.synced(seal.write.inode, record.write.end, seal.write.begin):
                    yield (
                        f"{record} was written at {record.write} and not synced before the seal, which was written at "
                        f"{seal.write}"
                    )

    # --- reuse ---

    def reuse(self) -> Iterator[str]:
        for event in self.events:
            number = number_in(event.name)
            is_freed = event.call is Call.UNLINK or (event.call is Call.RENAME and not event.target.startswith("log-"))
            if number and is_freed:
                yield from self._freed(event, number)
            if number and event.call is Call.RENAME:
                yield from self._rewritten(event)

    def _freed(self, event: Event, number: int) -> Iterator[str]:
        """A log file loses its name."""
        if self._is_replaced(number, event.begin):
            return
        seals = [seal for seal in self.seals_of(event.inode) if seal.number == number and seal.write.end < event.begin]
        lsns = [
            record.lsn
            for records in self.records.values()
            for record in records
            if record.write.inode == event.inode and record.write.name == event.name
        ]
        if not seals:
            if lsns:
                yield f"{event.name} with records up to {max(lsns)} was given up at {event}, and no copy replaces it"
            return
        last = seals[-1].last_lsn
        durable = self._checkpoints(event.begin)
        if seals[-1].first_lsn <= last and (len(durable) < 2 or durable[1] < last):
            yield (
                f"{event.name} with records up to {last} was freed at {event}, but the durable checkpoints were "
                f"{durable[:2] or 'none'}"
            )

    def _checkpoints(self, before: int) -> list[int]:
        """The LSNs of the checkpoints that are there and durable at a moment, newest first."""
        checkpoints: dict[str, int] = {}
        for event in self.events:
            name = event.target or event.name
            if event.begin > before or not name.startswith("checkpoint-") or name.endswith(".tmp"):
                continue
            if event.call is Call.UNLINK:
                checkpoints.pop(name, None)
            elif event.call is Call.RENAME and self.name_synced(event.end, before):
                writes = [write for write in self.writes[event.inode] if write.end < event.begin]
                if writes and self.synced(event.inode, writes[-1].end, event.begin):
                    checkpoints[name] = int(name.split("-")[1])
        return list(checkpoints.values())[::-1]

    def _is_replaced(self, number: int, before: int) -> bool:
        """True if a whole, synced and named copy of the file exists."""
        for event in self.by_call[Call.RENAME]:
            if not number_in(event.target) or not self.name_synced(event.end, before):
                continue
            writes = [write for write in self.writes[event.inode] if write.end < event.begin]
            headers = [
                write
                for write in writes
                if write.position == 0
                and write.data[:8] == b"ICESTLOG"
                and write.data[40:48] == number.to_bytes(8, "little")
            ]
            bodies = [write for write in writes if write.position >= SEAL_POSITION]
            if (
                headers
                and bodies
                and self.synced(event.inode, bodies[-1].end, headers[-1].begin)
                and self.synced(event.inode, headers[-1].end, event.begin)
            ):
                return True
        return False

    def _rewritten(self, rename: Event) -> Iterator[str]:
        """The first page of a freed file is written anew."""
        later = [write for write in self.writes[rename.inode] if write.begin > rename.end and write.position == 0]
        if later and not self.name_synced(rename.end, later[0].begin):
            yield (
                f"{rename.name} lost its name at {rename} and got a new header at {later[0]}, "
                "but the directory was not synced in between"
            )
