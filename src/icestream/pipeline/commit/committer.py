"""Brings the files of a round into their tables: builds the snapshots, writes manifests, sends, judges each answer.

All tables go in one request where the catalog can (a saving, not a promise). A table that stands in the way is left
out and tried by itself, on the table as it is then; the data files stay the same. Whatever a catalog answers, no file
is removed here (hazard 1).

    catalog away         StorageUnavailable: nothing was changed, the caller keeps the round and comes again with it
    a table's own fault  that table's topic alone: `StopReason`
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, TableCatalog, TableChange
from icestream.iceberg import table_commit, values
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifests import EncodedEntry
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.observability.log import get_logger
from icestream.pipeline.commit import manifest_merge, schema_compat
from icestream.pipeline.commit.committed_files import CommittedFiles
from icestream.pipeline.commit.file_presence import FilePresenceCheck
from icestream.pipeline.commit.offset_ledger import OffsetLedger, TopicCommit
from icestream.pipeline.commit.partition_check import check_partition
from icestream.pipeline.commit.snapshot_builder import Appended, NewSnapshot, new_snapshot
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.commit.verdict import OutcomeVerdict, verdict
from icestream.pipeline.tables.topic_table import StopReason
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness

_log = get_logger("pipeline.commit")


class CommittedSnapshot(NamedTuple):
    snapshot_id: int
    is_repeat: bool = False


class NotCommitted(NamedTuple):
    """It is not in the table and will not be under this round, or nobody knows (`is_open`)."""

    reason: str
    is_open: bool = False


Result = CommittedSnapshot | NotCommitted | StopReason


class CommitDraft(NamedTuple):
    brought: TopicCommit
    made: NewSnapshot
    change: TableChange
    gone: list[str]  # manifests that were merged


class Committer:
    def __init__(
        self,
        catalog: TableCatalog,
        books: OffsetLedger,
        files: TableFiles,
        manifests: ManifestCache,
        clock: Clock,
        randomness: Randomness,
        history: TagRetention,
        arrival: FilePresenceCheck | None = None,
    ) -> None:
        """`arrival`: looks at the files that executors of a cluster wrote. None: tasks write where we see it."""
        self._catalog = catalog
        self._books = books
        self._files = files
        self._manifests = manifests
        self._clock = clock
        self._randomness = randomness
        self._history = history
        self._arrival = arrival
        self._committed_files = CommittedFiles(files, manifests)
        self._made: dict[int, list[str]] = {}  # per topic the manifests of its last commit
        self._away: errors.StorageUnavailable | None = None
        self.retries = 0  # since the start

    async def commit(self, rounds: Sequence[TopicCommit], found: dict[int, Result]) -> None:
        """`found`: what became of each, by topic id; those that are there are not asked again. Raises
        StorageUnavailable when some have no answer and nothing was changed for them; LeaseLost when another driver took
        over."""
        alone: list[TopicCommit] = []
        for begin in range(0, len(rounds), limits.COMMIT_TABLES_MAX):
            some = rounds[begin : begin + limits.COMMIT_TABLES_MAX]
            together = [one for one in some if one.table.topic_id not in found]
            while together:
                again: list[TopicCommit] = []
                for one, outcome in await self._sent(together, found):
                    match self._settled(one, outcome, found):
                        case OutcomeVerdict.TOGETHER:
                            again.append(one.brought)
                        case OutcomeVerdict.ALONE:
                            alone.append(one.brought)
                self.retries += bool(again)
                if len(again) == len(together):  # everybody stood by and nobody was in the way
                    alone += again
                    break
                together = again
        for brought in alone:
            if (result := await self._alone(brought)) is not None:
                found[brought.table.topic_id] = result
        if self._away is not None and any(one.table.topic_id not in found for one in rounds):
            error, self._away = self._away, None
            raise error

    async def gone(self, done: Sequence[TopicCommit]) -> dict[int, list[str] | errors.IcestreamError]:
        """By topic the files of these rounds that are not there any more, with the manifests that name them; or what
        keeps its storage from being asked. Raises StorageUnavailable: then none can be asked."""
        wanted = {
            one.table.topic_id: [*(file.location for file in one.files), *self._made.pop(one.table.topic_id, ())]
            for one in done
        }
        missing = await asyncio.gather(*map(self._missing, wanted.values()))
        return {topic_id: files for topic_id, files in zip(wanted, missing, strict=True) if files}

    async def _missing(self, locations: Sequence[str]) -> list[str] | errors.IcestreamError:
        try:
            gone = await self._committed_files.gone(locations)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            return error
        return [location for location in locations if location in gone]

    async def gone_of_newest(self, table: TableMetadata) -> dict[int, list[str]]:
        """The same of what is in a table already, by snapshot (committed_files.py)."""
        return await self._committed_files.gone_of_newest(table)

    async def _alone(self, brought: TopicCommit) -> Result | None:
        """A table that others changed: on it as it is now. None: the catalog is away."""
        for _ in range(limits.COMMIT_ATTEMPTS_MAX):
            self.retries += 1
            try:
                table = await self._books.look(brought.table)
            except errors.StorageUnavailable:
                raise
            except errors.IcestreamError as error:
                return StopReason(error.message, error.hint or "")
            brought = brought._replace(table=table)
            if any(table.positions.get(one.shard, (-1, -1))[1] != one.start for one in brought.claims):
                return NotCommitted("the table has gone on without it")
            if reason := schema_compat.incompatibility(table.table, brought.files):
                return NotCommitted(f"the files do not fit the table any more: {reason}")
            found: dict[int, Result] = {}
            for one, outcome in await self._sent([brought], found):
                self._settled(one, outcome, found)
            if brought.table.topic_id in found:
                return found[brought.table.topic_id]
            if self._away is not None:
                return None
        return NotCommitted(f"others were faster {limits.COMMIT_ATTEMPTS_MAX} times")

    # --- one request ---

    async def _sent(
        self, rounds: Sequence[TopicCommit], found: dict[int, Result]
    ) -> list[tuple[CommitDraft, CommitOutcome]]:
        """Those that could be built, with their answers; what went wrong with others is in `found`."""
        drafts: dict[Identifier, CommitDraft] = {}
        for brought in rounds:
            try:
                drafts[brought.table.identifier] = await self._draft(brought)
            except errors.StorageUnavailable:
                raise
            except errors.IcestreamError as error:
                found[brought.table.topic_id] = StopReason(error.message, error.hint or "")
        if not drafts:
            return []
        await self._files.create_all(
            [(file.location, file.pieces) for one in drafts.values() for file in one.made.files]
        )
        if len(drafts) == 1 or not self._books.is_own:
            return await self._one_by_one(drafts.values(), found)
        try:
            answers = await self._catalog.commit_all({name: one.change for name, one in drafts.items()})
        except errors.StorageUnavailable as error:
            self._away = error
            return []
        except errors.IcestreamError:
            return await self._one_by_one(drafts.values(), found)
        return [(drafts[name], outcome) for name, outcome in answers.items()]

    async def _one_by_one(
        self, drafts: Iterable[CommitDraft], found: dict[int, Result]
    ) -> list[tuple[CommitDraft, CommitOutcome]]:
        """One of them is refused for what it is, and the others shall not suffer; or the catalog knows no other way."""
        answers: list[tuple[CommitDraft, CommitOutcome]] = []
        for one in drafts:
            try:
                answers.append((one, await self._catalog.commit(one.brought.table.identifier, one.change)))
            except errors.StorageUnavailable as error:
                self._away = error
                break
            except (errors.UnknownTable, errors.UnknownNamespace) as error:  # the next look says what to do about it
                one.brought.table.is_stale = True
                found[one.brought.table.topic_id] = NotCommitted(error.message)
            except errors.IcestreamError as error:
                found[one.brought.table.topic_id] = StopReason(error.message, error.hint or "")
        return answers

    def _settled(self, one: CommitDraft, outcome: CommitOutcome, found: dict[int, Result]) -> OutcomeVerdict:
        table, judged = one.brought.table, verdict(outcome)
        match judged:
            case OutcomeVerdict.DONE:
                assert isinstance(outcome, CommitDone)
                found[table.topic_id] = self._done(one, outcome)
            case OutcomeVerdict.OPEN:
                table.is_stale = True
                found[table.topic_id] = NotCommitted(getattr(outcome, "reason", ""), is_open=True)
            case OutcomeVerdict.TAKEN:
                table.is_stale = True
                found[table.topic_id] = NotCommitted(getattr(outcome, "reason", ""))
            case OutcomeVerdict.LEASE_LOST:
                raise errors.LeaseLost(
                    "another pipeline has taken over", hint="nothing is lost: it goes on where this one ended"
                )
        return judged

    def _done(self, one: CommitDraft, outcome: CommitDone) -> CommittedSnapshot:
        """The table as it is now: our own commit is applied to what we know, nothing is asked."""
        table = one.brought.table
        table.positions = table.advanced(one.brought.ends)
        self._made[table.topic_id] = [file.location for file in one.made.files]
        if outcome.repeated is not None or outcome.was_read_back:
            table.is_stale = True
            return CommittedSnapshot(outcome.repeated or one.made.snapshot_id, is_repeat=outcome.repeated is not None)
        table.table = _applied(table.table, one.made.updates, self._now_ms())
        table.manifests = one.made.manifests
        self._manifests.remember(one.made.entries, one.gone)
        return CommittedSnapshot(one.made.snapshot_id)

    # --- a snapshot ---

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000

    async def _draft(self, brought: TopicCommit) -> CommitDraft:
        table = brought.table
        if self._arrival is not None:
            await self._arrival.check(brought.files)
        if table.manifests is None:
            table.manifests = await self._manifests.current_manifests(table.table)
        appended = [
            await self._appended(brought, spec_id) for spec_id in sorted({one.spec_id for one in brought.files})
        ]
        merged = [manifest for one in appended for manifest in one.merged]
        entries: dict[str, Sequence[EncodedEntry]] = {}
        for one in appended:
            entries |= await self._manifests.entries(one.layout, one.merged)
        made = new_snapshot(
            table.table,
            table.manifests,
            appended,
            entries,
            brought.snapshot_id,
            brought.epoch,
            self._randomness.token(16),
            self._now_ms(),
            self._history,
            self._books.summary(brought),
        )
        change = TableChange([*_requirements(table.table), *self._books.requirements(brought)], made.updates)
        return CommitDraft(brought, made, change, [one.path for one in merged])

    async def _appended(self, brought: TopicCommit, spec_id: int) -> Appended:
        table = brought.table.table
        written = [file for file in brought.files if file.spec_id == spec_id]
        spec = values.find(table.fields["partition-specs"], "spec-id", spec_id)
        schema = values.find(table.fields["schemas"], "schema-id", written[0].schema_id)
        if spec is None or schema is None:
            raise errors.CommitConflict(f"{brought.table.identifier}: files of a spec or schema that is gone")
        layout = self._manifests.layout(table, schema, spec)
        for file in written:
            check_partition(file, layout.partition)
        return Appended(layout, written, manifest_merge.merged(brought.table.manifests or (), spec_id, len(written)))

    def new_snapshot_id(self) -> int:
        return int.from_bytes(self._randomness.token(8), "big") >> 1 or 1

    def new_round_id(self) -> bytes:
        return uuid.UUID(bytes=self._randomness.token(16), version=4).bytes


def _requirements(table: TableMetadata) -> list[Object]:
    return [
        {"type": "assert-table-uuid", "uuid": table.uuid},
        {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": table.current_snapshot_id},
        {"type": "assert-current-schema-id", "current-schema-id": table.fields["current-schema-id"]},
        {"type": "assert-default-spec-id", "default-spec-id": table.fields["default-spec-id"]},
    ]


def _applied(table: TableMetadata, updates: Sequence[Object], now_ms: int) -> TableMetadata:
    return table_commit.apply_updates(table, None, updates, now_ms)
