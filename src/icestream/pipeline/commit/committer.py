"""Commits the files of a round to their tables: builds the snapshots, writes manifests, sends, judges each outcome.

All tables go in one request if the catalog can take them (a saving, not a promise). A table that is in the way is taken
out and retried by itself, on the table as it is then, with the same data files. Whatever a catalog answers, no file is
removed here (hazard 1).

    catalog unreachable       StorageUnavailable: nothing was changed; the caller keeps the commits and retries
    a fault of one table      `StopReason` for the topic of that table alone
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, LoadedTable, TableCatalog, TableChange
from icestream.iceberg import table_commit, values
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifests import EncodedEntry
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.observability.log import get_logger
from icestream.pipeline.commit import manifest_merge, rewrite_draft, schema_compat
from icestream.pipeline.commit.committed_files import CommittedFiles
from icestream.pipeline.commit.file_presence import FilePresenceCheck
from icestream.pipeline.commit.offset_ledger import OffsetLedger, TopicCommit
from icestream.pipeline.commit.partition_check import check_partition
from icestream.pipeline.commit.snapshot_builder import (
    JOB,
    ManifestChange,
    NewSnapshot,
    Operation,
    build_snapshot,
)
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.commit.verdict import OutcomeVerdict, verdict
from icestream.pipeline.tables.topic_table import StopReason, unexpected_stop
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness

_log = get_logger("pipeline")


class CommittedSnapshot(NamedTuple):
    """The commit is in the table, as this snapshot."""

    snapshot_id: int
    is_repeat: bool = False  # the catalog had committed this round or rewrite before


class NotCommitted(NamedTuple):
    """The commit is not in the table and never will be; or its outcome is unknown (`is_unresolved`)."""

    reason: str
    is_unresolved: bool = False


Result = CommittedSnapshot | NotCommitted | StopReason


class CommitDraft(NamedTuple):
    """A commit, ready to be sent."""

    commit: TopicCommit
    snapshot: NewSnapshot
    change: TableChange
    merged_paths: list[str]  # manifests that are replaced by new ones


class Committer:
    """Commits to the tables of one catalog. Remembers the manifests of its last commits."""

    def __init__(
        self,
        catalog: TableCatalog,
        ledger: OffsetLedger,
        files: TableFiles,
        manifests: ManifestCache,
        clock: Clock,
        randomness: Randomness,
        tag_retention: TagRetention,
        file_presence: FilePresenceCheck | None = None,
    ) -> None:
        """`file_presence`: for files that executors of a cluster wrote. None: tasks write to this machine's disks, or
        to an object store."""
        self._catalog = catalog
        self._ledger = ledger
        self._files = files
        self._manifests = manifests
        self._clock = clock
        self._randomness = randomness
        self._tag_retention = tag_retention
        self._file_presence = file_presence
        self.committed_files = CommittedFiles(files, manifests)
        self._metadata_files: dict[int, list[str]] = {}  # by topic id: manifests and list of its last commit
        self._unavailable: errors.StorageUnavailable | None = None
        self.retries = 0  # since the start

    async def commit(self, commits: Sequence[TopicCommit], results: dict[int, Result]) -> None:
        """Fills `results`, by topic id; topics that are in it already are left alone.

        Raises StorageUnavailable if some topics have no result and nothing was changed for them; LeaseLost if another
        driver took over.
        """
        # Together first, because one transaction costs the catalog as much as one table does; a table in conflict is
        # then committed by itself, so that it does not make the others wait for its retries.
        alone: list[TopicCommit] = []
        # One transaction of the catalog has a bound on its size (hazard 10).
        for begin in range(0, len(commits), limits.COMMIT_TABLES_MAX):
            batch = commits[begin : begin + limits.COMMIT_TABLES_MAX]
            pending = [commit for commit in batch if commit.table.topic_id not in results]
            while pending:
                retried: list[TopicCommit] = []
                for draft, outcome in await self._send(pending, results):
                    match self._apply_outcome(draft, outcome, results):
                        case OutcomeVerdict.TOGETHER:
                            retried.append(draft.commit)
                        case OutcomeVerdict.ALONE:
                            alone.append(draft.commit)
                self.retries += bool(retried)
                if len(retried) == len(pending):
                    # Each table was refused because of another one, and none for itself: sending them together again
                    # would not end.
                    alone += retried
                    break
                pending = retried
        for commit in alone:
            if (result := await self._commit_alone(commit)) is not None:
                results[commit.table.topic_id] = result
        if self._unavailable is not None and any(commit.table.topic_id not in results for commit in commits):
            error, self._unavailable = self._unavailable, None
            raise error

    async def missing_files(self, commits: Sequence[TopicCommit]) -> dict[int, list[str] | errors.IcestreamError]:
        """Returns, by topic id, the files of these commits that do not exist, manifests included; or the error that
        keeps them from being checked. Raises StorageUnavailable if no file can be checked."""
        locations_by_topic = {
            commit.table.topic_id: [
                *(file.location for file in commit.files),
                *self._metadata_files.pop(commit.table.topic_id, ()),
            ]
            for commit in commits
        }
        missing = await asyncio.gather(*map(self._missing, locations_by_topic.values()))
        return {topic_id: files for topic_id, files in zip(locations_by_topic, missing, strict=True) if files}

    async def _missing(self, locations: Sequence[str]) -> list[str] | errors.IcestreamError:
        try:
            missing = await self.committed_files.missing(locations)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            return error
        return [location for location in locations if location in missing]

    async def _commit_alone(self, commit: TopicCommit) -> Result | None:
        """Retries a commit to a table that others changed, on the table as it is now. None: catalog unreachable."""
        for _ in range(limits.COMMIT_ATTEMPTS_MAX):
            self.retries += 1
            try:
                table = await self._ledger.refresh(commit.table)
            except errors.StorageUnavailable:
                raise
            except errors.IcestreamError as error:
                return StopReason(error.message, error.hint or "")
            commit = commit._replace(table=table)
            # The offsets may be in the table by now: from another driver, or from our own first copy, whose reply was
            # lost. Sending them again would duplicate rows in a catalog that does not check claims.
            if any(table.positions.get(claim.shard, (-1, -1))[1] != claim.start for claim in commit.claims):
                return NotCommitted("the table was advanced by another commit")
            if reason := schema_compat.incompatibility(table.table, commit.files):
                return NotCommitted(f"the files are not compatible with the table any more: {reason}")
            results: dict[int, Result] = {}
            for draft, outcome in await self._send([commit], results):
                self._apply_outcome(draft, outcome, results)
            if commit.table.topic_id in results:
                return results[commit.table.topic_id]
            if self._unavailable is not None:
                return None
        return NotCommitted(f"commit conflict: gave up after {limits.COMMIT_ATTEMPTS_MAX} attempts")

    # --- one request ---

    async def _send(
        self, commits: Sequence[TopicCommit], results: dict[int, Result]
    ) -> list[tuple[CommitDraft, CommitOutcome]]:
        """Sends the commits that can be built and returns their outcomes; `results` gets what is wrong with others."""
        drafts: dict[Identifier, CommitDraft] = {}
        for commit in commits:
            try:
                if commit.is_job and (snapshot_id := await self._find_job(commit)) is not None:
                    results[commit.table.topic_id] = CommittedSnapshot(snapshot_id, is_repeat=True)
                    continue
                draft = await self._draft(commit)
                await self._ledger.announce(commit)
                drafts[commit.table.identifier] = draft
            except (errors.StorageUnavailable, errors.LeaseLost):
                raise
            except errors.IcestreamError as error:
                if commit.is_job and isinstance(error, errors.CommitConflict):
                    # Another commit was faster. The topic itself is fine: nothing about it needs a decision.
                    commit.table.is_stale = True
                    results[commit.table.topic_id] = NotCommitted(error.message)
                else:
                    results[commit.table.topic_id] = StopReason(error.message, error.hint or "")
            except Exception as error:  # noqa: BLE001  # it is logged, and of one table or job
                # Of one table: the others are committed.
                _log.exception("commit of a table cannot be built; please report this", topic=commit.table.topic)
                results[commit.table.topic_id] = unexpected_stop(error)
        if not drafts:
            return []
        # Durable before the catalog hears of them: a table never refers to a file that a crash could take away (hazard
        # 11).
        await self._files.create_all(
            [(file.location, file.chunks) for draft in drafts.values() for file in draft.snapshot.files]
        )
        if len(drafts) == 1 or not self._ledger.is_embedded:
            return await self._send_one_by_one(drafts.values(), results)
        try:
            outcomes = await self._catalog.commit_all({name: draft.change for name, draft in drafts.items()})
        except errors.StorageUnavailable as error:
            self._unavailable = error
            return []
        except errors.IcestreamError:
            # One of them is refused for what it is: find out which, so that the others are committed.
            return await self._send_one_by_one(drafts.values(), results)
        return [(drafts[name], outcome) for name, outcome in outcomes.items()]

    async def _find_job(self, commit: TopicCommit) -> int | None:
        """The snapshot of a rewrite or retention that is in its table already; None if it is not, and may be sent."""
        if commit.table.is_stale:
            # An earlier attempt has no known outcome, and the table in memory may be the one before it. A draft on that
            # would be refused, and leave manifests behind that nothing removes in another catalog.
            await self._ledger.refresh(commit.table)
        return await self._ledger.check_job(commit)

    async def _send_one_by_one(
        self, drafts: Iterable[CommitDraft], results: dict[int, Result]
    ) -> list[tuple[CommitDraft, CommitOutcome]]:
        """Commits each table by itself; `results` gets the tables that the catalog refuses for what they are."""
        outcomes: list[tuple[CommitDraft, CommitOutcome]] = []
        for draft in drafts:
            table = draft.commit.table
            try:
                outcomes.append((draft, await self._catalog.commit(table.identifier, draft.change)))
            except errors.StorageUnavailable as error:
                self._unavailable = error
                break
            except (errors.UnknownTable, errors.UnknownNamespace) as error:
                # Reloading the table reports what an operator can do about it.
                table.is_stale = True
                results[table.topic_id] = NotCommitted(error.message)
            except errors.IcestreamError as error:
                results[table.topic_id] = StopReason(error.message, error.hint or "")
        return outcomes

    def _apply_outcome(self, draft: CommitDraft, outcome: CommitOutcome, results: dict[int, Result]) -> OutcomeVerdict:
        """Records the result of a commit that is decided; returns the verdict, by which the caller retries the others.
        Raises LeaseLost."""
        table, outcome_verdict = draft.commit.table, verdict(outcome)
        match outcome_verdict:
            case OutcomeVerdict.DONE:
                assert isinstance(outcome, CommitDone)
                results[table.topic_id] = self._apply_commit(draft, outcome)
            case OutcomeVerdict.OPEN:
                table.is_stale = True
                # Its files must survive: the commit that names them may still be applied.
                results[table.topic_id] = NotCommitted(getattr(outcome, "reason", ""), is_unresolved=True)
            case OutcomeVerdict.TAKEN:
                table.is_stale = True
                results[table.topic_id] = NotCommitted(getattr(outcome, "reason", ""))
            case OutcomeVerdict.LEASE_LOST:
                raise errors.LeaseLost(
                    "another pipeline has taken over", hint="no message is lost: it continues where this one ended"
                )
        return outcome_verdict

    def _apply_commit(self, draft: CommitDraft, outcome: CommitDone) -> CommittedSnapshot:
        """Applies our own commit to the table in memory, so that nothing has to be loaded."""
        table = draft.commit.table
        table.positions = table.advanced(draft.commit.ends)
        self._metadata_files[table.topic_id] = [file.location for file in draft.snapshot.files]
        if outcome.repeated is not None or outcome.was_read_back:
            # Other commits may have landed since: what the table looks like is not known from the draft.
            table.is_stale = True
            snapshot_id = outcome.repeated or draft.snapshot.snapshot_id
            return CommittedSnapshot(snapshot_id, is_repeat=outcome.repeated is not None)
        table.table = table_commit.apply_updates(table.table, None, draft.snapshot.updates, self._now_ms())
        table.manifests = draft.snapshot.manifests
        # A snapshot that was to expire got a branch or tag since, and stayed.
        table.is_stale |= outcome.table is not None and not _has_expired(outcome.table, draft)
        self._manifests.remember(draft.snapshot.entries, draft.merged_paths)
        return CommittedSnapshot(draft.snapshot.snapshot_id)

    # --- building a snapshot ---

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000

    async def _draft(self, commit: TopicCommit) -> CommitDraft:
        """Builds the snapshot of a commit, with the manifests that it merges, and the request that adds it."""
        table = commit.table
        if self._file_presence is not None:
            await self._file_presence.check(commit.files)
        # Kept from commit to commit, so that a commit reads nothing while no other engine commits.
        if table.manifests is None:
            table.manifests = await self._manifests.current_manifests(table.table)
        changes = [
            self._manifest_change(commit, spec_id) for spec_id in sorted({file.spec_id for file in commit.files})
        ]
        if commit.is_job:
            # Removed files may be of other specs than the added ones. A retention adds none, nor does a rewrite or an
            # erasure of files whose rows all go.
            own_specs = {change.layout.spec_id for change in changes}
            changes += [
                ManifestChange(layout, [])
                for layout in rewrite_draft.layouts(table.table, table.manifests, self._manifests)
                if layout.spec_id not in own_specs
            ]
        if commit.is_retention:
            await rewrite_draft.check_retention(commit, self._manifests)
        elif commit.is_job:
            await rewrite_draft.check_rewrite(commit, self._manifests)
        if commit.is_job:
            changes = await rewrite_draft.with_removals(commit, changes, self._manifests)
        delete_removals = await rewrite_draft.removed_deletes(commit, self._manifests)
        is_erasure = commit.operation is Operation.OVERWRITE
        file_removals = await rewrite_draft.foreign_removals(commit, self._manifests) if is_erasure else []
        merged = [manifest for change in changes for manifest in change.merged]
        entries: dict[str, Sequence[EncodedEntry]] = {}
        for change in changes:
            entries |= await self._manifests.entries(change.layout, change.merged)
        snapshot = build_snapshot(
            table.table,
            table.manifests,
            changes,
            entries,
            commit.snapshot_id,
            commit.epoch,
            self._randomness.token(16),
            self._now_ms(),
            self._tag_retention.bounded(table.history_ms),
            {**({JOB: commit.job} if commit.job else {}), **self._ledger.summary(commit)},
            commit.operation,
            commit.sequence_number if commit.operation in (Operation.REPLACE, Operation.OVERWRITE) else None,
            delete_removals,
            file_removals,
        )
        requirements = [*_requirements(table.table), *self._ledger.requirements(commit)]
        table_change = TableChange(requirements, snapshot.updates)
        return CommitDraft(commit, snapshot, table_change, [manifest.path for manifest in merged])

    def _manifest_change(self, commit: TopicCommit, spec_id: int) -> ManifestChange:
        """Returns the new manifest for the files of one partition spec. Raises CommitConflict if the table lost the
        spec or the schema of the files."""
        table = commit.table.table
        added = [file for file in commit.files if file.spec_id == spec_id]
        spec = values.find(table.fields["partition-specs"], "spec-id", spec_id)
        schema = values.find(table.fields["schemas"], "schema-id", added[0].schema_id)
        if spec is None or schema is None:
            raise errors.CommitConflict(
                f"{commit.table.identifier}: the partition spec or schema of the files is gone from the table"
            )
        layout = self._manifests.layout(table, schema, spec)
        for file in added:
            check_partition(file, layout.partition)
        merged = manifest_merge.select_merged(commit.table.manifests or (), spec_id, len(added))
        return ManifestChange(layout, added, merged)

    def new_snapshot_id(self) -> int:
        return int.from_bytes(self._randomness.token(8), "big") >> 1 or 1

    def new_round_id(self) -> bytes:
        return uuid.UUID(bytes=self._randomness.token(16), version=4).bytes


def _requirements(table: TableMetadata) -> list[Object]:
    """What every commit requires: the table has not changed since it was loaded."""
    return [
        {"type": "assert-table-uuid", "uuid": table.uuid},
        {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": table.current_snapshot_id},
        {"type": "assert-current-schema-id", "current-schema-id": table.fields["current-schema-id"]},
        {"type": "assert-default-spec-id", "default-spec-id": table.fields["default-spec-id"]},
    ]


def _has_expired(table: LoadedTable, draft: CommitDraft) -> bool:
    """Whether the table that the catalog returned has none of the snapshots that the commit was to remove."""
    expired_ids = {
        snapshot_id
        for update in draft.snapshot.updates
        if update["action"] == "remove-snapshots"
        for snapshot_id in update["snapshot-ids"]
    }
    return not expired_ids or expired_ids.isdisjoint(
        snapshot["snapshot-id"] for snapshot in table.metadata.get("snapshots") or ()
    )
