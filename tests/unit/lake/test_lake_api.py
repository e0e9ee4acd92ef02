"""/api/v1/lake: the tables of topics over HTTP, with a real broker behind and the catalog's own store beside it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from icestream.catalog import catalog_keys
from icestream.catalog.tokens import Tokens
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.lake.api_app import build_app
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import BrokerNode
from icestream.runtime.tasks import InlineOffload
from tests.support.asgi import AsgiClient
from tests.support.avro_files import appended, manifest, manifest_list
from tests.support.local_broker import kept_link
from tests.support.node_settings import node_settings
from tests.support.tables import add, point, snapshot
from tests.support.topic_tables import ENVELOPE, appending, claim
from tests.support.warehouse import NS, TABLE, CatalogWorld, files_on

pytestmark = pytest.mark.asyncio

TOPIC = "/default/orders"
NAMED = {"namespace": ["ns"], "table": "table"}
QUERY = "namespace=ns&table=table"


class LakeApiWorld(CatalogWorld):
    """A node with a topic of 30 messages, and a catalog whose table may be the topic's."""

    def __init__(self, node: BrokerNode, ask: AsgiClient | None = None) -> None:
        super().__init__()
        self.node = node
        self.ask = ask

    async def __call__(self, method: str, path: str, body: Any = None) -> Any:
        assert self.ask is not None
        answer = await self.ask(method, f"/api/v1/lake/{path}", body)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json

    async def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        assert self.ask is not None
        answer = await self.ask(method, f"/api/v1/lake/{path}", body)
        assert answer.is_problem
        return answer.status, answer.json["code"], answer.json["detail"] + answer.json["hint"]

    async def with_rounds(self) -> None:
        """Offsets 0..29 in three snapshots."""
        await self.with_table(schema=ENVELOPE)
        await self.store.put("/pipeline/lease", b'{"epoch":5}')
        await self("POST", "bind", {**NAMED, "topic": TOPIC})
        topic_id = (await self("GET", f"topics?topic={TOPIC}"))["topic_id"]
        for number in (1, 2, 3):
            state = (await self.catalog.commits.load(TABLE)).state
            requirement = claim(number, (0, 0, 10 * number - 10, 10 * number), topic_id=topic_id)
            await self.catalog.commits.commit(TABLE, CommitRequest([requirement], appending(state, number)))


@contextlib.asynccontextmanager
async def lake_world(data_dir: Path, **more: Any) -> AsyncIterator[LakeApiWorld]:
    node = await BrokerNode.start(node_settings(data_dir))
    try:
        broker = node.broker
        topic = await broker.create_topic(TopicName.parse(TOPIC))
        async with kept_link(node.settings.local_socket) as keeper:
            world = LakeApiWorld(node)
            manifests = ManifestReader(files_on(world.disk), InlineOffload())
            app = build_app(keeper, "127.0.0.1", None, world.catalog, manifests, more.get("tokens"))
            world.ask = AsgiClient(app)
            producer = await broker.open_producer(topic.name, "p")
            await broker.publish(producer, 0, encode_block(30, {envelope.PAYLOAD: [b"x"] * 30}))
            yield world
    finally:
        await node.stop()


async def test_a_topic_and_its_table_from_bind_to_recreate(tmp_path: Path) -> None:
    async with lake_world(tmp_path) as lake:
        await lake.with_rounds()
        shown = await lake("GET", f"topics?topic={TOPIC}")
        assert (shown["table"], shown["parted"], shown["committed"]) == (NAMED, None, {"0": 30})
        assert (await lake.refused("POST", "drop", NAMED))[:2] == (403, "topic_table")
        assert await lake("POST", "detach", NAMED) == NAMED
        assert (await lake("GET", f"topics?topic={TOPIC}"))["parted"] == NAMED
        adopted = await lake("POST", "adopt", {**NAMED, "topic": TOPIC})
        assert [(shard["goes_on_at"], shard["missing"], shard["end"]) for shard in adopted["shards"]] == [
            (30, None, 30)
        ]
        await lake("POST", "drop", {**NAMED, "force": True, "purge": True})
        assert len((await lake("GET", "purges"))["items"]) == 1
        dry = await lake("POST", "recreate", {"topic": TOPIC, "dry_run": True})
        assert (dry["dry_run"], dry["needs"], dry["table"]) == (True, [], "table")
        assert "offsets 0 to 29 are written again" in "".join(dry["words"])
        done = await lake("POST", "recreate", {"topic": TOPIC})
        assert done == {**dry, "dry_run": False}
        assert (await lake("GET", f"tables?{QUERY}"))["runs"] == [
            {"shard": 0, "epoch": 0, "start": 0, "next": 0, "is_closed": False}
        ]


async def test_a_recreated_topic_does_not_get_the_table_of_the_old_one(tmp_path: Path) -> None:
    """Until topic and table are detached, errors name the table's topic, and a dry run refuses what the run would."""
    async with lake_world(tmp_path) as lake:
        await lake.with_rounds()
        old = (await lake("GET", f"tables?{QUERY}"))["topic_id"]
        assert not (await lake("GET", f"tables?{QUERY}"))["is_topic_deleted"]
        name = TopicName.parse(TOPIC)
        await lake.node.broker.delete_topic(name)
        await lake.store.put(catalog_keys.deleted_topic_key(old), b"{}")
        assert (await lake("GET", f"tables?{QUERY}"))["is_topic_deleted"]
        says = f"belongs to a deleted topic {TOPIC} (id {old})"
        for is_again in (False, True):
            if is_again:
                await lake.node.broker.create_topic(name)
            status, _, words = await lake.refused("POST", "rewind", {**NAMED, "dry_run": True})
            assert (status, says in words, "`icestream lake detach ns.table`" in words) == (403, True, True), words
        for is_dry in (True, False):
            request = {**NAMED, "topic": TOPIC, "dry_run": is_dry}
            status, _, words = await lake.refused("POST", "recreate", request)
            assert (status, says in words, "--table OTHER" in words) == (409, True, True), words
        done = await lake("POST", "recreate", {**NAMED, "table": "other", "topic": TOPIC})
        assert done["table"] == "other"


async def test_a_rollback_is_shown_and_reverted(tmp_path: Path) -> None:
    async with lake_world(tmp_path) as lake:
        await lake.with_rounds()
        await lake.catalog.commits.commit(TABLE, CommitRequest([], [point("main", 1)]))
        (removal,) = (await lake("GET", f"tables?{QUERY}"))["removals"]
        assert (removal["operation"], removal["ranges"], removal["is_exact"]) == ("rollback", {"0": [10, 30]}, True)
        done = await lake("POST", "rewind", NAMED)
        assert [(shard["goes_on_at"], shard["written_again"]) for shard in done["shards"]] == [(10, [10, 30])]
        assert (await lake("GET", f"tables?{QUERY}"))["removals"] == []
        assert (await lake.refused("POST", "rewind", {**NAMED, "snapshot": 77}))[0] == 400
        assert (await lake.refused("POST", "rewind", {**NAMED, "snapshot": "77"}))[0] == 400
        forward = await lake("POST", "rewind", {**NAMED, "snapshot": "3"})
        assert forward["shards"][0]["goes_on_at"] == 30


async def test_positions_given_by_an_operator_need_consent(tmp_path: Path) -> None:
    async with lake_world(tmp_path) as lake:
        await lake.with_table(schema=ENVELOPE)
        new_snapshot = snapshot(1, **{"timestamp-ms": lake.clock.wall_us() // 1000})
        await lake.catalog.commits.commit(TABLE, CommitRequest([], [add(new_snapshot), point("main", 1)]))
        request = {**NAMED, "topic": TOPIC, "positions": {"0": 20}}
        status, code, words = await lake.refused("POST", "adopt", request)
        assert (status, code, "--accept-duplicates" in words) == (403, "topic_table", True)
        done = await lake("POST", "adopt", {**request, "accept": ["accept-duplicates"]})
        assert (done["needs"], done["shards"][0]["goes_on_at"]) == (["accept-duplicates"], 20)


WRONG: list[tuple[str, Any, tuple[int, str]]] = [
    ("bind", {**NAMED, "topic": "/default/none"}, (404, "unknown_topic")),
    ("bind", {**NAMED, "table": "none", "topic": TOPIC}, (404, "unknown_table")),
    ("bind", {"table": "t", "topic": TOPIC}, (400, "invalid")),
    ("bind", {**NAMED, "topic": TOPIC, "accept": ["all"]}, (400, "invalid")),
    ("bind", {**NAMED, "topic": TOPIC, "force": True}, (400, "invalid")),
    ("adopt", {**NAMED, "topic": TOPIC, "positions": {"x": 1}}, (400, "invalid")),
    ("adopt", {**NAMED, "topic": TOPIC, "positions": {"0": -1}}, (400, "invalid")),
    ("rewind", {**NAMED, "snapshot": "one"}, (400, "invalid")),
    ("rewind", NAMED, (403, "topic_table")),
    ("detach", NAMED, (403, "topic_table")),
    ("recreate", {"topic": "orders"}, (400, "invalid")),
    ("detach", {"namespace": [], "table": "t"}, (400, "invalid")),
    ("drop", {"namespace": ["ns"], "table": "none"}, (404, "unknown_table")),
]


async def test_invalid_requests_are_reported(tmp_path: Path) -> None:
    async with lake_world(tmp_path) as lake:
        await lake.with_table(schema=ENVELOPE)
        for path, body, expected in WRONG:
            assert (path, body, (await lake.refused("POST", path, body))[:2]) == (path, body, expected)


async def test_names_may_contain_any_character(tmp_path: Path) -> None:
    async with lake_world(tmp_path) as lake:
        await lake.catalog.namespaces.create(("a/b.c",), {})
        odd = Identifier(("a/b.c",), "t ä/?")
        await lake.catalog.tables.create(odd, {"schema": ENVELOPE})
        table = await lake("GET", "tables?namespace=a%2Fb.c&table=t%20%C3%A4%2F%3F")
        assert (table["namespace"], table["table"]) == (["a/b.c"], "t ä/?")


async def test_files_of_one_snapshot_are_paged(tmp_path: Path) -> None:
    async with lake_world(tmp_path) as lake:
        await lake.with_table()
        assert await lake("GET", f"files?{QUERY}") == {"items": [], "next": None}
        location = (await lake.catalog.tables.load(TABLE)).table.location
        await lake.catalog.commits.commit(TABLE, CommitRequest([], appended(lake, location, 1)))
        parts = [f"{location}/metadata/m{number}.avro" for number in range(3)]
        for number, part in enumerate(parts):
            paths = [f"{location}/data/{number}-{at}.parquet" for at in range(3)]
            lake.write(part, manifest(*paths, status=2 if number == 1 else 1))
        lake.write(f"{location}/metadata/many.avro", manifest_list(*parts))
        new_snapshot = snapshot(2, 1, **{"manifest-list": f"{location}/metadata/many.avro"})
        new_snapshot["timestamp-ms"] = lake.clock.wall_us() // 1000
        await lake.catalog.commits.commit(TABLE, CommitRequest([], [add(new_snapshot), point("main", 2)]))
        names, after = [], ""
        while after is not None:
            page = await lake("GET", f"files?{QUERY}&limit=2&after={after}")
            assert len(page["items"]) <= 2
            if not names:
                await lake.catalog.commits.commit(TABLE, CommitRequest([], [point("main", 1)]))
            names += [item["path"].rsplit("/", 1)[1] for item in page["items"]]
            after = page["next"]
        assert names == [f"{number}-{at}.parquet" for number in (0, 2) for at in range(3)]
        (first, _) = (await lake("GET", f"files?{QUERY}&snapshot=1"))["items"]
        assert (first["content"], first["format"], first["records"], first["bytes"]) == ("data", "parquet", 10, 1_000)
        assert (first["first_offset"], first["snapshot_id"]) == (None, "1")
        for wrong in ("snapshot=9", "after=x", "after=9:0:0"):
            assert (await lake.refused("GET", f"files?{QUERY}&{wrong}"))[0] == 400


async def test_the_whole_api_requires_tokens_if_the_catalog_does(tmp_path: Path) -> None:
    token = "t" * 32
    async with lake_world(tmp_path, tokens=Tokens([token])) as lake:
        assert (await lake.refused("POST", "detach", NAMED))[:2] == (401, "unauthenticated")
        await check_guarded(lake)
        await lake.with_table()
        assert lake.ask is not None
        answer = await lake.ask("GET", f"/api/v1/lake/tables?{QUERY}", None, {"authorization": f"Bearer {token}"})
        assert (answer.status, answer.json["namespace"]) == (200, [*NS])


async def check_guarded(lake: LakeApiWorld) -> None:
    """Checks that every route but those for health and description requires a token."""
    assert lake.ask is not None
    described = (await lake.ask("GET", "/api/v1/openapi.json")).json
    for path, operations in described["paths"].items():
        for method in operations:
            answer = await lake.ask(method.upper(), path)
            assert (path, method, answer.status) == (path, method, 401)
    for path in ("/livez", "/readyz", "/metrics", "/", "/api/v1"):
        assert (await lake.ask("GET", path)).status == 200


async def test_a_node_with_a_foreign_catalog_reports_it(tmp_path: Path) -> None:
    async with lake_world(tmp_path) as lake, kept_link(lake.node.settings.local_socket) as keeper:
        lake.ask = AsgiClient(build_app(keeper, "127.0.0.1"))
        assert "no embedded catalog" in (await lake.refused("POST", "drop", NAMED))[2]
        assert "no catalog configured" in (await lake.refused("POST", "detach", NAMED))[2]
