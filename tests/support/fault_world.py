"""A real log, our own catalog or one like another's on a real disk, and drivers one after the other or at once. What
was published is remembered; `check` compares it with what any reader of the tables finds (table_check.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

from icestream.broker.consumed_offsets import read_generation
from icestream.broker.pipeline_service import LogLocation, PipelineService
from icestream.catalog import catalog_keys
from icestream.catalog.catalog import Catalog
from icestream.catalog.plans.commit_plans import erased_record, first_kept
from icestream.catalogs.embedded import EmbeddedCatalog
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.manifests import DATA_CONTENT
from icestream.metadata.store import MemoryStore
from icestream.model import ShardKey, TopicIdentity, envelope
from icestream.model.backlog_messages import Backlog, ConsumedOffsets, RetainedTopic
from icestream.model.block import encode_block
from icestream.pipeline.commit.offset_ledger import OffsetLedger
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.driver.effects import Fault
from icestream.pipeline.driver.topic_table_set import HaltCause
from icestream.pipeline.tables.embedded_ledger import EmbeddedLedger
from icestream.pipeline.tables.foreign_ledger import ForeignLedger
from icestream.readers.embedded_table_views import EmbeddedTableViews
from icestream.readers.foreign_table_views import ForeignTableViews
from icestream.readers.lazy_scanner import LazyScanner
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.readers.snapshot_reader import SnapshotReader
from icestream.readers.table_views import TableViews
from icestream.readers.verify.verify_report import ShardLogState, VerifyReport
from icestream.runtime.clock import SystemClock
from icestream.runtime.files import open_directory
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from icestream.wal.appender import Placed
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log_on
from icestream.wal.sink import InlineSink
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.fake_clock import FakeClock
from tests.support.interruptible_driver import DriverEnvironment, InterruptibleDriver, StopPoint
from tests.support.machine import SMALL
from tests.support.table_check import RowReader, check_table, rows_of

# Only what waits for ever takes so long: two drivers that steal the lease from each other need 13 s on a quiet machine.
HANGS_SECONDS = 90.0
Wrap = Callable[[TableCatalog], Any]


class LogBroker:
    """The broker's side of the pipeline without a socket. A call never waits: an empty backlog is answered at once."""

    def __init__(self, world: FaultWorld) -> None:
        self._world = world
        self._ingest = world.ingest
        self.on_empty: Callable[[], None] = lambda: None
        self.is_stopped: Callable[[int], bool] = lambda topic_id: False

    async def backlog(self, wait_ms: int, passed_over: Collection[int] = ()) -> Backlog:
        backlog = await self._ingest.backlog()
        if all(self.is_stopped(topic.topic_id) for topic in backlog.topics):
            self.on_empty()
        if not passed_over:
            return backlog
        await asyncio.sleep(0.01)  # until one of them is tried again
        return await self._ingest.backlog(passed_over=frozenset(passed_over))

    async def hold(self, lease: str, epoch: int, files: Sequence[int], ttl_ms: int) -> str:
        self._ingest.lease(lease, epoch, files, ttl_ms)
        return self._ingest.round_token(lease)

    async def reopen(self, positions: Iterable[tuple[int, int, int]]) -> None:
        await self._ingest.reopen(list(positions))

    async def advance(self, positions: Iterable[tuple[int, int, int]], reopenings: int) -> None:
        """No floor goes beyond what is in the table. Log files that are no longer needed are recycled at once."""
        advanced = list(positions)
        for topic_id, shard, offset in advanced:
            stored = await self._world.stored(topic_id, shard)
            published = {at for at in self._world.published.get(ShardKey(topic_id, shard), {}) if at < offset}
            forgone = self._world.forgone.get(ShardKey(topic_id, shard), set())
            kept = {at for at in published if at >= (await self._world.first(topic_id)).get(shard, 0)}
            assert kept <= stored | forgone, "a floor beyond the rows"
        await self._ingest.committed(advanced, reopenings)
        await self._ingest.log.checkpoint()

    async def consumed(self, topic_ids: Sequence[int]) -> dict[int, ConsumedOffsets]:
        return {consumed.topic_id: consumed for consumed in await self._ingest.consumed(topic_ids)}

    async def send_state(self, state: dict[str, Any]) -> None:
        self._ingest.report(state)


class FaultWorld:
    def __init__(self, folder: Path, log: WriteAheadLog, is_foreign: bool = False) -> None:
        self.folder = folder
        self.is_foreign = is_foreign
        clock = self.clock = FakeClock(SystemClock())
        self.store = MemoryStore(clock)
        self.files = LocalFiles(open_local, InlineOffload())
        self.avro = ManifestReader(self.files, InlineOffload())
        self.making = Catalog(self.store, self.files, clock, SystemRandomness(), f"file:{folder}/warehouse")
        self.catalog = EmbeddedCatalog(self.making)
        self.policies: dict[int, dict[str, str]] = {}
        self.retained: list[RetainedTopic] = []  # topics with a retention
        self.acked: dict[int, dict[int, int]] = {}  # by topic and shard: below it all consumers have acked
        self.use(log)
        self.published: dict[ShardKey, dict[int, bytes]] = {}
        self.lease_name = ""  # of a node of a cluster
        self.names: dict[int, Identifier] = {}  # of tables that have another one than their topic
        self.forgone: dict[ShardKey, set[int]] = {}  # offsets that were deleted from a table
        self.clean_up_delay_ms: int | None = None if is_foreign else 0
        self.history = TagRetention(0, 0)  # without tags: they come by the hour of the day
        self._lives: list[InterruptibleDriver] = []
        self._count = 0

    def use(self, log: WriteAheadLog) -> None:
        """Another life of the log: for drivers that are made from now on."""
        self.log = log
        place = LogLocation(str(self.folder / "log"), "", "")
        self.ingest = PipelineService(
            log,
            self.clock,
            place,
            lambda name, topic_id: self.policies.get(topic_id, {}),
            lambda: list(self.retained),
            self._consumed,
        )

    async def _consumed(self, topic_ids: Collection[int]) -> list[ConsumedOffsets]:
        consumed = [(topic_id, self.acked.get(topic_id)) for topic_id in topic_ids]
        return [
            ConsumedOffsets(topic_id, ends, await read_generation(self.store, topic_id))
            for topic_id, ends in consumed
            if ends is not None
        ]

    @classmethod
    async def open(cls, folder: Path, is_foreign: bool = False, **more: Any) -> FaultWorld:
        """`more`: options of the log."""
        (folder / "log").mkdir(parents=True)
        options = LogOptions(**(SMALL | more))
        directory = open_directory(folder / "log")
        log = await open_log_on(directory, options, {}, SystemClock(), SystemRandomness(), InlineSink())
        for topic_id in (1, 2):
            log.declare_topic(TopicIdentity(topic_id, f"/default/t{topic_id}"))
        return cls(folder, log, is_foreign)

    async def close(self) -> None:
        for life in self._lives:
            await life.end()
        await self.log.close()

    # --- messages ---

    async def publish(self, topic_id: int, rows: int, shard: int = 0) -> None:
        """Large enough that a few of them fill a log file."""
        payloads = [b"message %d " % (self._count + number) + b"x" * 700 for number in range(rows)]
        self._count += rows
        # Topics of MQTT, new ones with each call: a table with columns for them learns them.
        keys = [b"plant/%d/heat" % (self._count + number) for number in range(rows)]
        block = encode_block(rows, {envelope.PAYLOAD: payloads, envelope.KEY: keys})
        batch = self.log.batch(self.log.shard(topic_id, shard), block)
        (placed,) = await self.log.append([batch])
        assert isinstance(placed, Placed)
        self.published.setdefault(ShardKey(topic_id, shard), {}).update(enumerate(payloads, placed.base_offset))

    async def publish_some(self) -> None:
        await self.publish(1, 9)
        await self.publish(2, 4)
        await self.publish(1, 5, shard=1)

    # --- drivers ---

    def driver(
        self,
        fault: Fault | None = None,
        stop: StopPoint | None = None,
        wrap: Wrap | None = None,
        owner: str = "node/child",
        age_due_ms: int = 0,
    ) -> InterruptibleDriver:
        """A new driver; drivers of the same owner count as one child of the broker, so this one takes over at once.

        `age_due_ms`: younger messages wait, unless the driver is expedited."""
        outside = DriverEnvironment(
            self.store,
            LogBroker(self),
            self._books,
            self.files,
            lambda: ManifestCache(self.avro),
            self.clock,
            self.clean_up_delay_ms,
            self.history,
            lambda: self.making.files_in_use(self.avro),
            self.lease_name,
        )
        harness = InterruptibleDriver(
            outside, wrap(self.catalog) if wrap else self.catalog, fault, stop, owner, age_due_ms
        )
        self._lives.append(harness)
        return harness

    async def end_lease(self) -> None:
        """Ends the lease, as if it had not been renewed in time."""
        await self.store.delete(catalog_keys.LEASE)

    def _books(self, catalog: TableCatalog) -> OffsetLedger:
        if self.is_foreign:
            return ForeignLedger(self.store, catalog, self.avro, None, self.clock, self.lease_name)
        return EmbeddedLedger(self.store, catalog, self.making, None, self.lease_name)

    async def drain(self, harness: InterruptibleDriver, may_stop: AbstractSet[int] = frozenset()) -> None:
        """Runs the driver until all messages are in tables, except those of topics that wait for an operator."""
        stop = asyncio.Event()
        harness.broker.on_empty = stop.set
        halted = harness.topics.halted
        harness.broker.is_stopped = lambda topic_id: topic_id in halted and halted[topic_id].cause is HaltCause.DECISION
        async with asyncio.timeout(HANGS_SECONDS):
            await harness.driver.run(stop)
        assert {topic.topic_id for topic in (await self.ingest.backlog()).topics} <= may_stop

    # --- what is there ---

    async def rows(self, topic_id: int) -> dict[int, list[tuple[int, bytes]]]:
        return rows_of(StaticTable.from_metadata(await self._location(topic_id)))

    async def stored(self, topic_id: int, shard: int) -> set[int]:
        """The offsets of a shard that data files of main have, deleted rows included."""
        table = StaticTable.from_metadata(await self._location(topic_id))
        snapshot = table.current_snapshot()
        offsets: set[int] = set()
        for manifest in [] if snapshot is None else await self.avro.manifest_files(snapshot.manifest_list):
            if manifest.content != DATA_CONTENT:
                continue
            for entry in await self.avro.entries(manifest.path):
                if entry.is_live:
                    rows = pq.read_table(entry.file_path.removeprefix("file:"), columns=["shard", "offset"])
                    offsets.update(rows.filter(pc.equal(rows["shard"], shard))["offset"].to_pylist())
        return offsets

    async def first(self, topic_id: int) -> dict[int, int]:
        """The first kept offsets of a topic."""
        return first_kept(topic_id, await self.store.get(catalog_keys.retained_key(topic_id)))

    async def _location(self, topic_id: int) -> str:
        name = self.names.get(topic_id, name_of(topic_id))
        return (await self.catalog.load(name)).metadata_location or ""

    async def check(self, stopped: AbstractSet[int] = frozenset(), readers: Sequence[RowReader] = ()) -> None:
        """table_check.py of every table, with further `readers`; and every floor is where its rows end."""
        for topic_id in {key.topic_id for key in self.published} - stopped:
            published = {key.shard: rows for key, rows in self.published.items() if key.topic_id == topic_id}
            gone = {key.shard: offsets for key, offsets in self.forgone.items() if key.topic_id == topic_id}
            for shard, first in (await self.first(topic_id)).items():
                gone[shard] = gone.get(shard, set()) | {offset for offset in published[shard] if offset < first}
            location, report = await self._location(topic_id), await self._verified(topic_id)
            check_table(location, published, report, gone, readers)
            for shard, messages in published.items():
                assert self.log.shard(topic_id, shard).floor == max(messages) + 1

    async def _verified(self, topic_id: int) -> VerifyReport:
        scans = LazyScanner(self._tables, self.files, RowGroupCacheOptions())
        view = await scans.tables.fresh(topic_id)
        assert view is not None
        log = {
            key.shard: ShardLogState(
                self.log.reader.earliest(key),
                self.log.shard(*key).synced,
                [(gap.start, gap.end, gap.reason) for gap in self.log.gaps(key)],
            )
            for key in self.published
            if key.topic_id == topic_id
        }
        report = scans.verifier(view, log).verify(deep=True)
        scans.close()
        return report

    def _tables(self) -> TableViews:
        if self.is_foreign:
            return ForeignTableViews(self.store, self.catalog, SnapshotReader(self.avro), SystemClock())
        return EmbeddedTableViews(self.making, self.avro, SystemClock())

    async def paths(self, manifest_list: str) -> set[str]:
        """The files that a reader of the snapshot opens."""
        manifests = await self.avro.manifest_paths(manifest_list)
        entries = [entry for manifest in manifests for entry in await self.avro.entries(manifest)]
        files = [entry.file_path for entry in entries if entry.is_live]
        return {manifest_list, *manifests, *files}

    async def needed(self, topic_id: int) -> set[str]:
        """The files that readers of any snapshot of the topic open, with the one that names its erased offsets."""
        loaded = await self.catalog.load(name_of(topic_id))
        path_sets = [await self.paths(entry["manifest-list"]) for entry in loaded.metadata.get("snapshots", ())]
        record = erased_record(topic_id, await self.store.get(catalog_keys.erased_key(topic_id)))
        return {path for paths in path_sets for path in paths} | ({record.offsets} if record is not None else set())

    async def present(self, topic_id: int) -> set[str]:
        """The files of its table that are there, without metadata files."""
        location = (await self.catalog.load(name_of(topic_id))).metadata["location"]
        return {path for path in _files_below(location) if not path.endswith(".json")}

    async def clean(self, harness: InterruptibleDriver) -> None:
        """Does all clean-up that is due, however slow this machine is."""
        assert harness.cleaner is not None
        while harness.cleaner.is_due:
            await harness.cleaner.work(lambda: None)


def name_of(topic_id: int) -> Identifier:
    return Identifier(("default",), f"t{topic_id}")


def _files_below(location: str) -> list[str]:
    return [f"file:{path}" for path in Path(location.removeprefix("file:")).rglob("*") if path.is_file()]
