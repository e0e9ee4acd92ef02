"""What a node says about itself: before it is ready, while it serves, when something is wrong, and at its end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from icestream import errors, limits
from icestream.broker.service import Broker
from icestream.model import envelope
from icestream.model.block import Numbering, encode_block
from icestream.model.shard import Gap, GapState, ShardKey
from icestream.model.subscription import SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.observability.words import size_text
from icestream.rpc import local_socket
from icestream.runtime.native import native
from icestream.server import BrokerNode
from icestream.server.node_services import NodeServices
from icestream.wal.admission import Quota
from tests.support.node_settings import node_settings
from tests.support.raw_http import Connecting
from tests.tidy.tree import read, report

pytestmark = pytest.mark.asyncio
A = TopicName("default", "a")


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connecting]:
    found = Connecting()
    yield found
    await found.close()


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[BrokerNode]:
    found = await BrokerNode.start(node_settings(tmp_path))
    yield found
    await found.stop()


async def text(connect: Connecting, node: BrokerNode, target: str) -> str:
    return (await (await connect(node.services.http.port)).get(target)).body.decode()


def numbers(exposition: str) -> dict[str, float]:
    lines = (line for line in exposition.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_while_the_metadata_store_is_opened_it_says_so(
    connect: Connecting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[int] = []
    original = NodeServices.open_early_front_ends

    async def open_and_ask(self: NodeServices) -> None:
        await original(self)
        ports.append(self.http.port)
        reply = await (await connect(self.http.port)).get("/readyz?verbose")
        assert reply.status == 503
        assert reply.body.startswith(b"[-] metadata: opening\n")
        assert (await (await connect(self.http.port)).get("/livez")).status == 200
        assert numbers((await (await connect(self.http.port)).get("/metrics")).body.decode())["icestream_ready"] == 0

    monkeypatch.setattr(NodeServices, "open_early_front_ends", open_and_ask)
    node = await BrokerNode.start(node_settings(tmp_path))
    assert (await (await connect(ports[0])).get("/readyz")).status == 200
    await node.stop()


async def test_a_node_that_serves_names_every_part(connect: Connecting, node: BrokerNode) -> None:
    lines = (await text(connect, node, "/readyz?verbose")).splitlines()
    assert [line.split(":")[0] for line in lines] == ["[+] metadata", "[+] log", "[+] disk", "[+] broker", "ready"]


async def test_a_quota_that_is_near_or_reached_is_shown_and_consumers_are_still_served(
    connect: Connecting, node: BrokerNode
) -> None:
    assert node.log is not None
    producer = await node.broker.open_producer(A, "p")
    await node.broker.publish(producer, 0, encode_block(1, {envelope.PAYLOAD: [bytes(900)]}))
    used = node.log.lifecycle.used_bytes
    node.log.quota = Quota(int(used / 0.9), used)
    near = f"[!] disk: quota nearly reached: producers are slowed down: the log uses {size_text(used)} of "
    assert near in await text(connect, node, "/readyz?verbose")
    node.log.quota = Quota(used, used)
    said = await text(connect, node, "/readyz?verbose")
    assert "[!] disk: quota reached: producers are refused" in said
    assert said.endswith("\nready\n")


async def test_a_log_that_stopped_is_not_ready(connect: Connecting, node: BrokerNode) -> None:
    assert node.log is not None
    node.log.stopped = errors.LogStopped("a sync failed")
    assert await text(connect, node, "/readyz") == "not ready: log: a sync failed\n"
    node.log.stopped = None


async def test_a_metadata_store_that_stopped_fails_the_node(tmp_path: Path) -> None:
    node = await BrokerNode.start(node_settings(tmp_path))
    store: Any = node.store
    store.node.on_stop(errors.LogStopped("a sync of the metadata store failed"))
    with pytest.raises(errors.LogStopped):
        node.failed.result()
    await node.stop()


async def test_a_stop_says_so_until_its_end(
    connect: Connecting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await BrokerNode.start(node_settings(tmp_path))
    seen: list[bytes] = []
    original = Broker.shutdown

    async def shut_down_and_ask(self: Broker) -> None:
        await original(self)
        seen.append((await (await connect(node.services.http.port)).get("/readyz")).body)

    monkeypatch.setattr(Broker, "shutdown", shut_down_and_ask)
    await node.stop()
    assert seen[0].startswith(b"not ready: ")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", node.services.http.port)


async def test_a_start_that_fails_leaves_no_listener(tmp_path: Path) -> None:
    held = await BrokerNode.start(node_settings(tmp_path))
    with pytest.raises(errors.LogLocked):
        await BrokerNode.start(node_settings(tmp_path))
    assert held.settings.local_socket.is_socket()
    await held.stop()
    assert not held.settings.local_socket.exists()


async def test_a_socket_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    settings = node_settings(tmp_path)
    with local_socket.bind(settings.local_socket) as other:
        other.listen()
        with pytest.raises(errors.ConfigurationError, match="another broker listens"):
            await BrokerNode.start(settings)
        assert settings.local_socket.is_socket()
    node = await BrokerNode.start(settings)
    await node.stop()


async def test_the_metrics_know_what_happened(connect: Connecting, node: BrokerNode) -> None:
    before = numbers(await text(connect, node, "/metrics"))
    producer = await node.broker.open_producer(A, "p")
    block = encode_block(2, {envelope.PAYLOAD: [b"x", b"y"]}, Numbering(producer.id, producer.epoch, 0))
    for _ in range(2):
        await node.broker.publish(producer, 0, block)
    with pytest.raises(errors.InvalidInput):
        node.broker.publish(producer, 0, b"no block")
    with pytest.raises(errors.AfterRefused):
        node.broker.publish(producer, 0, block)
    after = numbers(await text(connect, node, "/metrics"))
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    assert grown['icestream_publish_batches_total{outcome="stored"}'] == 1
    assert grown['icestream_publish_batches_total{outcome="duplicate"}'] == 1
    assert grown['icestream_publish_batches_total{outcome="after_refused"}'] == 1
    assert grown["icestream_publish_messages_total"] == 2
    assert grown["icestream_publish_bytes_total"] == len(block)
    assert (grown["icestream_topics"], grown["icestream_producers"]) == (1, 1)
    assert after["icestream_wal_synced_lsn"] == 1
    assert 0 < after["icestream_wal_used_bytes"] < after["icestream_wal_quota_bytes"]
    assert after["icestream_metadata_keys"] > 3
    assert (before["icestream_wal_backlog_messages"], after["icestream_wal_backlog_messages"]) == (0, 2)
    assert before["icestream_wal_backlog_bytes"] == 0 < after["icestream_wal_backlog_bytes"]
    assert before["icestream_wal_backlog_seconds"] == 0 < after["icestream_wal_backlog_seconds"]
    assert (after["icestream_wal_warm_bytes"], after["icestream_wal_leases"]) == (0, 0)
    assert node.log is not None
    await node.log.advance_floor({ShardKey(producer.topic.record.id, 0): 2})
    drained = numbers(await text(connect, node, "/metrics"))
    assert drained["icestream_wal_backlog_messages"] == drained["icestream_wal_backlog_seconds"] == 0


async def test_the_lag_of_each_subscription_is_there_for_those_that_lag_most(
    connect: Connecting, node: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "METRICS_SUBSCRIPTIONS_MAX", 2)
    producer = await node.broker.open_producer(A, "p")
    for name in ("old", "middle", "new"):
        await node.broker.create_subscription(A, name, SubscriptionType.SHARED)
        await node.broker.publish(producer, 0, encode_block(1, {envelope.PAYLOAD: [b"x"]}))
    found = numbers(await text(connect, node, "/metrics"))
    each = {name: value for name, value in found.items() if name.startswith("icestream_subscription_lag_messages")}
    assert each == {
        f'icestream_subscription_lag_messages{{subscription="{name}",topic="{A}"}}': lag
        for name, lag in (("old", 3.0), ("middle", 2.0))
    }
    assert found["icestream_subscriptions_lag_messages"] == 6.0


async def test_many_topics_are_counted_in_slices(connect: Connecting, node: BrokerNode, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "METRICS_SLICE_TOPICS", 2)
    for number in range(5):
        await node.broker.create_topic(TopicName("default", f"t{number}"))
    assert numbers(await text(connect, node, "/metrics"))["icestream_topics"] == 5


async def test_prometheus_can_read_it_and_names_follow_the_rules(connect: Connecting, node: BrokerNode) -> None:
    http = await connect(node.services.http.port)
    status, headers, body = await http.get("/metrics")
    assert (status, headers["content-type"]) == (200, CONTENT_TYPE_LATEST)
    families = list(text_string_to_metric_families(body.decode()))
    names = [family.name for family in families]
    assert len(set(names)) == len(names), "a family comes twice"
    ours = {family.name: family for family in families if family.name.startswith("icestream_")}
    assert len(ours) > 30
    for name, family in ours.items():
        assert family.documentation.endswith("."), name
        assert family.type in ("counter", "gauge"), name
        assert not name.endswith(("_ms", "_us", "_kib", "_mib", "_kb", "_minutes", "_percent")), name
        for sample in family.samples:
            assert sample.name == (f"{name}_total" if family.type == "counter" else name)
            assert len(sample.labels) <= 2, "few labels"


async def test_sync_mode_gaps_and_the_time_of_a_sync_are_visible(connect: Connecting, node: BrokerNode) -> None:
    found = numbers(await text(connect, node, "/metrics"))
    modes = {mode: found[f'icestream_wal_sync_mode{{mode="{mode}"}}'] for mode in ("always", "periodic", "none")}
    assert modes == {"always": 1.0, "periodic": 0.0, "none": 0.0}
    assert found["icestream_wal_gaps"] == 0.0
    assert ("icestream_wal_sync_seconds" in found) is (native is not None)
    assert node.log is not None
    key = ShardKey(1, 0)
    node.log.state.gaps[key] = [Gap(key, 0, 5, 0, "unclean stop", GapState.UNUSED)]
    assert numbers(await text(connect, node, "/metrics"))["icestream_wal_gaps"] == 1.0


async def test_every_metric_is_on_the_page(connect: Connecting, node: BrokerNode) -> None:
    exposition = await text(connect, node, "/metrics")
    declared = {line.split()[2] for line in exposition.splitlines() if line.startswith("# TYPE icestream_")}
    declared |= {found.name for found in vars(metrics).values() if isinstance(found, metrics.Reading | metrics.Counted)}
    page = read("docs/operate.md")
    listed = set(re.findall(r"`(icestream_\w+?)(?:\{[\w,]+\})?`", page))
    assert not declared - listed, report("docs/operate.md, Metrics: these are missing:", sorted(declared - listed))
    assert not listed - declared, report("docs/operate.md names metrics that are not there:", sorted(listed - declared))
