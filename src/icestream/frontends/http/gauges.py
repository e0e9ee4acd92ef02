"""Gauges that are computed from the state of the broker when metrics are scraped, not updated all the time."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from icestream import limits
from icestream.broker.dispatch.dispatcher import Pause
from icestream.broker.mqtt.mqtt_service import MqttService
from icestream.broker.mqtt.mqtt_session import MqttSession
from icestream.broker.mqtt.mqtt_views import SessionLag, readers, session_lag
from icestream.broker.service import Broker
from icestream.metadata.node_store import NodeStore
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.ticker import Ticker
from icestream.model.sync_mode import SyncMode
from icestream.observability import metrics
from icestream.observability.exposition import exposition
from icestream.wal.write_ahead_log import WriteAheadLog


@dataclass(slots=True)
class ClientCounts:
    """Counts of clients and subscriptions over all topics."""

    producers: int = 0
    subscriptions: int = 0
    consumers: int = 0
    lags: list[tuple[int, str, str]] = field(default_factory=list)  # with topic and subscription
    blocked: int = 0
    paused: Counter[str] = field(default_factory=Counter)


async def client_counts(broker: Broker) -> ClientCounts:
    """Counts over all topics. Yields to the event loop every METRICS_SLICE_TOPICS of them: a scrape must not delay
    acks."""
    counts = ClientCounts()
    for number, topic in enumerate(broker.list_topics(), 1):
        counts.producers += len(topic.producers)
        counts.subscriptions += len(topic.subscriptions)
        for subscription in topic.subscriptions.values():
            counts.consumers += len(subscription.consumers)
            counts.lags.append((subscription.lag, str(topic.name), subscription.name))
            for dispatcher in (delivery.dispatcher for delivery in subscription.deliveries):
                counts.blocked += dispatcher.blocked.size
                if dispatcher.next < dispatcher.end and dispatcher.pause is not None:
                    counts.paused[dispatcher.pause.name.lower()] += 1
        if not number % limits.METRICS_SLICE_TOPICS:
            await asyncio.sleep(0)
    return counts


async def broker_families(broker: Broker) -> list[GaugeMetricFamily]:
    """The gauges of topics, clients and lag. Only the largest lags are named: labels must be bounded."""
    counts = await client_counts(broker)
    largest_lags = heapq.nlargest(limits.METRICS_SUBSCRIPTIONS_MAX, counts.lags)
    return [
        metrics.NAMESPACES.family(len(broker.namespaces())),
        metrics.TOPICS.family(broker.topic_count),
        metrics.PRODUCERS.family(counts.producers),
        metrics.SUBSCRIPTIONS.family(counts.subscriptions),
        metrics.CONSUMERS.family(counts.consumers),
        metrics.LAG.family(sum(lag for lag, _, _ in counts.lags)),
        metrics.LAG_OF_EACH.family({(topic, subscription): lag for lag, topic, subscription in largest_lags}),
        metrics.BLOCKED.family(counts.blocked),
        metrics.PAUSED.family({pause.name.lower(): counts.paused[pause.name.lower()] for pause in Pause}),
    ]


async def mqtt_families(service: MqttService) -> list[GaugeMetricFamily]:
    """The gauges of MQTT. Only the largest lags are named, and client ids cut: labels must be bounded."""
    lags: list[tuple[SessionLag, str]] = []
    connected = 0
    for number, reader in enumerate(readers(service), 1):
        connected += isinstance(reader, MqttSession) and reader.is_online
        lag = session_lag(service, reader)
        if lag.messages:
            lags.append((lag, reader.state.client_id[: limits.METRICS_CLIENT_ID_CHARACTERS]))
        if not number % limits.METRICS_SLICE_TOPICS:
            await asyncio.sleep(0)
    largest = heapq.nlargest(limits.METRICS_SUBSCRIPTIONS_MAX, lags, key=lambda entry: entry[0].messages)
    return [
        metrics.MQTT_SESSIONS.family(
            {"connected": float(connected), "disconnected": float(len(service.sessions) - connected)}
        ),
        metrics.MQTT_SUBSCRIPTIONS.family(len(service.index)),
        metrics.MQTT_GROUPS.family(len(service.groups)),
        # Of client ids that are the same when cut, the largest lag.
        metrics.MQTT_LAG.family({client_id: float(lag.messages) for lag, client_id in reversed(largest)}),
        metrics.MQTT_LAG_BYTES.family(max((lag.size for lag, _ in lags), default=0)),
        metrics.MQTT_LAG_SECONDS.family(max((lag.age_ms or 0 for lag, _ in lags), default=0) / 1000),
        metrics.MQTT_RETAINED.family(len(service.retained)),
        metrics.MQTT_RETAINED_BYTES.family(service.retained.held_bytes),
        metrics.MQTT_PARKED.family(sum(client.parked_messages for client in list(service.clients.values()))),
        metrics.MQTT_TOPICS.family(len(service.seen)),
    ]


async def log_families(log: WriteAheadLog, now_us: int) -> list[GaugeMetricFamily]:
    """The gauges of the log and of its backlog for the pipeline."""
    lag = await log.backlog.lag()
    oldest_age_us = max(0, now_us - lag.oldest_us) if lag.oldest_us is not None else 0
    modes = {mode.value: float(mode is log.appender.mode) for mode in SyncMode}
    families = [
        metrics.WAL_SYNC_MODE.family(modes),
        metrics.WAL_GAPS.family(sum(map(len, log.state.gaps.values()))),
        metrics.WAL_USED.family(log.lifecycle.used_bytes),
        metrics.WAL_WARM.family(log.lifecycle.warm.bytes),
        metrics.WAL_SPILL.family(log.lifecycle.spills.bytes),
        metrics.WAL_SPILL_TOPICS.family(len(log.lifecycle.spills.topics)),
        metrics.WAL_BALLAST.family(log.lifecycle.ballast.held_bytes),
        metrics.WAL_LEASES.family(len(log.lifecycle.leases)),
        metrics.WAL_BACKLOG.family(lag.messages),
        metrics.WAL_BACKLOG_BYTES.family(lag.bytes),
        metrics.WAL_BACKLOG_SECONDS.family(oldest_age_us / 1e6),
        metrics.WAL_QUOTA.family(log.quota.node_bytes),
        metrics.WAL_IN_FLIGHT.family(log.in_flight_bytes),
        metrics.WAL_SYNCED_LSN.family(log.appender.synced_lsn),
        metrics.WAL_TAIL.family(log.tail.held_bytes),
    ]
    return families if log.sync_seconds is None else [*families, metrics.WAL_SYNC_SECONDS.family(log.sync_seconds)]


def metadata_families(machine: StateMachine) -> list[GaugeMetricFamily]:
    """The gauges of the metadata store's state."""
    return [
        metrics.METADATA_REVISION.family(machine.revision),
        metrics.METADATA_KEYS.family(len(machine.entries)),
        metrics.METADATA_BYTES.family(machine.size_bytes),
    ]


def raft_families(store: NodeStore, ticker: Ticker | None) -> list[GaugeMetricFamily]:
    """The gauges of consensus. `ticker`: None for a single node, which has no elections."""
    node, log, status = store.node, store.snapshots.log, store.node.status()
    families = [
        metrics.RAFT_TERM.family(status["term"]),
        metrics.RAFT_IS_LEADER.family(float(node.leads)),
        metrics.RAFT_HAS_LEADER.family(float(node.leads or bool(node.leader))),
        metrics.RAFT_COMMIT.family(status["commit"]),
        metrics.RAFT_APPLIED.family(node.applied_index),
        metrics.RAFT_VOTERS.family(len(node.members.voters)),
        metrics.RAFT_LEARNERS.family(len(node.members.learners)),
        metrics.RAFT_PROPOSAL_SECONDS.family(store.proposal_seconds),
        metrics.RAFT_TICK_DRIFT.family(ticker.drift_seconds_max if ticker is not None else 0.0),
        metrics.RAFT_LATE_TICKS.family(ticker.late_ticks if ticker is not None else 0),
        metrics.RAFT_WATCH_LAG.family(node.hub.lag),
        metrics.RAFT_SNAPSHOT_SIZE.family(log.snapshot_bytes),
    ]
    return families if log.sync_seconds is None else [*families, metrics.RAFT_SYNC_SECONDS.family(log.sync_seconds)]


def render_exposition(families: Sequence[Metric]) -> bytes:
    """Renders these families and all counters (observability/metrics.py) as Prometheus text."""
    return exposition(families) + generate_latest(REGISTRY)
