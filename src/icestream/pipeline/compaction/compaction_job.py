"""Compaction as a job of the driver: it runs beside ingest, and never in its way.

    plan     pure (compaction_plan.py), over the manifests of tables that have new files; most groups saved first
    run      starts a Spark job in a thread of its own and returns at once: rounds of ingest go on meanwhile. It has a
             task less than there are cores (at least one), so that a task of ingest finds a free one
    commit   in the first turn after it is done, between two rounds: one rewrite for each table (rewrite_commit.py).
             Groups whose files are not live any more, or got deletes meanwhile, are left out, and planned again

The driver keeps its lease while a compaction runs: its files carry the epoch of the lease, and are committed under no
other (hazard 75). After a lost lease, a failed Spark or a crash the files are orphans for the clean-up, and the next
plan begins with the table as it is.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import msgspec

from icestream import errors, limits
from icestream.catalog.operations.table_places import is_own, own_places
from icestream.catalog.topic_rules.rewritten_rows import (
    DataFile,
    DeleteFile,
    delete_file_of_entry,
)
from icestream.iceberg import values
from icestream.iceberg.conversions import integer_from_bytes
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifests import DATA_CONTENT, ManifestFile
from icestream.model.row_digest import parse_digest, sum_of
from icestream.model.task_messages import WrittenFile
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.observability.spans import span
from icestream.pipeline.commit.committer import CommittedSnapshot, NotCommitted
from icestream.pipeline.commit.manifest_merge import is_ours
from icestream.pipeline.compaction.compaction_plan import (
    CandidateFile,
    CompactionRule,
    FileGroup,
    plan_groups,
    plan_repartition,
)
from icestream.pipeline.compaction.group_messages import (
    DeleteInput,
    GroupJob,
    GroupResult,
    InputFile,
    decode_result,
    encode,
)
from icestream.pipeline.compaction.hourly_budget import HourlyBudget
from icestream.pipeline.driver.driver_report import DriverReport
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.job import Job, Turn
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.maintenance_request import (
    MaintenanceProgress,
    MaintenanceRequest,
    PlannedGroup,
    RequestedTable,
)
from icestream.pipeline.driver.rewrite_commit import RewriteCommit, TableRewrite, planned_number
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.round_plan import MqttTarget
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.topic_table import StopReason, TopicTable
from icestream.pipeline.task_keys import NO_TASK_KEYS, TaskFiles, TaskKeys
from icestream.readers.data_files import ScanDataFile, ScanDeleteFile, files_of
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Offload

_log = get_logger("pipeline.compaction")
NAME = "compaction"


class GroupWriter(Protocol):
    """Runs the tasks of a compaction. Blocking: the job calls it in a thread of its own."""

    def rewrite(self, group_jobs: Sequence[bytes]) -> list[bytes]: ...


@dataclass(frozen=True)
class CompactionOptions:
    """What compaction may use, and when it rewrites files."""

    is_enabled: bool = True  # where the policy of a topic does not say otherwise
    rule: CompactionRule = field(default_factory=CompactionRule)
    interval_ms: int = limits.COMPACTION_INTERVAL_MS
    cpu_seconds_per_hour: int = limits.COMPACTION_CPU_SECONDS_DEFAULT
    bytes_per_hour: int = limits.COMPACTION_HOUR_BYTES_DEFAULT
    storage: Mapping[str, Any] = field(default_factory=dict)
    keys: TaskKeys = NO_TASK_KEYS
    opens_tables: bool = True  # on request; False in a cluster, where a table belongs to the driver of one node


class PlannedFiles(NamedTuple):
    """The files of a table that may be rewritten, and its delete files by name."""

    files: list[CandidateFile]
    deletes: Mapping[str, TableDelete]
    sequence_number: int  # of the snapshot that has them
    older: Sequence[CandidateFile] = ()  # files of older partition specs, where they were asked for

    def is_applied(self, name: str, sequence_number: int) -> bool:
        """Whether a rewrite that was planned at this number had to apply a delete: younger deletes by value go on to
        apply to its files."""
        delete = self.deletes[name].file
        # Deletes by value have a partition: those of an older spec do not apply to files of the present one.
        return bool(self.older) or not (delete.is_by_value and delete.sequence_number > sequence_number)


class TableGroup(NamedTuple):
    """A group of files of one table."""

    table: TopicTable
    group: FileGroup
    planned: PlannedFiles


class CompactionPlan(NamedTuple):
    """Groups to rewrite, or the results of a run that is over."""

    groups: list[TableGroup]
    results: list[GroupResult] | None = None


@dataclass
class _CompactionRun:
    """A Spark job that was started and not committed yet."""

    epoch: int
    groups: list[TableGroup]
    task: asyncio.Task[list[bytes]]
    start_ns: int


class TableDelete(NamedTuple):
    """A delete file: by which rewrites are judged, and by which rows are read."""

    file: DeleteFile
    scan: ScanDeleteFile


class _ManifestFiles(NamedTuple):
    """What a manifest holds. Manifests never change, so each is read once."""

    files: Sequence[tuple[CandidateFile, ScanDataFile]] = ()
    deletes: Sequence[TableDelete] = ()


class CompactionJob(Job[CompactionPlan, list[GroupResult]]):
    """The job that rewrites small files."""

    name: ClassVar[str] = NAME

    def __init__(
        self,
        lease: DriverLease,
        tables: TopicTableSet,
        manifests: ManifestCache,
        commit: RewriteCommit,
        writer: GroupWriter,
        offload: Offload,
        effects: Effects,
        clock: Clock,
        options: CompactionOptions,
        report: DriverReport,
    ) -> None:
        """`offload`: a thread that only this job uses. `report` gets the progress of requests."""
        self._lease = lease
        self._tables = tables
        self._manifests = manifests
        self._commit = commit
        self._writer = writer
        self._offload = offload
        self._effects = effects
        self._clock = clock
        self._options = options
        self._report = report
        self._request: MaintenanceRequest | None = None
        now_ns = clock.monotonic_ns()
        self._budget = HourlyBudget(options.cpu_seconds_per_hour, options.bytes_per_hour, now_ns)
        self._next_plan_ns = now_ns + options.interval_ms * 1_000_000
        self._run: _CompactionRun | None = None
        self._changed: set[int] = set()  # ids of topics whose tables have new files
        self._policies: dict[int, str] = {}  # by topic id: its policy `compaction`; empty: it has none
        self._opened: dict[int, TopicTable] = {}  # by topic id: tables of the request that rounds have not loaded
        self._retention_us: dict[int, int] = {}  # by topic id: how long it keeps its rows
        self._left_alone: OrderedDict[frozenset[str], str] = OrderedDict()
        self._decoded: OrderedDict[str, _ManifestFiles] = OrderedDict()

    # --- when ---

    @property
    def is_busy(self) -> bool:
        """A run is under way, or is to be committed, or a request is not fulfilled yet: the driver keeps its lease and
        does not wait long."""
        return self._run is not None or self._request is not None

    def is_due(self, turn: Turn) -> bool:
        if self._run is not None:
            return self._run.task.done()
        if self._request is not None:
            return True
        if not self._changed or self._clock.monotonic_ns() < self._next_plan_ns:
            return False
        return self._budget.wait_seconds(self._clock.monotonic_ns()) == 0

    def request(self, request: MaintenanceRequest, progress: MaintenanceProgress | None = None) -> None:
        """Has tables compacted now, whatever budget and policies say; replaces a request that is not fulfilled yet.
        `progress`: of what was done for the request before."""
        self._request = request
        self._opened.clear()
        for topic_id in [table.topic_id for table in request.tables] or self._tables.loaded_ids():
            # Engines may have deleted rows since our last commit, without a notice to the pipeline.
            if (table := self._tables.loaded(topic_id)) is not None:
                table.is_stale = True
        self._report.maintenance = progress or MaintenanceProgress(request.id)

    def on_table_committed(self, table: TopicTable) -> None:
        self._changed.add(table.topic_id)
        # A table that was reloaded since has no policies until ingest opens it again.
        if table.policy or table.topic_id not in self._policies:
            self._policies[table.topic_id] = table.policy.get("compaction", "")

    # --- planning ---

    async def plan(self, turn: Turn) -> CompactionPlan | None:
        """Returns the results of a run that is over, or what to rewrite next; None if nothing is worth it."""
        if self._run is not None:
            return self._finished(self._run)
        self._retention_us |= {topic.topic_id: topic.age_ms * 1000 for topic in turn.backlog.retained}
        if self._request is not None:
            try:
                return await self._plan_request(self._request)
            except Exception as error:
                if not isinstance(error, errors.IcestreamError):
                    self._abandon_request(f"{type(error).__name__}: {error}")
                raise
        self._next_plan_ns = self._clock.monotonic_ns() + self._options.interval_ms * 1_000_000
        planned: list[TableGroup] = []
        topic_ids = sorted(self._changed)
        with turn.timed("plan_compaction"):
            for topic_id in topic_ids:
                if not turn.guard.may_run(self.name, topic_id):
                    continue
                table = await self._current(topic_id)
                if table is None or not self._is_wanted(topic_id):
                    self._changed.discard(topic_id)
                    continue
                with turn.guard.protect(self.name, topic_id, table.topic):
                    groups = await self._plan_table(table, self._options.rule)
                    planned += groups
                    if not groups and not self._is_waiting(table):
                        self._changed.discard(topic_id)
                    if not groups:
                        turn.guard.succeeded(self.name, topic_id)
        planned.sort(key=lambda entry: -len(entry.group.files))
        step = planned[: limits.COMPACTION_STEP_GROUPS]
        if len(planned) > len(step):  # the rest does not wait for the interval
            self._next_plan_ns = self._clock.monotonic_ns()
        return CompactionPlan(step) if step else None

    async def _plan_request(self, request: MaintenanceRequest) -> CompactionPlan | None:
        """Plans the tables of a request; without anything to do, or for a dry run, the request is fulfilled."""
        progress = self._report.maintenance
        assert progress is not None
        planned: list[TableGroup] = []
        for table in await self._requested_tables(request, progress):
            rule = self._options.rule._replace(is_requested=True)
            planned += await self._plan_table(table, rule, repartitions=request.repartitions)
        if request.is_dry_run:
            groups = [_planned_group(entry) for entry in planned[: limits.MAINTENANCE_PLAN_MAX]]
            progress.plan = [*progress.plan, *groups][: limits.MAINTENANCE_PLAN_MAX]
        progress.groups_planned = max(
            progress.groups_planned, progress.groups_done + progress.groups_left_alone + len(planned)
        )
        if not planned or request.is_dry_run:
            progress.is_done, self._request = True, None
            await self._report.publish()
            return None
        return CompactionPlan(planned[: limits.COMPACTION_STEP_GROUPS])

    async def _requested_tables(self, request: MaintenanceRequest, progress: MaintenanceProgress) -> list[TopicTable]:
        if not request.tables:
            loaded = [await self._current(topic_id) for topic_id in self._tables.loaded_ids()]
            return [table for table in loaded if table is not None]
        tables: list[TopicTable] = []
        for requested in request.tables:
            table = await self._current(requested.topic_id)
            if table is None:
                table = await self._open(requested)
            if table is None:
                progress.reason = f"the table of {requested.topic} cannot be opened by this pipeline now"
            else:
                tables.append(table)
        return tables

    async def _open(self, requested: RequestedTable) -> TopicTable | None:
        """Opens a table that nothing was committed to in the life of this driver; None if it is gone, or written by the
        driver of another node."""
        if not self._options.opens_tables or self._tables.is_halted(requested.topic_id):
            return None
        try:
            table = await self._tables.find(requested.topic_id, requested.topic)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            _log.warning("table cannot be opened", topic=requested.topic, reason=error.message)
            return None
        if table is not None:
            self._opened[requested.topic_id] = table
        return table

    async def _current(self, topic_id: int) -> TopicTable | None:
        """Returns a table as it is after the last commit that is known; None if it is not to be changed now."""
        table = self._tables.loaded(topic_id) or self._opened.get(topic_id)
        if table is None or self._tables.is_halted(topic_id):
            return None
        return await self._tables.refreshed(table) if table.is_stale else table

    def _is_wanted(self, topic_id: int) -> bool:
        policy = self._policies.get(topic_id, "")
        return policy == "on" or (self._options.is_enabled and policy != "off")

    def _is_waiting(self, table: TopicTable) -> bool:
        """True if the table may be worth a plan later although nothing is committed to it: when it counts as idle."""
        manifests = table.manifests or []
        return sum(manifest.live_files for manifest in manifests if manifest.content == DATA_CONTENT) > 1

    async def _plan_table(
        self, table: TopicTable, rule: CompactionRule, *, repartitions: bool = False
    ) -> list[TableGroup]:
        try:
            planned = await self.table_files(table, repartitions=repartitions)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            # Of one table: the others are planned. The next commit to the table has it planned again.
            _log.warning("table not planned for compaction", topic=table.topic, reason=error.message)
            return []
        target = table_policy.target_of(table.table, table.policy, {})
        # A retention by age removes whole files: a group of ten ages at once would keep its oldest rows far too long.
        span_us = self._retention_us.get(table.topic_id, 0) // limits.COMPACTION_AGE_SHARES
        rule = rule._replace(group_bytes=min(rule.group_bytes, target.target_bytes), span_us=span_us)
        groups = plan_groups(planned.files, rule, self._clock.wall_us(), self._left_alone)
        # First the older ones: what they become is merged with the others.
        if older := plan_repartition(planned.older, rule.group_bytes, self._left_alone):
            groups = older
        return [TableGroup(table, group, planned) for group in groups]

    async def erasable_files(self, table: TopicTable) -> PlannedFiles:
        """Like `table_files`, with those of older specs and in manifests of other writers, such as a restore: an
        erasure writes them again in the partition that they have."""
        return await self.table_files(table, repartitions=True, is_any_writer=True)

    async def table_files(
        self, table: TopicTable, *, repartitions: bool = False, is_any_writer: bool = False
    ) -> PlannedFiles:
        """Returns the files of a table that may be rewritten, those of the pipeline and of the present partition spec,
        with the deletes that apply to them; `repartitions`: those of older specs, too. A file that is not in a place
        of the table is left as it is: a manifest that was replaced after its commit could name that of another topic,
        whose rows would become rows of this one (hazard 109)."""
        if table.manifests is None:
            table.manifests = await self._manifests.current_manifests(table.table)
        deletes: dict[str, TableDelete] = {}
        candidates: list[tuple[CandidateFile, ScanDataFile]] = []
        spec_id = table.table.fields["default-spec-id"]
        for manifest in table.manifests:
            if manifest.content != DATA_CONTENT:
                listed = (await self._files_of(table, manifest)).deletes
                deletes |= {delete.file.name: delete for delete in listed}
            elif (is_any_writer or is_ours(manifest)) and (repartitions or manifest.spec_id == spec_id):
                candidates += (await self._files_of(table, manifest)).files
        places = own_places(table.table.location, dict(table.table.properties))
        candidates = [(file, scan) for file, scan in candidates if is_own(file.location, places)]
        index = _DeleteIndex(deletes.values())
        files = [index.with_deletes(file, scan) for file, scan in candidates] if deletes else [f for f, _ in candidates]
        older = [file for file in files if file.spec_id != spec_id]
        present = [file for file in files if file.spec_id == spec_id] if older else files
        return PlannedFiles(present, deletes, planned_number(table.table), older)

    async def _files_of(self, table: TopicTable, manifest: ManifestFile) -> _ManifestFiles:
        decoded = self._decoded.get(manifest.path)
        if decoded is None:
            decode = self._decode if manifest.content == DATA_CONTENT else self._decode_deletes
            decoded = self._decoded[manifest.path] = await decode(table, manifest)
            if len(self._decoded) > limits.COMPACTION_MANIFESTS_MAX:
                self._decoded.popitem(last=False)
        return decoded

    async def _decode(self, table: TopicTable, manifest: ManifestFile) -> _ManifestFiles:
        fields = table.table.current_schema["fields"]
        ids = {column["name"]: column["id"] for column in fields}
        spec = values.find(table.table.fields["partition-specs"], "spec-id", manifest.spec_id)
        if spec is None:
            raise errors.TableUnreadable(f"{manifest.path}: the table has no partition spec {manifest.spec_id}")
        layout = self._manifests.layout(table.table, table.table.current_schema, spec)
        entries = await self._manifests.live_entries(manifest)
        scanned = files_of(entries, manifest.sequence_number, {}, manifest.spec_id)
        return _ManifestFiles(
            [
                (_candidate_file(entry.as_written_file(layout), ids), scan)
                for entry, scan in zip(entries, scanned, strict=True)
                if isinstance(scan, ScanDataFile)
            ]
        )

    async def _decode_deletes(self, table: TopicTable, manifest: ManifestFile) -> _ManifestFiles:
        entries = await self._manifests.live_entries(manifest)
        scanned = files_of(entries, manifest.sequence_number, {}, manifest.spec_id)
        return _ManifestFiles(
            deletes=[
                TableDelete(delete_file_of_entry(entry, manifest.sequence_number), scan)
                for entry, scan in zip(entries, scanned, strict=True)
                if isinstance(scan, ScanDeleteFile)
            ]
        )

    # --- running ---

    async def run(self, turn: Turn, plan: CompactionPlan) -> list[GroupResult]:
        """Starts the Spark job of a plan. Returns the results of one that is over."""
        if plan.results is not None:
            return plan.results
        epoch = self._lease.check()
        jobs = [group_job(number, entry, epoch, self._options.storage) for number, entry in _numbered(plan)]

        async def write() -> list[bytes]:
            targets = await self._options.keys.narrow_all(map(task_files, jobs))
            messages = [
                encode(msgspec.structs.replace(job, target=target)) for job, target in zip(jobs, targets, strict=True)
            ]
            with span("compaction.write", groups=len(jobs), epoch=epoch), self._effects.happens(Effect.REWRITE):
                return await self._offload.run(lambda: self._writer.rewrite(messages))

        task = asyncio.create_task(write(), name="compaction")
        self._run = _CompactionRun(epoch, plan.groups, task, self._clock.monotonic_ns())
        # Tasks in this process are over at once: then the same turn may commit what they wrote.
        await asyncio.sleep(0)
        return []

    def _finished(self, run: _CompactionRun) -> CompactionPlan | None:
        """Returns what a run that is over has written; None if it failed, or if its epoch is over."""
        self._run = None
        error = asyncio.CancelledError() if run.task.cancelled() else run.task.exception()
        if error is not None:
            if not isinstance(error, errors.IcestreamError):
                self._abandon_request(f"{type(error).__name__}: {error}")
                raise error
            _log.warning("compaction failed, planned again", groups=len(run.groups), reason=error.message)
            self._abandon_request(error.message)
            return None
        if run.epoch != self._lease.epoch:
            _log.info("compaction dropped: it ran under an earlier lease", groups=len(run.groups))
            return None
        results = [decode_result(data) for data in run.task.result()]
        seconds = (self._clock.monotonic_ns() - run.start_ns) / 1e9
        for result in results:
            self._budget.spend(result.cpu_seconds, result.read_bytes)
            metrics.PIPELINE_COMPACTION_CPU_SECONDS.inc(result.cpu_seconds)
            metrics.PIPELINE_COMPACTION_BYTES.labels("read").inc(result.read_bytes)
            metrics.PIPELINE_COMPACTION_MEMORY.set(result.memory_bytes)
            if not result.replaced:
                self._leave_alone(run.groups[result.number], result.reason)
        metrics.PIPELINE_STEP_SECONDS.labels("compaction").inc(seconds)
        return CompactionPlan(run.groups, [result for result in results if result.replaced])

    def _abandon_request(self, reason: str) -> None:
        """Ends a request that cannot be fulfilled now: its command says why, and may be given again."""
        if self._request is not None and self._report.maintenance is not None:
            self._report.maintenance.reason, self._report.maintenance.is_done = reason, True
        self._request = None

    def _leave_alone(self, entry: TableGroup, reason: str) -> None:
        """Does not plan this group again: a file that cannot get better is not touched twice."""
        self._left_alone[entry.group.key] = reason
        if len(self._left_alone) > limits.COMPACTION_LEFT_ALONE_MAX:
            self._left_alone.popitem(last=False)
        metrics.PIPELINE_COMPACTION_GROUPS.labels("left_alone").inc()
        if self._request is not None and self._report.maintenance is not None:
            self._report.maintenance.groups_left_alone += 1
            self._report.maintenance.reason = reason
        _log.info("files left alone", topic=entry.table.topic, files=len(entry.group.files), reason=reason)

    async def close(self) -> None:
        """Ends a run that is under way; its files stay for the clean-up."""
        if self._run is not None:
            self._run.task.cancel()
            await asyncio.gather(self._run.task, return_exceptions=True)
            self._run = None

    # --- commit ---

    async def commit(self, turn: Turn, plan: CompactionPlan, result: list[GroupResult]) -> None:
        """Commits what was written, as one rewrite for each table."""
        if not result:
            return
        by_table: dict[int, list[GroupResult]] = {}
        for group_result in result:
            by_table.setdefault(plan.groups[group_result.number].table.topic_id, []).append(group_result)
        with turn.timed("commit_compaction"):
            for topic_id, results in by_table.items():
                topic = plan.groups[results[0].number].table.topic
                is_decided = False
                with turn.guard.protect(self.name, topic_id, topic):
                    await self._commit_table(plan.groups, results)
                    turn.guard.succeeded(self.name, topic_id)
                    is_decided = True
                if not is_decided:
                    # Planned again it would be rewritten again at once: a request asks for no backoff of its tables.
                    self._abandon_request(f"the commit to the table of {topic} failed: `icestream pipeline status`")
                self._changed.add(topic_id)

    async def _commit_table(self, groups: Sequence[TableGroup], results: Sequence[GroupResult]) -> None:
        """Commits the groups of a table whose files are still live, with the deletes that were applied."""
        outcome: object = None
        table, planned = groups[results[0].number].table, groups[results[0].number].planned
        for _ in range(limits.COMPACTION_COMMIT_ATTEMPTS):
            current = await self._current(table.topic_id)
            if current is None:
                break
            table = current
            current_files = await self.table_files(table, repartitions=bool(planned.older))
            still_planned = [result for result in results if is_as_planned(result.replaced, planned, current_files)]
            metrics.PIPELINE_COMPACTION_GROUPS.labels("overtaken").inc(len(results) - len(still_planned))
            results = still_planned
            if not results:
                outcome = None  # refused because the table has changed: planned again
                break
            with self._effects.happens(Effect.COMMIT_CARE):
                outcome = (await self._commit.commit([_rewrite(table, planned, results)])).get(table.topic_id)
            if not isinstance(outcome, NotCommitted) or outcome.is_unresolved:
                break
        if isinstance(outcome, CommittedSnapshot):
            self._count(table, results)
        elif isinstance(outcome, NotCommitted):
            self._abandon_request(outcome.reason)
        elif isinstance(outcome, StopReason):
            # The rows would not be the same: whatever is wrong with these files, another attempt makes it no better.
            for result in results:
                self._left_alone[groups[result.number].group.key] = outcome.reason
                metrics.PIPELINE_COMPACTION_GROUPS.labels("refused").inc()

    def _count(self, table: TopicTable, results: Sequence[GroupResult]) -> None:
        replaced = sum(len(result.replaced) for result in results)
        added = [file for result in results for file in result.files]
        metrics.PIPELINE_COMPACTION_GROUPS.labels("committed").inc(len(results))
        if self._request is not None and self._report.maintenance is not None:
            self._report.maintenance.groups_done += len(results)
            self._report.maintenance.replaced_files += replaced
            self._report.maintenance.added_files += len(added)
        metrics.PIPELINE_COMPACTION_FILES.labels("replaced").inc(replaced)
        metrics.PIPELINE_COMPACTION_FILES.labels("added").inc(len(added))
        metrics.PIPELINE_COMPACTION_DELETED_ROWS.inc(sum(parse_digest(result.deleted_rows).rows for result in results))
        metrics.PIPELINE_COMPACTION_ROWS.inc(sum(file.rows for file in added))
        metrics.PIPELINE_COMPACTION_BYTES.labels("written").inc(sum(file.size_bytes for file in added))
        _log.info(
            "table compacted",
            topic=table.topic,
            replaced_files=replaced,
            files=len(added),
            rows=sum(file.rows for file in added),
            cpu_seconds=round(sum(result.cpu_seconds for result in results), 3),
        )


# --- pure parts -------------------------------------------------------------------------------------------------------


def _numbered(plan: CompactionPlan) -> list[tuple[int, TableGroup]]:
    return list(enumerate(plan.groups))


def _planned_group(entry: TableGroup) -> PlannedGroup:
    rows = sum(file.rows for file in entry.group.files)
    detail = "into the present partitions" if entry.group.repartitions else ""
    return PlannedGroup(str(entry.table.identifier), len(entry.group.files), entry.group.bytes, rows, detail=detail)


def group_job(number: int, entry: TableGroup, epoch: int, storage: Mapping[str, Any]) -> GroupJob:
    table = entry.table
    # Files may have columns of MQTT topics whatever the policy says by now: the schema decides.
    mqtt = MqttTarget(table.topic)
    target = msgspec.structs.replace(table_policy.target_of(table.table, table.policy, storage, mqtt), epoch=epoch)
    names = sorted({name for file in entry.group.files for name in file.applied})
    numbers = {name: number for number, name in enumerate(names)}
    files = [
        InputFile(file.location, file.rows, [numbers[name] for name in file.applied]) for file in entry.group.files
    ]
    deletes = [_delete_input(entry.planned.deletes[name].scan) for name in names]
    partition = list(entry.group.partition)
    return GroupJob(number, table.topic_id, target, partition, files, deletes, repartitions=entry.group.repartitions)


def task_files(job: GroupJob) -> TaskFiles:
    return TaskFiles(job.target, [*(file.location for file in job.files), *(delete.path for delete in job.deletes)])


def _delete_input(delete: ScanDeleteFile) -> DeleteInput:
    return DeleteInput(
        delete.path,
        delete.format,
        delete.content,
        delete.rows,
        delete.size_bytes,
        list(delete.equality_ids),
        delete.blob,
    )


def applicable_deletes(replaced: Collection[str], planned: PlannedFiles) -> frozenset[str]:
    """Names of the delete files that may apply to replaced files."""
    locations, files = set(replaced), (*planned.files, *planned.older)
    return frozenset(name for file in files if file.location in locations for name in file.deletes)


def is_as_planned(replaced: Collection[str], planned: PlannedFiles, current: PlannedFiles) -> bool:
    """Whether replaced files are still live, and neither lost nor got a delete that their rewrite has to apply."""
    live = {file.location: file for file in (*current.files, *current.older)}
    if not live.keys() >= set(replaced):
        return False
    applied = applicable_deletes(replaced, planned)
    present = {
        name
        for location in replaced
        for name in live[location].deletes
        if current.is_applied(name, planned.sequence_number)
    }
    return present <= applied <= current.deletes.keys()


def _rewrite(table: TopicTable, planned: PlannedFiles, results: Sequence[GroupResult]) -> TableRewrite:
    return TableRewrite(
        table,
        [location for result in results for location in result.replaced],
        [file for result in results for file in result.files],
        sum_of(parse_digest(result.replaced_rows) for result in results),
        sum_of(parse_digest(result.added_rows) for result in results),
        NAME,
        planned.sequence_number,
        sum_of(parse_digest(result.deleted_rows) for result in results),
        applicable_deletes([location for result in results for location in result.replaced], planned),
    )


class _DeleteIndex:
    """The delete files of a table, by the data files that they name."""

    def __init__(self, deletes: Iterable[TableDelete]) -> None:
        self._by_path: dict[str, list[TableDelete]] = {}
        self._others: list[TableDelete] = []
        for delete in deletes:
            if delete.file.paths is not None and delete.file.paths[0] == delete.file.paths[1]:
                self._by_path.setdefault(delete.file.paths[0].decode("utf-8", "replace"), []).append(delete)
            else:
                self._others.append(delete)

    def with_deletes(self, file: CandidateFile, scan: ScanDataFile) -> CandidateFile:
        data_file = DataFile(scan.path, scan.rows, None, None, scan.sequence)
        own = [delete for delete in self._by_path.get(scan.path, ()) if delete.file.may_apply_to(data_file)]
        deletes = [*own, *(delete for delete in self._others if delete.file.may_apply_to(data_file))]
        return file._replace(
            deletes=tuple(delete.file.name for delete in deletes),
            applied=tuple(delete.file.name for delete in deletes if delete.scan.applies_to(scan)),
            deleted_rows=min(file.rows, sum(delete.file.rows for delete in own)),
        )


def _candidate_file(file: WrittenFile, ids: Mapping[str, int]) -> CandidateFile:
    def bound(bounds: Mapping[int, bytes], column: str) -> int:
        return integer_from_bytes(bounds.get(ids[column])) or 0

    partition = cast("tuple[Hashable, ...]", tuple(file.partition))
    return CandidateFile(
        file.location,
        file.rows,
        file.size_bytes,
        partition,
        bound(file.lower_bounds, "append_time"),
        bound(file.upper_bounds, "append_time"),
        bound(file.lower_bounds, "offset"),
        spec_id=file.spec_id,
    )
