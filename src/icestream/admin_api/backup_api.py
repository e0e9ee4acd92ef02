"""Backups, their archives and drills: answers of the HTTP API, because the lake process reads the target. Restores that
run: a call of the broker."""

from __future__ import annotations

from typing import Annotated, Final

from icestream.admin_api.admin_call import AdminCall, Answer, Listing, PageRequest
from icestream.model.field_metadata import Doc

Milliseconds = Annotated[int, Doc("Milliseconds since 1970.")]


class BackupSummary(Answer):
    id: str
    state: Annotated[str, Doc("complete; incomplete: it lacks something; unfinished: its run ended before its root.")]
    kind: Annotated[str | None, Doc("copy or reference; null while it is unfinished.")]
    cut_ms: Annotated[int | None, Doc("When its ends were fixed, milliseconds since 1970.")]
    topics: int | None
    files: int | None
    bytes: int | None
    parent: Annotated[str | None, Doc("The backup that it is incremental from. It does not need it.")]
    encrypted: bool


class BackupTopic(Answer):
    topic: str
    table: Annotated[str | None, Doc("The name of its table at the cut; null without one.")]
    rows: int
    tail_messages: Annotated[int, Doc("Offsets that were in no table yet, gaps included.")]
    shards: int


class BackupGap(Answer):
    """Something that a backup lacks. `shard` is null for a whole topic, which was left out."""

    topic: str
    shard: int | None
    reason: str


class BackupDetails(BackupSummary):
    cluster: str
    version: str
    ended_ms: int
    revision: int
    topic_list: list[BackupTopic]
    lacks: list[BackupGap]


class BackupFault(Answer):
    object: str
    severity: Annotated[str, Doc("error: something cannot be restored. warning: it can, and lacks what is said.")]
    text: str


class BackupCheck(Answer):
    id: str
    is_good: Annotated[bool, Doc("Whether there is no error.")]
    finding_count: int
    findings: Annotated[list[BackupFault], Doc("At most 100 of them.")]


class ArchiveGapDetails(Answer):
    after_ms: Milliseconds
    until_ms: Milliseconds
    reason: str


class ArchiveDetails(Answer):
    node: str
    log_id: str
    until_ms: Annotated[int, Doc("Everything until then is archived, milliseconds since 1970.")]
    objects: int
    bases: Annotated[list[str], Doc("Backups that a restore to a point in time can begin with.")]
    gaps: Annotated[list[ArchiveGapDetails], Doc("Times that cannot be restored.")]


class DrillDetails(Answer):
    name: Annotated[str, Doc("The report in the target.")]
    backup: str | None
    node: str | None
    outcome: Annotated[str | None, Doc("passed or failed; null for a report that cannot be read.")]
    ended_ms: int | None
    seconds: float | None
    messages: int | None
    findings: list[str]
    signature: Annotated[str, Doc("own: by the key of this node. other: by another key, unchanged. invalid.")]


class RestoreDetails(Answer):
    backup: str
    topic: Annotated[str | None, Doc("null: the restore of everything.")]
    topic_id: int | None
    state: Annotated[str, Doc("copying; adopting: the topic exists, its table is not bound yet; everything.")]


PAGE_RESTORES: Final = AdminCall("page_restores", PageRequest, Listing[RestoreDetails])
