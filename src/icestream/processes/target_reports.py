"""What the API tells about the backups of this node's target (lake/routes/backup_endpoints.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.admin_api.admin_call import Listing, PageRequest
from icestream.admin_api.backup_api import (
    ArchiveDetails,
    ArchiveGapDetails,
    BackupCheck,
    BackupDetails,
    BackupFault,
    BackupGap,
    BackupSummary,
    BackupTopic,
    DrillDetails,
)
from icestream.backup.backup_root import BackupRoot, TopicCut
from icestream.backup.backup_target import BackupTarget
from icestream.backup.backup_verify import BackupVerification
from icestream.backup.drill_report import DRILLS
from icestream.backup.stored_archive import bases_of, stored_heads
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.stored_drills import StoredDrill, drill_key_id, read_drill
from icestream.runtime.tasks import Offload

LATEST: Final = "latest"
_FINDINGS_MAX: Final = 100


class TargetReports:
    """The `BackupReports` of a target."""

    def __init__(
        self,
        open_target: Callable[[], BackupTarget],
        source: Callable[[str], Iterator[bytes]],
        offload: Offload,
        data_dir: Path,
    ) -> None:
        """`open_target`: opens the target, when it is needed for the first time. `source`: reads files of the
        warehouse, which reference backups name. `data_dir`: where the key of drill reports is."""
        self._open_target = open_target
        self._source = source
        self._offload = offload
        self._data_dir = data_dir
        self._stored: StoredBackups | None = None

    @property
    def _backups(self) -> StoredBackups:
        if self._stored is None:
            self._stored = StoredBackups(self._open_target())
        return self._stored

    async def page(self, request: PageRequest) -> Listing[BackupSummary]:
        ids = [backup_id for backup_id in await self._backups.ids() if backup_id > request.after]
        page = ids[: request.limit]
        items = [_summary(backup_id, await self._backups.root_or_none(backup_id)) for backup_id in page]
        return Listing(items=items, next=page[-1] if len(ids) > len(page) else None)

    async def backup(self, backup_id: str) -> BackupDetails:
        root = await self._root(backup_id)
        lacks = [BackupGap(entry.topic, entry.shard, entry.reason) for entry in root.incomplete]
        lacks += [BackupGap(entry.topic, None, entry.reason) for entry in root.left_out]
        return BackupDetails(
            **msgspec.structs.asdict(_summary(root.id, root)),
            cluster=root.cluster,
            version=root.version,
            ended_ms=root.ended_ms,
            revision=root.revision,
            topic_list=[_topic(topic) for topic in root.topics],
            lacks=lacks,
        )

    async def verify(self, backup_id: str) -> BackupCheck:
        root = await self._root(backup_id)
        if root.files > limits.API_BACKUP_OBJECTS_MAX:
            raise errors.Refused(
                f"backup {root.id} has {root.files} objects, more than one request checks",
                hint="`icestream backup verify`",
            )
        findings = await BackupVerification(self._backups, self._offload, self._source).verify(root.id, is_deep=False)
        is_good = not any(finding.severity == "error" for finding in findings)
        faults = [BackupFault(*finding) for finding in findings[:_FINDINGS_MAX]]
        return BackupCheck(root.id, is_good, len(findings), faults)

    async def archives(self) -> list[ArchiveDetails]:
        heads = await stored_heads(self._backups.target)
        roots = [backup.root for backup in await self._backups.backups() if backup.root is not None] if heads else []
        return [
            ArchiveDetails(
                head.node,
                head.log_id,
                head.until_us // 1_000,
                head.seq - head.first_seq + 1,
                bases_of(head, roots),
                [ArchiveGapDetails(gap.after_us // 1_000, gap.until_us // 1_000, gap.reason) for gap in head.gaps],
            )
            for head in heads
        ]

    async def page_drills(self, request: PageRequest) -> Listing[DrillDetails]:
        key_id = await self._offload.run(lambda: drill_key_id(self._data_dir))
        target = self._backups.target
        names: Sequence[str] = sorted(name for name in await target.names(DRILLS) if name > request.after)
        page = names[: request.limit]
        drills = [await read_drill(target, name, key_id) for name in page]
        return Listing(
            items=[_drill(drill) for drill in drills if drill is not None],
            next=page[-1] if len(names) > len(page) else None,
        )

    async def _root(self, backup_id: str) -> BackupRoot:
        if backup_id != LATEST:
            return await self._backups.root(backup_id)
        root = await self._backups.latest()
        if root is None:
            raise errors.UnknownBackup("the target has no backup", hint="`icestream backup create` makes one")
        return root


def _summary(backup_id: str, root: BackupRoot | None) -> BackupSummary:
    if root is None:
        return BackupSummary(backup_id, "unfinished", None, None, None, None, None, None, False)
    return BackupSummary(
        root.id, root.state, root.kind, root.cut_ms, len(root.topics), root.files, root.bytes, root.parent,
        root.encryption is not None,
    )  # fmt: skip


def _topic(topic: TopicCut) -> BackupTopic:
    table = topic.table
    name = None if table is None else ".".join((*table.namespace, table.name))
    tail = sum(shard.end - shard.committed for shard in topic.shards)
    return BackupTopic(topic.name, name, 0 if table is None else table.rows, tail, len(topic.shards))


def _drill(drill: StoredDrill) -> DrillDetails:
    report = drill.report
    if report is None:
        return DrillDetails(drill.name, None, None, None, None, None, None, [], str(drill.signature))
    findings = [f"{finding.object}: {finding.text}" for finding in report.findings[:_FINDINGS_MAX]]
    return DrillDetails(
        drill.name, report.backup, report.node, report.outcome, report.ended_ms,
        (report.ended_ms - report.started_ms) / 1_000, report.messages, findings, str(drill.signature),
    )  # fmt: skip
