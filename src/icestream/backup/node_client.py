"""The calls of a backup to a node (internal_api/backup_calls.py), with their results as values."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from icestream import limits
from icestream.model.shard import ShardKey
from icestream.wal.tail import SectionRead

Document = dict[str, Any]
Call = Callable[..., Awaitable[Document]]  # the name of the call, then its arguments by name


class HeldNode(NamedTuple):
    """A node that holds its log. `revision`: of the metadata store when it did."""

    revision: int
    node: str
    cluster: str
    log_id: str


class NodeEnds(NamedTuple):
    """The log of a node at its cut; `earliest` has the lowest offset of each shard that the log still has."""

    log_id: str
    lsn: int
    cut_ms: int
    checkpoint_bytes: int
    earliest: dict[ShardKey, int]


class ListedTable(NamedTuple):
    topic_id: int
    topic: str
    namespace: tuple[str, ...]
    name: str
    uuid: str


class NodeClient:
    """One backup's calls to one node."""

    def __init__(self, call: Call, backup_id: str) -> None:
        self._call = call
        self._id = backup_id

    def of(self, backup_id: str) -> NodeClient:
        """The calls of another backup to the same node."""
        return NodeClient(self._call, backup_id)

    async def hold(self) -> HeldNode:
        answer = await self._call("backup_hold", id=self._id)
        return HeldNode(answer["revision"], answer["node"], answer["cluster"], answer["log_id"])

    async def log_id(self) -> str:
        """The id of the node's log, which no other node has, and none after it with another data directory."""
        return str((await self._call("backup_node"))["log_id"])

    async def cut(self) -> NodeEnds:
        answer = await self._call("backup_cut", id=self._id)
        earliest = {ShardKey(topic, shard): offset for topic, shard, offset in answer["earliest"]}
        return NodeEnds(answer["log_id"], answer["lsn"], answer["cut_ms"], answer["checkpoint_bytes"], earliest)

    async def tail(self, key: ShardKey, offset: int, end: int) -> AsyncIterator[SectionRead]:
        """The sections of a shard that have offsets of [offset, end), each once."""
        behind = -1
        while offset < end:
            answer = await self._call(
                "backup_tail", id=self._id, topic=key.topic_id, shard=key.shard, offset=offset, end=end
            )
            for fields in answer["sections"]:
                section = SectionRead(*fields)
                if section.base_offset >= behind:
                    yield section
                    behind = section.base_offset + section.rows
            if answer["next"] <= offset:
                return
            offset = answer["next"]

    async def tables(self) -> AsyncIterator[ListedTable]:
        after: str | None = ""
        while after is not None:
            page = await self._call("backup_tables", after=after)
            for topic_id, topic, namespace, name, uuid in page["tables"]:
                yield ListedTable(topic_id, topic, tuple(namespace), name, uuid)
            after = page["next"]

    async def pin(self, uuid: str, snapshot_id: int) -> None:
        await self._call("backup_pin", id=self._id, uuid=uuid, snapshot=snapshot_id)

    async def unpin(self, uuid: str) -> None:
        await self._call("backup_unpin", id=self._id, uuid=uuid)

    async def unpin_all(self) -> None:
        """Removes the holds of the backup on all tables, also on those that `tables` does not list any more."""
        await self._call("backup_unpin_all", id=self._id)

    async def manifest_number(self) -> int:
        return int((await self._call("backup_numbers", count=1))["first"])

    async def freeze(self, ends: Sequence[tuple[int, int, int]] = ()) -> tuple[int, int]:
        """Freezes the metadata store; returns its revision and the size of its encoded state."""
        answer = await self._call("backup_freeze", id=self._id, ends=list(ends))
        return answer["revision"], answer["metadata_bytes"]

    async def part(self, name: str, size: int) -> list[bytes]:
        """The checkpoint or the frozen metadata store, in pieces."""
        return [
            (await self._call("backup_part", id=self._id, name=name, start=start))["data"]
            for start in range(0, size, limits.BACKUP_PART_BYTES)
        ]

    async def renew(self) -> None:
        await self._call("backup_part", id=self._id, name="checkpoint", start=0)

    async def end(self) -> None:
        await self._call("backup_end", id=self._id)

    async def options(self) -> Document:
        """The settings `backup.iceberg` in force."""
        return await self._call("backup_options")
