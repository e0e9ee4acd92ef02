"""Documents of topics, subscriptions, consumers, the log and settings, as the API returns them (docs/api.md).

Nested lists are truncated, so that every document has a bounded size; their full length is beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from icestream import limits
from icestream.broker import records
from icestream.broker.consumer import Consumer
from icestream.broker.online_settings import OnlineSettings
from icestream.broker.shard_delivery import ShardDelivery
from icestream.broker.stall import DeliveryStall
from icestream.broker.stalled_readers import StalledReader
from icestream.broker.storage import ShardStream
from icestream.broker.subscription import Subscription
from icestream.broker.topic import Producer, Topic
from icestream.frontends.native.public_calls import policies_document
from icestream.model.shard import Gap
from icestream.model.topic_name import TopicName
from icestream.settings import Key, value_at
from icestream.wal.file_summary import FileSummary
from icestream.wal.log_file import log_name
from icestream.wal.write_ahead_log import WriteAheadLog

Document = dict[str, Any]


def namespace_document(name: str, record: records.NamespaceRecord) -> Document:
    return {"namespace": name, "policies": policies_document(record.policies)}


# --- topics -----------------------------------------------------------------------------------------------------------


def topic_line(topic: Topic) -> Document:
    """The document of a topic in a listing."""
    return {
        "topic": str(topic.name),
        "id": topic.record.id,
        "shards": topic.record.shards,
        "dispatch": topic.record.dispatch.value,
        "producers": len(topic.producers),
        "consumers": sum(len(subscription.consumers) for subscription in topic.subscriptions.values()),
        "subscriptions": len(topic.subscriptions),
        "lag": sum(subscription.lag for subscription in topic.subscriptions.values()),
        "published_messages": topic.published_messages,
        "published_bytes": topic.published_bytes,
        "node": topic.record.node,
    }


def topic_line_elsewhere(name: TopicName, record: records.TopicRecord) -> Document:
    """A topic that another node serves; only that node knows its producers and consumers."""
    return {
        "topic": str(name),
        "id": record.id,
        "shards": record.shards,
        "dispatch": record.dispatch.value,
        "producers": None,
        "consumers": None,
        "subscriptions": None,
        "lag": None,
        "published_messages": None,
        "published_bytes": None,
        "node": record.node,
    }


def topic_details(topic: Topic, streams: list[ShardStream], held_bytes: int) -> Document:
    return topic_line(topic) | {
        "incarnation": topic.record.incarnation,
        "created_ms": topic.record.created_ms,
        "policies": policies_document(topic.record.policies),
        "effective_policies": policies_document(topic.policies),
        "held_bytes": held_bytes,
        "shard_offsets": [shard_offsets(stream, _details_per_shard(streams)) for stream in streams],
    }


def _details_per_shard(shards: Sequence[object]) -> int:
    """How many nested entries each shard may show, so that all shards together stay below API_DETAILS_MAX."""
    return max(limits.API_DETAILS_MAX // len(shards), 1)


def stalled_reader_document(reader: StalledReader) -> Document:
    return {
        "reader": reader.name,
        "shard": reader.key.shard,
        "offset": reader.offset,
        "code": reader.code,
        "reason": reader.reason,
        "is_transient": reader.is_transient,
    }


def shard_offsets(stream: ShardStream, details_max: int) -> Document:
    gaps = stream.gaps()
    return {
        "shard": stream.key.shard,
        "epoch": stream.epoch,
        "earliest": stream.log_start(),
        "next": stream.visible,
        "synced": stream.synced,
        "gap_count": len(gaps),
        "gaps": [gap_document(gap) for gap in gaps[-details_max:]],
    }


def gap_document(gap: Gap) -> Document:
    return {"start": gap.start, "end": gap.end, "reason": gap.reason, "state": gap.state.name.lower()}


def producer_document(producer: Producer) -> Document:
    return {"producer": producer.name, "id": producer.id, "epoch": producer.epoch, "peer": producer.peer}


# --- subscriptions ----------------------------------------------------------------------------------------------------


def subscription_line(topic: Topic, subscription: Subscription) -> Document:
    return {
        "topic": str(topic.name),
        "subscription": subscription.name,
        "id": subscription.record.id,
        "type": subscription.record.type.value,
        "consumers": len(subscription.consumers),
        "state": _subscription_state(subscription),
        "lag": subscription.lag,
    }


def _subscription_state(subscription: Subscription) -> str:
    """`ok`, or the kinds of its stalls: `blocked`, `unreadable`."""
    return (
        ", ".join(sorted({stall.kind.value for delivery in subscription.deliveries for stall in delivery.stalls}))
        or "ok"
    )


def subscription_details(topic: Topic, subscription: Subscription, ages_ms: list[int | None]) -> Document:
    record = subscription.record
    failure, details_max = record.failure, _details_per_shard(subscription.deliveries)
    return subscription_line(topic, subscription) | {
        "created_ms": record.created_ms,
        "failure": {name: msgspec.to_builtins(getattr(failure, name)) for name in failure.__struct_fields__},
        "max_dispatch_rate": record.max_dispatch_rate,
        "shard_positions": [
            shard_position(delivery, age_ms, details_max)
            for delivery, age_ms in zip(subscription.deliveries, ages_ms, strict=True)
        ],
    }


def shard_position(delivery: ShardDelivery, age_ms: int | None, details_max: int) -> Document:
    """`age_ms`: the age of the oldest unacked message."""
    dispatcher = delivery.dispatcher
    acked = dispatcher.acked
    return {
        "shard": delivery.stream.key.shard,
        "position": acked.position,
        "next": delivery.stream.visible,
        "lag": delivery.lag,
        "oldest_unacked_age_ms": age_ms,
        "acked_range_count": len(acked),
        "acked_ranges": acked.ranges[:details_max],
        "hole": acked.hole,
        "in_flight": dispatcher.in_flight.size,
        "waiting_for_redelivery": dispatcher.delayed.size + dispatcher.ready.size,
        "dead_letters_under_way": dispatcher.settling.size,
        "blocked": dispatcher.blocked.size,
        "pause": dispatcher.pause.value if dispatcher.pause is not None else None,
        "stalls": [stall_document(stall) for stall in delivery.stalls],
        "generation": delivery.generation,
    }


def stall_document(stall: DeliveryStall) -> Document:
    """Why messages of a shard are not delivered, from which offset on, and since when."""
    return {
        "kind": stall.kind.value,
        "offset": stall.offset,
        "reason": stall.reason,
        "hint": stall.hint,
        "since_ms": stall.since_us // 1000,
    }


def consumer_document(subscription: Subscription, consumer: Consumer) -> Document:
    return {
        "consumer": consumer.name,
        "id": consumer.id,
        "peer": consumer.sink.peer,
        "is_active": consumer.is_active,
        "credit": subscription.credit_of(consumer),
        "delivered_messages": consumer.delivered_messages,
        "waiting_ranges": consumer.waiting_ranges,
        "key_pattern_count": len(consumer.key_patterns),
        "key_patterns": [
            pattern[: limits.API_PATTERN_CHARACTERS_MAX] for pattern in consumer.key_patterns[: limits.API_PATTERNS_MAX]
        ],
    }


# --- the log and the settings -----------------------------------------------------------------------------------------


def log_document(log: WriteAheadLog, sync_mode: str) -> Document:
    lifecycle, report = log.lifecycle, log.report
    gaps = [(key, gap) for key, shard_gaps in log.state.gaps.items() for gap in shard_gaps]
    return {
        "log_id": log.log_id.hex(),
        "sync_mode": sync_mode,
        "last_lsn": log.state.lsn,
        "released_lsn": log.appender.released_lsn,
        "synced_lsn": log.appender.synced_lsn,
        "used_bytes": lifecycle.used_bytes,
        "warm_bytes": lifecycle.warm.bytes,
        "spill_bytes": lifecycle.spills.bytes,
        "spill_files": len(lifecycle.spills.files),
        "quota_bytes": log.quota.node_bytes,
        "topic_quota_bytes": log.quota.topic_bytes,
        "in_flight_bytes": log.in_flight_bytes,
        "tail_bytes": log.tail.held_bytes,
        "sealed_files": len(lifecycle.files),
        "shards": len(log.state.shards),
        "checkpoints": [{"name": checkpoint.name, "lsn": checkpoint.lsn} for checkpoint in lifecycle.checkpoints],
        "gap_count": len(gaps),
        "gaps": [
            {"topic": log.state.topics[key.topic_id].name, "shard": key.shard} | gap_document(gap)
            for key, gap in gaps[-limits.API_DETAILS_MAX :]
        ],
        "clean_start": report.clean,
        "stopped": str(log.stopped) if log.stopped else None,
    }


def log_file_document(summary: FileSummary) -> Document:
    return {
        "file": log_name(summary.number),
        "bytes": summary.size,
        "first_lsn": summary.seal.first_lsn,
        "last_lsn": summary.seal.last_lsn,
        "shards": len(summary.keys),
    }


def setting_document(online: OnlineSettings, key: Key) -> Document:
    return {
        "key": key.path,
        "value": key.plain(value_at(online.current, key.path)),
        "origin": str(online.origin(key.path)),
        "online": key.online,
        "allowed": key.allowed,
        "description": key.description,
    }
