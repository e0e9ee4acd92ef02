"""Health and metrics of a node: before it is ready, while it serves, with faults, and while it stops."""

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
from icestream.model.shard import DeclaredGap, GapState, ShardKey
from icestream.model.subscription_options import SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.observability.words import size_text
from icestream.processes.broker_process import BrokerNode
from icestream.processes.node.node_services import NodeServices
from icestream.rpc import local_socket
from icestream.runtime.native import native
from icestream.wal.admission import Quota
from tests.support.node_settings import node_settings
from tests.support.raw_http import RawHttpContext
from tests.tidy.tree import read, report

pytestmark = pytest.mark.asyncio
A = TopicName("default", "a")


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[RawHttpContext]:
    context = RawHttpContext()
    yield context
    await context.close()


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[BrokerNode]:
    broker_node = await BrokerNode.start(node_settings(tmp_path))
    yield broker_node
    await broker_node.stop()


async def text(connect: RawHttpContext, node: BrokerNode, target: str) -> str:
    return (await (await connect(node.services.http.port)).get(target)).body.decode()


def numbers(exposition: str) -> dict[str, float]:
    lines = (line for line in exposition.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_opening_the_metadata_store_is_reported(
    connect: RawHttpContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


async def test_a_node_that_serves_names_every_part(connect: RawHttpContext, node: BrokerNode) -> None:
    lines = (await text(connect, node, "/readyz?verbose")).splitlines()
    assert [line.split(":")[0] for line in lines] == ["[+] metadata", "[+] log", "[+] disk", "[+] broker", "ready"]


async def test_a_quota_that_is_near_or_reached_is_shown_and_consumers_are_still_served(
    connect: RawHttpContext, node: BrokerNode
) -> None:
    assert node.log is not None
    producer = await node.broker.open_producer(A, "p")
    await node.broker.publish(producer, 0, encode_block(1, {envelope.PAYLOAD: [bytes(900)]}))
    used = node.log.lifecycle.used_bytes
    node.log.quota = Quota(int(used / 0.9), used)
    near = f"[!] disk: quota nearly reached: producers are slowed down: the log uses {size_text(used)} of "
    assert near in await text(connect, node, "/readyz?verbose")
    node.log.quota = Quota(used, used)
    readiness = await text(connect, node, "/readyz?verbose")
    assert "[!] disk: quota reached: producers are refused" in readiness
    assert readiness.endswith("\nready\n")


async def test_a_log_that_stopped_is_not_ready(connect: RawHttpContext, node: BrokerNode) -> None:
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


async def test_a_stop_is_reported_until_its_end(
    connect: RawHttpContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


async def test_a_failed_start_leaves_no_listener(tmp_path: Path) -> None:
    first = await BrokerNode.start(node_settings(tmp_path))
    with pytest.raises(errors.LogLocked):
        await BrokerNode.start(node_settings(tmp_path))
    assert first.settings.local_socket.is_socket()
    await first.stop()
    assert not first.settings.local_socket.exists()


async def test_a_foreign_socket_is_not_touched(tmp_path: Path) -> None:
    settings = node_settings(tmp_path)
    with local_socket.bind(settings.local_socket) as other:
        other.listen()
        with pytest.raises(errors.ConfigurationError, match="another broker listens"):
            await BrokerNode.start(settings)
        assert settings.local_socket.is_socket()
    node = await BrokerNode.start(settings)
    await node.stop()


async def test_events_are_counted_in_the_metrics(connect: RawHttpContext, node: BrokerNode) -> None:
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


async def test_the_metrics_show_the_subscriptions_with_the_largest_lag(
    connect: RawHttpContext, node: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "METRICS_SUBSCRIPTIONS_MAX", 2)
    producer = await node.broker.open_producer(A, "p")
    for name in ("old", "middle", "new"):
        await node.broker.create_subscription(A, name, SubscriptionType.SHARED)
        await node.broker.publish(producer, 0, encode_block(1, {envelope.PAYLOAD: [b"x"]}))
    samples = numbers(await text(connect, node, "/metrics"))
    each = {name: value for name, value in samples.items() if name.startswith("icestream_subscription_lag_messages")}
    assert each == {
        f'icestream_subscription_lag_messages{{subscription="{name}",topic="{A}"}}': lag
        for name, lag in (("old", 3.0), ("middle", 2.0))
    }
    assert samples["icestream_subscriptions_lag_messages"] == 6.0


async def test_many_topics_are_counted_in_slices(connect: RawHttpContext, node: BrokerNode, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "METRICS_SLICE_TOPICS", 2)
    for number in range(5):
        await node.broker.create_topic(TopicName("default", f"t{number}"))
    assert numbers(await text(connect, node, "/metrics"))["icestream_topics"] == 5


async def test_prometheus_can_read_it_and_names_follow_the_rules(connect: RawHttpContext, node: BrokerNode) -> None:
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
        assert family.type in ("counter", "gauge", "histogram"), name
        assert not name.endswith(("_ms", "_us", "_kib", "_mib", "_kb", "_minutes", "_percent")), name
        for sample in family.samples:
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
            assert sample.name in [name + suffix for suffix in suffixes]
            assert len(sample.labels) <= 2, "few labels"


async def test_sync_mode_gaps_and_the_time_of_a_sync_are_visible(connect: RawHttpContext, node: BrokerNode) -> None:
    samples = numbers(await text(connect, node, "/metrics"))
    modes = {mode: samples[f'icestream_wal_sync_mode{{mode="{mode}"}}'] for mode in ("always", "periodic", "none")}
    assert modes == {"always": 1.0, "periodic": 0.0, "none": 0.0}
    assert samples["icestream_wal_gaps"] == 0.0
    assert ("icestream_wal_sync_seconds" in samples) is (native is not None)
    assert node.log is not None
    key = ShardKey(1, 0)
    node.log.state.gaps[key] = [DeclaredGap(key, 0, 5, 0, "unclean stop", GapState.UNUSED)]
    assert numbers(await text(connect, node, "/metrics"))["icestream_wal_gaps"] == 1.0


async def test_every_metric_is_on_the_page(connect: RawHttpContext, node: BrokerNode) -> None:
    exposition = await text(connect, node, "/metrics")
    declared = {line.split()[2] for line in exposition.splitlines() if line.startswith("# TYPE icestream_")}
    declared |= {
        metric.name for metric in vars(metrics).values() if isinstance(metric, metrics.Reading | metrics.Counted)
    }
    page = read("docs/operate.md")
    listed = set(re.findall(r"`(icestream_\w+?)(?:\{[\w,]+\})?`", page))
    assert not declared - listed, report("docs/operate.md, Metrics: these are missing:", sorted(declared - listed))
    assert not listed - declared, report("docs/operate.md names metrics that are not there:", sorted(listed - declared))
