"""Messages that can be identified: a payload begins with its token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from icestream import errors
from icestream.model import envelope
from icestream.model.block import NOT_NUMBERED, Numbering, encode_block, iter_blocks
from icestream.model.block_group import BlockGroup
from icestream.model.shard import ShardKey
from icestream.wal.appender import AppendBatch, AppendGroup
from icestream.wal.write_ahead_log import WriteAheadLog

Place = tuple[int, int, int]  # topic, shard, offset


def batch(log: WriteAheadLog, key: ShardKey, token: str, size: int, numbering: Numbering | None = None) -> AppendBatch:
    """One message of about `size` bytes."""
    payload = f"{token}|".encode().ljust(size, b".")
    return log.batch(log.shard(*key), encode_block(1, {envelope.PAYLOAD: [payload]}, numbering))


def group(log: WriteAheadLog, keys: Sequence[ShardKey], token: str, size: int) -> AppendGroup:
    """One message of about `size` bytes for each shard; its token ends with the topic."""
    batches = [batch(log, key, f"{token}.{key.topic_id}", size) for key in keys]
    count, unnumbered = len(keys), [NOT_NUMBERED] * len(keys)
    ends = list(accumulate(len(entry.block) for entry in batches))
    columns = BlockGroup(ends, [1] * count, unnumbered, [0] * count, unnumbered, range(1, count + 1))
    return AppendGroup([entry.shard for entry in batches], [entry.block for entry in batches], columns)


async def tokens_in(log: WriteAheadLog) -> dict[Place, str]:
    """The token of every message that the log returns, by its place."""
    tokens: dict[Place, str] = {}
    for key, shard in list(log.state.shards.items()):
        offset = log.reader.earliest(key)
        while offset < shard.written:
            result = await log.reader.read(key, offset)
            for section in result.sections:
                base = section.base_offset
                for block in iter_blocks(section.body):
                    for payload in block.values(envelope.PAYLOAD):
                        assert isinstance(payload, bytes)
                        tokens[key.topic_id, key.shard, base] = payload.split(b"|")[0].decode()
                        base += 1
            if result.next_offset <= offset:
                raise errors.LogDamaged(f"{key} gives nothing from offset {offset} on")
            offset = result.next_offset
    return tokens
