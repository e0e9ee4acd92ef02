"""The retention of tables as a job of the driver: the oldest files of a topic leave its table (hazards 85, 86).

    look      a topic with a retention is looked at once in a minute; less often after a look that found nothing
    note      which offsets are committed now (commit_times.py), if the topic keeps its messages for a time
    decide    by the counts of the last snapshot first: the manifests are read only if something may have to go
    commit    files and first kept offsets in one transaction (catalog/topic_rules/retention_claim.py); in another
              catalog the offsets first, then the files (foreign_ledger.py). Brokers and readers follow the record of
              the first kept offsets; the files go with the clean-up

The record of removals is written before the commit: a driver that ends in between has used up some of the share of the
day, and has removed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.plans.commit_plans import first_kept
from icestream.catalog.topic_rules.rewritten_rows import Bounds, bound_columns, data_file_of_entry
from icestream.catalog.topic_rules.snapshot_progress import lineage
from icestream.iceberg.conversions import integer_from_bytes
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifests import DATA_CONTENT
from icestream.metadata.store import MetadataStore
from icestream.model.backlog_messages import ConsumedOffsets, RetainedTopic
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.pipeline.commit.committer import CommittedSnapshot
from icestream.pipeline.commit.manifest_merge import is_ours
from icestream.pipeline.driver.broker_api import BrokerApi
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.job import Job, Turn
from icestream.pipeline.driver.maintenance_request import RETENTION, PlannedGroup
from icestream.pipeline.driver.rewrite_commit import RewriteCommit, TableRetention
from icestream.pipeline.driver.topic_table_set import TopicTableSet
from icestream.pipeline.retention.commit_times import RetentionIndex
from icestream.pipeline.retention.removal_plan import (
    RetentionLimits,
    RetentionPlan,
    RetentionState,
    StoredFile,
    plan_removal,
    unread_files,
)
from icestream.pipeline.retention.retention_clock import RetentionClock
from icestream.pipeline.retention.shard_ranges import ShardRanges
from icestream.pipeline.tables.topic_table import TopicTable
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Offload

_log = get_logger("retention")


class TableRemoval(NamedTuple):
    """What one commit of a retention removes from a table."""

    table: TopicTable
    plan: RetentionPlan
    consumers: int | None = None  # the consumer generation, if acks decided

    @property
    def retention(self) -> TableRetention:
        files = [stored.file.location for stored in self.plan.removed]
        return TableRetention(self.table, files, self.plan.first, self.consumers)


Removals = list[TableRemoval]


class TableRetentionJob(Job[list[RetainedTopic], Removals]):
    """Removes what topics do not keep."""

    name: ClassVar[str] = "retention"

    def __init__(
        self,
        broker: BrokerApi,
        store: MetadataStore,
        tables: TopicTableSet,
        manifests: ManifestCache,
        commits: RewriteCommit,
        retention_clock: RetentionClock,
        ranges: ShardRanges,
        offload: Offload,
        effects: Effects,
        clock: Clock,
    ) -> None:
        """`broker`: knows what consumers have acked. `offload`: reads data files beside the loop."""
        self._broker = broker
        self._store = store
        self._tables = tables
        self._manifests = manifests
        self._commits = commits
        self._retention_clock = retention_clock
        self._ranges = ranges
        self._offload = offload
        self._effects = effects
        self._clock = clock
        self._next_look_ns: dict[int, int] = {}  # by topic id, monotonic
        self._unavailable: errors.StorageUnavailable | None = None  # what the first topic of this turn met
        # By topic id: a snapshot of main and what was acked when nothing could go.
        self._fruitless: dict[int, tuple[int | None, ConsumedOffsets | None]] = {}
        # By topic id, a snapshot of main: no file of it lies below the first kept offsets, nor of those that follow it.
        self._clean_snapshots: dict[int, int] = {}

    # --- when ---

    def is_due(self, turn: Turn) -> bool:
        return any(self._is_due(topic) for topic in turn.backlog.retained)

    def _is_due(self, topic: RetainedTopic) -> bool:
        return self._clock.monotonic_ns() >= self._next_look_ns.get(topic.topic_id, 0)

    def _look_again(self, topic_id: int, seconds: float) -> None:
        self._next_look_ns[topic_id] = self._clock.monotonic_ns() + int(seconds * 1e9)

    def look_now(self, topic_ids: Sequence[int]) -> None:
        """Has topics looked at in the next turn."""
        for topic_id in topic_ids:
            self._next_look_ns.pop(topic_id, None)
            self._fruitless.pop(topic_id, None)

    async def preview(self, turn: Turn, topics: Sequence[RetainedTopic]) -> list[PlannedGroup]:
        """What would be removed of these topics now."""
        now_ms = await self._retention_clock.now_ms()
        consumed = await self._consumed(topics)
        groups: list[PlannedGroup] = []
        for topic in topics:
            self._fruitless.pop(topic.topic_id, None)
            for removal in await self._plan_topic(topic, consumed.get(topic.topic_id), now_ms, is_dry_run=True):
                stored = removal.plan.removed
                size = sum(file.bytes for file in stored)
                table = str(removal.table.identifier)
                detail = "removed in the next turn"
                groups.append(PlannedGroup(table, len(stored), size, removal.plan.rows, RETENTION, detail))
        return groups

    # --- what ---

    async def plan(self, turn: Turn) -> list[RetainedTopic] | None:
        """The topics that are due. What to remove of them is decided in `run`, so that no round waits for it."""
        due = [topic for topic in turn.backlog.retained if self._is_due(topic)]
        # The oldest debt first: a topic whose table takes all the time of a turn, again and again, delays no other one
        # for ever.
        return sorted(due, key=lambda topic: self._next_look_ns.get(topic.topic_id, 0))

    async def run(self, turn: Turn, plan: list[RetainedTopic]) -> Removals:
        """Decides what to remove, for as many topics as a turn has time for; the others stay due."""
        removals: Removals = []
        self._unavailable = None
        deadline_ns = self._clock.monotonic_ns() + int(limits.RETENTION_TURN_SECONDS * 1e9)
        with turn.timed("retention_plan"):
            now_ms = await self._retention_clock.now_ms()
            metrics.RETENTION_CLOCK_BELIEVED.set(int(now_ms is not None))
            consumed = await self._consumed(plan)
            for topic in plan:
                self._look_again(topic.topic_id, limits.RETENTION_LOOK_SECONDS)
                if not turn.guard.may_run(self.name, topic.topic_id):
                    continue
                try:
                    with turn.guard.protect(self.name, topic.topic_id, topic.name):
                        removals += await self._plan_topic(topic, consumed.get(topic.topic_id), now_ms)
                        turn.guard.succeeded(self.name, topic.topic_id)
                except errors.StorageUnavailable as error:
                    # Perhaps of this table's store alone. What was planned is noted as removed today: it is committed.
                    self._unavailable = self._unavailable or error
                if self._clock.monotonic_ns() >= deadline_ns or len(removals) >= limits.COMMIT_TABLES_MAX:
                    break
        return removals

    async def _plan_topic(
        self, topic: RetainedTopic, consumed: ConsumedOffsets | None, now_ms: int | None, *, is_dry_run: bool = False
    ) -> Removals:
        """What to remove of one topic; nothing if its table cannot be read, which delays no other topic."""
        try:
            table = await self._tables.find(topic.topic_id, topic.name)
            plan = (
                None if table is None else await self._plan_table(topic, table, consumed, now_ms, is_dry_run=is_dry_run)
            )
        except (errors.StorageUnavailable, errors.LeaseLost):
            raise
        except errors.IcestreamError as error:
            self._look_again(topic.topic_id, limits.RETENTION_LOOK_SECONDS_MAX)
            _log.warning("retention of a topic skipped", topic=topic.name, reason=error.message)
            return []
        if table is None or plan is None:
            return []
        return [TableRemoval(table, plan, consumed.generation if consumed is not None and plan.is_by_acks else None)]

    async def _plan_table(
        self,
        topic: RetainedTopic,
        table: TopicTable,
        consumed: ConsumedOffsets | None,
        now_ms: int | None,
        *,
        is_dry_run: bool,
    ) -> RetentionPlan | None:
        kept = RetentionLimits(
            topic.bytes_max, topic.messages_max, topic.age_ms, topic.unconsumed_bytes_max, topic.unconsumed_age_ms
        )
        committed, table.history_ms = table.next_offsets, topic.age_ms or topic.unconsumed_age_ms
        index = await self._note_times(kept, topic.topic_id, committed, now_ms)
        expired = index.expired(kept.age_ms, now_ms) if kept.age_ms and now_ms is not None else {}
        beyond = index.expired(kept.unconsumed_age_ms, now_ms) if kept.unconsumed_age_ms and now_ms is not None else {}
        first = first_kept(topic.topic_id, await self._store.get(catalog_keys.retained_key(topic.topic_id)))
        is_unchanged = not _may_remove(kept, table, expired, beyond, consumed.ends if consumed else {}, first)
        is_unchanged |= self._fruitless.get(topic.topic_id) == (table.table.current_snapshot_id, consumed)
        if is_unchanged and not self._may_have_leftovers(table, first):
            return None
        files = await self._stored_files(table)
        time_ms = now_ms if now_ms is not None else self._clock.wall_us() // 1000
        rows = sum(stored.file.rows for stored in files)
        state = RetentionState(
            files,
            committed,
            first,
            expired,
            time_ms * 1000,
            index.rows_allowed(rows, time_ms),
            not index.has_removed_today(time_ms),
            consumed.ends if consumed else {},
            beyond,
        )
        plan = plan_removal(kept, await self._with_ranges(kept, state))
        self._clean_snapshots.pop(topic.topic_id, None)
        if plan is None:
            self._clean_snapshots[topic.topic_id] = table.table.current_snapshot_id or 0
            # Reading all manifests again in a minute would find the same: a file with younger rows keeps the older.
            # Acks move by the minute.
            if kept.is_until_consumed:
                self._fruitless[topic.topic_id] = (table.table.current_snapshot_id, consumed)
            else:
                self._look_again(topic.topic_id, limits.RETENTION_LOOK_SECONDS_MAX)
            return None
        if plan.is_held_back:
            _log.warning(
                "retention by age held back: one day removes a tenth of a table, or twice what a day brings",
                topic=topic.name,
                rows=plan.rows_by_age,
            )
        if plan.rows_by_age and not is_dry_run:
            await self._write_index(topic.topic_id, index.with_removal(plan.rows_by_age, time_ms))
        return plan

    async def _consumed(self, topics: Sequence[RetainedTopic]) -> dict[int, ConsumedOffsets]:
        """What all consumers of the topics have acked, where acks matter. Without an answer everything up to the upper
        bound is kept."""
        topic_ids = [topic.topic_id for topic in topics if topic.is_until_consumed]
        return await self._broker.consumed(topic_ids) if topic_ids else {}

    def _may_have_leftovers(self, table: TopicTable, first: Mapping[int, int]) -> bool:
        """Whether main may have files again that were removed before: it was moved to an older snapshot."""
        if not first:
            return False
        clean = self._clean_snapshots.get(table.topic_id)
        main = table.table.current_snapshot_id
        if not any(snapshot["snapshot-id"] == clean for snapshot in lineage(table.table, main)):
            return True
        self._clean_snapshots[table.topic_id] = main or 0
        return False

    # --- the index ---

    async def _note_times(
        self, kept: RetentionLimits, topic_id: int, committed: Mapping[int, int], now_ms: int | None
    ) -> RetentionIndex:
        """The index of the topic, with the present offsets if they are to be noted now."""
        ages = [age_ms for age_ms in (kept.age_ms, kept.unconsumed_age_ms) if age_ms]
        if not ages or now_ms is None:
            return RetentionIndex()
        index = await self._read_index(topic_id)
        if not index.is_noted(committed, min(ages), now_ms):
            index = index.with_point(committed, min(ages), now_ms, max(ages))
            await self._write_index(topic_id, index)
        return index

    async def _read_index(self, topic_id: int) -> RetentionIndex:
        entry = await self._store.get(catalog_keys.retention_key(topic_id))
        if entry is None:
            return RetentionIndex()
        try:
            return msgspec.json.decode(entry.value, type=RetentionIndex)
        except msgspec.MsgspecError as error:
            # Begun anew: rows are kept longer, none goes early.
            _log.warning("index of commit times is damaged and begins anew", topic_id=topic_id, reason=str(error))
            return RetentionIndex()

    async def _write_index(self, topic_id: int, index: RetentionIndex) -> None:
        with self._effects.happens(Effect.NOTE_TIMES):
            await self._store.put(catalog_keys.retention_key(topic_id), msgspec.json.encode(index))

    # --- the files ---

    async def _stored_files(self, table: TopicTable) -> list[StoredFile]:
        columns = bound_columns(table.table)
        append_time = next(
            field["id"] for field in table.table.current_schema["fields"] if field["name"] == "append_time"
        )
        if table.manifests is None:
            table.manifests = await self._manifests.current_manifests(table.table)
        return [
            StoredFile(
                data_file_of_entry(entry, columns, manifest.sequence_number),
                entry.file_size_bytes,
                integer_from_bytes(entry.upper_bounds.get(append_time)),
                is_ours(manifest),
            )
            for manifest in table.manifests
            if manifest.content == DATA_CONTENT
            for entry in await self._manifests.live_entries(manifest)
        ]

    async def _with_ranges(self, kept: RetentionLimits, state: RetentionState) -> RetentionState:
        """The state with the offsets of each shard in the files of several shards of which that decides something."""
        unread = [stored.file.location for stored in unread_files(kept, state) if stored.is_removable]
        read: dict[str, Mapping[int, Bounds]] = {}
        # Files that are not read keep what is above their lowest offset: the next look goes on from there.
        for location in unread[: limits.RETENTION_FILES_READ_MAX]:
            read[location] = await self._offload.run(lambda location=location: self._ranges.read(location))  # type: ignore[misc]
        return state._replace(
            files=[
                stored._replace(ranges=read[stored.file.location]) if stored.file.location in read else stored
                for stored in state.files
            ]
        )

    # --- the commit ---

    async def commit(self, turn: Turn, plan: list[RetainedTopic], result: Removals) -> None:
        """Raises StorageUnavailable, after the commit also that of a topic which could not be planned."""
        if result:
            await self._remove(turn, result)
        if self._unavailable is not None:
            raise self._unavailable

    async def _remove(self, turn: Turn, result: Removals) -> None:
        with turn.timed("retention_commit"), self._effects.happens(Effect.COMMIT_CARE):
            results = await self._commits.commit([removal.retention for removal in result])
        for removal in result:
            table, removed = removal.table, removal.plan
            if not isinstance(results.get(table.topic_id), CommittedSnapshot):
                continue  # logged with the commit; the next look plans it again
            metrics.RETENTION_ROWS.inc(removed.rows)
            metrics.RETENTION_BYTES.inc(sum(stored.bytes for stored in removed.removed))
            if removed.unconsumed_rows:
                metrics.RETENTION_UNCONSUMED.inc(removed.unconsumed_rows)
                _log.warning(
                    "retention removed messages that a consumer has not acked: they reached their upper bound",
                    topic=table.topic,
                    messages=removed.unconsumed_rows,
                )
            _log.info(
                "retention removed files",
                topic=table.topic,
                files=len(removed.removed),
                rows=removed.rows,
                first=dict(removed.first),
            )


def _may_remove(
    kept: RetentionLimits,
    table: TopicTable,
    expired: Mapping[int, int],
    beyond: Mapping[int, int],
    consumed: Mapping[int, int],
    first: Mapping[int, int],
) -> bool:
    """Whether the counts of the last snapshot allow that a file must go: then its manifests are read."""
    snapshot_id = table.table.current_snapshot_id
    snapshot = None if snapshot_id is None else table.table.snapshots.find(snapshot_id)
    if snapshot is None:
        return False
    # A file of rows that went before and after such an offset stays: the next look finds it unchanged, and waits.
    is_acked = any(end > first.get(shard, 0) for shard, end in consumed.items())
    bounds = [("total-files-size", kept.unconsumed_bytes_max)]
    if not kept.is_until_consumed or is_acked:
        if any(end > first.get(shard, 0) for shard, end in expired.items()):
            return True
        bounds += [("total-records", kept.messages_max), ("total-files-size", kept.bytes_max)]
    if (is_acked and not kept.has_limit) or any(end > first.get(shard, 0) for shard, end in beyond.items()):
        return True
    summary = snapshot.get("summary") or {}
    for name, maximum in bounds:
        total = summary.get(name, "")
        # An engine that states no total: nothing is known before the manifests are read.
        if maximum and not (total.isascii() and total.isdigit() and int(total) <= maximum):
            return True
    return False
