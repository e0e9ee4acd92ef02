"""Hazards 14, 21 and 23 as clients see them: rounds of the pipeline, and what others do to the table of a topic."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest

from icestream.catalog import catalog_keys
from icestream.iceberg.identifier import Identifier
from tests.hazards.test_hazard_21_foreign_commits import REFUSED
from tests.support.asgi import AsgiResponse
from tests.support.iceberg import IcebergClient, IcebergWorld, commit_of, error_of
from tests.support.tables import SCHEMA, point
from tests.support.topic_tables import ENVELOPE, LEASE, TOPIC_ID, appending, claim, replacing

pytestmark = pytest.mark.asyncio

TABLE = "/namespaces/ns/tables/orders"
NAMED = {"namespace": ["ns"], "name": "orders"}


class TopicWorld(IcebergWorld):
    """Tables of topics, all at offset 0, and the driver that holds the lease."""

    async def with_topics(self, *names: str) -> IcebergClient:
        await self.client("POST", "/namespaces", {"namespace": ["ns"]})
        await self.store.put(catalog_keys.LEASE, orjson.dumps({"epoch": LEASE}))
        for number, name in enumerate(names):
            await self.client("POST", "/namespaces/ns/tables", {"name": name, "schema": ENVELOPE})
            bound = Identifier(("ns",), name)
            await self.catalog.topics.bind(bound, f"/default/{name}", TOPIC_ID + number, {0: (0, 0)})
        return self.client

    async def round_of(self, name: str, number: int, start: int, end: int, topic: int = 0) -> dict[str, Any]:
        state = (await self.catalog.commits.load(Identifier(("ns",), name))).state
        requirement = claim(number, (0, 0, start, end), topic_id=TOPIC_ID + topic)
        return commit_of(appending(state, 1_000 + number), requirement)

    async def rounds(self, count: int) -> IcebergClient:
        """Ten messages each."""
        client = await self.with_topics("orders")
        for number in range(1, count + 1):
            body = await self.round_of("orders", number, 10 * number - 10, 10 * number)
            await client("POST", TABLE, body)
        return client

    async def updates(self, snapshot_id: int, operation: str, **summary: str) -> list[Any]:
        state = (await self.catalog.commits.load(Identifier(("ns",), "orders"))).state
        return replacing(state, snapshot_id, operation, **summary)


def committed(loaded: dict[str, Any]) -> Any:
    return orjson.loads(loaded["metadata"]["properties"]["icestream.committed"])


# --- 14 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [*itertools.permutations(["new", "repeat", "conflict"])])
async def test_hazard_14_each_table_of_a_transaction_is_judged_separately(order: tuple[str, ...]) -> None:
    world = TopicWorld()
    client = await world.with_topics("new", "repeat", "conflict")
    done = await world.round_of("repeat", 1, 0, 100, topic=1)
    await client("POST", "/namespaces/ns/tables/repeat", done)
    await client("POST", "/namespaces/ns/tables/conflict", await world.round_of("conflict", 1, 0, 100, topic=2))
    bodies = {
        "new": await world.round_of("new", 1, 0, 100),
        "repeat": done,
        "conflict": await world.round_of("conflict", 2, 50, 150, topic=2),
    }

    async def send(*names: str) -> AsgiResponse:
        changes = [{"identifier": {"namespace": ["ns"], "name": name}, **bodies[name]} for name in names]
        return await client.sent("POST", "/transactions/commit", {"table-changes": changes})

    refused = await send(*order)
    assert error_of(refused)[:2] == (409, "CommitFailedException")
    (conflict,) = refused.json["error"]["details"]["tables"]
    assert (conflict["table"], conflict["positions"]) == ("ns.conflict", {"0": {"epoch": 0, "next": 100}})
    assert committed(await client("GET", "/namespaces/ns/tables/new")) == {"0": 0}
    rest = await send(*(name for name in order if name != "conflict"))
    assert rest.json == {"repeated": [{"namespace": ["ns"], "name": "repeat", "snapshot-id": 1_001}]}
    assert committed(await client("GET", "/namespaces/ns/tables/new")) == {"0": 100}


@pytest.mark.parametrize(("start", "end"), [(0, 10), (5, 15), (11, 20)])
async def test_hazard_14_another_round_that_does_not_start_at_next_is_refused_with_the_positions(
    start: int, end: int
) -> None:
    world = TopicWorld()
    client = await world.rounds(1)
    answer = await client.sent("POST", TABLE, await world.round_of("orders", 2, start, end))
    assert error_of(answer)[:2] == (409, "CommitFailedException")
    assert answer.json["error"]["details"]["positions"] == {"0": {"epoch": 0, "next": 10}}
    assert committed(await client("GET", TABLE)) == {"0": 10}


async def test_hazard_14_copied_properties_are_not_a_round() -> None:
    """A tool that copies properties is refused where it would lie, and dropped nowhere."""
    world = TopicWorld()
    client = await world.rounds(1)
    copied = (await client("GET", TABLE))["metadata"]["properties"]
    ours = {name: value for name, value in copied.items() if name.startswith("icestream.")}
    body = {"name": "copy", "schema": SCHEMA, "properties": ours}
    assert (await client.refused("POST", "/namespaces/ns/tables", body))[0] == 403
    lie = commit_of([{"action": "set-properties", "updates": {**ours, "icestream.committed": '{"0":999}'}}])
    assert (await client.refused("POST", TABLE, lie))[:2] == (403, "ForbiddenException")
    same = commit_of([{"action": "set-properties", "updates": {**ours, "other": "x"}}])
    assert (await client("POST", TABLE, same))["metadata"]["properties"]["other"] == "x"


# --- 21 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
async def test_hazard_21_changes_that_would_stop_a_topic_are_403_and_detach_it_when_forced(name: str) -> None:
    world = TopicWorld()
    client = await world.rounds(3)
    before = await client("GET", TABLE)
    body = commit_of(REFUSED[name])
    status, kind, words = await client.refused("POST", TABLE, body)
    assert (status, kind) == (403, "ForbiddenException")
    assert "icestream lake detach" in words
    assert await client("GET", TABLE) == before
    await client("POST", TABLE, body, icestream_force="true")
    parted = await client("GET", TABLE)
    assert "icestream.topic" not in parted["metadata"]["properties"]
    assert await world.store.get(catalog_keys.topic_key(TOPIC_ID)) is None


async def test_hazard_21_a_topic_s_table_is_not_dropped_renamed_or_registered_again() -> None:
    world = TopicWorld()
    client = await world.rounds(1)
    location = (await client("GET", TABLE))["metadata-location"]
    renamed = {"source": NAMED, "destination": {"namespace": ["ns"], "name": "other"}}
    for method, path, body in (
        ("DELETE", TABLE, None),
        ("DELETE", f"{TABLE}?purgeRequested=true", None),
        ("POST", "/tables/rename", renamed),
        ("POST", "/namespaces/ns/register", {"name": "second", "metadata-location": location}),
        ("POST", "/namespaces/ns/register", {"name": "orders", "metadata-location": location, "overwrite": True}),
    ):
        assert (await client.refused(method, path, body))[:2] == (403, "ForbiddenException"), (method, path)
    await client("POST", "/tables/rename?icestream-force=true", renamed)
    after = await world.round_of("other", 2, 10, 20)
    assert committed(await client("POST", "/namespaces/ns/tables/other", after)) == {"0": 20}, "the topic went along"


async def test_hazard_21_rows_removed_by_engines_are_recorded_and_ingest_continues() -> None:
    world = TopicWorld()
    client = await world.rounds(3)
    await client("POST", TABLE, commit_of([point("main", 1_001)]))
    record = (await world.catalog.commits.load(Identifier(("ns",), "orders"))).record
    assert [removal.ranges for removal in record.removals] == [{0: (10, 30)}]
    await client("POST", TABLE, commit_of(await world.updates(7, "replace")))
    after = await world.round_of("orders", 4, 30, 40)
    assert committed(await client("POST", TABLE, after)) == {"0": 40}


# --- 23 ---------------------------------------------------------------------------------------------------------------


async def test_hazard_23_a_round_expires_snapshots_in_its_own_commit_and_children_keep_their_parents() -> None:
    world = TopicWorld()
    client = await world.rounds(3)
    body = await world.round_of("orders", 4, 30, 40)
    body["updates"].append({"action": "remove-snapshots", "snapshot-ids": [1_001, 1_002, 424_242]})
    metadata = (await client("POST", TABLE, body))["metadata"]
    assert [entry["snapshot-id"] for entry in metadata["snapshots"]] == [1_003, 1_004]
    assert metadata["snapshots"][0]["parent-snapshot-id"] == 1_002, "an incremental reader sees where it stands"
    assert committed({"metadata": metadata}) == {"0": 40}


async def test_hazard_23_a_tagged_snapshot_is_kept_when_others_expire() -> None:
    world = TopicWorld()
    client = await world.rounds(3)
    await client("POST", TABLE, commit_of([point("hourly", 1_001, "tag")]))
    await client("POST", TABLE, commit_of([{"action": "remove-snapshots", "snapshot-ids": [1_002]}]))
    loaded = await client("GET", f"{TABLE}?snapshots=refs")
    assert [entry["snapshot-id"] for entry in loaded["metadata"]["snapshots"]] == [1_001, 1_003]
