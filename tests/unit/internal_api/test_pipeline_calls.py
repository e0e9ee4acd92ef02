"""The calls of the pipeline's driver over the local socket of a real node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.internal_api.pipeline_calls import PipelineCalls
from icestream.model.backlog_messages import Backlog, decode_backlog
from icestream.rpc.link import open_link
from tests.unit.internal_api.test_admin_calls import AdminClient, ask, operated

pytestmark = pytest.mark.asyncio
__all__ = ["ask"]


async def backlog_of(ask: AdminClient, **arguments: int) -> Backlog:
    return decode_backlog((await ask("pipeline_backlog", **arguments))["backlog"])


async def test_the_driver_gets_the_backlog_and_reports_its_commits(ask: AdminClient) -> None:
    empty = await backlog_of(ask)
    assert (empty.topics, empty.files, empty.is_cut) == ([], [], False)
    await ask("create_topic", topic="/default/orders", shards=2)
    await ask.publish(3)
    await ask.publish(2, shard=1)
    backlog = await backlog_of(ask)
    (topic,) = backlog.topics
    assert (topic.name, topic.rows, topic.incarnation > 0) == ("/default/orders", 5, True)
    assert [(shard.shard, shard.committed, shard.synced) for shard in topic.shards] == [(0, 0, 3), (1, 0, 2)]
    (file,) = backlog.files
    assert [(stretch.shard, stretch.start, stretch.end) for stretch in file.stretches] == [(0, 0, 3), (1, 0, 2)]
    assert Path(backlog.directory) == ask.node.settings.wal.base_path
    assert backlog.address == f"127.0.0.1:{ask.node.services.http.port}"
    assert backlog.certificate == "", "this broker has no TLS"
    assert backlog.log_id == ask.node.log.log_id.hex()  # type: ignore[union-attr]

    leased = await ask("pipeline_lease", lease="r1", epoch=1, files=[file.number], ttl_ms=1000)
    assert len(leased["token"]) == 64
    await ask("pipeline_committed", positions=[[topic.topic_id, 0, 3], [topic.topic_id, 1, 1]])
    (topic,) = (await backlog_of(ask)).topics
    assert [(shard.shard, shard.committed, shard.synced) for shard in topic.shards] == [(0, 3, 3), (1, 1, 2)]
    await ask("pipeline_committed", positions=[[topic.topic_id, 0, 1]])
    (topic,) = (await backlog_of(ask)).topics
    assert topic.shards[0].committed == 3, "never down"
    await ask("pipeline_lease", lease="r1", epoch=1, files=[])


async def test_the_driver_gets_the_table_layout_of_a_topic(ask: AdminClient) -> None:
    async def layout() -> dict[str, str]:
        (topic,) = (await backlog_of(ask)).topics
        return topic.policy

    await ask("create_topic", topic="/default/orders", policies={"partitioning": "hour", "max_producers": 3})
    await ask.publish(1)
    assert await layout() == {"partitioning": "hour"}
    await ask("set_namespace_policies", namespace="default", policies={"partitioning": "day", "compression": "gzip:6"})
    assert await layout() == {"partitioning": "hour", "compression": "gzip:6"}
    await ask("set_topic_policies", topic="/default/orders", policies={"target_file_bytes": 100_000})
    assert await layout() == {"partitioning": "day", "compression": "gzip:6", "target_file_bytes": "100000"}
    wrong = {"partitioning": "week"}
    await ask.refused(errors.InvalidInput, "set_topic_policies", topic="/default/orders", policies=wrong)
    assert (await layout())["partitioning"] == "day"


async def test_the_driver_gets_changed_settings_only(ask: AdminClient) -> None:
    assert (await backlog_of(ask)).changed_settings == {}
    section = "storage.iceberg_config"
    await ask("set_setting", key=f"{section}.writer_flush_interval_ms", value="1s")
    await ask("set_setting", key=f"{section}.writer_max_memory_bytes", value="2MiB")
    await ask("set_setting", key=f"{section}.wal.warm_ms", value="1s")
    changed = {"writer_flush_interval_ms": 1000, "writer_max_memory_bytes": 2 * limits.MIB}
    assert (await backlog_of(ask)).changed_settings == changed
    await ask("unset_setting", key=f"{section}.writer_flush_interval_ms")
    assert (await backlog_of(ask)).changed_settings == {"writer_max_memory_bytes": 2 * limits.MIB}
    await ask("set_setting", key="pipeline.clean_up", value=False)
    assert (await backlog_of(ask)).changed_settings["clean_up"] == 0
    await ask("set_setting", key="pipeline.clean_up", value=True)
    assert (await backlog_of(ask)).changed_settings["clean_up"] == 1


async def test_a_driver_waits_until_there_is_a_backlog(ask: AdminClient) -> None:
    await ask("create_topic", topic="/default/orders")
    waiting = asyncio.ensure_future(backlog_of(ask, wait_ms=60_000))
    await ask("health")  # it was taken before this one
    assert not waiting.done()
    await ask.publish(1)
    backlog = await waiting
    assert [topic.rows for topic in backlog.topics] == [1]

    await ask.publish(1)
    assert [topic.rows for topic in (await backlog_of(ask, wait_ms=60_000)).topics] == [2], "it does not wait for more"


async def test_stalled_topics_are_skipped(ask: AdminClient) -> None:
    await ask("create_topic", topic="/default/orders")
    await ask.publish(2)
    (topic,) = (await backlog_of(ask)).topics
    backlog = decode_backlog((await ask("pipeline_backlog", passed_over=[topic.topic_id, 10**6]))["backlog"])
    assert (backlog.topics, backlog.files) == ([], [])
    assert (backlog.passed_over.rows, backlog.passed_over.oldest_us) == (2, topic.oldest_us)


async def test_a_wait_has_an_end(ask: AdminClient) -> None:
    assert (await backlog_of(ask, wait_ms=1)).topics == []
    await ask("create_topic", topic="/default/orders")
    await ask.publish(1)
    backlog = await backlog_of(ask, wait_ms=1)
    assert [topic.rows for topic in backlog.topics] == [1]


async def test_a_broker_that_stops_does_not_wait_for_a_driver(tmp_path: Path) -> None:
    async with operated(tmp_path / "data") as ask:
        link = await open_link(ask.node.settings.local_socket, "driver")
        waiting = asyncio.ensure_future(link.call("pipeline_backlog", {"wait_ms": limits.BACKLOG_WAIT_MS_MAX}))
        await ask("health")
        async with asyncio.timeout(limits.CLOSE_SECONDS_MAX):
            await ask.node.services.close()
        answer = await waiting
        assert decode_backlog(answer["backlog"]).topics == []


async def test_impossible_reports_change_nothing(ask: AdminClient) -> None:
    await ask("create_topic", topic="/default/orders")
    await ask.publish(2)
    (topic,) = (await backlog_of(ask)).topics
    await ask.refused(
        errors.InvalidInput, "pipeline_committed", positions=[[topic.topic_id, 0, 1], [topic.topic_id, 0, 3]]
    )
    (topic,) = (await backlog_of(ask)).topics
    assert topic.shards[0].committed == 0
    await ask("pipeline_committed", positions=[[10**6, 0, 5]])  # of a topic that was deleted: there is nothing to do
    many = [[topic.topic_id, 0, 1]] * (limits.PIPELINE_POSITIONS_MAX + 1)
    await ask.refused(errors.InvalidInput, "pipeline_committed", positions=many)
    most = [[topic.topic_id, 0, 1]] * limits.PIPELINE_POSITIONS_MAX
    await ask("pipeline_committed", positions=most)


async def test_a_lease_is_for_files_that_are_there_and_for_the_newest_driver(ask: AdminClient) -> None:
    await ask("create_topic", topic="/default/orders")
    await ask.publish(1)
    number = (await backlog_of(ask)).files[0].number
    gone = await ask.refused(errors.PositionGone, "pipeline_lease", lease="r", epoch=1, files=[number, 99], ttl_ms=1)
    assert "log file 99" in gone
    await ask.refused(errors.InvalidInput, "pipeline_lease", lease="r", epoch=1, files=[number], ttl_ms=0)
    await ask.refused(
        errors.InvalidInput, "pipeline_lease", lease="r", epoch=1, files=[number], ttl_ms=limits.LEASE_TTL_MS_MAX + 1
    )
    await ask.refused(errors.InvalidInput, "pipeline_lease", lease="", epoch=1, files=[number], ttl_ms=1000)
    await ask("pipeline_lease", lease="r", epoch=2, files=[number], ttl_ms=1000)
    await ask.refused(errors.LeaseLost, "pipeline_lease", lease="old", epoch=1, files=[number], ttl_ms=1000)


async def test_the_driver_status_is_shown_to_operators(ask: AdminClient) -> None:
    assert await ask("pipeline_state") == {"state": None, "age_ms": None}
    reported = {"ok": False, "reason": "the catalog does not answer", "round": 7}
    await ask("pipeline_state", state=reported)
    status = await ask("pipeline_state")
    assert status["state"] == reported
    assert status["age_ms"] >= 0
    (check,) = [row for row in (await ask("health"))["checks"] if row["name"] == "ingest"]
    assert (check["ok"], check["reason"], check["is_needed"]) == (False, "the catalog does not answer", False)
    assert (await ask("health"))["ready"] is True
    await ask("pipeline_state", state={"round": 8})
    (check,) = [row for row in (await ask("health"))["checks"] if row["name"] == "ingest"]
    assert check["ok"] is True
    await ask.refused(errors.InvalidInput, "pipeline_state", state={"x": "y" * limits.PIPELINE_STATE_BYTES_MAX})


async def test_a_broker_in_memory_has_no_pipeline(ask: AdminClient) -> None:
    (connection,) = ask.node.services.local._connections  # type: ignore[union-attr]
    arguments = {"lease": "r", "files": [], "positions": []}
    for call in PipelineCalls(None).calls().values():
        with pytest.raises(errors.InvalidInput, match="in memory"):
            await call(connection, arguments)  # type: ignore[arg-type]


async def test_nonsense_is_refused(ask: AdminClient) -> None:
    for method, arguments in (
        ("pipeline_backlog", {"wait_ms": "x"}),
        ("pipeline_lease", {"lease": 1, "files": []}),
        ("pipeline_lease", {"lease": "r", "files": ["x"]}),
        ("pipeline_committed", {"positions": [[1, 2]]}),
        ("pipeline_committed", {}),
        ("pipeline_state", {"state": []}),
    ):
        await ask.refused(errors.InvalidInput, method, **arguments)
    assert (await backlog_of(ask, files_max=-5, wait_ms=-5)).topics == []


async def test_malformed_backlogs_are_refused() -> None:
    for data in (b"", b"\xc1", b"\x80", b"\xff" * 9):
        with pytest.raises(errors.DecodeError):
            decode_backlog(data)
