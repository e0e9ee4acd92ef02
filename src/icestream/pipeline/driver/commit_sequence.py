"""The steps of every commit, whichever job makes it: commit, verify the files, record.

    commit   retried as long as the lease is held while the catalog is unreachable: the written files wait
    verify   the committed files exist. An engine may have removed them as orphans while the commit was in flight; then
             the commit is undone, before anything follows from it (docs/adr/0042)
    record   the ledger notes the commits that count

What the outcome means for a topic is the business of the job (round_commit.py, rewrite_commit.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from icestream import errors, limits
from icestream.catalog.topic_rules.operation_preview import ShardLog
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.observability.words import counted, were
from icestream.pipeline.commit.committer import CommittedSnapshot, Committer, NotCommitted, Result
from icestream.pipeline.commit.offset_ledger import OffsetLedger, TopicCommit
from icestream.pipeline.driver.driver_report import DriverReport
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.tables.topic_table import StopReason, TopicTable
from icestream.rpc.backoff import backoff_seconds
from icestream.runtime.clock import Clock

RETRIED_HINT: Final = "retried automatically"
_ORPHAN_RETENTION: Final = "an engine that removes orphan files needs a retention of some hours (docs/lake.md)"
_WRITTEN_AGAIN: Final = "its messages are written again from the log"
_REPLACED_AGAIN: Final = "the table has the replaced files again"
_REWIND: Final = (
    "the log keeps the messages: `icestream lake rewind TABLE --snapshot ID`, to a snapshot before it, lets them be "
    "written again"
)
_log = get_logger("pipeline")


class CommitSequence:
    """Runs the steps of a commit. Shared by the jobs that commit."""

    def __init__(
        self,
        lease: DriverLease,
        ledger: OffsetLedger,
        committer: Committer,
        effects: Effects,
        clock: Clock,
        report: DriverReport,
    ) -> None:
        self._lease = lease
        self._ledger = ledger
        self._committer = committer
        self._effects = effects
        self._clock = clock
        self._report = report

    async def run(self, commits: Sequence[TopicCommit]) -> dict[int, Result]:
        """Returns the result of each commit, by topic id. Raises LeaseLost when another driver took over."""
        results: dict[int, Result] = {}
        await self._commit_with_retries(commits, results)
        # Verified before anything is recorded: once the ledger and the broker know of a commit, the log may drop its
        # messages, and nothing could write them again.
        await self._verify_files(commits, results)
        committed = [commit for commit in commits if isinstance(results.get(commit.table.topic_id), CommittedSnapshot)]
        with self._effects.happens(Effect.NOTE):
            for topic_id in await self._ledger.record(committed):
                results[topic_id] = NotCommitted("an operator changed the binding of the topic's table meanwhile")
        return results

    async def _commit_with_retries(self, commits: Sequence[TopicCommit], results: dict[int, Result]) -> None:
        """Retries while the catalog is unreachable. Fills `results`. Raises LeaseLost."""
        failures = 0
        while True:
            self._lease.check()
            try:
                with self._effects.happens(Effect.COMMIT):
                    await self._committer.commit(commits, results)
                return
            except errors.StorageUnavailable as error:
                # No last attempt: the files are written and the log keeps the messages, so waiting costs only age, and
                # giving up would write everything again.
                failures += 1
                metrics.PIPELINE_COMMIT_RETRIES.inc()
                self._report.set_phase("committing", f"the catalog is unreachable: {error.message}")
                await self._report.publish()
                pause = backoff_seconds(failures, limits.PIPELINE_RETRY_SECONDS_MIN, limits.PIPELINE_RETRY_SECONDS_MAX)
                await self._clock.sleep(pause)
                self._report.set_phase("committing")

    # --- committed files that are missing ---

    async def _verify_files(self, commits: Sequence[TopicCommit], results: dict[int, Result]) -> None:
        """Checks that the files of the commits exist. A commit can land although another engine removed its files
        before: it is undone while the log still has the messages, or the table the replaced files, and is made again
        (docs/adr/0042)."""
        committed = {
            commit.table.topic_id: commit
            for commit in commits
            if isinstance(results.get(commit.table.topic_id), CommittedSnapshot)
        }
        with self._effects.happens(Effect.LOOK_AGAIN):
            for topic_id, missing in (await self._committer.missing_files([*committed.values()])).items():
                commit, result = committed[topic_id], results[topic_id]
                assert isinstance(result, CommittedSnapshot)
                if isinstance(missing, errors.IcestreamError):
                    # Neither undone nor recorded: an unreadable store proves nothing about the files.
                    commit.table.is_stale = True
                    results[topic_id] = unverified(missing)
                    continue
                # The log still has the offsets of this commit: the broker has not heard of it yet.
                starts = {claim.shard: claim.start for claim in commit.claims}
                shards = {
                    shard: ShardLog(position.epoch, starts.get(shard, position.next), position.next)
                    for shard, position in commit.table.positions.items()
                }
                remedy = _REPLACED_AGAIN if commit.is_job else _WRITTEN_AGAIN
                results[topic_id] = await self.undo(commit.table, result.snapshot_id, shards, missing, remedy)

    async def undo(
        self,
        table: TopicTable,
        snapshot_id: int,
        shards: Mapping[int, ShardLog],
        missing: Sequence[str],
        remedy: str = _WRITTEN_AGAIN,
    ) -> NotCommitted | StopReason:
        """Undoes a commit whose files are missing. Returns what that means for its topic. `remedy`: where the rows are
        after that."""
        self._lease.check()
        metrics.PIPELINE_VANISHED_FILES.inc(len(missing))
        self._report.vanished_files += len(missing)
        description = (
            f"{counted(len(missing), 'file')} of snapshot {snapshot_id} {were(len(missing))} missing after its commit, "
            f"such as {missing[0]}"
        )
        try:
            await self._ledger.undo(table, snapshot_id, shards)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            return StopReason(f"{description}; the commit cannot be undone: {error.message}", _REWIND)
        finally:
            # Also after an error: the undo may have been applied although its reply was lost.
            table.is_stale = True
        _log.error(
            f"committed files are missing: commit undone, {remedy}",
            topic=table.topic,
            snapshot_id=snapshot_id,
            files=len(missing),
            file=missing[0],
            hint=_ORPHAN_RETENTION,
        )
        return NotCommitted(f"{description}: {remedy}")


def unverified(error: errors.IcestreamError) -> StopReason:
    """For a topic whose committed files cannot be checked: its committed offset stays, the other topics continue."""
    return StopReason(f"its committed files cannot be checked: {error.message}", error.hint or RETRIED_HINT)
