"""The lake process at the broker's desk, over the local socket: a real node, its log, a real client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from icestream import connect, errors
from icestream.catalog import catalog_keys
from icestream.cli.positions import parse_position
from icestream.lake.api_app import build_app
from icestream.lake.scan_worker import ScanWorker
from icestream.metadata.remote_store import RemoteStore
from icestream.model.scan_messages import ScanKind, ScanRequest, ScanResponse, ScanSection
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import BrokerNode
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.asgi import AsgiClient
from tests.support.local_broker import kept_link
from tests.support.node_settings import node_settings
from tests.support.tiers import commit_log, forget_committed
from tests.support.topic_lake import TABLE, TopicLake, remove

pytestmark = pytest.mark.asyncio
TOPIC = "/default/orders"


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[BrokerNode]:
    node = await BrokerNode.start(node_settings(folder, broker={"tail_bytes": 0}, wal={"warm_ms": 0}))
    try:
        yield node
    finally:
        await node.stop()


@contextlib.asynccontextmanager
async def working(keeper: LinkKeeper, answer: object) -> AsyncIterator[ScanWorker]:
    worker = ScanWorker(keeper, answer, SystemClock())  # type: ignore[arg-type]
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_client_reads_rows_that_only_the_table_has(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "data") as node,
        kept_link(node.settings.local_socket) as keeper,
        connect(f"icestream://127.0.0.1:{node.native.port}") as client,
    ):
        store = RemoteStore(keeper, SystemClock(), SystemRandomness())
        async with client.producer(TOPIC, name="p") as producer:
            for number in range(60):
                await producer.send(b"%d " % number + bytes(4_000))
        topic_id = node.broker.topics.get(TopicName.parse(TOPIC)).record.id
        lake = TopicLake(tmp_path / "warehouse", store, SystemClock(), topic=TOPIC, topic_id=topic_id)
        await lake.bind()
        assert node.log is not None
        committed: dict[int, int] = {}
        await commit_log(lake, node.log, committed)
        await forget_committed(node.log, topic_id, committed)
        assert node.log.reader.earliest(ShardKey(topic_id, 0)) > 10
        watching = asyncio.create_task(lake.tables.run())
        async with (
            working(keeper, lake.scanner.answer),
            client.subscribe(TOPIC, "s", start="earliest") as subscription,
        ):
            received = []
            async for message in subscription:
                received.append(message)
                if len(received) == 60:
                    break
            assert [int(message.payload.split()[0]) for message in received] == list(range(60))
            assert [message.offset for message in received] == list(range(60))
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await store.close()


async def test_verify_reads_the_log_and_the_table(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "data") as node,
        kept_link(node.settings.local_socket) as keeper,
        connect(f"icestream://127.0.0.1:{node.native.port}") as client,
    ):
        async with client.producer(TOPIC, name="p") as producer:
            for number in range(10):
                await producer.send(b"%d" % number)
        store = RemoteStore(keeper, SystemClock(), SystemRandomness())
        topic_id = node.broker.topics.get(TopicName.parse(TOPIC)).record.id
        lake = TopicLake(tmp_path / "warehouse", store, SystemClock(), topic=TOPIC, topic_id=topic_id)
        ask = AsgiClient(build_app(keeper, "127.0.0.1", None, lake.catalog, lake.manifests, scans=lake.scans))
        path = f"/api/v1/lake/verify?topic={TOPIC}&deep=true"
        assert (await ask("GET", path)).status == 404
        await lake.bind()
        assert node.log is not None
        snapshot = await commit_log(lake, node.log, {}, end=7)
        async with working(keeper, lake.scanner.answer):
            start = parse_position(f"snapshot:{snapshot}")
            async with client.subscribe(TOPIC, "behind", start=start) as subscription:
                assert [(await anext(subscription)).offset for _ in range(3)] == [7, 8, 9]
        with pytest.raises(errors.InvalidInput, match="not a start position"):
            parse_position("snapshot:x")
        listed = {"topic": TOPIC, "topic_id": topic_id, "problem": None}
        assert (await ask("GET", "/api/v1/lake/bound")).json["items"] == [listed]
        good = (await ask("GET", path)).json
        assert (good["is_good"], good["findings"], good["files"], good["is_deep"]) == (True, [], 1, True)
        remove(lake.live[0])
        bad = (await ask("GET", path)).json
        assert (bad["is_good"], [finding["check"] for finding in bad["findings"]]) == (False, ["files", "dense"])
        await lake.catalog.topics.detach(TABLE)
        await store.put(f"{catalog_keys.BOUND}damaged", b"nothing")
        (damaged,) = (await ask("GET", "/api/v1/lake/bound")).json["items"]
        assert "/catalog/bound/damaged" in damaged["problem"]
        had = {"topic": TOPIC, "topic_id": topic_id, "table": "default.orders", "committed": {"0": 7}, "problem": None}
        assert (await ask("GET", "/api/v1/lake/parted")).json == {"items": [had], "next": None}
        without = await ask("GET", path)
        assert (without.is_problem, "default.orders was detached" in without.json["detail"]) == (True, True)
        await store.close()


async def test_replies_of_any_size_are_sent_in_parts_and_errors_as_themselves(tmp_path: Path) -> None:
    body = bytes(5_000_000)

    async def answer(request: ScanRequest) -> ScanResponse:
        if request.value == 0:
            return ScanResponse(9, sections=[ScanSection(0, 1, 2, 3, body)], next_offset=1)
        if request.value == 1:
            raise errors.TableUnreadable("no", hint="because")
        raise ValueError("a mistake of ours")

    async with running(tmp_path) as node, kept_link(node.settings.local_socket) as keeper:
        scan_requests = node.broker.storage.scan_requests
        assert scan_requests is not None
        async with working(keeper, answer):
            response = await scan_requests.request(ScanKind.READ, TOPIC, ShardKey(1, 0), 0)
            assert (response.end, response.sections[0].body == body, response.next_offset) == (9, True, 1)
            with pytest.raises(errors.TableUnreadable) as unreadable:
                await scan_requests.request(ScanKind.READ, TOPIC, ShardKey(1, 0), 1)
            assert (unreadable.value.message, unreadable.value.hint) == ("no", "because")
            with pytest.raises(errors.PersistentStorageError, match="a mistake of ours"):
                await scan_requests.request(ScanKind.READ, TOPIC, ShardKey(1, 0), 2)


async def test_a_scan_request_outlives_the_lake_process(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def never(request: ScanRequest) -> ScanResponse:
        begun.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def answer(request: ScanRequest) -> ScanResponse:
        return ScanResponse(7)

    async with running(tmp_path) as node:
        scan_requests = node.broker.storage.scan_requests
        assert scan_requests is not None
        asking = asyncio.create_task(scan_requests.request(ScanKind.READ, TOPIC, ShardKey(1, 0)))
        async with kept_link(node.settings.local_socket) as keeper, working(keeper, never):
            await begun.wait()
        assert not asking.done()
        async with kept_link(node.settings.local_socket) as keeper, working(keeper, answer):
            assert (await asking).end == 7
