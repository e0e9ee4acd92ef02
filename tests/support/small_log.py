"""A small log on a simulated disk, made life by life, and what was promised while it was made.

`SmallLog` writes and remembers every ack. `LogImage` is its directory as bytes, with the place of every section: damage
it, put it on a disk of its own, open that, and compare what comes back with the promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from icestream.model import ShardKey, SyncMode, TopicIdentity, envelope
from icestream.model.block import encode_block, iter_blocks
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.wal import format as wire
from icestream.wal.appender import Placed
from icestream.wal.format import RECORDS_START
from icestream.wal.log_file import SEAL_POSITION, Seal, decode_seal, log_number
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log_on
from icestream.wal.record_scan import find_headers
from icestream.wal.sink import InlineSink
from icestream.wal.write_ahead_log import WriteAheadLog

A, B = ShardKey(1, 0), ShardKey(2, 3)
TOPICS = (TopicIdentity(1, "/default/a"), TopicIdentity(2, "/default/b", 7))
FILE_BYTES = 64 * 1024
Messages = dict[ShardKey, dict[int, bytes]]


class SectionPlace(NamedTuple):
    """A section of messages, and where its entry and its body stand."""

    file: str
    lsn: int
    record: range
    entry: range
    body: range
    key: ShardKey
    offsets: range


@dataclass(frozen=True)
class LogImage:
    """A log's directory, and the messages that were acked in it."""

    files: dict[str, bytes]
    acked: Messages
    mode: SyncMode = SyncMode.ALWAYS
    reserved: dict[ShardKey, int] = field(default_factory=dict)
    floors: dict[ShardKey, int] = field(default_factory=dict)

    def disk(self) -> SimulatedDisk:
        disk = SimulatedDisk(1)
        for name, content in self.files.items():
            disk.replace(name, content)
        return disk

    def write_to(self, path: Path) -> Path:
        """The same on a real disk."""
        path.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (path / name).write_bytes(content)
        return path

    def logs(self) -> list[str]:
        return [name for name in sorted(self.files) if log_number(name)]

    def used(self, name: str) -> int:
        """Behind the last byte of a file that is not zero."""
        return len(self.files[name].rstrip(b"\0"))

    def seal(self, name: str) -> Seal | None:
        return decode_seal(self.files[name][SEAL_POSITION:], log_number(name) or 0)

    def places(self) -> Iterator[SectionPlace]:
        """The valid sections: records behind the end of a sealed file were rolled back and do not count."""
        for name in self.logs():
            data = self.files[name][RECORDS_START:]
            seal = self.seal(name)
            for position, lsn, _ in find_headers(data, RECORDS_START, log_number(name) or 0, 1):
                if seal and position >= seal.end_position:
                    break
                header = wire.decode_header(data, position - RECORDS_START, position)
                for entry in wire.decode_entries(data, position - RECORDS_START, header):
                    if entry.kind == wire.SectionKind.MESSAGES:
                        yield SectionPlace(
                            name,
                            lsn,
                            range(position, header.end),
                            range(entry.position, entry.position + wire.ENTRY_BYTES),
                            range(entry.body_position, entry.body_position + entry.body_bytes),
                            ShardKey(entry.topic_id, entry.shard),
                            range(entry.base_offset, entry.end_offset),
                        )


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    """The content of every file except the lock, which exists as soon as the log was opened once."""
    return {name: disk.content(name) for name in disk.names() if name != "LOCK"}


def options_for(mode: SyncMode = SyncMode.ALWAYS) -> LogOptions:
    return LogOptions(
        mode=mode, file_bytes=FILE_BYTES, message_bytes_max=8000, spare_files=0, quota_bytes=2**30,
        checkpoint_every_bytes=2**40,
    )  # fmt: skip


async def open_small(
    disk: SimulatedDisk, mode: SyncMode = SyncMode.ALWAYS, positions: Mapping[ShardKey, int] | None = None
) -> WriteAheadLog:
    options = options_for(mode)
    return await open_log_on(disk, options, positions or {}, SimulatedClock(), SeededRandomness(1), InlineSink())


@dataclass
class SmallLog:
    mode: SyncMode = SyncMode.ALWAYS
    disk: SimulatedDisk = field(default_factory=lambda: SimulatedDisk(1))
    acked: Messages = field(default_factory=dict)
    log: WriteAheadLog = field(init=False)
    count: int = 0

    async def open(self) -> WriteAheadLog:
        self.log = await open_small(self.disk, self.mode)
        for topic in TOPICS:
            self.log.declare_topic(topic)
        return self.log

    async def append(self, rows: Mapping[ShardKey, int], size: int = 20) -> None:
        """One record with this many messages for each shard; every one is acked when this returns."""
        batches, sent = [], []
        for key, count in rows.items():
            payloads = [self._payload(size) for _ in range(count)]
            batches.append(self.log.batch(self.log.shard(*key), encode_block(count, {envelope.PAYLOAD: payloads})))
            sent.append((key, payloads))
        for (key, payloads), result in zip(sent, await self.log.append(batches), strict=True):
            assert isinstance(result, Placed)
            self.acked.setdefault(key, {}).update(enumerate(payloads, result.base_offset))

    def _payload(self, size: int) -> bytes:
        self.count += 1
        return f"message {self.count} ".encode().ljust(size, b"x")

    async def close(self) -> None:
        await self.log.close()

    def kill(self) -> None:
        self.disk.kill()

    def picture(self) -> LogImage:
        floors = {key: shard.floor for key, shard in self.log.state.shards.items()}
        acked = {
            key: {offset: payload for offset, payload in messages.items() if offset >= floors.get(key, 0)}
            for key, messages in self.acked.items()
        }
        reserved = {key: shard.reserved for key, shard in self.log.state.shards.items()}
        return LogImage(contents(self.disk), acked, self.mode, reserved, floors)


async def read_shard(log: WriteAheadLog, key: ShardKey) -> dict[int, bytes]:
    """Every message of a shard that the log still holds."""
    payloads: dict[int, bytes] = {}
    if key not in log.state.shards:
        return payloads
    offset = log.reader.earliest(key)
    while offset < log.state.shards[key].written:
        result = await log.reader.read(key, offset)
        assert result.next_offset > offset, f"a read of {key} from {offset} on does not come forward"
        for section in result.sections:
            values = [value for block in iter_blocks(section.body) for value in block.values(envelope.PAYLOAD)]
            payloads.update((section.base_offset + at, bytes(value)) for at, value in enumerate(values))  # type: ignore[arg-type]
        offset = result.next_offset
    return payloads
