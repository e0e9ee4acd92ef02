"""Which log a node may open, by the records of the metadata store: its own, a predecessor's, a repaired one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from icestream import errors
from icestream.broker.records import NODE_LOGS
from icestream.broker.topic_owners import TopicOwners
from icestream.cluster.members import NODES, REMOVED_NODES, NodeRecord, encode_record, encode_removed
from icestream.metadata.store import MemoryStore
from icestream.processes.node.log_identity import LogRecords, check_log, record_log
from icestream.wal.open_log import open_log

OLD, NEW, OTHER = "0" * 15 + "1", "0" * 15 + "2", "0" * 15 + "3"
pytestmark = pytest.mark.asyncio


class RejoinedNode:
    """The metadata store as node NEW sees it, which joined anew in the place of OLD; OTHER is another member."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.entries = {
            REMOVED_NODES + OLD: encode_removed(NEW),
            NODES + OTHER: encode_record(NodeRecord("node-3", "127.0.0.1:7650")),
        }

    def owners(self, own: str = NEW) -> TopicOwners:
        peek: Callable[[str], bytes | None] = self.entries.get
        return TopicOwners(own, OLD, peek)

    async def logs(self) -> dict[str, bytes]:
        return {key.removeprefix(NODE_LOGS): entry.value for key, entry in await self.store.list_all(NODE_LOGS)}


async def new_log(path: Path) -> bytes:
    log = await open_log(path)
    await log.close()
    return log.log_id


async def test_a_rejoined_node_must_have_the_log_of_its_predecessor(tmp_path: Path) -> None:
    cluster = RejoinedNode()
    log_id = await new_log(tmp_path / "wal")
    await record_log(cluster.store, cluster.owners(OLD), log_id)
    assert await check_log(cluster.store, cluster.owners(), tmp_path / "wal", has_topics=True)
    assert await check_log(cluster.store, cluster.owners(), tmp_path / "gone", has_topics=False), "it is lost"
    await new_log(tmp_path / "another")
    with pytest.raises(errors.ForeignLog, match=f"this node has log {log_id.hex()}"):
        await check_log(cluster.store, cluster.owners(), tmp_path / "another", has_topics=True)
    await record_log(cluster.store, cluster.owners(), log_id)
    assert set(await cluster.logs()) == {NEW}, "the record of the predecessor is its own now"
    assert await check_log(cluster.store, cluster.owners(), tmp_path / "gone", has_topics=False)


async def test_topics_of_a_predecessor_without_a_record_need_its_log(tmp_path: Path) -> None:
    cluster = RejoinedNode()
    assert await check_log(cluster.store, cluster.owners(), tmp_path / "gone", has_topics=True)
    assert not await check_log(cluster.store, cluster.owners(), tmp_path / "gone", has_topics=False)


async def test_the_log_of_another_member_is_named(tmp_path: Path) -> None:
    """This holds for a node without a recorded log, and for one with another recorded log."""
    cluster = RejoinedNode()
    log_id = await new_log(tmp_path / "wal")
    await record_log(cluster.store, cluster.owners(OTHER), log_id)
    with pytest.raises(errors.ForeignLog, match=f"it is log {log_id.hex()}, of node node-3") as raised:
        await check_log(cluster.store, cluster.owners(), tmp_path / "wal", has_topics=False)
    assert "this node then begins its own" in raised.value.hint
    await record_log(cluster.store, cluster.owners(), bytes([7] * 16))
    with pytest.raises(errors.ForeignLog, match="of node node-3") as raised:
        await check_log(cluster.store, cluster.owners(), tmp_path / "wal", has_topics=False)
    assert "how to give up what is lost" in raised.value.hint


async def test_a_record_of_an_older_version_adopts_the_id_of_the_existing_log(tmp_path: Path) -> None:
    cluster = RejoinedNode()
    await cluster.store.put(NODE_LOGS + NEW, b"{}")
    log_id = await new_log(tmp_path / "wal")
    assert await check_log(cluster.store, cluster.owners(), tmp_path / "wal", has_topics=False)
    await record_log(cluster.store, cluster.owners(), log_id)
    assert log_id.hex().encode() in (await cluster.logs())[NEW]


async def test_a_log_whose_id_a_repair_could_not_read_is_adopted() -> None:
    assert LogRecords({NEW: "aa"}, {OTHER: "bb"}).is_expected(bytes(16).hex())
    assert not LogRecords({NEW: "aa"}, {OTHER: "bb"}).is_expected("cc")
    assert not LogRecords({}, {OTHER: "bb"}).is_expected("bb")
