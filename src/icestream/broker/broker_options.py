"""The settings of the broker, as values."""

from __future__ import annotations

from dataclasses import dataclass

from icestream import limits
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    node: str = "icestream"
    address: str = "127.0.0.1:6650"
    auto_create_topics: bool = True
    cursor_flush_ms: int = limits.CURSOR_FLUSH_MS_DEFAULT
    unacked_max: int = limits.UNACKED_MAX_DEFAULT
    deleted_table: DeletedTablePolicy = DeletedTablePolicy.KEEP
    deleted_rest: DeletedRestPolicy = DeletedRestPolicy.DISCARD  # without a pipeline nothing else is possible
    has_own_catalog: bool = True  # tables of deleted topics can be dropped
