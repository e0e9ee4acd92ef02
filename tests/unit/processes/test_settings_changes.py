"""Settings that change while a node runs: checked, stored, in force, taken back, and found again by the next start."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from icestream import errors
from icestream.broker.online_settings import CONFIG, OnlineSettings
from icestream.metadata.store import MemoryStore
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import BrokerNode
from icestream.processes.node.settings_changes import APPLIED, NOT_APPLIED
from icestream.settings import KEYS, Origin, Settings, load, value_at
from tests.support.node_settings import node_settings

pytestmark = pytest.mark.asyncio
WAL = "storage.iceberg_config.wal"
HANGS_SECONDS = 5.0


async def started(data_dir: Path, **sections: Any) -> tuple[BrokerNode, OnlineSettings]:
    node = await BrokerNode.start(node_settings(data_dir, **sections))
    assert node.services.online is not None
    return node, node.services.online


async def test_every_online_key_is_applied_or_known_to_have_no_reader() -> None:
    marked = {path for path, key in KEYS.items() if key.online}
    unread = {path for path in marked if path.startswith(NOT_APPLIED)}
    assert marked == APPLIED | unread
    assert not APPLIED & unread
    assert all(any(path.startswith(prefix) for path in marked) for prefix in NOT_APPLIED)


# --- in force ---------------------------------------------------------------------------------------------------------


async def test_quotas_count_for_the_next_append(tmp_path: Path) -> None:
    node, online = await started(tmp_path)
    assert node.log is not None
    before = node.log.quota.node_bytes
    await online.set(f"{WAL}.quota", "1MiB")
    assert (node.log.quota.node_bytes, node.log.quota.topic_bytes) == (2**20, 2**19)
    await online.set(f"{WAL}.topic_quota", 1000)
    assert node.log.quota.topic_bytes == 1000
    producer = await node.broker.open_producer(TopicName("default", "a"), "p")
    with pytest.raises(errors.TopicQuotaReached):
        node.broker.publish(producer, 0, encode_block(1, {envelope.PAYLOAD: [bytes(2000)]}))
    await online.unset(f"{WAL}.topic_quota")
    await online.unset(f"{WAL}.quota")
    assert abs(node.log.quota.node_bytes - before) < before / 10
    await node.stop()


async def test_the_other_keys_of_the_log_reach_it(tmp_path: Path) -> None:
    node, online = await started(tmp_path)
    assert node.log is not None
    assert node.log.has_room(64 * 2**20)
    await online.set(f"{WAL}.in_flight_bytes", "64KiB")
    await online.set(f"{WAL}.sync_interval_ms", "5s")
    await online.set(f"{WAL}.inline_sync_below_us", 7)
    await online.set(f"{WAL}.checkpoint_every_bytes", "1MiB")
    seen = node.log._options
    assert node.log.lifecycle._options is seen
    assert (seen.in_flight_bytes, seen.sync_interval_ms, seen.inline_sync_below_us) == (65536, 5000, 7)
    assert seen.checkpoint_every_bytes == 2**20
    await node.stop()


async def test_producers_no_longer_create_topics_after_the_change(tmp_path: Path) -> None:
    node, online = await started(tmp_path)
    await online.set("broker.auto_create_topics", False)
    with pytest.raises(errors.UnknownTopic):
        await node.broker.open_producer(TopicName("default", "a"), "p")
    await online.set("broker.auto_create_topics", True)
    await node.broker.open_producer(TopicName("default", "a"), "p")
    await node.stop()


async def test_the_level_of_log_messages_changes(tmp_path: Path) -> None:
    """Here of our own messages only: the process is not ours."""
    node, online = await started(tmp_path)
    ours, root = logging.getLogger("icestream"), logging.getLogger().level
    try:
        await online.set("log.level", "error")
        assert (ours.level, logging.getLogger().level) == (logging.ERROR, root)
    finally:
        ours.setLevel(logging.NOTSET)
        await node.stop()


# --- stored -----------------------------------------------------------------------------------------------------------


async def test_a_stored_value_overrides_the_file_from_the_next_start(tmp_path: Path) -> None:
    node, online = await started(tmp_path)
    await online.set(f"{WAL}.in_flight_bytes", "1MiB")
    await node.stop()
    node, online = await started(tmp_path, wal={"in_flight_bytes": 2**21})
    assert node.log is not None
    assert node.log._options.in_flight_bytes == 2**20
    assert str(online.origin(f"{WAL}.in_flight_bytes")) == "stored"
    await online.unset(f"{WAL}.in_flight_bytes")
    assert node.log._options.in_flight_bytes == 2**21
    await node.stop()


async def test_a_change_by_another_client_applies_here_too(tmp_path: Path) -> None:
    node, online = await started(tmp_path)
    await node.store.put(f"{CONFIG}broker.auto_create_topics", b"false")
    async with asyncio.timeout(HANGS_SECONDS):
        while node.broker.options.auto_create_topics:  # noqa: ASYNC110 (the broker says nothing about it)
            await asyncio.sleep(0)
    assert online.current.broker.auto_create_topics is False
    await node.stop()


class Applied:
    """Settings without a node: what would be told to it."""

    def __init__(self, *flags: str) -> None:
        loaded = load(flags=flags)
        self.store = MemoryStore()
        self.changes: list[tuple[Settings, Settings]] = []
        self.online = OnlineSettings(
            loaded.settings, loaded.origins, self.store, lambda *change: self.changes.append(change)
        )

    async def stored(self) -> dict[str, bytes]:
        return {key: entry.value for key, entry in await self.store.list_all(CONFIG)}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("log.level", "loud", "must be debug or info or warning or error"),
        ("log.level", None, "must be"),
        ("log.level", 5, "must be"),
        ("broker.auto_create_topics", "yes", "must be true or false"),
        ("broker.auto_create_topics", 1, "must be true or false"),
        (f"{WAL}.quota", "lots", "must be a size"),
        (f"{WAL}.quota", -1, "must be a size"),
        (f"{WAL}.in_flight_bytes", 1, "has no room for one message"),
        (f"{WAL}.topic_quota", "2GiB", "is above `quota`"),
        ("backup.iceberg.warehouse", "../up", "without `..`"),
    ],
)
async def test_an_invalid_value_is_refused_with_the_error_of_the_file(path: str, value: Any, words: str) -> None:
    applied = Applied(f"{WAL}.quota=1GiB")
    with pytest.raises(errors.ConfigurationError, match=words):
        await applied.online.set(path, value)
    assert (applied.changes, await applied.stored()) == ([], {})


async def test_a_key_that_needs_a_restart_is_refused() -> None:
    applied = Applied()
    with pytest.raises(errors.ConfigurationError, match="cannot change while the broker runs"):
        await applied.online.set("node.name", "x")
    with pytest.raises(errors.UnknownSetting) as caught:
        await applied.online.set("log.levle", "info")
    assert caught.value.hint == "the nearest is log.level"


async def test_a_value_that_another_depends_on_cannot_be_unset() -> None:
    applied = Applied(f"{WAL}.quota=1GiB")
    await applied.online.set(f"{WAL}.quota", "4GiB")
    await applied.online.set(f"{WAL}.topic_quota", "2GiB")
    with pytest.raises(errors.ConfigurationError, match="is above `quota`"):
        await applied.online.unset(f"{WAL}.quota")
    await applied.online.unset(f"{WAL}.topic_quota")
    await applied.online.unset(f"{WAL}.quota")
    assert applied.online.current.wal.quota == 2**30


async def test_stored_values_that_no_longer_fit_are_skipped_and_the_rest_applies() -> None:
    applied = Applied(f"{WAL}.quota=1GiB", "log.level=warning")
    await applied.store.put(f"{CONFIG}{WAL}.topic_quota", b'"2GiB"')
    await applied.store.put(f"{CONFIG}log.level", b'"error"')
    await applied.store.put(f"{CONFIG}broker.auto_create_topics", b"garbage")
    await applied.store.put(f"{CONFIG}node.name", b'"x"')
    await applied.store.put(f"{CONFIG}of.a.newer.version", b"1")
    await applied.online.load()
    assert applied.online.current.log.level == "error"
    assert applied.online.current.wal.topic_quota is None
    assert applied.online.stored == {"log.level": "error"}
    assert applied.online.origin(f"{WAL}.topic_quota") == Origin("default")
    assert len(applied.changes) == 1


async def test_no_change_is_applied_twice() -> None:
    applied = Applied()
    await applied.online.set("log.level", "error")
    await applied.online.load()
    await applied.online.set("log.level", "error")
    assert len(applied.changes) == 1


@pytest.mark.parametrize("path", sorted(APPLIED))
async def test_every_shown_value_can_be_set_again(path: str) -> None:
    applied = Applied(f"{WAL}.quota=1GiB", f"{WAL}.topic_quota=1MiB")
    value = KEYS[path].plain(value_at(applied.online.current, path))
    await applied.online.set(path, value)
    assert applied.changes == []
