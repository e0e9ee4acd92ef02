"""Answers about topics, subscriptions, consumers, the log and settings, built from the broker's state.

Their fields are declared in admin_api. Nested lists are truncated, so that every answer has a bounded size; their full
length is beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from icestream import limits
from icestream.admin_api.backup_api import RestoreDetails
from icestream.admin_api.namespace_api import NamespaceDetails
from icestream.admin_api.node_api import LogCheckpoint, LogDetails, LogFileDetails, SettingDetails, TopicGap
from icestream.admin_api.subscription_api import (
    ConnectedConsumer,
    ShardStall,
    SubscriptionDetails,
    SubscriptionShard,
    SubscriptionSummary,
)
from icestream.admin_api.topic_api import (
    ConnectedProducer,
    GapRange,
    StalledSubscription,
    TopicDetails,
    TopicShard,
    TopicSummary,
)
from icestream.broker import records
from icestream.broker.broker_consumer import BrokerConsumer
from icestream.broker.broker_subscription import BrokerSubscription
from icestream.broker.broker_topic import BrokerProducer, BrokerTopic
from icestream.broker.online_settings import OnlineSettings
from icestream.broker.shard_delivery import ShardDelivery
from icestream.broker.stall import DeliveryStall
from icestream.broker.stalled_readers import StalledReader
from icestream.broker.storage import ShardStream
from icestream.broker.topic_restore import OpenRestore
from icestream.model.shard import DeclaredGap
from icestream.model.topic_name import TopicName
from icestream.settings import Key, value_at
from icestream.wal.file_summary import FileSummary
from icestream.wal.log_file import log_name
from icestream.wal.write_ahead_log import WriteAheadLog


def namespace_details(name: str, record: records.NamespaceRecord) -> NamespaceDetails:
    return NamespaceDetails(namespace=name, policies=record.policies)


# --- topics -----------------------------------------------------------------------------------------------------------


def topic_summary(topic: BrokerTopic) -> TopicSummary:
    """The entry of a topic in a listing."""
    return TopicSummary(
        topic=str(topic.name),
        id=topic.record.id,
        shards=topic.record.shards,
        dispatch=topic.record.dispatch,
        producers=len(topic.producers),
        consumers=sum(len(subscription.consumers) for subscription in topic.subscriptions.values()),
        subscriptions=len(topic.subscriptions),
        lag=sum(subscription.lag for subscription in topic.subscriptions.values()),
        published_messages=topic.published_messages,
        published_bytes=topic.published_bytes,
        node=topic.record.node,
    )


def remote_topic_summary(name: TopicName, record: records.TopicRecord) -> TopicSummary:
    """The entry of a topic that another node serves; only that node knows its producers and consumers."""
    return TopicSummary(
        topic=str(name),
        id=record.id,
        shards=record.shards,
        dispatch=record.dispatch,
        producers=None,
        consumers=None,
        subscriptions=None,
        lag=None,
        published_messages=None,
        published_bytes=None,
        node=record.node,
    )


def topic_details(
    topic: BrokerTopic, streams: list[ShardStream], held_bytes: int, stalled_readers: Iterable[StalledReader]
) -> TopicDetails:
    details_max = _details_per_shard(streams)
    return TopicDetails(
        **msgspec.structs.asdict(topic_summary(topic)),
        incarnation=topic.record.incarnation,
        created_ms=topic.record.created_ms,
        policies=topic.record.policies,
        effective_policies=topic.policies,
        held_bytes=held_bytes,
        shard_offsets=[_topic_shard(stream, details_max) for stream in streams],
        stalled_readers=[_stalled_subscription(reader) for reader in stalled_readers],
    )


def _details_per_shard(shards: Sequence[object]) -> int:
    """How many nested entries each shard may show, so that all shards together stay below API_DETAILS_MAX."""
    return max(limits.API_DETAILS_MAX // len(shards), 1)


def _stalled_subscription(reader: StalledReader) -> StalledSubscription:
    return StalledSubscription(
        reader=reader.name,
        shard=reader.key.shard,
        offset=reader.offset,
        code=reader.code,
        reason=reader.reason,
        is_transient=reader.is_transient,
    )


def _topic_shard(stream: ShardStream, details_max: int) -> TopicShard:
    gaps = stream.gaps()
    return TopicShard(
        shard=stream.key.shard,
        epoch=stream.epoch,
        earliest=stream.log_start(),
        next=stream.visible,
        synced=stream.synced,
        gap_count=len(gaps),
        gaps=[gap_range(gap) for gap in gaps[-details_max:]],
    )


def gap_range(gap: DeclaredGap) -> GapRange:
    return GapRange(start=gap.start, end=gap.end, reason=gap.reason, state=gap.state.name.lower())


def connected_producer(producer: BrokerProducer) -> ConnectedProducer:
    return ConnectedProducer(producer=producer.name, id=producer.id, epoch=producer.epoch, peer=producer.peer)


# --- subscriptions ----------------------------------------------------------------------------------------------------


def subscription_summary(topic: TopicName, subscription: BrokerSubscription) -> SubscriptionSummary:
    return SubscriptionSummary(
        topic=str(topic),
        subscription=subscription.name,
        id=subscription.record.id,
        type=subscription.record.type,
        consumers=len(subscription.consumers),
        state=_subscription_state(subscription),
        lag=subscription.lag,
    )


def _subscription_state(subscription: BrokerSubscription) -> str:
    """`ok`, or the kinds of its stalls: `blocked`, `unreadable`, `forbidden`."""
    kinds = {stall.kind.value for delivery in subscription.deliveries for stall in delivery.stalls}
    return ", ".join(sorted(kinds)) or "ok"


def subscription_details(
    topic: TopicName, subscription: BrokerSubscription, ages_ms: list[int | None]
) -> SubscriptionDetails:
    """`ages_ms`: the age of the oldest unacked message of each shard."""
    details_max = _details_per_shard(subscription.deliveries)
    return SubscriptionDetails(
        **msgspec.structs.asdict(subscription_summary(topic, subscription)),
        created_ms=subscription.record.created_ms,
        failure=subscription.record.failure,
        max_dispatch_rate=subscription.record.max_dispatch_rate,
        shard_positions=[
            _subscription_shard(delivery, age_ms, details_max)
            for delivery, age_ms in zip(subscription.deliveries, ages_ms, strict=True)
        ],
    )


def _subscription_shard(delivery: ShardDelivery, age_ms: int | None, details_max: int) -> SubscriptionShard:
    dispatcher = delivery.dispatcher
    acked = dispatcher.acked
    return SubscriptionShard(
        shard=delivery.stream.key.shard,
        position=acked.position,
        next=delivery.stream.visible,
        lag=delivery.lag,
        oldest_unacked_age_ms=age_ms,
        acked_range_count=len(acked),
        acked_ranges=acked.ranges[:details_max],
        hole=acked.hole,
        in_flight=dispatcher.in_flight.size,
        waiting_for_redelivery=dispatcher.delayed.size + dispatcher.ready.size,
        dead_letters_under_way=dispatcher.settling.size,
        blocked=dispatcher.blocked.size,
        pause=dispatcher.pause.value if dispatcher.pause is not None else None,
        stalls=[_shard_stall(stall) for stall in delivery.stalls],
        generation=delivery.generation,
    )


def _shard_stall(stall: DeliveryStall) -> ShardStall:
    return ShardStall(
        kind=stall.kind.value,
        offset=stall.offset,
        reason=stall.reason,
        hint=stall.hint,
        since_ms=stall.since_us // 1000,
    )


def connected_consumer(subscription: BrokerSubscription, consumer: BrokerConsumer) -> ConnectedConsumer:
    return ConnectedConsumer(
        consumer=consumer.name,
        id=consumer.id,
        peer=consumer.sink.peer,
        is_active=consumer.is_active,
        credit=subscription.credit_of(consumer),
        delivered_messages=consumer.delivered_messages,
        waiting_ranges=consumer.waiting_ranges,
        key_pattern_count=len(consumer.key_patterns),
        key_patterns=[
            pattern[: limits.API_PATTERN_CHARACTERS_MAX] for pattern in consumer.key_patterns[: limits.API_PATTERNS_MAX]
        ],
    )


# --- the log and the settings -----------------------------------------------------------------------------------------


def log_details(log: WriteAheadLog, sync_mode: str) -> LogDetails:
    lifecycle = log.lifecycle
    gaps = [(key, gap) for key, shard_gaps in log.state.gaps.items() for gap in shard_gaps]
    return LogDetails(
        log_id=log.log_id.hex(),
        sync_mode=sync_mode,
        last_lsn=log.state.lsn,
        released_lsn=log.appender.released_lsn,
        synced_lsn=log.appender.synced_lsn,
        used_bytes=lifecycle.used_bytes,
        warm_bytes=lifecycle.warm.bytes,
        spill_bytes=lifecycle.spills.bytes,
        spill_files=len(lifecycle.spills.files),
        quota_bytes=log.quota.node_bytes,
        topic_quota_bytes=log.quota.topic_bytes,
        in_flight_bytes=log.in_flight_bytes,
        tail_bytes=log.tail.held_bytes,
        sealed_files=len(lifecycle.files),
        shards=len(log.state.shards),
        checkpoints=[LogCheckpoint(name=checkpoint.name, lsn=checkpoint.lsn) for checkpoint in lifecycle.checkpoints],
        gap_count=len(gaps),
        gaps=[
            TopicGap(
                topic=log.state.topics[key.topic_id].name, shard=key.shard, **msgspec.structs.asdict(gap_range(gap))
            )
            for key, gap in gaps[-limits.API_DETAILS_MAX :]
        ],
        clean_start=log.report.clean,
        stopped=str(log.stopped) if log.stopped else None,
    )


def log_file_details(summary: FileSummary) -> LogFileDetails:
    return LogFileDetails(
        file=log_name(summary.number),
        bytes=summary.size,
        first_lsn=summary.seal.first_lsn,
        last_lsn=summary.seal.last_lsn,
        shards=len(summary.keys),
    )


def setting_details(online: OnlineSettings, key: Key) -> SettingDetails:
    value: Any = key.plain(value_at(online.current, key.path))
    return SettingDetails(
        key=key.path,
        value=value,
        origin=str(online.origin(key.path)),
        online=key.online,
        allowed=key.allowed,
        description=key.description,
    )


def restore_details(restore: OpenRestore) -> RestoreDetails:
    record = restore.record
    if record is None:
        return RestoreDetails(restore.backup_id, None, None, "everything")
    state = "adopting" if record.is_created else "copying"
    return RestoreDetails(restore.backup_id, restore.topic, record.topic_id, state)
