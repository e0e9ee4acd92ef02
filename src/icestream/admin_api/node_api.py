"""The node itself: its log, settings, health and addresses."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from icestream.admin_api.admin_call import AdminCall, Answer, Listing, NoArguments, PageRequest
from icestream.model.field_metadata import Doc, Length, NumberBounds


class SettingOnly(msgspec.Struct):
    key: str


class NewValue(msgspec.Struct, kw_only=True):
    value: (
        bool
        | Annotated[int, NumberBounds(-(2**63), 2**63 - 1)]
        | Annotated[str, Length(0, 4096)]
        | list[Annotated[str, Length(0, 4096)]]
        | None
    )


class SetSetting(NewValue, kw_only=True):
    key: str


class LogCheckpoint(Answer):
    name: str
    lsn: int


class TopicGap(Answer):
    """A declared gap of a shard."""

    topic: str
    shard: int
    start: int
    end: int
    reason: str
    state: str


class LogDetails(Answer):
    log_id: str
    sync_mode: str
    last_lsn: int
    released_lsn: int
    synced_lsn: int
    used_bytes: int
    warm_bytes: Annotated[
        int, Doc("Bytes already in tables and kept only as a cache; reclaimable. Part of used_bytes.")
    ]
    spill_bytes: Annotated[
        int, Doc("Bytes of spill logs, of topics whose tables accept no commits. Part of used_bytes.")
    ]
    spill_files: Annotated[int, Doc("Files of spill logs.")]
    quota_bytes: int
    topic_quota_bytes: int
    in_flight_bytes: int
    tail_bytes: int
    sealed_files: int
    shards: int
    checkpoints: list[LogCheckpoint]
    gap_count: int
    gaps: list[TopicGap]
    clean_start: Annotated[bool, Doc("Whether the last shutdown was clean.")]
    stopped: Annotated[str | None, Doc("Why the log accepts no messages; null if it does.")]


class LogFileDetails(Answer):
    file: str
    bytes: int
    first_lsn: int
    last_lsn: int
    shards: int


class SettingDetails(Answer):
    key: str
    value: bool | int | str | list[str] | None
    origin: Annotated[str, Doc("default, file, env, flag, or stored: changed while the broker runs.")]
    online: Annotated[bool, Doc("Whether it can be changed while the broker runs.")]
    allowed: str
    description: str


class HealthCheck(Answer):
    name: str
    ok: bool
    reason: str
    is_needed: bool


class NodeHealth(Answer):
    ready: bool
    checks: list[HealthCheck]


INSPECT_WAL: Final = AdminCall("inspect_wal", NoArguments, LogDetails)
PAGE_WAL_FILES: Final = AdminCall("page_wal_files", PageRequest, Listing[LogFileDetails])
LIST_SETTINGS: Final = AdminCall("list_settings", NoArguments, Listing[SettingDetails])
DESCRIBE_SETTING: Final = AdminCall("describe_setting", SettingOnly, SettingDetails)
SET_SETTING: Final = AdminCall("set_setting", SetSetting, SettingDetails)
UNSET_SETTING: Final = AdminCall("unset_setting", SettingOnly, SettingDetails)
HEALTH: Final = AdminCall("health", NoArguments, NodeHealth)
# The registered front ends decide which ports there are, so these answers have no fields of their own.
PLACES: Final = AdminCall("places", NoArguments, dict[str, Any])
PORTS: Final = AdminCall("ports", NoArguments, dict[str, Any], is_public=True)
