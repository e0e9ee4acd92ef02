"""`icestream lake maintain`: one request for several kinds of care, carried out or only planned.

    expire      snapshots and tags that would expire with the next commit of the table
    clean-up    in our own catalog the table is looked at now, with the delays as ever; in another one files go that no
                table of it names, and did not at an earlier request (file_cleanup/folder_survey.py)
    retention   the tables are looked at now, by the rule of their topics
    compact     handed over to compaction, which ignores budget and policies (compaction/compaction_job.py)

In this order: what expires frees files for the clean-up, and what a retention removes is not compacted. A dry run
changes nothing. What became of each is in the progress that the command reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from icestream import errors, limits
from icestream.catalogs.table_catalog import CommitDone
from icestream.model.backlog_messages import RetainedTopic
from icestream.observability.log import get_logger
from icestream.observability.words import counted
from icestream.pipeline.driver.driver_report import DriverReport
from icestream.pipeline.driver.job import Job, JobRegistry, Turn
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.maintenance_request import (
    CLEAN_UP,
    COMPACT,
    EXPIRE,
    RETENTION,
    MaintenanceProgress,
    MaintenanceRequest,
    PlannedGroup,
)
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.expiry.table_expiry import TableExpiry
from icestream.pipeline.file_cleanup.folder_survey import FolderSurvey
from icestream.pipeline.tables.topic_table import TopicTable

_log = get_logger("pipeline.maintenance")


class RetentionPreview(Protocol):
    """The retention, as far as a request needs it."""

    async def preview(self, turn: Turn, topics: Sequence[RetainedTopic]) -> list[PlannedGroup]: ...

    def look_now(self, topic_ids: Sequence[int]) -> None: ...


class RequestedCareJob(Job[MaintenanceRequest, None]):
    """Carries out what an operator asked for, but compaction."""

    name: ClassVar[str] = "requested_care"

    def __init__(
        self,
        lease: DriverLease,
        tables: TopicTableSet,
        survey: FolderSurvey,
        expiry: TableExpiry,
        retention: RetentionPreview,
        clean_now: Callable[[TopicTable], None] | None,
        compact: Callable[[MaintenanceRequest, MaintenanceProgress], None],
        jobs: JobRegistry,
        report: DriverReport,
        *,
        opens_tables: bool = True,
    ) -> None:
        """`clean_now`: None in another catalog. `compact` takes over a request for compaction.
        `opens_tables`: False in a cluster, where a table belongs to the driver of one node."""
        self._lease = lease
        self._tables = tables
        self._survey = survey
        self._expiry = expiry
        self._retention = retention
        self._clean_now = clean_now
        self._compact = compact
        self._jobs = jobs
        self._report = report
        self._opens_tables = opens_tables
        self._request: MaintenanceRequest | None = None

    def request(self, request: MaintenanceRequest) -> None:
        """Replaces a request that was not begun."""
        progress = self._report.maintenance = MaintenanceProgress(request.id)
        if set(request.jobs) == {COMPACT}:
            self._compact(request, progress)
        else:
            self._request = request

    @property
    def is_busy(self) -> bool:
        return self._request is not None

    def is_due(self, turn: Turn) -> bool:
        return self._request is not None

    async def plan(self, turn: Turn) -> MaintenanceRequest | None:
        return self._request

    async def run(self, turn: Turn, plan: MaintenanceRequest) -> None:
        # Only now: a turn that ends before has done nothing of it, and its command waits.
        if self._request is plan:
            self._request = None
        progress = self._report.maintenance
        if progress is None or progress.id != plan.id:
            return
        try:
            with turn.timed("requested_care"):
                await self._care(turn, plan, progress)
        except errors.LeaseLost:
            raise
        except errors.IcestreamError as error:
            progress.reason, progress.is_done = error.message, True
            _log.warning("requested maintenance ended", reason=error.message)
        except Exception as error:
            # The command that waits for the request hears of it, too.
            progress.reason, progress.is_done = f"{type(error).__name__}: {error}", True
            raise
        else:
            if COMPACT in plan.jobs:
                self._compact(plan, progress)
            else:
                progress.is_done = True
        await self._report.publish()

    async def _care(self, turn: Turn, request: MaintenanceRequest, progress: MaintenanceProgress) -> None:
        tables = await self._requested_tables(request, progress)
        for table in tables:
            self._lease.check()
            if EXPIRE in request.jobs:
                self._add(progress, await self._expire(table, is_dry_run=request.is_dry_run))
            if CLEAN_UP in request.jobs:
                self._add(progress, await self._clean_up(table, is_dry_run=request.is_dry_run))
        if RETENTION in request.jobs:
            topic_ids = {table.topic_id for table in tables}
            retained = [topic for topic in turn.backlog.retained if topic.topic_id in topic_ids]
            for group in await self._retention.preview(turn, retained):
                self._add(progress, group)
            if not request.is_dry_run:
                self._retention.look_now([topic.topic_id for topic in retained])

    async def _requested_tables(self, request: MaintenanceRequest, progress: MaintenanceProgress) -> list[TopicTable]:
        tables: list[TopicTable] = []
        topics = [(table.topic_id, table.topic) for table in request.tables]
        if not topics:
            loaded = [self._tables.loaded(topic_id) for topic_id in self._tables.loaded_ids()]
            topics = [(table.topic_id, table.topic) for table in loaded if table is not None]
        for topic_id, topic in topics:
            loaded_table = self._tables.loaded(topic_id)
            if loaded_table is not None:
                loaded_table.is_stale = True  # other writers may have committed since
            is_ours = loaded_table is not None or self._opens_tables
            table = await self._tables.find(topic_id, topic) if is_ours else None
            if table is None:
                progress.reason = f"the table of {topic} cannot be opened by this pipeline now"
            else:
                tables.append(table)
        return tables

    def _add(self, progress: MaintenanceProgress, group: PlannedGroup | None) -> None:
        if group is not None and len(progress.plan) < limits.MAINTENANCE_PLAN_MAX:
            progress.plan.append(group)

    # --- one table ---

    async def _expire(self, table: TopicTable, *, is_dry_run: bool) -> PlannedGroup | None:
        """Expires snapshots as the next commit of ingest would."""
        plan = await self._expiry.plan(table.table, table.history_ms)
        if plan.is_empty:
            return None
        tags = len(plan.old_tags) + len(plan.surplus_tags)
        detail = f"{counted(len(plan.snapshot_ids), 'snapshot')}, {counted(tags, 'tag')}"
        if not is_dry_run:
            outcome = await self._expiry.commit(table.identifier, table.table, plan)
            table.is_stale = True
            if not isinstance(outcome, CommitDone):
                detail = f"not expired: {outcome.reason}"
            else:
                self._jobs.table_committed(table)
        return PlannedGroup(str(table.identifier), 0, 0, 0, EXPIRE, detail)

    async def _clean_up(self, table: TopicTable, *, is_dry_run: bool) -> PlannedGroup | None:
        if is_dry_run:
            unnamed = await self._survey.unnamed(table.table)
            size = await self._survey.bytes_of(unnamed)
            detail = ", ".join(unnamed.names[:3])
            return PlannedGroup(str(table.identifier), len(unnamed.names), size, 0, CLEAN_UP, detail)
        if self._clean_now is not None:
            self._clean_now(table)
            return PlannedGroup(str(table.identifier), 0, 0, 0, CLEAN_UP, "looked at now, files go after their delay")
        removed = await self._survey.remove(table.table)
        detail = f"removed; {removed.waiting} wait for a request after the delay" if removed.waiting else "removed"
        return PlannedGroup(str(table.identifier), removed.files, removed.bytes, 0, CLEAN_UP, detail)
