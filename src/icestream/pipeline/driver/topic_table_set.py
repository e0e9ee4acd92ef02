"""The tables of all topics that a driver writes, and the topics that are halted at present.

A topic that cannot be written is halted by itself (hazards 21, 29): the others are not affected.

    an operator must decide    the table is reloaded after a while, to see whether the cause is gone
    an attempt failed          retried after a pause that grows each time, until something of it is committed
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

from icestream import errors, limits
from icestream.catalogs.table_catalog import CommitDone, TableCatalog, TableChange
from icestream.model.backlog_messages import Backlog, TopicBacklog
from icestream.model.task_messages import TaskErrorKind, TopicTaskResult
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.pipeline.commit.offset_ledger import OffsetLedger
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.round_plan import TableTarget
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.learned_structures import LearnedStructures
from icestream.pipeline.tables.topic_table import StopReason, TopicTable, unexpected_stop
from icestream.rpc.backoff import backoff_seconds, with_jitter
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness

_log = get_logger("pipeline")


class HaltCause(StrEnum):
    """Why a topic is halted: an operator must decide; its tasks failed (model/task_messages.py); its commit failed."""

    DECISION = "decision"
    STALE = TaskErrorKind.STALE.value
    DAMAGED = TaskErrorKind.DAMAGED.value
    UNREACHABLE = TaskErrorKind.UNREACHABLE.value
    FAILED = TaskErrorKind.FAILED.value
    COMMIT = "commit"


class Halt(NamedTuple):
    """A topic that is not written until `retry_at_ns`."""

    topic: str
    stopped: StopReason
    retry_at_ns: int  # monotonic clock
    cause: HaltCause


class _Failure(NamedTuple):
    """The last failure of a topic, and how often in a row the topic was halted for it."""

    stopped: StopReason
    times: int


class TopicTableSet:
    """The tables that the driver has loaded, and the halted topics."""

    def __init__(
        self,
        ledger: OffsetLedger,
        catalog: TableCatalog,
        structures: LearnedStructures,
        effects: Effects,
        clock: Clock,
        randomness: Randomness,
        storage: Mapping[str, Any],
    ) -> None:
        """`structures`: of topics with MQTT messages. `storage`: the options with which tasks reach the files of
        tables."""
        self._ledger = ledger
        self._catalog = catalog
        self._structures = structures
        self._effects = effects
        self._clock = clock
        self._randomness = randomness
        self._storage = storage
        self._failures: dict[int, _Failure] = {}
        self._tables: dict[int, TopicTable] = {}
        self._created: dict[int, TopicTable] = {}  # together, and not evolved to their policies yet
        self._growth_due_ns: dict[int, int] = {}  # monotonic clock; of topics with automatic partitions
        self.halted: dict[int, Halt] = {}

    def __getitem__(self, topic_id: int) -> TopicTable:
        return self._tables[topic_id]

    def loaded(self, topic_id: int) -> TopicTable | None:
        """Returns the table of a topic if it is loaded."""
        return self._tables.get(topic_id)

    def loaded_ids(self) -> list[int]:
        """The topics whose tables are loaded."""
        return list(self._tables)

    async def refreshed(self, table: TopicTable) -> TopicTable | None:
        """Reloads a table in place, for a job that changes its files; None if table and topic do not agree any more,
        which ingest reports when it opens the table. Raises StorageUnavailable."""
        try:
            refreshed = await self._ledger.refresh(table)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            _log.warning("table cannot be reloaded", topic=table.topic, reason=error.message)
            return None
        return refreshed

    def clear(self) -> None:
        """Drops all tables: another driver was at work, so that nothing in memory is certain."""
        self._tables.clear()
        self._growth_due_ns.clear()
        self._structures.clear()

    def mark_stale(self, topic_ids: Iterable[int]) -> None:
        """Has these tables reloaded before they are used again."""
        for topic_id in topic_ids:
            if topic_id in self._tables:
                self._tables[topic_id].is_stale = True

    # --- halted topics ---

    def halt(
        self,
        topic_id: int,
        topic: str,
        stop_reason: StopReason,
        cause: HaltCause = HaltCause.DECISION,
        seconds: float = limits.TOPIC_HALT_SECONDS,
    ) -> None:
        """Does not write this topic for so many seconds."""
        # Loaded anew when the topic is retried: the cause may be in the table, and may be gone by then.
        self._tables.pop(topic_id, None)
        before = self.halted.get(topic_id)
        if before is None or before.stopped != stop_reason:
            _log.error("topic halted", topic=topic, reason=stop_reason.reason, hint=stop_reason.hint)
        retry_at_ns = self._clock.monotonic_ns() + int(seconds * 1e9)
        self.halted[topic_id] = Halt(topic, stop_reason, retry_at_ns, cause)
        self._count_halted()

    def record_failure(
        self, topic_id: int, topic: str, cause: HaltCause, stop_reason: StopReason, *, is_stuck: bool
    ) -> None:
        """An attempt failed. `is_stuck`: nothing of it was committed; otherwise some was, and the topic is halted only
        when the same failure happens again."""
        last = self._failures.get(topic_id, _Failure(StopReason(""), 0))
        # A topic that makes progress is not halted for its first failure: the next round writes the rest.
        if not is_stuck and last.stopped != stop_reason:
            self._failures[topic_id] = _Failure(stop_reason, 0)
            return
        self._failures[topic_id] = _Failure(stop_reason, last.times + 1)
        pause = backoff_seconds(last.times + 1, limits.PIPELINE_RETRY_SECONDS_MIN, limits.TOPIC_RETRY_SECONDS_MAX)
        self.halt(topic_id, topic, stop_reason, cause, with_jitter(pause, self._randomness))

    def record_success(self, topic_id: int) -> None:
        """Everything that was attempted is committed."""
        self._failures.pop(topic_id, None)
        self._resume(topic_id)

    def halted_ids(self) -> list[int]:
        """Topics that are not to be retried yet, for the broker to leave out of the backlog; at most
        BACKLOG_PASSED_OVER_MAX."""
        topic_ids = (topic_id for topic_id in self.halted if self.is_halted(topic_id))
        return list(islice(topic_ids, limits.BACKLOG_PASSED_OVER_MAX))

    def drop_finished_halts(self, backlog: Backlog, left_out_ids: Collection[int]) -> None:
        """Ends the halt of topics without backlog: they were deleted, or another driver committed it."""
        # A topic that is missing from an incomplete backlog may still have messages.
        if backlog.is_cut:
            return
        for topic_id in self.halted.keys() - {topic.topic_id for topic in backlog.topics} - set(left_out_ids):
            self.record_success(topic_id)

    @property
    def next_retry_seconds(self) -> float:
        """Until the next halted topic is retried; 0 if none is halted."""
        now_ns = self._clock.monotonic_ns()
        return max(0, min((halt.retry_at_ns for halt in self.halted.values()), default=now_ns) - now_ns) / 1e9

    def is_halted(self, topic_id: int) -> bool:
        halt = self.halted.get(topic_id)
        return halt is not None and self._clock.monotonic_ns() < halt.retry_at_ns

    def _resume(self, topic_id: int) -> None:
        halt = self.halted.pop(topic_id, None)
        if halt is not None:
            _log.info("topic resumed", topic=halt.topic)
            self._count_halted()

    def _count_halted(self) -> None:
        counts = Counter(halt.cause for halt in self.halted.values())
        for cause in HaltCause:
            metrics.PIPELINE_STOPPED_TOPICS.labels(cause).set(counts[cause])

    # --- tables ---

    async def open_all(self, topics: Iterable[TopicBacklog]) -> list[TopicTable]:
        """Opens the tables of these topics. Topics whose table cannot be opened are halted and left out. Raises
        StorageUnavailable while the catalog is unreachable."""
        active = [topic for topic in topics if not self.is_halted(topic.topic_id)]
        await self._create_new([topic for topic in active if topic.topic_id not in self._tables])
        # Each opening reads from the catalog: hundreds at once would exceed its connections, and time out together.
        gate = asyncio.Semaphore(limits.TABLES_OPENED_AT_ONCE)

        async def open_gated(topic: TopicBacklog) -> TopicTable | None:
            async with gate:
                return await self._open(topic)

        tables = await asyncio.gather(*(open_gated(topic) for topic in active))
        return [table for table in tables if table is not None]

    async def find(self, topic_id: int, topic: str) -> TopicTable | None:
        """Returns the table of a topic without a backlog, for jobs that work on existing tables; None if it has none,
        or is halted. The same object as in rounds: a commit to it is known to the next round."""
        if self.is_halted(topic_id):
            return None
        table = self._tables.get(topic_id)
        if table is not None and table.is_stale:
            return await self._ledger.refresh(table)
        return table or await self._ledger.find(topic_id, topic)

    async def _create_new(self, topics: Sequence[TopicBacklog]) -> None:
        """Creates the tables of new topics together, because each by itself costs several syncs. An error of one topic
        is met and reported when that topic is opened by itself."""
        self._created.clear()
        # Other catalogs create one table with each request, so nothing is gained there.
        if len(topics) > 1 and self._ledger.is_embedded:
            with self._effects.happens(Effect.MAKE_TABLE):
                self._created.update(await self._ledger.create_all(topics))

    async def _open(self, topic: TopicBacklog) -> TopicTable | None:
        """Returns the table of a topic, loaded, evolved to its policy, and with all shards; None if the topic was
        halted."""
        table = self._tables.get(topic.topic_id) or self._created.get(topic.topic_id)
        try:
            if table is None:
                with self._effects.happens(Effect.MAKE_TABLE):
                    table = await self._ledger.open(topic)
            elif table.is_stale or self._is_growth_due(topic):
                table = await self._ledger.refresh(table)
            # A table is evolved when its topic's policy changed, and once after each load: columns of a newer release
            # may be missing.
            if table.policy != topic.policy or table.topic_id not in self._tables:
                table.policy = topic.policy
                table = await self._evolve(table)
            if len(table.positions) < len(topic.shards):
                table = await self._ledger.add_shards(table, topic)
            table.has_mqtt = table_policy.has_mqtt(topic.policy)
            if table.has_mqtt:
                await self._structures.load(table.topic_id)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            self.halt(topic.topic_id, topic.name, StopReason(error.message, error.hint or ""))
            return None
        except Exception as error:  # noqa: BLE001  # it is logged, and of one table or job
            _log.exception("table of a topic cannot be opened; please report this", topic=topic.name)
            self.halt(topic.topic_id, topic.name, unexpected_stop(error))
            return None
        self._tables[topic.topic_id] = table
        halt = self.halted.get(topic.topic_id)
        # Opening the table proves that a decision was made. Other halts end with a commit that succeeds.
        if halt is not None and halt.cause is HaltCause.DECISION:
            self._resume(topic.topic_id)
        return table

    def _is_growth_due(self, topic: TopicBacklog) -> bool:
        """True once an hour for a table whose growth decides about its partitions: only the catalog's document has the
        committed offsets of each snapshot."""
        if not table_policy.is_automatic(topic.policy):
            return False
        now_ns = self._clock.monotonic_ns()
        is_due = now_ns >= self._growth_due_ns.get(topic.topic_id, 0)
        if is_due:
            self._growth_due_ns[topic.topic_id] = now_ns + limits.TABLE_GROWTH_CHECK_SECONDS * 10**9
        return is_due

    async def _evolve(self, table: TopicTable) -> TopicTable:
        """Changes the table to its topic's policy, in a commit of its own before any data (hazard 30)."""
        updates = table_policy.evolution(table.table, table.policy)
        if not updates:
            return table
        if any(update["action"] == "add-spec" for update in updates):
            policy = table.policy.get("partitioning")
            names = [field["name"] for update in updates for field in update.get("spec", {}).get("fields", ())]
            _log.info("partitions of table change", topic=table.topic, policy=policy, fields=names)
        fields = table.table.fields
        # Not main: a commit of another engine meanwhile does not matter to schema and partitioning.
        requirements = [
            {"type": "assert-table-uuid", "uuid": table.table.uuid},
            {"type": "assert-current-schema-id", "current-schema-id": fields["current-schema-id"]},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": fields["last-column-id"]},
            {"type": "assert-default-spec-id", "default-spec-id": fields["default-spec-id"]},
        ]
        with self._effects.happens(Effect.EVOLVE_TABLE):
            outcome = await self._catalog.commit(table.identifier, TableChange(requirements, updates))
        # Not an error: the files are written for the table as it is, and the next opening tries again.
        if not isinstance(outcome, CommitDone):
            _log.warning("table not changed to its topic's policy yet", topic=table.topic, reason=outcome.reason)
        return await self._ledger.refresh(table)

    def positions(self, tables: Iterable[TopicTable]) -> dict[int, dict[int, int]]:
        """Returns the next offset of each shard, by topic id."""
        return {table.topic_id: table.next_offsets for table in tables}

    def targets(self, tables: Iterable[TopicTable]) -> dict[int, TableTarget]:
        return {table.topic_id: self._target(table) for table in tables}

    def _target(self, table: TopicTable) -> TableTarget:
        mqtt = self._structures.target(table.topic_id, table.topic) if table.has_mqtt else None
        return table_policy.target_of(table.table, table.policy, self._storage, mqtt)

    async def learn(self, results: Iterable[TopicTaskResult]) -> None:
        """Stores what the tasks of a round found out about the topics of MQTT messages, for the rounds after it."""
        new_topics: dict[int, list[str]] = {}
        for result in results:
            new_topics.setdefault(result.topic_id, []).extend(result.new_topics)
        for topic_id, topics in new_topics.items():
            if topics:
                with self._effects.happens(Effect.LEARN):
                    await self._structures.learn(topic_id, topics)
