"""The tables of all topics that a driver writes, and the topics that it does not write at present.

A topic that cannot go on stops alone (hazards 21, 29): the others do not notice.

    somebody must decide    looked at again after a while, so that whatever was mended is found
    what was tried failed   tried again after a pause that grows each time, until something of it is committed
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
from icestream.model.task_messages import TaskErrorKind
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.pipeline.commit.offset_ledger import OffsetLedger
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.round_plan import TableTarget
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.topic_table import StopReason, TopicTable
from icestream.rpc.backoff import backoff_seconds, with_jitter
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness

_log = get_logger("pipeline")


class HaltCause(StrEnum):
    """Why a topic is stuck: undecided, its share of a round failed (model/task_messages.py), or its commit."""

    DECISION = "decision"
    STALE = TaskErrorKind.STALE.value
    DAMAGED = TaskErrorKind.DAMAGED.value
    UNREACHABLE = TaskErrorKind.UNREACHABLE.value
    FAILED = TaskErrorKind.FAILED.value
    COMMIT = "commit"


class Halt(NamedTuple):
    topic: str
    stopped: StopReason
    again_ns: int
    cause: HaltCause


class _Failure(NamedTuple):
    """What failed last for a topic, and how often in a row it had to wait for it."""

    stopped: StopReason
    times: int


class TopicTables:
    def __init__(
        self,
        books: OffsetLedger,
        catalog: TableCatalog,
        effects: Effects,
        clock: Clock,
        randomness: Randomness,
        storage: Mapping[str, Any],
    ) -> None:
        """`storage`: what the tasks need to reach the files of tables."""
        self._books = books
        self._catalog = catalog
        self._effects = effects
        self._clock = clock
        self._randomness = randomness
        self._storage = storage
        self._failures: dict[int, _Failure] = {}
        self._tables: dict[int, TopicTable] = {}
        self._made: dict[int, TopicTable] = {}  # by this look, and not evolved yet
        self.halted: dict[int, Halt] = {}

    def __getitem__(self, topic_id: int) -> TopicTable:
        return self._tables[topic_id]

    def forget(self) -> None:
        """Nothing is certain any more: another driver was at work."""
        self._tables.clear()

    def doubt(self, topic_ids: Iterable[int]) -> None:
        """These are looked at again before anything else is done with them."""
        for one in topic_ids:
            if one in self._tables:
                self._tables[one].is_stale = True

    # --- topics that stand still ---

    def halt(
        self,
        topic_id: int,
        topic: str,
        stopped: StopReason,
        cause: HaltCause = HaltCause.DECISION,
        seconds: float = limits.TOPIC_HALT_SECONDS,
    ) -> None:
        self._tables.pop(topic_id, None)
        known = self.halted.get(topic_id)
        if known is None or known.stopped != stopped:
            _log.error("a topic is not written to its table", topic=topic, reason=stopped.reason, hint=stopped.hint)
        again_ns = self._clock.monotonic_ns() + int(seconds * 1e9)
        self.halted[topic_id] = Halt(topic, stopped, again_ns, cause)
        self._count_halted()

    def failed(self, topic_id: int, topic: str, cause: HaltCause, stopped: StopReason, *, is_stuck: bool) -> None:
        """What was tried for it came to nothing; or, not stuck, to less than it should: then it waits when the same
        happens again."""
        known = self._failures.get(topic_id, _Failure(StopReason(""), 0))
        if not is_stuck and known.stopped != stopped:
            self._failures[topic_id] = _Failure(stopped, 0)
            return
        self._failures[topic_id] = _Failure(stopped, known.times + 1)
        pause = backoff_seconds(known.times + 1, limits.PIPELINE_RETRY_SECONDS_MIN, limits.TOPIC_RETRY_SECONDS_MAX)
        self.halt(topic_id, topic, stopped, cause, with_jitter(pause, self._randomness))

    def written(self, topic_id: int) -> None:
        """Everything that was tried is in the table."""
        self._failures.pop(topic_id, None)
        self._go_on(topic_id)

    def standing(self) -> list[int]:
        """Those that are not to be tried or looked at yet: the broker passes them over."""
        found = (topic_id for topic_id in self.halted if self.is_halted(topic_id))
        return list(islice(found, limits.BACKLOG_PASSED_OVER_MAX))

    def forget_halts(self, backlog: Backlog, passed_over: Collection[int]) -> None:
        """Of topics of which nothing is in the log any more: they were deleted, or another driver was faster."""
        if backlog.is_cut:
            return
        for topic_id in self.halted.keys() - {one.topic_id for one in backlog.topics} - set(passed_over):
            self.written(topic_id)

    @property
    def next_look_seconds(self) -> float:
        """Until one that stands still is tried or looked at again; 0 where none does."""
        now_ns = self._clock.monotonic_ns()
        return max(0, min((one.again_ns for one in self.halted.values()), default=now_ns) - now_ns) / 1e9

    def is_halted(self, topic_id: int) -> bool:
        halt = self.halted.get(topic_id)
        return halt is not None and self._clock.monotonic_ns() < halt.again_ns

    def _go_on(self, topic_id: int) -> None:
        halt = self.halted.pop(topic_id, None)
        if halt is not None:
            _log.info("a topic is written to its table again", topic=halt.topic)
            self._count_halted()

    def _count_halted(self) -> None:
        counts = Counter(one.cause for one in self.halted.values())
        for cause in HaltCause:
            metrics.PIPELINE_STOPPED_TOPICS.labels(cause).set(counts[cause])

    # --- tables ---

    async def ready(self, backlog: Iterable[TopicBacklog]) -> list[TopicTable]:
        """The tables of these topics, as far as they can be written. Raises StorageUnavailable while the catalog is
        away."""
        wanted = [one for one in backlog if not self.is_halted(one.topic_id)]
        await self._make_many([one for one in wanted if one.topic_id not in self._tables])
        gate = asyncio.Semaphore(limits.TABLES_OPENED_AT_ONCE)

        async def open_one(topic: TopicBacklog) -> TopicTable | None:
            async with gate:
                return await self._opened(topic)

        found = await asyncio.gather(*(open_one(one) for one in wanted))
        return [one for one in found if one is not None]

    async def _make_many(self, unknown: Sequence[TopicBacklog]) -> None:
        """Makes the tables of new topics together: each by itself costs several syncs. What stands in the way of one is
        met again, and told, when it is opened."""
        self._made.clear()
        if len(unknown) > 1 and self._books.is_own:
            with self._effects.happens(Effect.MAKE_TABLE):
                self._made.update(await self._books.make_all(unknown))

    async def _opened(self, topic: TopicBacklog) -> TopicTable | None:
        known = self._tables.get(topic.topic_id) or self._made.get(topic.topic_id)
        try:
            if known is None:
                with self._effects.happens(Effect.MAKE_TABLE):
                    known = await self._books.open(topic)
            elif known.is_stale:
                known = await self._books.look(known)
            if known.policy != topic.policy or known.topic_id not in self._tables:
                known.policy = topic.policy
                known = await self._evolved(known)
            if len(known.positions) < len(topic.shards):
                known = await self._books.widen(known, topic)
        except errors.StorageUnavailable:
            raise
        except errors.IcestreamError as error:
            self.halt(topic.topic_id, topic.name, StopReason(error.message, error.hint or ""))
            return None
        self._tables[topic.topic_id] = known
        halt = self.halted.get(topic.topic_id)
        if halt is not None and halt.cause is HaltCause.DECISION:  # what failed must succeed first
            self._go_on(topic.topic_id)
        return known

    async def _evolved(self, known: TopicTable) -> TopicTable:
        """The table first, in a commit of its own; then the data (hazard 30)."""
        updates = table_policy.evolution(known.table, known.policy)
        if not updates:
            return known
        fields = known.table.fields
        requirements = [
            {"type": "assert-table-uuid", "uuid": known.table.uuid},
            {"type": "assert-current-schema-id", "current-schema-id": fields["current-schema-id"]},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": fields["last-column-id"]},
            {"type": "assert-default-spec-id", "default-spec-id": fields["default-spec-id"]},
        ]
        with self._effects.happens(Effect.EVOLVE_TABLE):
            outcome = await self._catalog.commit(known.identifier, TableChange(requirements, updates))
        if not isinstance(outcome, CommitDone):
            _log.warning("a table was not changed to its topic's policy yet", topic=known.topic, reason=outcome.reason)
        return await self._books.look(known)

    def positions(self, tables: Iterable[TopicTable]) -> dict[int, dict[int, int]]:
        return {one.topic_id: one.next_offsets for one in tables}

    def targets(self, tables: Iterable[TopicTable]) -> dict[int, TableTarget]:
        return {one.topic_id: table_policy.target_of(one.table, one.policy, self._storage) for one in tables}
