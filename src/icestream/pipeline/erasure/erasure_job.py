"""Erasure as a job of the driver (docs/adr/0119): one request at a time, step by step between rounds of ingest.

    commit    wait until everything that was synced when the request came is in the table
    search    every data file that a snapshot names, a few in each Spark job. A dry run ends here
              A live file that is gone meanwhile has everything searched again
    erase     the files of main that have the messages are written again, a few at a time; each commit removes rows and
              records their offsets in one transaction (catalog/topic_rules/erase_claim.py). What compaction changed
              meanwhile has everything searched again
    history   snapshots, tags and branches that have the messages are removed, or name other files from now on, as the
              request says. Entries of removed files, whose bounds may tell of the messages, go from all snapshots
    log       the broker retires the log files that have rows below the cut
    report    what was searched and removed, what is pending, and what remains to be done elsewhere

A check searches files that no snapshot names, too, reads every manifest, and asks the broker what its log has; it
changes nothing.

Nothing but the record of erased offsets is stored: the predicate names a person. After a crash the command is given
again, and goes on where the erasure ended, since what was erased matches no more.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import msgspec

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_holds import BACKUP_TAG, held_snapshots
from icestream.catalog.plans.commit_plans import erased_record
from icestream.catalog.topic_rules.erased_record import ErasedRecord, StatedErasure
from icestream.catalog.topic_rules.history_claim import ExchangedFile, HistoryClaim, history_requirement
from icestream.catalog.topic_rules.rewritten_rows import delete_file_of_entry
from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, TableCatalog, TableChange
from icestream.iceberg import values
from icestream.iceberg.conversions import BOUND_LENGTH
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import object_identity
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifests import (
    DATA_CONTENT,
    EQUALITY_DELETES_CONTENT,
    ManifestEntry,
    ManifestFile,
)
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.metadata.store import MetadataStore
from icestream.model.erased_offsets import NOTHING_ERASED, ErasedOffsets, decode_erased, encode_erased
from icestream.model.erasure_messages import (
    ErasureFindings,
    ErasureMode,
    ErasureProgress,
    ErasureRequest,
    HistoryChoice,
    request_key,
)
from icestream.model.erasure_predicate import check_columns, comparisons_of, parse_predicate
from icestream.model.pipeline_file_name import erased_name
from icestream.model.row_digest import parse_digest, sum_of
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.observability.words import counted
from icestream.pipeline.commit.committer import CommittedSnapshot, NotCommitted
from icestream.pipeline.commit.offset_ledger import ErasedChange
from icestream.pipeline.commit.snapshot_builder import metadata_folder
from icestream.pipeline.compaction.compaction_job import (
    PlannedFiles,
    TableGroup,
    applicable_deletes,
    group_job,
    is_as_planned,
)
from icestream.pipeline.compaction.compaction_plan import CandidateFile, FileGroup
from icestream.pipeline.compaction.group_messages import GroupJob, InputFile
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.job import Job, JobRegistry, Turn
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.rewrite_commit import RewriteCommit, TableErasure, TableRewrite
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.erasure.history_rewrite import HistoryChange, HistoryRewrite
from icestream.pipeline.erasure.search_messages import SearchJob, SearchResult, decode_found, encode
from icestream.pipeline.round_plan import MqttTarget
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.table_policy import data_folder
from icestream.pipeline.tables.topic_table import TopicTable
from icestream.pipeline.task_keys import NO_TASK_KEYS, TaskFiles, TaskKeys
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Offload

_log = get_logger("pipeline.erasure")
NAME: Final = "erasure"
_REWRITABLE_FORMAT: Final = 2  # entries of v3 have row ids, which a file with fewer rows would shift
_DROP_HINT: Final = "`--history drop` removes the snapshots instead; nothing was changed"


class FileSearcher(Protocol):
    """Runs the tasks of an erasure. Blocking: the job calls it in a thread of its own."""

    def search(self, search_jobs: Sequence[bytes]) -> list[bytes]: ...


class ErasureBroker(Protocol):
    """The broker, as far as an erasure needs it."""

    async def next_erasure(self) -> ErasureRequest | None:
        """The request that waits for the driver; None if there is none."""

    async def report_erasure(self, progress: ErasureProgress) -> bool:
        """Reports progress; False if no command waits for this any more, as after a restart of the broker."""

    async def retire_log(self, topic_id: int, cut: Mapping[int, int], *, is_check: bool) -> list[str]:
        """Retires the log files that have rows of a topic below the cut. Returns what is left, in words."""

    async def retained_places(self, topic_id: int, after: tuple[int, int] | None) -> list[tuple[int, int]]:
        """The next rows of a topic that are retained messages of MQTT, by shard and offset."""

    async def forget_retained(self, topic_id: int, places: Sequence[tuple[int, int]]) -> None:
        """Drops retained messages of erased rows for good."""


@dataclass(frozen=True)
class ErasureOptions:
    """How an erasure reaches files."""

    storage: Mapping[str, Any] = field(default_factory=dict)
    keys: TaskKeys = NO_TASK_KEYS
    clean_up_delay_ms: int = limits.CATALOG_FILE_GRACE_MS
    lease_name: str = ""  # of the driver's lease; empty: the lease of a single node


class _TableFiles(NamedTuple):
    """The data files of a table, by what is to be done with them."""

    main: Mapping[str, CandidateFile]  # live files that can be written again
    foreign: frozenset[str]  # live files that only the engine that wrote them can write again
    planned: PlannedFiles
    deletes: frozenset[str]  # files of live deletes by value: they have values of rows that they delete
    history: Mapping[int, frozenset[str]]  # by snapshot: files of snapshots that are not main, both kinds
    history_deletes: frozenset[str] = frozenset()
    strays: frozenset[str] = frozenset()  # files in the folder that no snapshot names; of a check alone

    @property
    def others(self) -> frozenset[str]:
        """The files that are searched and not written again."""
        return (self.foreign | self.deletes | self.strays).union(*self.history.values()) - self.main.keys()

    @property
    def all_deletes(self) -> frozenset[str]:
        """Files of deletes by value, of any snapshot."""
        return self.deletes | self.history_deletes


@dataclass
class _Erasure:
    """The request that is under way."""

    request: ErasureRequest
    progress: ErasureProgress
    deadline_ns: int
    phase: str = "commit"
    attempts: int = 0
    table: TopicTable | None = None
    files: _TableFiles | None = None
    waiting: list[SearchJob] = field(default_factory=list)  # to be searched, or to be written again
    locations: dict[int, str] = field(default_factory=dict)  # by the number of the job
    results: dict[int, SearchResult] = field(default_factory=dict)
    matched: set[str] = field(default_factory=set)  # files with messages that match; files never change
    foreign: set[str] = field(default_factory=set)  # searched files that an engine wrote
    erase_epoch: int = 0  # of the pipeline that writes files of main again: under another one they cannot be committed
    exchanged: dict[str, SearchResult] = field(default_factory=dict)  # by file of history: what it was written again as
    exchange_epoch: int = 0  # the same, of these files
    rewrite: HistoryRewrite | None = None
    settled: set[int] = field(default_factory=set)  # snapshots whose manifests are as they must be
    task: asyncio.Task[list[bytes]] | None = None
    cut: dict[int, int] = field(default_factory=dict)
    next_look_ns: int = 0


class _Refused(Exception):
    """An erasure that cannot be finished, with what its command says."""

    def __init__(self, error: str, hint: str = "") -> None:
        super().__init__(error)
        self.error, self.hint = error, hint


class ErasureJob(Job[_Erasure, None]):
    """The job that erases messages from tables of our own catalog, and has the log retire its files."""

    name: ClassVar[str] = NAME

    def __init__(
        self,
        broker: ErasureBroker,
        store: MetadataStore,
        catalog: TableCatalog,
        lease: DriverLease,
        tables: TopicTableSet,
        manifests: ManifestCache,
        list_files: Callable[[TopicTable], Any],
        files: TableFiles,
        commits: RewriteCommit,
        jobs: JobRegistry,
        searcher: FileSearcher,
        offload: Offload,
        effects: Effects,
        clock: Clock,
        randomness: Randomness,
        options: ErasureOptions,
    ) -> None:
        """`list_files`: the files of a table that can be written again (CompactionJob.erasable_files). `offload`: a
        thread that only this job uses. `jobs` hear of what is removed."""
        self._broker = broker
        self._store = store
        self._catalog = catalog
        self._lease = lease
        self._tables = tables
        self._manifests = manifests
        self._list_files = list_files
        self._files = files
        self._commits = commits
        self._jobs = jobs
        self._searcher = searcher
        self._offload = offload
        self._effects = effects
        self._clock = clock
        self._randomness = randomness
        self._options = options
        self._is_asked = False
        self._current: _Erasure | None = None

    # --- when ---

    def ask(self) -> None:
        """The broker has a request: it is fetched in the next turn."""
        self._is_asked = True

    @property
    def is_busy(self) -> bool:
        return self._is_asked or self._current is not None

    def is_due(self, turn: Turn) -> bool:
        if self._current is None:
            return self._is_asked
        is_running = self._current.task is not None and not self._current.task.done()
        return not is_running and self._clock.monotonic_ns() >= self._current.next_look_ns

    async def plan(self, turn: Turn) -> _Erasure | None:
        if self._current is None:
            self._is_asked = False
            request = await self._broker.next_erasure()
            if request is None:
                return None
            deadline_ns = self._clock.monotonic_ns() + int(limits.ERASURE_COMMIT_SECONDS * 1e9)
            self._current = _Erasure(request, ErasureProgress(request.id), deadline_ns)
        return self._current

    # --- one step ---

    async def run(self, turn: Turn, plan: _Erasure) -> None:
        """Does the next step. What only the operator can change ends the erasure, everything else is tried again."""
        try:
            with turn.timed("erasure"):
                await self._step(plan)
        except _Refused as refusal:
            await self._end(plan, refusal.error, refusal.hint)
        except (errors.LeaseLost, errors.StorageUnavailable, errors.ConnectionLost):
            # Begun anew with the next turn: what was erased is, and matches no more.
            self._begin_again(plan)
            raise
        except errors.IcestreamError as error:
            await self._end(plan, error.message, error.hint or "")
        except Exception:
            # The step may be half done: files that it took from `waiting` are neither searched nor written again.
            self._begin_again(plan)
            raise
        else:
            # A broker that was restarted knows nothing of the request: its command has ended, too.
            if self._current is plan and not await self._broker.report_erasure(plan.progress):
                _log.warning("erasure ends: the broker was restarted", topic=plan.request.topic)
                await self.close()

    async def _step(self, erasure: _Erasure) -> None:
        match erasure.phase:
            case "commit":
                await self._wait_for_commits(erasure)
            case "search":
                await self._search(erasure)
            case "erase":
                await self._erase(erasure)
            case "rewrite":
                await self._write_history(erasure)
            case "history":
                await self._settle_history(erasure)
            case "log":
                await self._retire_log(erasure)
        erasure.progress.phase = erasure.phase

    async def _end(self, erasure: _Erasure, error: str = "", hint: str = "") -> None:
        erasure.progress.is_done, erasure.progress.error, erasure.progress.hint = True, error, hint
        self._current = None
        log = _log.warning if error else _log.info
        findings = erasure.progress.findings
        log(
            "erasure ended",
            topic=erasure.request.topic,
            mode=str(erasure.request.mode),
            erased=findings.erased,
            reason=error or "finished",
        )
        await self._broker.report_erasure(erasure.progress)

    def _begin_again(self, erasure: _Erasure) -> None:
        """Searches everything again: the table changed under the erasure, or a step of it failed."""
        if erasure.task is not None:
            erasure.task.cancel()
        erasure.attempts += 1
        erasure.phase, erasure.task, erasure.table, erasure.files = "commit", None, None, None
        erasure.waiting, erasure.results = [], {}
        erasure.rewrite = None
        erasure.settled.clear()
        erasure.deadline_ns = self._clock.monotonic_ns() + int(limits.ERASURE_COMMIT_SECONDS * 1e9)

    async def close(self) -> None:
        """Ends an erasure that is under way; its files stay for the clean-up."""
        erasure, self._current = self._current, None
        if erasure is not None and erasure.task is not None:
            erasure.task.cancel()
            await asyncio.gather(erasure.task, return_exceptions=True)

    # --- commit ---

    async def _wait_for_commits(self, erasure: _Erasure) -> None:
        """Waits until the table has what the log had when the request came. Then what is searched is fixed."""
        request = erasure.request
        if erasure.attempts > limits.ERASURE_ATTEMPTS_MAX:
            raise _Refused(
                f"the table changed, or a step failed, {limits.ERASURE_ATTEMPTS_MAX} times while messages were erased",
                "see failures in `icestream pipeline status`, and try again when engines and compaction are less busy; "
                "what was erased stays erased",
            )
        if self._tables.is_halted(request.topic_id):
            raise _Refused(
                f"topic {request.topic} is halted: its messages do not get into its table",
                "`icestream pipeline status` says why",
            )
        table = await self._tables.find(request.topic_id, request.topic)
        if table is None:
            raise _Refused(f"topic {request.topic} has no table", "`icestream lake commit-now` creates it")
        refreshed = await self._tables.refreshed(table)
        if refreshed is None:
            raise _Refused(f"the table of {request.topic} cannot be opened by this pipeline now")
        missing = [shard for shard, end in request.ends.items() if refreshed.next_offsets.get(shard, 0) < end]
        if missing and self._clock.monotonic_ns() < erasure.deadline_ns:
            erasure.next_look_ns = self._clock.monotonic_ns() + limits.JOB_LOOK_MS * 1_000_000
            return
        if missing:
            raise _Refused(
                f"shard {missing[0]} of {request.topic} was not committed within {limits.ERASURE_COMMIT_SECONDS:.0f} s",
                "`icestream pipeline status` says what keeps the pipeline",
            )
        check_columns(parse_predicate(request.where), _column_types(refreshed.table))
        erasure.table, erasure.cut, erasure.phase = refreshed, dict(refreshed.next_offsets), "search"
        findings = erasure.progress.findings
        findings.table, findings.history = str(refreshed.identifier), request.history
        findings.cut = {str(shard): end for shard, end in sorted(erasure.cut.items())}
        if request.mode is ErasureMode.CHECK:
            await self._take_cut_of_record(erasure)

    async def _take_cut_of_record(self, erasure: _Erasure) -> None:
        record = await self._record(erasure.request.topic_id)
        if record is None:
            raise _Refused(f"nothing was erased from topic {erasure.request.topic}", "erase first, then check")
        erasure.cut = dict(record.cut)
        erasure.progress.findings.cut = {str(shard): end for shard, end in sorted(erasure.cut.items())}

    async def _record(self, topic_id: int) -> ErasedRecord | None:
        return erased_record(topic_id, await self._store.get(catalog_keys.erased_key(topic_id)))

    # --- search ---

    async def _search(self, erasure: _Erasure) -> None:
        assert erasure.table is not None
        request = erasure.request
        if erasure.files is None:
            erasure.files = await self._table_files(erasure)
            erasure.waiting = self._search_jobs(erasure)
            erasure.progress.done, erasure.progress.all = 0, len(erasure.waiting)
        if not await self._run_tasks(erasure):
            return
        if any(result.is_gone and self._has_heirs(erasure, number) for number, result in erasure.results.items()):
            self._begin_again(erasure)
            return
        self._count(erasure)
        is_blocked = erasure.matched & (erasure.files.foreign | (erasure.files.main.keys() & erasure.foreign))
        if request.history is HistoryChoice.REWRITE and request.mode is not ErasureMode.CHECK:
            await self._check_rewritable(erasure)
        if request.mode is ErasureMode.CHECK:
            await self._check_places(erasure)
            return
        if is_blocked:
            raise _Refused(
                f"{counted(len(is_blocked), 'data file')} of another engine, or outside of the table's folders, with "
                f"these messages, such as {min(is_blocked)}",
                "delete the rows with that engine (DELETE, then rewrite_data_files), and erase again",
            )
        if request.mode is ErasureMode.DRY_RUN:
            await self._end(erasure)
            return
        if erasure.progress.findings.snapshots and request.history is HistoryChoice.REFUSE:
            raise _Refused(
                f"{counted(len(erasure.progress.findings.snapshots), 'older snapshot')} of the table, tags included, "
                "have the messages",
                "`--history drop` removes these snapshots, tags and branches; `--history rewrite` keeps them, without "
                "the messages. Nothing was changed",
            )
        erasure.waiting, erasure.erase_epoch = self._erase_jobs(erasure), self._lease.check()
        erasure.progress.done, erasure.progress.all = 0, len(erasure.waiting)
        erasure.results, erasure.phase = {}, "erase" if erasure.waiting else "history"

    async def _table_files(self, erasure: _Erasure) -> _TableFiles:
        table = erasure.table
        assert table is not None
        planned: PlannedFiles = await self._list_files(table)
        main = {file.location: file for file in (*planned.files, *planned.older)}
        live, deletes = await self._searched_paths(table.manifests or ())
        history: dict[int, frozenset[str]] = {}
        history_deletes: set[str] = set()
        for snapshot in table.table.snapshots:
            if snapshot["snapshot-id"] != table.table.current_snapshot_id:
                if "manifest-list" not in snapshot:
                    raise _Refused(
                        f"snapshot {snapshot['snapshot-id']} of {table.identifier} has no manifest list",
                        "expire it first: it is of format v1",
                    )
                manifests = await self._manifests.list_manifests(str(snapshot["manifest-list"]))
                data, by_value = await self._searched_paths(manifests)
                history[snapshot["snapshot-id"]] = data | by_value
                history_deletes |= by_value
        strays: frozenset[str] = frozenset()
        if erasure.request.mode is ErasureMode.CHECK:
            named = {object_identity(path) for path in live.union(deletes, *history.values())}
            folders = {table.table.location.rstrip("/"), data_folder(table.table)}
            below = [f"{folder}/{name}" for folder in folders for name in await self._files.files_below(folder)]
            strays = frozenset(
                location
                for location in below
                if location.endswith(".parquet") and object_identity(location) not in named
            )
        return _TableFiles(main, live - main.keys(), planned, deletes, history, frozenset(history_deletes), strays)

    async def _searched_paths(self, manifests: Sequence[ManifestFile]) -> tuple[frozenset[str], frozenset[str]]:
        """The files of manifests that have values of messages: data files, and deletes by value."""
        data: set[str] = set()
        by_value: set[str] = set()
        for manifest in manifests:
            for entry in await self._manifests.live_entries(manifest):
                if manifest.content == DATA_CONTENT:
                    data.add(entry.file_path)
                elif entry.content == EQUALITY_DELETES_CONTENT:
                    by_value.add(entry.file_path)
        return frozenset(data), frozenset(by_value)

    def _search_jobs(self, erasure: _Erasure) -> list[SearchJob]:
        assert erasure.table is not None
        assert erasure.files is not None
        jobs: list[SearchJob] = []
        erasure.locations = {}
        cut = erasure.cut if erasure.request.mode is ErasureMode.CHECK else {}
        for file in erasure.files.main.values():
            group = self._group(len(jobs), erasure, file)
            jobs.append(SearchJob(len(jobs), group, erasure.request.where, cut=cut))
            erasure.locations[len(jobs) - 1] = file.location
        target = self._target(erasure.table)
        for location in sorted(erasure.files.others):
            group = GroupJob(len(jobs), erasure.table.topic_id, target, [], [InputFile(location, 0)])
            is_delete = location in erasure.files.all_deletes
            where = erasure.request.where
            jobs.append(SearchJob(len(jobs), group, where, is_live=False, is_delete=is_delete, cut=cut))
            erasure.locations[len(jobs) - 1] = location
        return jobs

    def _erase_jobs(self, erasure: _Erasure) -> list[SearchJob]:
        """The files of main that have the messages, to be written again; and those to which a delete by value with the
        messages may apply, so that it is not needed any more."""
        assert erasure.files is not None
        planned = erasure.files.planned
        deletes = {name for name, delete in planned.deletes.items() if delete.file.location in erasure.matched}
        files = [
            file
            for location, file in sorted(erasure.files.main.items())
            if location in erasure.matched or deletes.intersection(file.deletes)
        ]
        erasure.locations = dict(enumerate(file.location for file in files))
        return [
            SearchJob(number, self._group(number, erasure, file), erasure.request.where, is_written_again=True)
            for number, file in enumerate(files)
        ]

    def _group(self, number: int, erasure: _Erasure, file: CandidateFile) -> GroupJob:
        assert erasure.table is not None
        assert erasure.files is not None
        entry = TableGroup(erasure.table, FileGroup((file,)), erasure.files.planned)
        job = group_job(number, entry, self._lease.check(), self._options.storage)
        # It stays in the partition that it has, also in one of an older spec.
        spec = values.find(erasure.table.table.fields["partition-specs"], "spec-id", file.spec_id)
        target = job.target if spec is None else msgspec.structs.replace(job.target, spec=spec)
        return msgspec.structs.replace(job, target=target, memory_bytes=limits.ERASURE_TASK_BYTES)

    def _target(self, table: TopicTable) -> Any:
        mqtt = MqttTarget(table.topic)
        target = table_policy.target_of(table.table, table.policy, self._options.storage, mqtt)
        return msgspec.structs.replace(target, epoch=self._lease.check())

    async def _run_tasks(self, erasure: _Erasure) -> bool:
        """Starts the next Spark job, or takes the results of the last one. Returns whether all files are done."""
        if erasure.task is not None:
            task, erasure.task = erasure.task, None
            for result in map(decode_found, task.result()):
                if result.reason:
                    raise _Refused(f"a data file cannot be searched or written again: {result.reason}")
                if result.is_foreign:
                    erasure.foreign.add(erasure.locations[result.number])
                if result.matched:
                    erasure.matched.add(erasure.locations[result.number])
                erasure.results[result.number] = result
                erasure.progress.done += 1
        if not erasure.waiting:
            return True
        step = erasure.waiting[: limits.ERASURE_STEP_FILES]
        erasure.waiting = erasure.waiting[len(step) :]
        files = [
            TaskFiles(
                job.group.target, [file.location for file in job.group.files] + [d.path for d in job.group.deletes]
            )
            for job in step
        ]

        async def search() -> list[bytes]:
            targets = await self._options.keys.narrow_all(files)
            messages = [
                encode(msgspec.structs.replace(job, group=msgspec.structs.replace(job.group, target=target)))
                for job, target in zip(step, targets, strict=True)
            ]
            with self._effects.happens(Effect.SEARCH):
                return await self._offload.run(lambda: self._searcher.search(messages))

        erasure.task = asyncio.create_task(search(), name="erasure")
        await asyncio.sleep(0)  # tasks in this process are over at once
        return False

    def _has_heirs(self, erasure: _Erasure, number: int) -> bool:
        """Whether the rows of a listed file may be in a file that is younger than the list: compaction goes on during a
        search, and writes files of main again, as engines do with those of branches. What only former snapshots and no
        snapshot name is written again by nothing."""
        assert erasure.files is not None
        assert erasure.table is not None
        files, location = erasure.files, erasure.locations[number]
        return (
            location in files.main
            or location in files.foreign
            or location in files.deletes
            or any(location in files.history.get(head, ()) for head in _branch_heads(erasure.table.table))
        )

    def _count(self, erasure: _Erasure) -> None:
        assert erasure.files is not None
        findings, results = erasure.progress.findings, erasure.results
        is_main = {number: location in erasure.files.main for number, location in erasure.locations.items()}
        findings.files_searched = sum(not result.is_gone for result in results.values())
        findings.messages = sum(result.live for number, result in results.items() if is_main[number])
        findings.newer = sum(result.newer for number, result in results.items() if is_main[number])
        matched_rows = sum(result.matched for number, result in results.items() if is_main[number])
        findings.deleted_before = max(0, matched_rows + findings.newer - findings.messages)
        history = {path for paths in erasure.files.history.values() for path in paths}
        findings.files_of_history = len((history - erasure.files.main.keys()) & erasure.matched)
        table = erasure.table
        assert table is not None
        stale = self._snapshots_with(erasure)
        findings.snapshots = [str(snapshot_id) for snapshot_id in stale]
        findings.references = sorted(
            name for name, reference in table.table.references.items() if reference["snapshot-id"] in stale
        )

    def _snapshots_with(self, erasure: _Erasure) -> list[int]:
        """The snapshots beside main that name a file with the messages."""
        assert erasure.files is not None
        return [snapshot_id for snapshot_id, paths in erasure.files.history.items() if paths & erasure.matched]

    # --- erase ---

    async def _erase(self, erasure: _Erasure) -> None:
        """Writes files again, and commits each step: what compaction may overtake is small."""
        is_all = await self._run_tasks(erasure)
        if erasure.results:
            results, erasure.results = erasure.results, {}
            if not await self._commit(erasure, results):
                self._begin_again(erasure)
                return
        if is_all:
            erasure.phase = "history"

    async def _commit(self, erasure: _Erasure, results: Mapping[int, SearchResult]) -> bool:
        """Commits files that were written again, with the offsets of the rows that they leave out. False if the table
        changed: everything is searched again."""
        assert erasure.table is not None
        assert erasure.files is not None
        if any(result.is_gone for result in results.values()):
            return False
        if self._lease.check() != erasure.erase_epoch:
            return False  # a failure of ingest, or a lease that was lost meanwhile, ends an epoch
        table = await self._tables.refreshed(erasure.table)
        if table is None:
            return False
        replaced = [erasure.locations[number] for number in results]
        planned, current = erasure.files.planned, await self._list_files(table)
        applied = applicable_deletes(replaced, planned)
        if not is_as_planned(replaced, planned, current):
            return False
        stated = await self._note_offsets(table, erasure, results.values())
        rewrite = TableRewrite(
            table,
            replaced,
            [file for result in results.values() for file in result.files],
            sum_of(parse_digest(result.replaced_rows) for result in results.values()),
            sum_of(parse_digest(result.added_rows) for result in results.values()),
            NAME,
            planned.sequence_number,
            sum_of(parse_digest(result.deleted_rows) for result in results.values()),
            applied,
        )
        rows = sum_of(parse_digest(result.erased_rows) for result in results.values())
        change = TableErasure(rewrite, ErasedChange(stated, rows))
        outcome = (await self._commits.commit([change])).get(table.topic_id)
        if isinstance(outcome, CommittedSnapshot):
            findings = erasure.progress.findings
            findings.erased += rows.rows
            metrics.ERASED_MESSAGES.inc(rows.rows)
            findings.files_rewritten += len(replaced)
            findings.snapshot_id = outcome.snapshot_id
            return True
        if isinstance(outcome, NotCommitted) or outcome is None:
            return False
        raise _Refused(outcome.reason, outcome.hint)

    async def _note_offsets(
        self, table: TopicTable, erasure: _Erasure, results: Iterable[SearchResult]
    ) -> StatedErasure:
        """Writes the erased offsets of the topic with those of some files, unless the record has them all."""
        record = await self._record(table.topic_id)
        erased, cut = await self._erased(record), dict(erasure.cut)
        total = erased
        for result in results:
            total = total.plus(ErasedOffsets(result.erased))
        if record is not None and total == erased:
            return StatedErasure(record.offsets, record.sha256, record.count, record.ranges, cut)
        if total.range_count > limits.ERASED_RANGES_MAX:
            raise _Refused(
                f"the erased offsets of the topic would be {total.range_count} ranges, more than "
                f"{limits.ERASED_RANGES_MAX}",
                "narrow the predicate, or let the topic's retention remove the messages",
            )
        data = await self._offload.run(lambda: encode_erased(total))
        name = erased_name(self._lease.check(), self._randomness.token(16).hex())
        location = f"{metadata_folder(table.table)}/{name}"
        with self._effects.happens(Effect.NOTE_OFFSETS):
            await self._files.create(location, [data])
        sha256 = hashlib.sha256(data).hexdigest()
        return StatedErasure(location, sha256, total.offset_count, total.range_count, cut)

    async def _erased(self, record: ErasedRecord | None) -> ErasedOffsets:
        """The offsets that were erased before. Raises DecodeError for a side file that is not the recorded one."""
        if record is None:
            return NOTHING_ERASED
        data = await self._files.read(record.offsets)
        if hashlib.sha256(data).hexdigest() != record.sha256:
            raise errors.DecodeError(
                f"{record.offsets} is not the recorded file of erased offsets", hint="restore it from a backup"
            )
        return decode_erased(data)

    # --- history ---

    async def _check_rewritable(self, erasure: _Erasure) -> None:
        """Refuses a rewrite of history that would change more than the messages, before anything is changed."""
        assert erasure.table is not None
        assert erasure.files is not None
        table, matched, files = erasure.table.table, erasure.matched, erasure.files
        if table.format_version != _REWRITABLE_FORMAT:
            raise _Refused(f"history of a table of format v{table.format_version} is not rewritten", _DROP_HINT)
        stale = set(self._snapshots_with(erasure))
        if heads := stale & _branch_heads(table):
            names = [name for name, reference in table.references.items() if reference["snapshot-id"] in heads]
            raise _Refused(
                f"branch {min(names)} has the messages: its engine may be about to commit to it",
                "delete the rows on the branch with that engine and expire the snapshots, or drop the branch",
            )
        if by_value := files.all_deletes & matched:
            raise _Refused(f"deletes by value have the messages, such as {min(by_value)}", _DROP_HINT)
        others = set().union(*(files.history[snapshot_id] for snapshot_id in stale)) & matched
        if foreign := others & erasure.foreign:
            raise _Refused(f"{min(foreign)}, a data file of another engine, has the messages", _DROP_HINT)
        # What main deletes now its former snapshots will delete, too, once the erasure has written its files again.
        if any(matched & paths for paths in (*files.history.values(), files.main.keys())):
            await self._check_no_positions(erasure, stale)

    async def _check_no_positions(self, erasure: _Erasure, stale: Collection[int]) -> None:
        """Deletes by position name rows by file and place, and would miss them in other files."""
        assert erasure.table is not None
        table = erasure.table.table
        lists = [
            str(snapshot["manifest-list"])
            for snapshot in table.snapshots
            if snapshot["snapshot-id"] in stale or snapshot["snapshot-id"] == table.current_snapshot_id
        ]
        manifests = {
            manifest.path: manifest
            for location in lists
            for manifest in await self._manifests.list_manifests(location)
            if manifest.content != DATA_CONTENT
        }
        for manifest in manifests.values():
            for entry in await self._manifests.live_entries(manifest):
                paths = delete_file_of_entry(entry, manifest.sequence_number).paths
                if entry.content != EQUALITY_DELETES_CONTENT and (
                    paths is None or any(paths[0] <= path.encode() <= paths[1] for path in erasure.matched)
                ):
                    raise _Refused(f"{entry.file_path} deletes rows of these files by position", _DROP_HINT)

    async def _settle_history(self, erasure: _Erasure) -> None:
        """The next step towards a history without the messages: snapshots are removed or rewritten, and entries of
        removed files go. Snapshots that a backup holds stay as they are: its documents name their files."""
        assert erasure.table is not None
        table = await self._tables.refreshed(erasure.table)
        if table is None:
            self._begin_again(erasure)
            return
        erasure.table = table
        # Again: the commits of this erasure have made snapshots of history with the files that they replaced.
        erasure.files = await self._table_files(erasure)
        if erasure.files.main.keys() & erasure.matched:
            self._begin_again(erasure)  # an engine has rolled main back to files with the messages
            return
        stale, held = set(self._snapshots_with(erasure)), await self._held(table)
        findings = erasure.progress.findings
        findings.must_do = [
            f"backup: tag {name} of {table.identifier} has the messages; `icestream backup delete "
            f"{name.removeprefix(BACKUP_TAG)}` deletes the backup with its tag, then erase again"
            for name, reference in sorted(table.table.references.items())
            if name.startswith(BACKUP_TAG) and reference["snapshot-id"] in stale
        ]
        findings.must_do += [
            f"table: {location} deletes rows by values of the messages, and files of other engines need it: have the "
            "engine rewrite them, then erase again"
            for location in sorted(erasure.files.deletes & erasure.matched)
        ]
        del findings.must_do[limits.ERASURE_LISTED_MAX :]
        if erasure.request.history is not HistoryChoice.REWRITE:
            if updates := _drops(table.table, stale - held):
                await self._change_table(erasure, table, updates, findings)
                return
        elif not await self._has_written_history(erasure, stale - held):
            return
        if _has_statistics(table.table):
            await self._change_table(erasure, table, _statistics_drops(table.table), findings)
            return
        if await self._rewrite_step(erasure, table, held):
            self._end_history(erasure, table)

    async def _held(self, table: TopicTable) -> set[int]:
        """The snapshots that backups hold."""
        tagged = {
            reference["snapshot-id"]
            for name, reference in table.table.references.items()
            if name.startswith(BACKUP_TAG)
        }
        holds = await held_snapshots(self._store, table.table.uuid or "")
        return tagged.union(*holds.values())

    async def _change_table(
        self, erasure: _Erasure, table: TopicTable, updates: Sequence[Object], findings: ErasureFindings
    ) -> None:
        """Removes snapshots, references or statistics. What comes meanwhile is seen in the next step."""
        requirements: list[Object] = [
            {"type": "assert-table-uuid", "uuid": table.table.uuid},
            {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": table.table.current_snapshot_id},
        ]
        outcome = await self._commit_change(Effect.DROP_HISTORY, table, TableChange(requirements, updates))
        if not isinstance(outcome, CommitDone):
            self._count_attempt(erasure)
            return
        names = [str(update["ref-name"]) for update in updates if update["action"] == "remove-snapshot-ref"]
        dropped = [
            str(snapshot_id)
            for update in updates
            if update["action"] == "remove-snapshots"
            for snapshot_id in update["snapshot-ids"]
        ]
        findings.snapshots = sorted({*findings.snapshots, *dropped})
        findings.references = sorted({*findings.references, *names})

    async def _commit_change(self, effect: Effect, table: TopicTable, change: TableChange) -> CommitOutcome:
        """Commits a change of history, and has the table reloaded: main may have other manifests under the same
        snapshot id, so no requirement refuses a round that builds on the former ones, which the clean-up removes."""
        try:
            with self._effects.happens(effect):
                return await self._catalog.commit(table.identifier, change)
        finally:
            # Also when the outcome is not known. Rounds may have loaded the table after the erasure, as another object.
            table.is_stale = True
            self._tables.mark_stale([table.topic_id])

    def _count_attempt(self, erasure: _Erasure) -> None:
        erasure.attempts += 1
        if erasure.attempts > limits.ERASURE_ATTEMPTS_MAX:
            raise _Refused("the table changed again and again while its history was changed", "erase again")

    def _end_history(self, erasure: _Erasure, table: TopicTable) -> None:
        if erasure.matched or erasure.progress.findings.swept:
            seconds = self._options.clean_up_delay_ms / 1000
            erasure.progress.findings.pending = [
                f"table: {counted(len(erasure.matched), 'data file')} with the messages, and manifests of before, go "
                f"with the clean-up, {seconds:.0f} s from now at the earliest"
            ]
        # Also if an earlier driver has removed it all: the clean-up looks what it may remove.
        self._jobs.table_committed(table)
        deadline_ns = self._clock.monotonic_ns() + int(limits.ERASURE_LOG_SECONDS * 1e9)
        erasure.phase, erasure.deadline_ns = "log", deadline_ns

    # --- history that is rewritten ---

    async def _has_written_history(self, erasure: _Erasure, rewritten: Collection[int]) -> bool:
        """Whether every file with messages in these snapshots was written again; otherwise that is begun."""
        assert erasure.files is not None
        assert erasure.table is not None
        epoch = self._lease.check()
        if erasure.exchange_epoch != epoch:
            erasure.exchanged, erasure.exchange_epoch, erasure.rewrite = {}, epoch, None
        named = {path for snapshot_id in rewritten for path in erasure.files.history[snapshot_id]}
        missing = sorted((named & erasure.matched) - erasure.exchanged.keys())
        if not missing:
            return True
        if len(erasure.exchanged) + len(missing) > limits.CATALOG_REWRITE_FILES_MAX:
            raise _Refused(
                f"more than {limits.CATALOG_REWRITE_FILES_MAX} files of history have the messages", _DROP_HINT
            )
        erasure.rewrite = None
        target, rows = self._target(erasure.table), await self._rows_of(erasure, missing)
        erasure.locations = dict(enumerate(missing))
        erasure.waiting = [
            SearchJob(
                number,
                GroupJob(
                    number,
                    erasure.table.topic_id,
                    target,
                    [],  # the entry keeps its partition: rows of one file stay in it
                    [InputFile(location, rows[location])],
                    memory_bytes=limits.ERASURE_TASK_BYTES,
                ),
                erasure.request.where,
                is_written_again=True,
            )
            for number, location in enumerate(missing)
        ]
        erasure.progress.done, erasure.progress.all = 0, len(missing)
        erasure.results, erasure.phase = {}, "rewrite"
        return False

    async def _rows_of(self, erasure: _Erasure, locations: Sequence[str]) -> dict[str, int]:
        """The rows of files of history, by their entries."""
        assert erasure.table is not None
        rows: dict[str, int] = {}
        manifests: dict[str, ManifestFile] = {}
        for snapshot in erasure.table.table.snapshots:
            for manifest in await self._manifests.list_manifests(str(snapshot["manifest-list"])):
                manifests[manifest.path] = manifest
        for manifest in manifests.values():
            if manifest.content == DATA_CONTENT and not rows.keys() >= set(locations):
                rows |= {entry.file_path: entry.record_count for entry in await self._manifests.live_entries(manifest)}
        return rows

    async def _write_history(self, erasure: _Erasure) -> None:
        """Writes files of history again, without the messages. Deletes are not applied: they go on to apply."""
        is_all = await self._run_tasks(erasure)
        results, erasure.results = erasure.results, {}
        for number, result in results.items():
            if result.is_gone:
                self._begin_again(erasure)
                return
            erasure.exchanged[erasure.locations[number]] = result
            erasure.progress.findings.files_rewritten += 1
        if is_all:
            erasure.phase = "history"

    async def _rewrite_step(self, erasure: _Erasure, table: TopicTable, held: Collection[int]) -> bool:
        """Gives the next snapshots their new manifests. Returns whether all of them have what they must have."""
        epoch = self._lease.check()
        if erasure.rewrite is None:
            files = {path: result.files[0] if result.files else None for path, result in erasure.exchanged.items()}
            erasure.rewrite = HistoryRewrite(self._manifests, self._files, self._offload, files, epoch)
        waiting = [
            snapshot
            for snapshot in table.table.snapshots
            if snapshot["snapshot-id"] not in held and snapshot["snapshot-id"] not in erasure.settled
        ]
        step = waiting[: limits.ERASURE_STEP_SNAPSHOTS]
        heads = _branch_heads(table.table)
        token = self._randomness.token(16)
        if table.table.format_version != _REWRITABLE_FORMAT:
            return True  # what remains is named by a check
        change = await erasure.rewrite.change(table.table, step, token, keeps_rows=heads.__contains__)
        erasure.progress.done, erasure.progress.all = len(erasure.settled), len(erasure.settled) + len(waiting)
        if change.snapshots and not await self._commit_history(erasure, table, change, epoch):
            return False
        erasure.settled |= {snapshot["snapshot-id"] for snapshot in step}
        return len(step) == len(waiting)

    async def _commit_history(self, erasure: _Erasure, table: TopicTable, change: HistoryChange, epoch: int) -> bool:
        """Commits snapshots with other manifest lists. False if the table changed meanwhile."""
        results = {path: erasure.exchanged[path] for path in sorted(change.replaced)}
        stated = await self._note_offsets(table, erasure, results.values())
        await self._files.create_all([(file.location, file.chunks) for file in change.files])
        round_id = self._randomness.token(16)
        claim = HistoryClaim(
            round_id,
            table.topic_id,
            epoch,
            change.snapshots,
            [_exchanged_file(path, result) for path, result in results.items()],
            stated,
            table.table.fields["last-sequence-number"],
            self._options.lease_name,
        )
        requirements: list[Object] = [
            {"type": "assert-table-uuid", "uuid": table.table.uuid},
            history_requirement(claim, str(uuid.UUID(bytes=round_id))),
        ]
        outcome = await self._commit_change(Effect.REWRITE_HISTORY, table, TableChange(requirements, []))
        if not isinstance(outcome, CommitDone):
            self._jobs.files_left_behind(table)
            erasure.rewrite = None  # what it has written is in no list
            erasure.settled.clear()
            self._count_attempt(erasure)
            return False
        findings = erasure.progress.findings
        names = {str(snapshot["snapshot-id"]) for snapshot in change.snapshots}
        rewritten = names & {str(snapshot_id) for snapshot_id in self._snapshots_with(erasure)}
        findings.snapshots = sorted({*findings.snapshots, *rewritten})
        findings.swept += len(names - rewritten)
        return True

    # --- log ---

    async def _retire_log(self, erasure: _Erasure) -> None:
        record = await self._record(erasure.request.topic_id)
        if record is None and not erasure.matched:
            await self._end(erasure)  # nothing was found, so the log has nothing either
            return
        # Before the log: what a retained message leaves behind in it has to go with the other files.
        retained = await self._erased_retained(erasure.request.topic_id, record)
        for start in range(0, len(retained), limits.ERASURE_PLACES_MAX):
            part = retained[start : start + limits.ERASURE_PLACES_MAX]
            await self._broker.forget_retained(erasure.request.topic_id, part)
        erasure.progress.findings.retained += len(retained)
        with self._effects.happens(Effect.RETIRE_LOG):
            left = await self._broker.retire_log(erasure.request.topic_id, erasure.cut, is_check=False)
        if left and self._clock.monotonic_ns() < erasure.deadline_ns:
            erasure.next_look_ns = self._clock.monotonic_ns() + limits.JOB_LOOK_MS * 1_000_000
            return
        erasure.progress.findings.pending += left
        await self._end(erasure)

    async def _erased_retained(self, topic_id: int, record: ErasedRecord | None) -> list[tuple[int, int]]:
        """The rows that are erased and still retained messages of MQTT, by shard and offset."""
        erased, places = await self._erased(record), list[tuple[int, int]]()
        after: tuple[int, int] | None = None
        while page := await self._broker.retained_places(topic_id, after):
            places += [(shard, offset) for shard, offset in page if erased.within(shard, offset, offset + 1)]
            after = page[-1]
        return places

    # --- check ---

    async def _check_places(self, erasure: _Erasure) -> None:
        """What is left, by place: the table, its history, files that no snapshot names, old metadata, the log."""
        assert erasure.table is not None
        assert erasure.files is not None
        files, left = erasure.files, []
        of_main = files.main.keys() | files.foreign | files.deletes
        history = set().union(*files.history.values()) - of_main
        left += [f"table: {location}" for location in sorted(of_main & erasure.matched)]
        left += [
            f"history: {location}, of a snapshot or tag that is kept" for location in sorted(history & erasure.matched)
        ]
        left += [
            f"storage: {location}, in no snapshot: the clean-up removes it"
            for location in sorted(files.strays & erasure.matched)
        ]
        left += await self._telling_entries(erasure)
        record = await self._record(erasure.request.topic_id)
        if retained := await self._erased_retained(erasure.request.topic_id, record):
            left.append(f"mqtt: {counted(len(retained), 'retained message')} of erased rows; erase again")
        left += await self._stale_metadata(erasure)
        left += await self._broker.retire_log(erasure.request.topic_id, erasure.cut, is_check=True)
        findings = erasure.progress.findings
        findings.left = left[: limits.ERASURE_LISTED_MAX]
        if len(left) > limits.ERASURE_LISTED_MAX:
            findings.left.append(f"and {counted(len(left) - limits.ERASURE_LISTED_MAX, 'place')} more")
        await self._end(erasure)

    async def _telling_entries(self, erasure: _Erasure) -> list[str]:
        """Manifests of snapshots with entries of removed files whose bounds may have an erased key (hazard 97), and
        statistics that have one. An erasure leaves no such entries. One that came later is of a file without the
        messages, unless a value of the predicate stands in its bounds: then it was not erased."""
        table = erasure.table
        assert table is not None
        record = await self._record(erasure.request.topic_id)
        swept_to = 0 if record is None else record.swept_to
        literals = _literals(erasure.request.where)
        left: list[str] = []
        seen: set[str] = set()
        for snapshot in table.table.snapshots:
            for manifest in await self._manifests.list_manifests(str(snapshot["manifest-list"])):
                if manifest.path in seen:
                    continue
                seen.add(manifest.path)
                is_old = manifest.sequence_number <= swept_to
                telling = [
                    entry.file_path
                    for entry in await self._manifests.removed_entries(manifest)
                    if is_old or _tells(entry, literals)
                ]
                if telling:
                    left.append(
                        f"metadata: {manifest.path} of snapshot {snapshot['snapshot-id']} has bounds of "
                        f"{counted(len(telling), 'removed file')}, such as {telling[0]}"
                    )
        for name in ("statistics", "partition-statistics"):
            for statistics in table.table.fields.get(name) or ():
                data = await self._files.read(statistics["statistics-path"])
                if any(literal in data for literal in literals):
                    left.append(f"metadata: {statistics['statistics-path']} has a value of the predicate")
        return left

    async def _stale_metadata(self, erasure: _Erasure) -> list[str]:
        """Manifests and manifest lists that no snapshot names: bounds in them may have an erased key (hazard 97)."""
        table = erasure.table
        assert table is not None
        named = set[str]()
        for snapshot in table.table.snapshots:
            manifest_list = str(snapshot["manifest-list"])
            named.add(object_identity(manifest_list))
            named |= {
                object_identity(manifest.path) for manifest in await self._manifests.list_manifests(manifest_list)
            }
        folder = metadata_folder(table.table)
        return [
            f"metadata: {folder}/{name}, in no snapshot: the clean-up removes it"
            for name, _ in await self._files.names(folder)
            if name.endswith(".avro") and object_identity(f"{folder}/{name}") not in named
        ]


async def watch_erasures(store: MetadataStore, clock: Clock, lease_name: str, ask: Callable[[], None]) -> None:
    """Calls `ask` for each request, until it is cancelled, and for one that came before. A watch that fails is started
    again. `lease_name`: of the driver's lease; requests of other drivers have keys of their own."""
    key = request_key(lease_name)
    while True:
        try:
            revision = await store.revision()
            if await store.get(key) is not None:
                ask()
            async for _ in store.watch(key, revision):
                if await store.get(key) is not None:
                    ask()
        except errors.IcestreamError:
            await clock.sleep(limits.PIPELINE_RETRY_SECONDS_MAX)


# --- pure parts -------------------------------------------------------------------------------------------------------


def _column_types(table: TableMetadata) -> dict[str, str]:
    """The type of each column, as predicates compare it."""
    return {
        column["name"]: column["type"] if isinstance(column["type"], str) else str(column["type"]["type"])
        for column in table.current_schema["fields"]
    }


def _branch_heads(table: TableMetadata) -> set[int]:
    return {
        reference["snapshot-id"] for reference in table.references.values() if reference.get("type") == "branch"
    } | ({table.current_snapshot_id} - {None})  # type: ignore[operator]


def _drops(table: TableMetadata, removable: Collection[int]) -> list[Object]:
    """The updates that remove snapshots with their references; none if there are none."""
    if not removable:
        return []
    updates: list[Object] = [
        {"action": "remove-snapshot-ref", "ref-name": name}
        for name, reference in sorted(table.references.items())
        if reference["snapshot-id"] in removable and name != MAIN
    ]
    return [*updates, {"action": "remove-snapshots", "snapshot-ids": sorted(removable)}]


def _has_statistics(table: TableMetadata) -> bool:
    return bool(table.fields.get("statistics") or table.fields.get("partition-statistics"))


def _statistics_drops(table: TableMetadata) -> list[Object]:
    """The updates that remove statistics: engines make them from rows, and make them again."""
    return [
        {"action": f"remove-{name}", "snapshot-id": statistics["snapshot-id"]}
        for name in ("statistics", "partition-statistics")
        for statistics in table.fields.get(name) or ()
    ]


def _exchanged_file(path: str, result: SearchResult) -> ExchangedFile:
    return ExchangedFile(
        path,
        result.files[0].location if result.files else "",
        parse_digest(result.replaced_rows),
        parse_digest(result.erased_rows),
        parse_digest(result.added_rows),
    )


def _literals(where: str) -> list[bytes]:
    """The texts and bytes that a predicate compares with."""
    literals = [comparison.value for comparison in comparisons_of(parse_predicate(where))]
    texts = [
        value.encode() if isinstance(value, str) else value for value in literals if isinstance(value, str | bytes)
    ]
    return [text for text in texts if text]


def _tells(entry: ManifestEntry, literals: Collection[bytes]) -> bool:
    """Whether a bound of an entry is a value of the predicate, as far as bounds reach: they are cut off."""
    bounds = {*entry.lower_bounds.values(), *entry.upper_bounds.values()}
    return any(
        bound == literal or (len(literal) >= BOUND_LENGTH and bound[: BOUND_LENGTH - 1] == literal[: BOUND_LENGTH - 1])
        for bound in bounds
        for literal in literals
    )
