"""Expiry as a job of the driver: tables that nothing is committed to, and tags that keep too many bytes.

    due      a table is looked at once in an hour, one that was changed meanwhile again after a few minutes. In a
             cluster only tables that this driver has written since its start: the others have drivers of their own
    run      a few tables at a time are loaded, and the manifests of their tags read, beside the rounds; nothing waits
    commit   in the first turn after that, between two rounds, under the lease: a commit of its own for each table that
             something expires of (table_expiry.py)

A table is looked at and changed only while the metadata store names it, with its UUID, as that of its topic: it may be
detached, renamed, dropped, or replaced at any time, and another one of its name is its owner's.

With each commit of ingest snapshots and tags expire by their age in any case (commit/snapshot_expiry.py).
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, NamedTuple

from icestream import errors, limits
from icestream.catalogs.table_catalog import CommitDone, TableCatalog
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.table_metadata import TableMetadata
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.job import Job, JobRegistry, Turn
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.expiry.table_expiry import ExpiryPlan, TableExpiry
from icestream.pipeline.expiry.topic_table_list import NamedTable, TopicTableList
from icestream.pipeline.tables.topic_table import TopicTable
from icestream.runtime.clock import Clock

_log = get_logger("pipeline.expiry")


class ExpiringTable(NamedTuple):
    """What expires of a table, or why that is not known. Without a table: it is gone, or no topic's any more."""

    named: NamedTable
    table: TableMetadata | None = None
    plan: ExpiryPlan | None = None
    error: Exception | None = None


class ExpiryJob(Job[list[ExpiringTable], None]):
    """Expires snapshots and tags by itself."""

    name: ClassVar[str] = "expiry"

    def __init__(
        self,
        expiry: TableExpiry,
        table_list: TopicTableList,
        lease: DriverLease,
        topics: TopicTableSet,
        catalog: TableCatalog,
        jobs: JobRegistry,
        effects: Effects,
        clock: Clock,
        *,
        lists_tables: bool = True,
    ) -> None:
        """`jobs` hear of the commits. `lists_tables`: False in a cluster."""
        self._expiry = expiry
        self._table_list = table_list
        self._lease = lease
        self._topics = topics
        self._catalog = catalog
        self._jobs = jobs
        self._effects = effects
        self._clock = clock
        self._lists_tables = lists_tables
        self._due_ns: dict[NamedTable, int] = {}  # monotonic clock
        self._history_ms: dict[int, int] = {}  # by topic id: how long it keeps its messages
        self._next_list_ns = clock.monotonic_ns() + limits.EXPIRY_FIRST_MS * 1_000_000
        self._look: asyncio.Task[list[ExpiringTable]] | None = None

    # --- when ---

    @property
    def is_busy(self) -> bool:
        return self._look is not None

    def is_due(self, turn: Turn) -> bool:
        if self._look is not None:
            return self._look.done()
        now_ns = self._clock.monotonic_ns()
        if self._lists_tables and now_ns >= self._next_list_ns:
            return True
        return any(due_ns <= now_ns for due_ns in self._due_ns.values())

    def on_table_committed(self, table: TopicTable) -> None:
        named = NamedTable(table.topic_id, table.identifier)
        self._due_ns.setdefault(named, self._clock.monotonic_ns() + limits.EXPIRY_LOOK_MS * 1_000_000)

    # --- looking, beside the rounds ---

    async def plan(self, turn: Turn) -> list[ExpiringTable] | None:
        """Returns the results of a look that is over; starts one otherwise."""
        self._history_ms |= {topic.topic_id: topic.age_ms or topic.unconsumed_age_ms for topic in turn.backlog.retained}
        if self._look is not None:
            look, self._look = self._look, None
            return look.result()
        now_ns = self._clock.monotonic_ns()
        due = [named for named, due_ns in self._due_ns.items() if due_ns <= now_ns]
        due.sort(key=lambda named: self._due_ns[named])  # the oldest debt first
        due = due[: limits.EXPIRY_TABLES_AT_ONCE]
        for named in due:
            self._due_ns[named] = now_ns + limits.EXPIRY_LOOK_MS * 1_000_000
        lists = self._lists_tables and now_ns >= self._next_list_ns
        if lists:
            self._next_list_ns = now_ns + limits.EXPIRY_LOOK_MS * 1_000_000
        self._look = asyncio.create_task(self._look_at(due, lists=lists), name="expiry")
        return None

    async def _look_at(self, due: list[NamedTable], *, lists: bool) -> list[ExpiringTable]:
        if lists:
            await self._list_tables()
        return [await self._expiring(named) for named in due]

    async def _list_tables(self) -> None:
        """Adds the tables of all topics; those that are new here are due at once."""
        now_ns, after = self._clock.monotonic_ns(), ""
        while True:
            page, after = await self._table_list.page(after)
            for named in page:
                self._due_ns.setdefault(named, now_ns)
            if not after:
                return

    async def _expiring(self, named: NamedTable) -> ExpiringTable:
        try:
            if not await self._is_bound(named):
                return ExpiringTable(named)
            table = tables.load((await self._catalog.load(named.identifier)).metadata)
            if not await self._is_bound(named, table):
                return ExpiringTable(named)
            return ExpiringTable(named, table, await self._expiry.plan(table, self._history_ms.get(named.topic_id, 0)))
        except (errors.UnknownTable, errors.UnknownNamespace):
            return ExpiringTable(named)
        except Exception as error:  # noqa: BLE001  # raised again in the turn, for this table alone
            return ExpiringTable(named, error=error)

    async def _is_bound(self, named: NamedTable, table: TableMetadata | None = None) -> bool:
        """Whether the topic still has a table of this name, and it is the one with this metadata."""
        bound = await self._table_list.bound(named.topic_id)
        if bound is None or bound.identifier != named.identifier:
            return False
        return table is None or bound.uuid == table.uuid

    async def run(self, turn: Turn, plan: list[ExpiringTable]) -> None:
        """Nothing: the look was taken beside the rounds."""

    # --- commit ---

    async def commit(self, turn: Turn, plan: list[ExpiringTable], result: None) -> None:
        """Raises StorageUnavailable of the first table that met it, after all of them were tried."""
        unavailable: errors.StorageUnavailable | None = None
        with turn.timed("expiry"):
            for expiring in plan:
                topic_id, identifier = expiring.named
                if not turn.guard.may_run(self.name, topic_id):
                    continue
                try:
                    with turn.guard.protect(self.name, topic_id, str(identifier)):
                        await self._commit(expiring)
                        turn.guard.succeeded(self.name, topic_id)
                except errors.StorageUnavailable as error:
                    # Perhaps of this table's store alone. The others are due with it again, and would never be reached.
                    unavailable = unavailable or error
        if unavailable is not None:
            raise unavailable

    async def _commit(self, expiring: ExpiringTable) -> None:
        (topic_id, identifier), table, plan = expiring.named, expiring.table, expiring.plan
        if expiring.error is not None:
            raise expiring.error
        if table is None or plan is None:
            self._due_ns.pop(expiring.named, None)
            return
        if plan.is_empty:
            return
        # Again: the look may have taken minutes, and the history of a table that is no topic's any more is not ours.
        if not await self._is_bound(expiring.named, table):
            self._due_ns.pop(expiring.named, None)
            return
        self._lease.check()
        with self._effects.happens(Effect.COMMIT_CARE):
            outcome = await self._expiry.commit(identifier, table, plan)
        if not isinstance(outcome, CommitDone):
            # Another commit was faster, and has expired what is old; what is left is looked at again soon.
            self._due_ns[expiring.named] = self._clock.monotonic_ns() + limits.EXPIRY_RETRY_MS * 1_000_000
            _log.info("expiry of a table overtaken", table=str(identifier), reason=outcome.reason)
            return
        metrics.EXPIRED_SNAPSHOTS.inc(len(plan.snapshot_ids))
        metrics.EXPIRED_TAGS.labels("age").inc(len(plan.old_tags))
        metrics.EXPIRED_TAGS.labels("bytes").inc(len(plan.surplus_tags))
        _log.info(
            "snapshots and tags of a table expired",
            table=str(identifier),
            snapshots=len(plan.snapshot_ids),
            old_tags=len(plan.old_tags),
            surplus_tags=len(plan.surplus_tags),
        )
        self._tell_jobs(topic_id, identifier, table)

    def _tell_jobs(self, topic_id: int, identifier: Identifier, table: TableMetadata) -> None:
        """The files of what expired are for the clean-up."""
        loaded = self._topics.loaded(topic_id)
        if loaded is not None and loaded.table.uuid == table.uuid:
            loaded.is_stale = True
            self._jobs.table_committed(loaded)
        else:
            topic = table.properties.get("icestream.topic", str(identifier))
            self._jobs.table_committed(TopicTable(topic_id, topic, identifier, table, {}))

    async def close(self) -> None:
        """Ends a look that is under way."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)
            self._look = None
