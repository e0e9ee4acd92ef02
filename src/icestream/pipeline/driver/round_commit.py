"""The commit of a round, and what follows from it for each of its topics.

    committed, and everything was written        the topic goes on
    committed, and something of it failed        it goes on; the same again, and it waits
    nothing of it could be written               it waits, longer each time (topics.py)
    refused for what it is                       it is planned anew; the same again, and it waits
    nobody knows                                 it waits; then its files are brought again (open_rounds.py)
    somebody must decide                         it stops

The catalog away: all of it is waited for with the files that are written, as long as the lease is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from icestream import errors, limits
from icestream.catalog.topic_rules.operation_preview import ShardLog
from icestream.model.backlog_messages import Backlog
from icestream.model.task_messages import TaskError, TaskErrorKind
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.observability.words import counted, were
from icestream.pipeline.commit.committer import CommittedSnapshot, Committer, NotCommitted, Result
from icestream.pipeline.commit.offset_ledger import OffsetLedger, TopicCommit
from icestream.pipeline.driver.driver_report import DriverReport, RoundReport
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.topic_tables import HaltCause, TopicTables
from icestream.pipeline.driver.unresolved_commits import UnresolvedCommit, UnresolvedCommits
from icestream.pipeline.file_cleanup.cleaner import FileCleaner
from icestream.pipeline.round_judgement import TopicVerdict
from icestream.pipeline.tables.topic_table import StopReason, TopicTable
from icestream.rpc.backoff import backoff_seconds
from icestream.runtime.clock import Clock

Positions = list[tuple[int, int, int]]  # topic, shard, offset
_log = get_logger("pipeline")
_AGAIN: Final = "it is tried again by itself"
_ORPHANS: Final = "an engine that removes orphan files needs a retention of some hours (docs/lake.md)"
_VANISHED: Final = (
    "the log keeps the messages: `icestream lake rewind TABLE --snapshot ID`, to a snapshot before it, lets them be "
    "written again"
)
_HINTS: Final = {
    TaskErrorKind.STALE: _AGAIN,
    TaskErrorKind.DAMAGED: "`icestream wal inspect` says what the log holds; it is tried again by itself",
    TaskErrorKind.UNREACHABLE: "is the storage of the table there? It is tried again by itself",
    TaskErrorKind.FAILED: "the pipeline's log says more; it is tried again by itself",
}


class RoundCommit:
    def __init__(
        self,
        lease: DriverLease,
        books: OffsetLedger,
        topics: TopicTables,
        committer: Committer,
        effects: Effects,
        clock: Clock,
        report: DriverReport,
        cleaner: FileCleaner | None,
    ) -> None:
        self._lease = lease
        self._books = books
        self._topics = topics
        self._committer = committer
        self._effects = effects
        self._clock = clock
        self._report = report
        self._cleaner = cleaner
        self._open = UnresolvedCommits()

    async def commit(self, judged: Sequence[TopicVerdict], made: RoundReport) -> Positions:
        """How far the tables are by it."""
        epoch, round_id = self._lease.check(), self._committer.new_round_id()
        rounds = [
            TopicCommit(
                self._topics[one.topic.topic_id],
                round_id,
                epoch,
                one.claims,
                one.files,
                self._committer.new_snapshot_id(),
            )
            for one in judged
            if one.claims
        ]
        failed = {one.topic.topic_id: one.errors[0] for one in judged if one.errors}
        for one in judged:
            self._tell_errors(one)
        found = await self._brought(rounds, made, failed)
        for one in judged:
            if one.errors and not one.claims:
                self._failed(one.topic.topic_id, one.topic.name, one.errors[0], is_stuck=True)
        return [
            (one.table.topic_id, shard, position.next)
            for one in rounds
            if isinstance(found.get(one.table.topic_id), CommittedSnapshot)
            for shard, position in one.table.positions.items()
        ]

    async def bring_again(self, made: RoundReport) -> None:
        """What is kept and has waited. The floors follow when the tables are looked at."""
        rounds = [
            one.brought
            for one in self._open.due(self._lease.check(), self._topics.is_halted)
            if await self._still_fits(one)
        ]
        if rounds:
            await self._brought(rounds, made, {})

    async def _still_fits(self, kept: UnresolvedCommit) -> bool:
        table = kept.brought.table
        try:
            reason = kept.why_not(await self._books.look(table))
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            self._topics.halt(table.topic_id, table.topic, StopReason(error.message, error.hint or ""))
            self._open.drop(table.topic_id)
            return False
        if reason:
            _log.info("files of a round without an outcome are not brought again", topic=table.topic, reason=reason)
            self._open.drop(table.topic_id)
        return not reason

    # --- answers ---

    async def _brought(
        self, rounds: Sequence[TopicCommit], made: RoundReport, failed: dict[int, TaskError]
    ) -> dict[int, Result]:
        found: dict[int, Result] = {}
        retries = self._committer.retries
        await self._until_answered(rounds, found)
        await self._look_again(rounds, found)
        done = [one for one in rounds if isinstance(found.get(one.table.topic_id), CommittedSnapshot)]
        with self._effects.happens(Effect.NOTE):
            for topic_id in await self._books.note(done):
                found[topic_id] = NotCommitted("an operator decided about the topic's table meanwhile")
        is_plain = self._committer.retries == retries
        for one in rounds:
            self._open.drop(one.table.topic_id)
            self._judge(one, found.get(one.table.topic_id), made, failed.get(one.table.topic_id), is_plain=is_plain)
        return found

    # --- files that are gone ---

    async def _look_again(self, rounds: Sequence[TopicCommit], found: dict[int, Result]) -> None:
        """A commit lands although somebody removed its files before: then it is taken back while the log has all of
        it, and the next round writes it again (docs/adr/0042)."""
        done = {
            one.table.topic_id: one for one in rounds if isinstance(found.get(one.table.topic_id), CommittedSnapshot)
        }
        with self._effects.happens(Effect.LOOK_AGAIN):
            for topic_id, gone in (await self._committer.gone([*done.values()])).items():
                one, result = done[topic_id], found[topic_id]
                assert isinstance(result, CommittedSnapshot)
                if isinstance(gone, errors.IcestreamError):
                    one.table.is_stale = True
                    found[topic_id] = _not_looked_at(gone)
                    continue
                starts = {claim.shard: claim.start for claim in one.claims}
                shards = {
                    shard: ShardLog(position.epoch, starts.get(shard, position.next), position.next)
                    for shard, position in one.table.positions.items()
                }
                found[topic_id] = await self._taken_back(one.table, result.snapshot_id, shards, gone)

    async def passable(self, backlog: Backlog, tables: Sequence[TopicTable], positions: Positions) -> Positions:
        """Those of `positions`, of tables that another driver wrote, that floors may follow: the files of the newest
        snapshots are there. A commit without them is taken back, or its topic stops."""
        behind = {topic_id for topic_id, _, _ in positions}
        topics = {one.topic_id: one for one in backlog.topics if one.topic_id in behind}
        kept: set[int] = set()
        for table in tables:
            if table.topic_id not in topics:
                continue
            try:
                gone = await self._committer.gone_of_newest(table.table)
            except errors.StorageUnavailable:
                raise
            except errors.IcestreamError as error:
                self._topics.halt(table.topic_id, table.topic, _not_looked_at(error))
                continue
            if not gone:
                kept.add(table.topic_id)
                continue
            snapshot_id, missing = next(iter(gone.items()))
            shards = {
                one.shard: ShardLog(one.epoch, one.committed, one.synced) for one in topics[table.topic_id].shards
            }
            result = await self._taken_back(table, snapshot_id, shards, missing)
            if isinstance(result, StopReason):
                self._topics.halt(table.topic_id, table.topic, result)
        return [one for one in positions if one[0] in kept]

    async def _taken_back(
        self, table: TopicTable, snapshot_id: int, shards: Mapping[int, ShardLog], gone: Sequence[str]
    ) -> NotCommitted | StopReason:
        """What becomes of a topic whose committed files are gone."""
        self._lease.check()
        metrics.PIPELINE_VANISHED_FILES.inc(len(gone))
        self._report.vanished_files += len(gone)
        told = (
            f"{counted(len(gone), 'file')} of snapshot {snapshot_id} {were(len(gone))} gone behind its commit, "
            f"such as {gone[0]}"
        )
        try:
            await self._books.undo(table, snapshot_id, shards)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            return StopReason(f"{told}; the commit cannot be taken back: {error.message}", _VANISHED)
        finally:
            table.is_stale = True
        _log.error(
            "committed files are gone: the commit was taken back, its messages are written again from the log",
            topic=table.topic,
            snapshot_id=snapshot_id,
            files=len(gone),
            file=gone[0],
            hint=_ORPHANS,
        )
        return NotCommitted(f"{told}: its messages are written again from the log")

    async def _until_answered(self, rounds: Sequence[TopicCommit], found: dict[int, Result]) -> None:
        failures = 0
        while True:
            self._lease.check()
            try:
                with self._effects.happens(Effect.COMMIT):
                    await self._committer.commit(rounds, found)
                return
            except errors.StorageUnavailable as error:
                failures += 1
                metrics.PIPELINE_COMMIT_RETRIES.inc()
                self._report.say("committing", f"the catalog is away: {error.message}")
                await self._report.tell()
                pause = backoff_seconds(failures, limits.PIPELINE_RETRY_SECONDS_MIN, limits.PIPELINE_RETRY_SECONDS_MAX)
                await self._clock.sleep(pause)
                self._report.say("committing")

    def _judge(
        self, one: TopicCommit, result: Result | None, made: RoundReport, error: TaskError | None, *, is_plain: bool
    ) -> None:
        """`is_plain`: every attempt was the first."""
        topic_id, topic = one.table.topic_id, one.table.topic
        match result:
            case CommittedSnapshot(snapshot_id, is_repeat):
                self._tell_first(one, snapshot_id)
                self._watch(one, is_plain=is_plain and not is_repeat)
                made.add(one)
                if error is None:
                    self._topics.written(topic_id)
                else:
                    self._failed(topic_id, topic, error, is_stuck=False)
            case StopReason() as stopped:
                self._topics.halt(topic_id, topic, stopped)
            case NotCommitted(reason, is_open):
                metrics.PIPELINE_COMMIT_RETRIES.inc()
                self._watch(one, is_plain=False)
                _log.warning("a topic's part of a round was not committed", topic=topic, reason=reason)
                self._topics.doubt([topic_id])
                if is_open:
                    self._open.keep(one)
                self._topics.failed(topic_id, topic, HaltCause.COMMIT, StopReason(reason, _AGAIN), is_stuck=is_open)

    def _failed(self, topic_id: int, topic: str, error: TaskError, *, is_stuck: bool) -> None:
        stopped = StopReason(error.message, _HINTS[error.trouble])
        self._topics.failed(topic_id, topic, HaltCause(error.trouble), stopped, is_stuck=is_stuck)

    # --- what is said ---

    def _tell_first(self, one: TopicCommit, snapshot_id: int) -> None:
        """A topic's first rows, so that whoever has just started a broker sees where they are."""
        if len(one.table.table.snapshots) == 1:
            name = str(one.table.identifier)
            self._report.begun(one.table.topic, one.table.identifier, snapshot_id)
            _log.info("a topic has its first snapshot", topic=one.table.topic, table=name, snapshot_id=snapshot_id)

    def _tell_errors(self, one: TopicVerdict) -> None:
        for error in one.errors:
            _log.warning("a part of a round failed", topic=one.topic.name, trouble=error.trouble, reason=error.message)
            metrics.PIPELINE_TASK_ERRORS.labels(error.trouble).inc()
        if one.is_cut:
            _log.warning(
                "a topic has more partition values than a round writes files: the rest comes with the next one",
                topic=one.topic.name,
                hint=f"at most {limits.ROUND_PARTITIONS_MAX} in one task; a bucket of the key makes larger files",
            )

    def _watch(self, one: TopicCommit, *, is_plain: bool) -> None:
        if self._cleaner is None:
            return
        self._cleaner.committed(one.table)
        if not is_plain:
            self._cleaner.left_something(one.table)


def _not_looked_at(error: errors.IcestreamError) -> StopReason:
    """For a topic whose committed files cannot be looked at: its floor stays, and the other topics go on."""
    return StopReason(f"its committed files cannot be looked at: {error.message}", error.hint or _AGAIN)
