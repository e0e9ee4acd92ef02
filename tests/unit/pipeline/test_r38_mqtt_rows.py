"""R38: MQTT messages are rows that any engine of Iceberg reads: topic levels, QoS, properties and publish time are
columns. From a real broker's log, with everything real but Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from icestream import limits
from icestream.catalog import catalog_keys
from icestream.catalog.topic_rules.topic_schema import LEVELS, MQTT_COLUMNS
from icestream.catalogs.table_catalog import CommitDone, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.model import envelope
from icestream.model.block import Values, encode_block
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.mqtt.learned_structure import LearnedStructure
from icestream.mqtt.properties import Properties, PropertyId, PropertyValue, encode_properties
from icestream.processes.broker_process import BrokerNode
from tests.support.lakehouse import duckdb_with_iceberg
from tests.support.pipeline_harness import PipelineHarness
from tests.unit.pipeline.test_end_to_end import running

pytestmark = pytest.mark.asyncio
TOPIC = TopicName("default", "messages")
MQTT = PolicyValues(mqtt_columns="on")
PROPERTIES: list[tuple[int, PropertyValue]] = [
    (PropertyId.USER_PROPERTY, ("room", "1")),
    (PropertyId.MESSAGE_EXPIRY_INTERVAL, 3_600),
    (PropertyId.USER_PROPERTY, ("room", "2")),
    (PropertyId.CONTENT_TYPE, "text/plain"),
]


async def store(node: BrokerNode, topics: list[str], **more: Values) -> None:
    """Stores messages as the MQTT front end does: columns by their names, beside topic and payload."""
    columns: dict[envelope.EnvelopeColumn, Values] = {
        envelope.KEY: [topic.encode() for topic in topics],
        envelope.PAYLOAD: [b"at %s" % topic.encode() for topic in topics],
        envelope.QOS: [1] * len(topics),
        envelope.PRODUCER_NAME: ["sensor-7"] * len(topics),
        envelope.PUBLISH_TIME: [1_700_000_000_000_000] * len(topics),
    }
    names = {column.name: column for column in envelope.COLUMNS}
    columns |= {names[name]: values for name, values in more.items()}
    topic = node.broker.topics.get(TOPIC)
    await node.broker.storage.store_messages(ShardKey(topic.record.id, 0), encode_block(len(topics), columns))


async def table_of(pipeline: PipelineHarness) -> StaticTable:
    loaded = await pipeline.world.catalog.load(Identifier(("default",), "messages"))
    return StaticTable.from_metadata(loaded.metadata_location or "")


async def rows_of(pipeline: PipelineHarness) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await table_of(pipeline)).scan().to_arrow().sort_by("offset").to_pylist()
    return rows


def levels(row: dict[str, Any]) -> list[str | None]:
    return [row[name] for name in LEVELS]


async def test_r04_r38_mqtt_messages_are_appended_rows_with_topic_qos_and_properties_as_columns(tmp_path: Path) -> None:
    wire = encode_properties(Properties(PROPERTIES))
    deep = "/".join(f"l{number}" for number in range(1, 11))
    topics = ["plant/7/heat", "$SYS/uptime", "/", deep]
    async with running(tmp_path) as (node, pipeline):
        await node.broker.create_topic(TOPIC, policies=MQTT)
        await store(
            node, topics, wire=[wire, None, b"\0", b"not properties"], retain=[True, False, False, False],
            headers=[{"room": "2"}, None, None, None], content_type=["text/plain", None, None, None],
        )  # fmt: skip
        await pipeline.round()
        await store(node, topics)
        await pipeline.round()
        rows = await rows_of(pipeline)
        snapshots = (await table_of(pipeline)).metadata.snapshots
        metadata_location = (await table_of(pipeline)).metadata_location
    operations = {snapshot.summary.operation.value for snapshot in snapshots if snapshot.summary is not None}
    assert operations == {"append"}, "messages are added, and never changed (R04)"
    first = rows[0]
    assert (first["key"], first["payload"], first["producer_name"]) == (b"plant/7/heat", b"at plant/7/heat", "sensor-7")
    assert (first["qos"], first["retain"], first["content_type"]) == (1, True, "text/plain")
    assert first["wire"] == wire, "the exact list, with both values of room"
    assert first["headers"] == [("room", "2")]
    assert first["publish_time"].timestamp() == 1_700_000_000
    assert [row["expiry_s"] for row in rows[:4]] == [3_600, None, None, None]
    assert levels(first) == ["plant", "7", "heat", *[None] * 5]
    assert levels(rows[1])[:3] == ["$SYS", "uptime", None]
    assert levels(rows[2])[:3] == ["", "", None]
    assert levels(rows[3]) == [f"l{number}" for number in range(1, 9)]
    assert [(row["structure"], row["stream"]) for row in rows[:4]] == [(0, None)] * 4, "nothing was learned before"
    assert [(row["structure"], row["stream"]) for row in rows[4:]] == [
        (1, "plant/7/heat"),
        (1, "$SYS/uptime"),
        (1, "/"),
        (1, "l1/l2/l3/l4/l5/l6/l7/l8/#"),
    ]
    with duckdb_with_iceberg() as duck:
        found = duck.execute(
            f"SELECT level_1, level_3, qos, expiry_s, stream FROM iceberg_scan('{metadata_location}') "
            "WHERE level_1 = 'plant' ORDER BY \"offset\""
        ).fetchall()
    assert found == [("plant", "heat", 1, 3_600, None), ("plant", "heat", 1, None, "plant/7/heat")]


async def test_r38_a_topic_that_existed_before_gets_the_columns(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, pipeline):
        await node.broker.create_topic(TOPIC)
        await store(node, ["a/b"])
        await pipeline.round()
        assert not MQTT_COLUMNS.keys() & {field.name for field in (await table_of(pipeline)).schema().fields}
        await node.broker.set_topic_policies(TOPIC, MQTT)
        await store(node, ["a/b"])
        await pipeline.round()
        await node.broker.set_topic_policies(TOPIC, PolicyValues(mqtt_columns="off"))
        await store(node, ["a/b"])
        await pipeline.round()
        rows = await rows_of(pipeline)
        names = [field.name for field in (await table_of(pipeline)).schema().fields]
    assert names[-len(MQTT_COLUMNS) :] == [*MQTT_COLUMNS], "behind the columns of the envelope"
    assert [levels(row)[:3] for row in rows] == [[None] * 3, ["a", "b", None], [None] * 3]


async def test_r38_a_native_message_without_a_topic_has_the_name_of_its_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, pipeline):
        await node.broker.create_topic(TOPIC, policies=MQTT)
        await store(node, ["", "a", "a"], key=[None, b"not/a/+", b"a"], qos=[None] * 3, producer_name=[None] * 3)
        await pipeline.round()
        rows = await rows_of(pipeline)
    assert [levels(row)[:2] for row in rows] == [["default", "messages"]] * 2 + [["a", None]]


async def test_a_column_of_the_same_name_and_another_type_stays_as_it_is(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, pipeline):
        await node.broker.create_topic(TOPIC)
        await store(node, ["a/b"])
        await pipeline.round()
        catalog, name = pipeline.world.catalog, Identifier(("default",), "messages")
        loaded = await catalog.load(name)
        schema = loaded.metadata["schemas"][-1]
        fields = [*schema["fields"], {"id": 100, "name": "level_1", "type": "long", "required": False}]
        updates = [
            {"action": "add-schema", "schema": {"type": "struct", "fields": fields}, "last-column-id": 100},
            {"action": "set-current-schema", "schema-id": -1},
        ]
        assert isinstance(await catalog.commit(name, TableChange([], updates)), CommitDone)
        await node.broker.set_topic_policies(TOPIC, MQTT)
        for _ in range(2):  # the first one finds out that the schema has changed
            await store(node, ["a/b"])
            await pipeline.round()
        rows = await rows_of(pipeline)
    assert [levels(row)[:2] for row in rows] == [[None, None], [None, None], [None, "b"]]


# --- learning ---------------------------------------------------------------------------------------------------------


async def structure_of(node: BrokerNode) -> LearnedStructure:
    topic = node.broker.topics.get(TOPIC)
    entry = await node.store.get(catalog_keys.structure_key(topic.record.id))
    assert entry is not None
    return LearnedStructure.decode(entry.value)


async def test_streams_are_the_same_after_another_driver_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STRUCTURE_THRESHOLDS", (100, 3))
    streams: dict[bytes, set[str | None]] = {}
    for start in range(2):
        async with running(tmp_path) as (node, pipeline):
            if not start:
                await node.broker.create_topic(TOPIC, policies=MQTT)
            for number in range(3):
                await store(node, [f"plant/{at}" for at in range(3 * start + number, 3 * start + number + 3)])
                await pipeline.round()
            for row in await rows_of(pipeline):
                streams.setdefault(row["key"], set()).add(row["stream"])
            structure = await structure_of(node)
    assert structure.version == 1, "plant/+ was learned in the first round, and takes all that came later"
    assert all(len(names - {None}) <= 1 for names in streams.values()), streams
    assert streams[b"plant/7"] == {"plant/+"}


async def test_the_structure_of_a_deleted_topic_is_deleted_with_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, pipeline):
        await node.broker.create_topic(TOPIC, policies=MQTT)
        await store(node, ["a/b"])
        await pipeline.round()
        key = catalog_keys.structure_key(node.broker.topics.get(TOPIC).record.id)
        assert await node.store.get(key) is not None
        await node.broker.delete_topic(TOPIC)
        assert await node.store.get(key) is None
