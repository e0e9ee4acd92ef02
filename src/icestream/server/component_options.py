"""Derives the options of each component from the settings."""

from __future__ import annotations

from icestream.broker.broker_options import BrokerOptions
from icestream.model.sync_mode import SyncMode
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.settings import Settings
from icestream.wal.log_options import LogOptions


def log_options(settings: Settings) -> LogOptions:
    wal = settings.wal
    return LogOptions(
        mode=SyncMode(wal.sync_mode),
        sync_interval_ms=wal.sync_interval_ms,
        file_bytes=wal.max_file_size,
        message_bytes_max=wal.max_message_bytes,
        align_bytes=wal.align_bytes,
        quota_bytes=wal.quota,
        topic_quota_bytes=wal.topic_quota,
        in_flight_bytes=wal.in_flight_bytes,
        spare_files=wal.spare_files,
        inline_sync_below_us=wal.inline_sync_below_us,
        tail_bytes=settings.broker.tail_bytes if settings.broker.tail_enabled else 0,
        tail_ttl_ms=settings.broker.tail_ttl_ms,
        checkpoint_every_bytes=wal.checkpoint_every_bytes,
        retention_step_percent=wal.retention_step_percent,
        warm_ms=wal.warm_ms,
        warm_bytes=wal.warm_bytes,
        ballast_bytes=wal.ballast,
    )


def broker_options(settings: Settings) -> BrokerOptions:
    broker = settings.broker
    return BrokerOptions(
        node=settings.node.name,
        address=f"{settings.node.bind_host}:{settings.ports.danube}",
        auto_create_topics=broker.auto_create_topics,
        cursor_flush_ms=broker.cursor_flush_ms,
        unacked_max=broker.max_unacked_messages,
        deleted_table=DeletedTablePolicy(broker.deleted_table),
        deleted_rest=DeletedRestPolicy(broker.deleted_rest),
        has_own_catalog=settings.catalog_embedded,
    )
