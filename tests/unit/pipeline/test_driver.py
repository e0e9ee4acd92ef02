"""The driver's rounds over our own catalog on a real disk; broker and Spark on paper."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY
from pyiceberg.table import StaticTable

from icestream import errors, limits
from icestream.iceberg import table_metadata
from icestream.iceberg.identifier import Identifier
from icestream.model.task_messages import TopicTaskResult
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.round_plan import RoundBudget, RoundPlan
from icestream.pipeline.tables import table_policy
from icestream.runtime.clock import SimulatedClock
from tests.support.interruptible_driver import DriverKilled
from tests.support.pipeline_harness import PipelineHarness

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def pipeline(tmp_path: Path) -> AsyncIterator[PipelineHarness]:
    harness = PipelineHarness(tmp_path / "warehouse")
    yield harness
    await harness.close()


async def offsets(pipeline: PipelineHarness, name: str) -> list[tuple[int, int]]:
    loaded = await pipeline.world.catalog.load(Identifier(("default",), name))
    scan = StaticTable.from_metadata(loaded.metadata_location or "").scan(selected_fields=("shard", "offset"))
    rows = scan.to_arrow()
    return sorted(zip(rows["shard"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def upto(end: int, shard: int = 0) -> list[tuple[int, int]]:
    return [(shard, offset) for offset in range(end)]


async def test_published_messages_are_committed_and_the_floor_follows(pipeline: PipelineHarness) -> None:
    broker = pipeline.broker
    broker.publish(1, 5)
    broker.publish(2, 3)
    await pipeline.round()
    broker.publish(1, 4)
    await pipeline.round()
    assert await offsets(pipeline, "t1") == upto(9)
    assert await offsets(pipeline, "t2") == upto(3)
    assert broker.floors == {(1, 0): 9, (2, 0): 3}
    assert broker.held == {}
    assert pipeline.driver.report.as_document()["rows"] == 12


async def test_tables_of_new_topics_are_created_together(tmp_path: Path) -> None:
    effects = Effects()
    pipeline = PipelineHarness(tmp_path / "warehouse", effects=effects)
    for topic in range(1, 31):
        pipeline.broker.publish(topic, 1)
    await pipeline.round()
    assert effects.counts[Effect.MAKE_TABLE] == 1
    assert pipeline.broker.floors == {(topic, 0): 1 for topic in range(1, 31)}
    assert await offsets(pipeline, "t30") == upto(1)
    await pipeline.close()


async def test_a_new_topic_whose_table_name_exists_stops_alone(pipeline: PipelineHarness) -> None:
    await pipeline.world.catalog.create_namespace(("default",), {})
    creation = {"schema": {"type": "struct", "fields": [{"id": 1, "name": "a", "type": "int", "required": False}]}}
    await pipeline.world.catalog.create(Identifier(("default",), "t3"), creation)
    for topic in range(1, 6):
        pipeline.broker.publish(topic, 1)
    await pipeline.round()
    assert [topic for topic, _ in pipeline.topics.halted.items()] == [3]
    assert "already exists" in pipeline.topics.halted[3].stopped.reason
    assert pipeline.broker.floors == {(topic, 0): int(topic != 3) for topic in range(1, 6)}


@pytest.mark.parametrize("fault", ["partitioning", "name"])
async def test_a_new_topic_that_cannot_have_a_table_stops_alone(pipeline: PipelineHarness, fault: str) -> None:
    """An invalid topic is noticed before the tables of all new topics are created together."""
    pipeline.broker.publish(3, 1, name="" if fault == "partitioning" else "no topic")
    if fault == "partitioning":
        pipeline.broker.policies[3] = {"partitioning": "by-colour"}
    for topic in (1, 2, 4, 5):
        pipeline.broker.publish(topic, 1)
    await pipeline.round()
    assert [*pipeline.topics.halted] == [3]
    assert pipeline.broker.floors == {(topic, 0): int(topic != 3) for topic in range(1, 6)}


@pytest.mark.parametrize("is_cut", [False, True])
async def test_hazard_29_files_missing_on_the_driver_stop_their_topic_alone(tmp_path: Path, is_cut: bool) -> None:
    """The machines do not share the warehouse: the table names none of the files, and the log keeps the messages."""
    pipeline = PipelineHarness(tmp_path / "warehouse", is_cluster=True)
    pipeline.broker.publish(1, 3)
    pipeline.broker.publish(2, 3)
    write = pipeline.writer.write

    def elsewhere(plan: RoundPlan) -> list[TopicTaskResult]:
        written = write(plan)
        for file in written[0].files:
            path = Path(file.location.removeprefix("file:"))
            path.write_bytes(path.read_bytes()[:-1]) if is_cut else path.unlink()
        return written

    pipeline.writer.write = elsewhere  # type: ignore[method-assign]
    await pipeline.round()
    assert pipeline.broker.floors == {(1, 0): 0, (2, 0): 3}
    (halted,) = pipeline.topics.halted.values()
    assert ("bytes of" if is_cut else "does not exist") in halted.stopped.reason
    assert "share" in halted.stopped.hint
    assert await offsets(pipeline, "t1") == []
    assert await offsets(pipeline, "t2") == upto(3)
    await pipeline.close()


async def test_a_driver_that_ends_before_advancing_is_followed_by_one_that_does(tmp_path: Path) -> None:
    first = PipelineHarness(tmp_path / "w", owner="child")
    first.broker.publish(1, 5)
    advance = first.broker.advance

    async def killed(positions: object, reopenings: int) -> None:
        raise DriverKilled

    first.broker.advance = killed  # type: ignore[method-assign]
    with pytest.raises(DriverKilled):
        await first.round()
    first.broker.advance = advance  # type: ignore[method-assign]
    second = PipelineHarness(tmp_path / "w", broker=first.broker, store=first.world.store, owner="child")
    await second.round()
    assert first.broker.floors == {(1, 0): 5}
    assert second.writer.rounds == 0
    assert second.lease.epoch > first.lease.epoch
    first.broker.publish(1, 2)
    with pytest.raises(errors.LeaseLost):
        await first.round()
    await second.round()
    assert await offsets(second, "t1") == upto(7)
    for harness in (first, second):
        await harness.close()


async def test_a_failing_topic_does_not_block_others(tmp_path: Path) -> None:
    clock = SimulatedClock()
    pipeline = PipelineHarness(tmp_path / "warehouse", clock=clock)
    pipeline.broker.publish(1, 5)
    pipeline.broker.publish(2, 5)
    pipeline.writer.failing = lambda topic_id: topic_id == 1
    await pipeline.round()
    assert pipeline.broker.floors == {(1, 0): 0, (2, 0): 5}
    pipeline.writer.failing = lambda topic_id: False
    clock.advance(limits.PIPELINE_RETRY_SECONDS_MIN)
    await pipeline.round()
    assert pipeline.broker.floors == {(1, 0): 5, (2, 0): 5}
    assert await offsets(pipeline, "t1") == upto(5)
    await pipeline.close()


async def test_a_topic_that_grew_is_written_with_all_its_shards(pipeline: PipelineHarness) -> None:
    pipeline.broker.publish(1, 3)
    await pipeline.round()
    pipeline.broker.publish(1, 2, shard=1)
    pipeline.broker.publish(1, 1)
    await pipeline.round()
    assert await offsets(pipeline, "t1") == upto(4) + upto(2, 1)


async def test_a_topic_whose_table_was_removed_stops_alone(pipeline: PipelineHarness) -> None:
    pipeline.broker.publish(1, 3)
    pipeline.broker.publish(2, 3)
    await pipeline.round()
    await pipeline.world.making.topics.detach(Identifier(("default",), "t1"))
    pipeline.broker.publish(1, 1)
    pipeline.broker.publish(2, 1)
    await pipeline.round()
    await pipeline.round()
    assert pipeline.broker.floors == {(1, 0): 3, (2, 0): 4}
    (stopped,) = pipeline.driver.report.as_document()["stopped_topics"]
    assert stopped["topic"] == "/default/t1"
    assert "icestream lake adopt" in stopped["hint"]


async def test_a_failing_shard_does_not_block_other_shards(tmp_path: Path) -> None:
    clock = SimulatedClock()
    pipeline = PipelineHarness(tmp_path / "warehouse", clock=clock)
    for shard in (0, 1):
        pipeline.broker.publish(1, 3, shard)
    await pipeline.round()
    for shard in (0, 1):
        pipeline.broker.publish(1, 4, shard)
    pipeline.broker.begins[1, 1] = 5  # the table ends at 3
    await pipeline.round()
    assert pipeline.broker.floors == {(1, 0): 7, (1, 1): 3}
    assert await offsets(pipeline, "t1") == upto(7) + upto(3, 1)
    await pipeline.round()
    (stopped,) = pipeline.driver.report.as_document()["stopped_topics"]
    assert "shard 1: the table ends at 3, the log continues at 5" in stopped["reason"], "nothing else of it waits"
    del pipeline.broker.begins[1, 1]
    clock.advance(limits.TOPIC_HALT_SECONDS)
    await pipeline.round()
    assert await offsets(pipeline, "t1") == upto(7) + upto(7, 1)
    await pipeline.close()


async def test_partitions_follow_the_policy(pipeline: PipelineHarness) -> None:
    pipeline.broker.publish(1, 3)
    await pipeline.round()
    pipeline.broker.policies[1] = {"partitioning": "day"}
    pipeline.broker.publish(1, 3)
    await pipeline.round()
    loaded = await pipeline.world.catalog.load(Identifier(("default",), "t1"))
    static_table = StaticTable.from_metadata(loaded.metadata_location or "")
    assert [file["spec_id"] for file in static_table.inspect.files().to_pylist()] == [1, 0]
    assert await offsets(pipeline, "t1") == upto(6)


async def test_automatic_partitions_follow_size_and_growth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimulatedClock()
    pipeline = PipelineHarness(tmp_path / "warehouse", clock=clock)

    async def fields_after_a_round() -> list[str]:
        clock.advance(2 * 3600)
        pipeline.broker.publish(1, 3)
        await pipeline.round()
        loaded = await pipeline.world.catalog.load(Identifier(("default",), "t1"))
        return [field["name"] for field in table_policy.default_spec(table_metadata.load(loaded.metadata))["fields"]]

    pipeline.broker.policies[1] = {"partitioning": "auto"}
    for _ in range(3):
        assert await fields_after_a_round() == [], "small"
    monkeypatch.setattr(limits, "AUTO_PARTITIONED_TABLE_BYTES", 1)
    assert await fields_after_a_round() == [], "large, and grows slowly"
    monkeypatch.setattr(limits, "AUTO_PARTITION_BYTES", 10_000)
    assert await fields_after_a_round() == ["append_time_day"]
    monkeypatch.setattr(limits, "AUTO_PARTITION_BYTES", 1_000)
    assert await fields_after_a_round() == ["append_time_hour"]
    monkeypatch.setattr(limits, "AUTO_PARTITION_BYTES", 1_000_000_000)
    assert await fields_after_a_round() == []
    pipeline.broker.policies[1] = {"partitioning": "day"}
    assert await fields_after_a_round() == ["append_time_day"], "a policy decides"
    assert await offsets(pipeline, "t1") == upto(24)
    await pipeline.close()


async def test_an_unavailable_broker_is_retried(pipeline: PipelineHarness) -> None:
    pipeline.broker.publish(1, 3)
    pipeline.broker.is_away = True
    with pytest.raises(errors.ConnectionLost):
        await pipeline.driver.turn()
    pipeline.broker.is_away = False
    await pipeline.driver.turn()
    assert pipeline.broker.floors == {(1, 0): 3}


async def test_hazard_24_a_commit_request_takes_no_second_interval_for_any_number_of_topics(
    tmp_path: Path,
) -> None:
    """Rounds follow each other until the messages of the request are committed; later messages wait as usual."""
    harness = PipelineHarness(tmp_path / "w", options=DriverOptions(RoundBudget(age_due_ms=1_000_000, commits_max=2)))
    broker = harness.broker

    def publish(*topics: int) -> None:
        for topic in topics:
            broker.publish(topic, 1)
            broker.oldest_us[topic] = harness.world.clock.wall_us()

    publish(*range(1, 6))
    harness.driver.expedite()
    harness.writer.between = lambda: publish(6, 7, 8)  # with each round, more than one takes
    for done in ({1, 2}, {1, 2, 3, 4}, {1, 2, 3, 4, 5, 6}):
        assert harness.driver.is_expedited
        await harness.driver.turn()
        assert {topic for (topic, _), end in broker.floors.items() if end} == done
    await harness.driver.turn()
    assert not harness.driver.is_expedited
    await harness.close()


async def test_a_commit_request_survives_a_failed_round(pipeline: PipelineHarness) -> None:
    waits: list[int] = []
    ask, hold = pipeline.broker.backlog, pipeline.broker.hold

    async def backlog(wait_ms: int, *arguments: Any) -> Any:
        waits.append(wait_ms)
        return await ask(wait_ms, *arguments)

    async def away(*_: Any) -> None:
        raise errors.ConnectionLost("the broker went away")

    pipeline.broker.backlog, pipeline.broker.hold = backlog, away  # type: ignore[method-assign, assignment]
    pipeline.broker.publish(1, 3)
    pipeline.driver.expedite()
    with pytest.raises(errors.ConnectionLost):
        await pipeline.driver.turn()
    pipeline.broker.hold = hold  # type: ignore[method-assign]
    for _ in range(2):
        await pipeline.driver.turn()
    assert [wait_ms == 0 for wait_ms in waits] == [True, True, False]


async def test_an_idle_driver_releases_the_lease(pipeline: PipelineHarness) -> None:
    pipeline.broker.publish(1, 3)
    await pipeline.driver.turn()
    assert pipeline.lease.is_held
    await pipeline.driver.turn()
    assert not pipeline.lease.is_held
    assert await pipeline.world.store.get("/pipeline/lease") is None


async def test_written_and_uncommitted_rows_are_reported_until_committed(tmp_path: Path) -> None:
    clock = SimulatedClock()
    pipeline = PipelineHarness(tmp_path / "warehouse", clock=clock)
    reports: list[tuple[float, float]] = []

    def now() -> tuple[float, float]:
        return sample("icestream_pipeline_uncommitted_messages"), sample("icestream_pipeline_uncommitted_since_seconds")

    commit = pipeline.world.committer.commit

    async def watched(*arguments: Any) -> None:
        reports.append(now())
        clock.advance(3)
        await commit(*arguments)

    pipeline.world.committer.commit = watched  # type: ignore[method-assign]
    pipeline.broker.publish(1, 5)
    began = clock.wall_us() / 1e6
    await pipeline.round()
    assert reports == [(5, began)]
    assert now() == (0, 0)
    assert sample("icestream_pipeline_last_commit_time_seconds") == began + 3
    assert sample("icestream_pipeline_commit_seconds") == 3
    await pipeline.close()


def sample(name: str) -> float:
    value = REGISTRY.get_sample_value(name)
    assert value is not None, name
    return value
