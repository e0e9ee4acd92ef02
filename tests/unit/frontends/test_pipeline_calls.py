"""What the driver of the pipeline asks over the local socket, on a real node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.internal_api.pipeline_calls import PipelineCalls
from icestream.model.backlog_messages import Backlog, decode_backlog
from icestream.rpc.link import open_link
from tests.unit.frontends.test_admin_calls import Operator, ask, operated

pytestmark = pytest.mark.asyncio
__all__ = ["ask"]


async def backlog_of(ask: Operator, **arguments: int) -> Backlog:
    return decode_backlog((await ask("pipeline_backlog", **arguments))["backlog"])


async def test_the_driver_learns_what_to_write_and_tells_what_it_wrote(ask: Operator) -> None:
    empty = await backlog_of(ask)
    assert (empty.topics, empty.files, empty.is_cut) == ([], [], False)
    await ask("create_topic", topic="/default/orders", shards=2)
    await ask.publish(3)
    await ask.publish(2, shard=1)
    found = await backlog_of(ask)
    (topic,) = found.topics
    assert (topic.name, topic.rows, topic.incarnation > 0) == ("/default/orders", 5, True)
    assert [(one.shard, one.committed, one.synced) for one in topic.shards] == [(0, 0, 3), (1, 0, 2)]
    (file,) = found.files
    assert [(one.shard, one.start, one.end) for one in file.stretches] == [(0, 0, 3), (1, 0, 2)]
    assert Path(found.directory) == ask.node.settings.wal.base_path
    assert found.address == f"127.0.0.1:{ask.node.services.http.port}"
    assert len(found.token) == 64
    assert found.log_id == ask.node.log.log_id.hex()  # type: ignore[union-attr]

    await ask("pipeline_lease", lease="r1", epoch=1, files=[file.number], ttl_ms=1000)
    await ask("pipeline_committed", positions=[[topic.topic_id, 0, 3], [topic.topic_id, 1, 1]])
    (topic,) = (await backlog_of(ask)).topics
    assert [(one.shard, one.committed, one.synced) for one in topic.shards] == [(0, 3, 3), (1, 1, 2)]
    await ask("pipeline_committed", positions=[[topic.topic_id, 0, 1]])
    (topic,) = (await backlog_of(ask)).topics
    assert topic.shards[0].committed == 3, "never down"
    await ask("pipeline_lease", lease="r1", epoch=1, files=[])


async def test_the_driver_learns_how_a_topic_wants_its_table(ask: Operator) -> None:
    async def told() -> dict[str, str]:
        (topic,) = (await backlog_of(ask)).topics
        return topic.policy

    await ask("create_topic", topic="/default/orders", policies={"partitioning": "hour", "max_producers": 3})
    await ask.publish(1)
    assert await told() == {"partitioning": "hour"}
    await ask("set_namespace_policies", namespace="default", policies={"partitioning": "day", "compression": "gzip:6"})
    assert await told() == {"partitioning": "hour", "compression": "gzip:6"}
    await ask("set_topic_policies", topic="/default/orders", policies={"target_file_bytes": 100_000})
    assert await told() == {"partitioning": "day", "compression": "gzip:6", "target_file_bytes": "100000"}
    wrong = {"partitioning": "week"}
    await ask.refused(errors.InvalidInput, "set_topic_policies", topic="/default/orders", policies=wrong)
    assert (await told())["partitioning"] == "day"


async def test_the_driver_learns_of_settings_that_were_changed_and_of_no_others(ask: Operator) -> None:
    assert (await backlog_of(ask)).changed_settings == {}
    section = "storage.iceberg_config"
    await ask("set_setting", key=f"{section}.writer_flush_interval_ms", value="1s")
    await ask("set_setting", key=f"{section}.writer_max_memory_bytes", value="2MiB")
    await ask("set_setting", key=f"{section}.wal.warm_ms", value="1s")
    told = {"writer_flush_interval_ms": 1000, "writer_max_memory_bytes": 2 * limits.MIB}
    assert (await backlog_of(ask)).changed_settings == told
    await ask("unset_setting", key=f"{section}.writer_flush_interval_ms")
    assert (await backlog_of(ask)).changed_settings == {"writer_max_memory_bytes": 2 * limits.MIB}


async def test_a_driver_waits_until_there_is_something(ask: Operator) -> None:
    await ask("create_topic", topic="/default/orders")
    waiting = asyncio.ensure_future(backlog_of(ask, wait_ms=60_000))
    await ask("health")  # it was taken before this one
    assert not waiting.done()
    await ask.publish(1)
    found = await waiting
    assert [topic.rows for topic in found.topics] == [1]

    await ask.publish(1)
    assert [topic.rows for topic in (await backlog_of(ask, wait_ms=60_000)).topics] == [2], "it does not wait for more"


async def test_topics_that_stand_still_are_passed_over(ask: Operator) -> None:
    await ask("create_topic", topic="/default/orders")
    await ask.publish(2)
    (topic,) = (await backlog_of(ask)).topics
    found = decode_backlog((await ask("pipeline_backlog", passed_over=[topic.topic_id, 10**6]))["backlog"])
    assert (found.topics, found.files) == ([], [])
    assert (found.passed_over.rows, found.passed_over.oldest_us) == (2, topic.oldest_us)


async def test_a_wait_has_an_end(ask: Operator) -> None:
    assert (await backlog_of(ask, wait_ms=1)).topics == []
    await ask("create_topic", topic="/default/orders")
    await ask.publish(1)
    found = await backlog_of(ask, wait_ms=1)
    assert [topic.rows for topic in found.topics] == [1]


async def test_a_broker_that_stops_does_not_wait_for_a_driver(tmp_path: Path) -> None:
    async with operated(tmp_path / "data") as ask:
        link = await open_link(ask.node.settings.local_socket, "driver")
        waiting = asyncio.ensure_future(link.call("pipeline_backlog", {"wait_ms": limits.BACKLOG_WAIT_MS_MAX}))
        await ask("health")
        async with asyncio.timeout(limits.CLOSE_SECONDS_MAX):
            await ask.node.services.close()
        answer = await waiting
        assert decode_backlog(answer["backlog"]).topics == []


async def test_what_cannot_be_right_changes_nothing(ask: Operator) -> None:
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


async def test_a_lease_is_for_files_that_are_there_and_for_the_newest_driver(ask: Operator) -> None:
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


async def test_the_driver_is_heard_where_people_look(ask: Operator) -> None:
    assert await ask("pipeline_state") == {"state": None, "age_ms": None}
    said = {"ok": False, "reason": "the catalog does not answer", "round": 7}
    await ask("pipeline_state", state=said)
    found = await ask("pipeline_state")
    assert found["state"] == said
    assert found["age_ms"] >= 0
    (check,) = [one for one in (await ask("health"))["checks"] if one["name"] == "ingest"]
    assert (check["ok"], check["reason"], check["is_needed"]) == (False, "the catalog does not answer", False)
    assert (await ask("health"))["ready"] is True
    await ask("pipeline_state", state={"round": 8})
    (check,) = [one for one in (await ask("health"))["checks"] if one["name"] == "ingest"]
    assert check["ok"] is True
    await ask.refused(errors.InvalidInput, "pipeline_state", state={"x": "y" * limits.PIPELINE_STATE_BYTES_MAX})


async def test_a_broker_in_memory_has_no_pipeline(ask: Operator) -> None:
    (connection,) = ask.node.services.local._connections  # type: ignore[union-attr]
    arguments = {"lease": "r", "files": [], "positions": []}
    for call in PipelineCalls(None).calls().values():
        with pytest.raises(errors.InvalidInput, match="in memory"):
            await call(connection, arguments)  # type: ignore[arg-type]


async def test_nonsense_is_refused(ask: Operator) -> None:
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


async def test_bytes_that_are_no_backlog_are_refused() -> None:
    for data in (b"", b"\xc1", b"\x80", b"\xff" * 9):
        with pytest.raises(errors.DecodeError):
            decode_backlog(data)
