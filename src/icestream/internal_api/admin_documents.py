"""Topics, subscriptions, consumers, the log and settings as documents: what the API shows of them (docs/api.md).

Lists that are a detail are cut, so that every description stays a document; their full length stands beside them.
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
from icestream.wal.log import Log
from icestream.wal.log_file import log_name
from icestream.wal.summary import FileSummary

Document = dict[str, Any]


def namespace(name: str, record: records.NamespaceRecord) -> Document:
    return {"namespace": name, "policies": policies_document(record.policies)}


# --- topics -----------------------------------------------------------------------------------------------------------


def topic_line(topic: Topic) -> Document:
    """What stands in a listing."""
    return {
        "topic": str(topic.name),
        "id": topic.record.id,
        "shards": topic.record.shards,
        "dispatch": topic.record.dispatch.value,
        "producers": len(topic.producers),
        "consumers": sum(len(one.consumers) for one in topic.subscriptions.values()),
        "subscriptions": len(topic.subscriptions),
        "lag": sum(one.lag for one in topic.subscriptions.values()),
        "published_messages": topic.published_messages,
        "published_bytes": topic.published_bytes,
        "node": topic.record.node,
    }


def topic_line_elsewhere(name: TopicName, record: records.TopicRecord) -> Document:
    """A topic that another node serves: only that one knows who uses it."""
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
        "shard_offsets": [shard_offsets(stream, _share(streams)) for stream in streams],
    }


def _share(shards: Sequence[object]) -> int:
    """What each of so many shards may show of its details."""
    return max(limits.API_DETAILS_MAX // len(shards), 1)


def stalled_reader(reader: StalledReader) -> Document:
    return {
        "reader": reader.name,
        "shard": reader.key.shard,
        "offset": reader.offset,
        "code": reader.code,
        "reason": reader.reason,
        "is_transient": reader.is_transient,
    }


def shard_offsets(stream: ShardStream, shown: int) -> Document:
    gaps = stream.gaps()
    return {
        "shard": stream.key.shard,
        "epoch": stream.epoch,
        "earliest": stream.log_start(),
        "next": stream.visible,
        "synced": stream.synced,
        "gap_count": len(gaps),
        "gaps": [gap(one) for one in gaps[-shown:]],
    }


def gap(found: Gap) -> Document:
    return {"start": found.start, "end": found.end, "reason": found.reason, "state": found.state.name.lower()}


def producer(found: Producer) -> Document:
    return {"producer": found.name, "id": found.id, "epoch": found.epoch, "peer": found.peer}


# --- subscriptions ----------------------------------------------------------------------------------------------------


def subscription_line(topic: Topic, found: Subscription) -> Document:
    return {
        "topic": str(topic.name),
        "subscription": found.name,
        "id": found.record.id,
        "type": found.record.type.value,
        "consumers": len(found.consumers),
        "state": _state(found),
        "lag": found.lag,
    }


def _state(found: Subscription) -> str:
    """`ok`, or how it is stalled: `blocked`, `unreadable`."""
    return ", ".join(sorted({stall.kind.value for one in found.deliveries for stall in one.stalls})) or "ok"


def subscription_details(topic: Topic, found: Subscription, ages_ms: list[int | None]) -> Document:
    record = found.record
    failure, shown = record.failure, _share(found.deliveries)
    return subscription_line(topic, found) | {
        "created_ms": record.created_ms,
        "failure": {name: msgspec.to_builtins(getattr(failure, name)) for name in failure.__struct_fields__},
        "max_dispatch_rate": record.max_dispatch_rate,
        "shard_positions": [position(one, age, shown) for one, age in zip(found.deliveries, ages_ms, strict=True)],
    }


def position(delivery: ShardDelivery, age_ms: int | None, shown: int) -> Document:
    """`age_ms`: how long ago the first message that is not acked was stored; of a hole it is the age."""
    dispatcher = delivery.dispatcher
    acked = dispatcher.acked
    return {
        "shard": delivery.stream.key.shard,
        "position": acked.position,
        "next": delivery.stream.visible,
        "lag": delivery.lag,
        "oldest_unacked_age_ms": age_ms,
        "acked_range_count": len(acked),
        "acked_ranges": acked.ranges[:shown],
        "hole": acked.hole,
        "in_flight": dispatcher.in_flight.size,
        "waiting_for_redelivery": dispatcher.delayed.size + dispatcher.ready.size,
        "dead_letters_under_way": dispatcher.settling.size,
        "blocked": dispatcher.blocked.size,
        "pause": dispatcher.pause.value if dispatcher.pause is not None else None,
        "stalls": [stall_details(one) for one in delivery.stalls],
        "generation": delivery.generation,
    }


def stall_details(found: DeliveryStall) -> Document:
    """Why messages of a shard are not delivered, from which offset on, and since when."""
    return {
        "kind": found.kind.value,
        "offset": found.offset,
        "reason": found.reason,
        "hint": found.hint,
        "since_ms": found.since_us // 1000,
    }


def consumer(subscription: Subscription, found: Consumer) -> Document:
    return {
        "consumer": found.name,
        "id": found.id,
        "peer": found.sink.peer,
        "is_active": found.is_active,
        "credit": subscription.credit_of(found),
        "delivered_messages": found.delivered_messages,
        "waiting_ranges": found.waiting_ranges,
        "key_pattern_count": len(found.key_patterns),
        "key_patterns": [
            pattern[: limits.API_PATTERN_CHARACTERS_MAX] for pattern in found.key_patterns[: limits.API_PATTERNS_MAX]
        ],
    }


# --- the log and the settings -----------------------------------------------------------------------------------------


def wal(log: Log, sync_mode: str) -> Document:
    upkeep, report = log.upkeep, log.report
    gaps = [(key, one) for key, found in log.state.gaps.items() for one in found]
    return {
        "log_id": log.log_id.hex(),
        "sync_mode": sync_mode,
        "last_lsn": log.state.lsn,
        "released_lsn": log.appender.released_lsn,
        "synced_lsn": log.appender.synced_lsn,
        "used_bytes": upkeep.used_bytes,
        "warm_bytes": upkeep.warm.bytes,
        "spill_bytes": upkeep.spills.bytes,
        "spill_files": len(upkeep.spills.files),
        "quota_bytes": log.quota.node_bytes,
        "topic_quota_bytes": log.quota.topic_bytes,
        "in_flight_bytes": log.in_flight_bytes,
        "tail_bytes": log.tail.held_bytes,
        "sealed_files": len(upkeep.files),
        "shards": len(log.state.shards),
        "checkpoints": [{"name": one.name, "lsn": one.lsn} for one in upkeep.checkpoints],
        "gap_count": len(gaps),
        "gaps": [
            {"topic": log.state.topics[key.topic_id].name, "shard": key.shard} | gap(one)
            for key, one in gaps[-limits.API_DETAILS_MAX :]
        ],
        "clean_start": report.clean,
        "stopped": str(log.stopped) if log.stopped else None,
    }


def wal_file(found: FileSummary) -> Document:
    return {
        "file": log_name(found.number),
        "bytes": found.size,
        "first_lsn": found.seal.first_lsn,
        "last_lsn": found.seal.last_lsn,
        "shards": len(found.keys),
    }


def setting(online: OnlineSettings, key: Key) -> Document:
    return {
        "key": key.path,
        "value": key.plain(value_at(online.current, key.path)),
        "origin": str(online.origin(key.path)),
        "online": key.online,
        "allowed": key.allowed,
        "description": key.description,
    }
