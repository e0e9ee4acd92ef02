"""Appends numbered messages to an open log, one after the other, and remembers where each acked one stands."""

from __future__ import annotations

import asyncio

from icestream import errors
from icestream.model import envelope
from icestream.model.block import encode_block, iter_blocks
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.wal.appender import require_placed
from icestream.wal.write_ahead_log import WriteAheadLog

WAIT_SECONDS = 10.0
RETRY_SECONDS = 0.05  # how often a refused producer tries again


class AckedMessages:
    """One topic of one shard. Use `attach` again after the log was opened again."""

    def __init__(self, log: WriteAheadLog, topic_id: int = 1, payload_bytes: int = 60_000) -> None:
        self.key = ShardKey(topic_id, 0)
        self.topic = TopicIdentity(topic_id, f"/default/t{topic_id}")
        self.acked: dict[int, bytes] = {}
        self._payload_bytes = payload_bytes
        self._sent = 0
        self.attach(log)

    def attach(self, log: WriteAheadLog) -> None:
        self.log = log
        log.declare_topic(self.topic)
        self.shard = log.shard(*self.key)

    async def send(self) -> None:
        """One message; raises what the log says."""
        self._sent += 1
        payload = f"{self.topic.name}/{self._sent}/".encode().ljust(self._payload_bytes, b".")
        batch = self.log.batch(self.shard, encode_block(1, {envelope.PAYLOAD: [payload]}))
        (place,) = require_placed(await asyncio.wait_for(self.log.submit([batch]), WAIT_SECONDS))
        assert place.base_offset not in self.acked, f"offset {place.base_offset} was given out twice"
        self.acked[place.base_offset] = payload

    async def fill(self) -> errors.IcestreamError:
        """Sends until it is refused; the refusal."""
        while True:
            try:
                await self.send()
            except errors.IcestreamError as refusal:
                return refusal

    async def send_patiently(self) -> None:
        """Sends like a producer: repeats until the message is accepted."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    return await self.send()
                except errors.Refused:
                    await asyncio.sleep(RETRY_SECONDS)

    async def drain(self, offset: int) -> None:
        """Moves the floor as the pipeline does: everything below this offset is in the table now."""
        await self.log.sync()
        await self.log.advance_floor({self.key: offset})
        await self.log.checkpoint()

    async def check(self, floor: int = 0) -> None:
        """Every acked message from the floor on is stored, nothing else is, and there is no gap."""
        offset, stored = floor, {}
        while offset < self.shard.written:
            read = await self.log.reader.read(self.key, offset)
            offset = read.next_offset
            for section in read.sections:
                base = section.base_offset
                for block in iter_blocks(section.body):
                    stored.update(enumerate(block.values(envelope.PAYLOAD), base))
                    base += block.rows
        assert self.log.gaps(self.key) == []
        expected = {offset: payload for offset, payload in self.acked.items() if offset >= floor}
        assert {offset: payload for offset, payload in stored.items() if offset >= floor} == expected
        assert self.shard.assigned == len(self.acked), "an offset was assigned and not acked"
