"""Applies changed settings to a running node. Every key that is marked online is in one of two lists.

APPLIED        the component is notified
NOT_APPLIED    read by a backup when it begins, or by the pipeline, which gets the present values with each backlog
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from icestream.broker.service import Broker
from icestream.observability.log import change_log_level, get_logger
from icestream.processes.component_options import broker_options, log_options, mqtt_options
from icestream.settings import KEYS, Settings, value_at
from icestream.wal.write_ahead_log import WriteAheadLog

_ICEBERG: Final = "storage.iceberg_config"
LOG_MESSAGES: Final = frozenset({"log.level"})
BROKER: Final = frozenset({"broker.auto_create_topics"})
WAL: Final = frozenset(
    f"{_ICEBERG}.wal.{name}"
    for name in (
        "sync_interval_ms", "quota", "topic_quota", "in_flight_bytes", "inline_sync_below_us", "checkpoint_every_bytes",
        "retention_step_percent", "warm_ms", "warm_bytes",
    )
)  # fmt: skip
MQTT: Final = frozenset({"mqtt.replay"})
APPLIED: Final = LOG_MESSAGES | BROKER | WAL | MQTT
# Nothing to do in this process: a backup reads its settings when it begins (backup_options), and the pipeline asks for
# changed `writer_` settings and `clean_up` itself.
NOT_APPLIED: Final = ("backup.iceberg.", f"{_ICEBERG}.writer_", "pipeline.clean_up")
_log = get_logger("config")


def apply_settings(broker: Broker, log: WriteAheadLog | None, old: Settings, new: Settings) -> None:
    """The settings are in force when this returns; `WriteAheadLog.change_options` says what that means for the log. The
    routes of MQTT follow in a moment."""
    changed = {path for path in KEYS if value_at(old, path) != value_at(new, path)}
    if changed & LOG_MESSAGES:
        change_log_level(new.log.level, new.log.format)
    if changed & BROKER:
        options = broker_options(new)
        broker.options = replace(broker.options, auto_create_topics=options.auto_create_topics)
    if changed & WAL and log is not None:
        log.change_options(log_options(new))
    if changed & MQTT:
        broker.mqtt.begin_route_change(mqtt_options(new).replay)
    for path in sorted(changed):
        _log.info("setting changed", key=path, value=KEYS[path].show(value_at(new, path)))
