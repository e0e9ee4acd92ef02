"""Derives the options of components from the settings: a function for each kind of options.

The options are plain values that belong to the component's package; the functions are here, in the layer that knows
both. The broker process imports this module, so it imports no reader, no catalog and no part of the pipeline
(pipeline_options.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pydantic import SecretStr

from icestream.broker.broker_options import BrokerOptions
from icestream.broker.mqtt.mqtt_options import MqttOptions, ReplayRoute, WideFilters
from icestream.catalogs.store_options import StoreOptions
from icestream.catalogs.warehouse_fence_record import is_object_location
from icestream.model.sync_mode import SyncMode
from icestream.model.topic_policies import POLICIES, PolicyValues
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.settings import Settings, value_at
from icestream.settings.mqtt_section import parse_route
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
        policy_defaults=_policy_defaults(settings),
        undelete_grace_ms=broker.undelete_grace_ms,
        has_own_catalog=settings.catalog_embedded,
    )


def _policy_defaults(settings: Settings) -> PolicyValues:
    """The policies whose unset value is a setting, as their declarations name it."""
    values = {name: value_at(settings, policy.setting) for name, policy in POLICIES.items() if policy.setting}
    return msgspec.convert(values, PolicyValues)


def mqtt_options(settings: Settings) -> MqttOptions:
    mqtt = settings.mqtt
    routes = [route for text in mqtt.replay if (route := parse_route(text)) is not None]  # each is: the settings say so
    return MqttOptions(
        is_enabled=mqtt.enable,
        has_durable_sessions=mqtt.durable_sessions.enable,
        replay=tuple(ReplayRoute(*route) for route in routes),
        shards=mqtt.shards,
        session_expiry_s_max=mqtt.session_expiry_max_s,
        session_expiry_s_default=mqtt.session_expiry_default_s,
        receive_maximum=mqtt.receive_maximum,
        packet_bytes_max=mqtt.packet_bytes_max,
        keep_alive_s_max=mqtt.keep_alive_max_s,
        topic_aliases_max=mqtt.topic_aliases_max,
        sessions_max=mqtt.sessions_max,
        subscriptions_per_session_max=mqtt.subscriptions_per_session_max,
        session_lag_bytes_max=mqtt.session_lag_bytes_max,
        refused_filters=WideFilters(mqtt.refused_filters),
        qos0_filters=WideFilters(mqtt.qos0_filters),
        retained_values_max=mqtt.retained_values_max,
        retained_bytes_max=mqtt.retained_bytes_max,
        has_shared_subscriptions=mqtt.shared_subscriptions,
    )


def row_group_cache_options(settings: Settings) -> RowGroupCacheOptions:
    lake = settings.lake
    return RowGroupCacheOptions(lake.cache_enabled, lake.cache_bytes, lake.cache_ttl_ms)


def store_options(settings: Settings) -> StoreOptions:
    store = settings.storage.iceberg_config.object_store
    return StoreOptions(
        kind=store.type,
        bucket=store.bucket,
        region=store.region,
        endpoint=store.endpoint,
        path_style=store.path_style,
        access_key_id=reveal(store.access_key_id),
        secret_access_key=reveal(store.secret_access_key),
        session_token=reveal(store.session_token),
        role_arn=store.role_arn,
        table_role_arn=store.table_role_arn,
        sts_endpoint=store.sts_endpoint,
        credentials_file=str(store.credentials_file) if store.credentials_file is not None else None,
        account_name=store.account_name,
        account_key=reveal(store.account_key),
        request_seconds=store.request_timeout_ms / 1000,
    )


def reveal(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def table_roots(settings: Settings) -> Sequence[str]:
    """The locations where the embedded catalog accepts tables, the warehouse first. Empty for another catalog, whose
    tables may be anywhere."""
    if not settings.catalog_embedded:
        return ()
    return (settings.storage.iceberg_config.warehouse, *settings.lake.table_roots)


def backed_up_roots(settings: Settings) -> Sequence[str]:
    """The locations out of which files are read that a backup names (hazard 109): with another catalog too, whose
    tables are in its warehouse unless `lake.table_roots` says more."""
    return (settings.storage.iceberg_config.warehouse, *settings.lake.table_roots)


def has_local_tables(settings: Settings) -> bool:
    """Whether all tables are in directories of this machine."""
    roots = table_roots(settings)
    return bool(roots) and all(root.startswith(("file:", "/")) for root in roots)


def object_warehouse(settings: Settings) -> str:
    """The location of the warehouse if it is in an object store and this node places tables in it; else empty.

    A store in memory belongs to one process and needs no fence.
    """
    is_ours = settings.catalog_embedded or settings.catalog.type != "rest"  # another server places tables itself
    location = settings.storage.iceberg_config.warehouse
    return location if is_ours and is_object_location(location) else ""


def fixed_namespace(settings: Settings) -> tuple[str, ...] | None:
    """The namespace of all topics' tables; None if each table is in the namespace of its topic."""
    iceberg = settings.storage.iceberg_config
    if iceberg.namespace is not None:
        return tuple(iceberg.namespace.replace("/", ".").split("."))
    if iceberg.catalog.type == "glue" and iceberg.catalog.database is not None:
        return (iceberg.catalog.database,)
    return None
