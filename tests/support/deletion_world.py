"""A broker over a real log, our own catalog, and the pipeline's driver, for tests that delete topics."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from pyiceberg.table import StaticTable

from icestream.broker import records
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.iceberg_storage import IcebergStorage
from icestream.broker.pipeline_service import LogLocation, PipelineService
from icestream.broker.service import Broker
from icestream.catalog import catalog_keys
from icestream.catalog.catalog import Catalog
from icestream.catalogs.embedded import EmbeddedCatalog
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.metadata.store import MetadataStore
from icestream.model.backlog_messages import Backlog
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.driver.effects import Fault
from icestream.pipeline.tables.embedded_ledger import EmbeddedLedger
from icestream.processes.broker_process import topic_owners
from icestream.processes.node.stored_positions import stored_positions
from icestream.runtime.clock import SystemClock
from icestream.runtime.files import open_directory
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log_on
from icestream.wal.sink import InlineSink
from tests.support.broker_machine import publish, quiet
from tests.support.faulty_store import FaultyStore
from tests.support.interruptible_driver import DriverEnvironment, InterruptibleDriver
from tests.support.machine import HANGS_SECONDS, SMALL
from tests.support.table_check import rows_of

TOPIC, TABLE = TopicName("default", "a"), Identifier(("default",), "a")
COMMITTING = BrokerOptions(policy_defaults=PolicyValues(deleted_table="keep", deleted_rest="commit"))


class DeletionWorld:
    """One broker after the other over one log and one store, a catalog, and drivers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = SystemClock()
        self.store: MetadataStore = FaultyStore(self.clock, survives_close=True)
        self.files = LocalFiles(open_local, InlineOffload())
        self.avro = ManifestReader(self.files, InlineOffload())
        self.catalog = Catalog(self.store, self.files, self.clock, SystemRandomness(), f"file:{folder}/warehouse")
        self.cleanup = self.catalog.cleanup(self.avro)
        self.broker: Broker
        self._lives: list[InterruptibleDriver] = []

    async def start(self, options: BrokerOptions = COMMITTING) -> Broker:
        directory = open_directory(self.folder / "log")
        positions = (await stored_positions(self.store, topic_owners(self.store))).positions
        log = await open_log_on(directory, LogOptions(**SMALL), positions, self.clock, SystemRandomness(), InlineSink())
        self.broker = Broker(options, self.store, IcebergStorage(log, self.store, self.clock, 10_000), self.clock)
        await self.broker.start()
        place = LogLocation(str(self.folder / "log"), "", "")
        self.ingest = PipelineService(log, self.clock, place, self.broker.topics.table_policy)
        self.ingest.on_committed = self.broker.on_tables_committed
        return self.broker

    async def close(self) -> None:
        for life in self._lives:
            await life.end()
        await self.broker.shutdown()

    async def publish(self, *payloads: bytes) -> None:
        producer = await self.broker.open_producer(TOPIC, "p")
        for payload in payloads:
            await publish(self.broker, producer, payload)
        self.broker.close_producer(producer)

    def driver(self, fault: Fault | None = None) -> InterruptibleDriver:
        outside = DriverEnvironment(
            self.store,
            IngestBroker(self.ingest),
            lambda catalog: EmbeddedLedger(self.store, catalog, self.catalog, None),
            self.files,
            lambda: ManifestCache(self.avro),
            self.clock,
            None,
            TagRetention(0, 0),
            lambda: self.catalog.files_in_use(self.avro),
        )
        harness = InterruptibleDriver(outside, EmbeddedCatalog(self.catalog), fault)
        self._lives.append(harness)
        return harness

    async def drain(self, harness: InterruptibleDriver | None = None) -> None:
        """Runs the driver until nothing more can be written and the broker has handled the commits."""
        harness = harness or self.driver()
        stop = asyncio.Event()
        harness.broker.on_empty = stop.set
        async with asyncio.timeout(HANGS_SECONDS):
            await harness.driver.run(stop)
        await harness.lease.release()
        await self.settle()

    async def settle(self) -> None:
        await quiet()
        async for _ in self.cleanup.work():
            pass

    async def rows(self, table: Identifier = TABLE) -> list[bytes]:
        loaded = await self.catalog.tables.load(table)
        rows_by_shard = rows_of(StaticTable.from_metadata(loaded.location))
        return [payload for _, payload in rows_by_shard.get(0, [])]

    async def begun(self) -> list[str]:
        """The kinds of records about deletions in the store."""
        keys = [
            key
            for prefix in (records.DELETED_TOPICS, catalog_keys.ROOT)
            for key, _ in await self.store.list_all(prefix)
        ]
        words = ("deleted_topics", "parted", "topics", "bound", "purges")
        return [word for key in keys for word in words if f"/{word}/" in key]


class IngestBroker:
    """The broker's side without a socket. A call never waits: an empty backlog is answered at once."""

    def __init__(self, ingest: PipelineService) -> None:
        self._ingest = ingest
        self.on_empty: Any = lambda: None

    async def backlog(self, wait_ms: int, passed_over: Collection[int] = ()) -> Backlog:
        backlog = await self._ingest.backlog()
        if not backlog.topics:
            self.on_empty()
        return await self._ingest.backlog(passed_over=frozenset(passed_over)) if passed_over else backlog

    async def hold(self, lease: str, epoch: int, files: Sequence[int], ttl_ms: int) -> str:
        self._ingest.lease(lease, epoch, files, ttl_ms)
        return self._ingest.round_token(lease)

    async def reopen(self, positions: Iterable[tuple[int, int, int]]) -> None:
        await self._ingest.reopen(list(positions))

    async def advance(self, positions: Iterable[tuple[int, int, int]], reopenings: int) -> None:
        await self._ingest.committed(list(positions), reopenings)

    async def send_state(self, state: dict[str, Any]) -> None:
        self._ingest.report(state)
