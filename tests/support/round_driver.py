"""A driver of rounds, as the pipeline will be: it binds a table to a topic and commits rows under the topic's offsets.

It speaks to a running broker: bindings and the lease through its local socket, rounds over the catalog's HTTP.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, TypeVar

import pyarrow as pa

from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.topic_rules import topic_schema
from icestream.catalog.topic_rules.commit_rules import TableState
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.iceberg.identifier import Identifier
from icestream.metadata.remote_store import RemoteStore
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.lake_run import request
from tests.support.lakehouse import Lakehouse

Result = TypeVar("Result")
EPOCH = 3
TOPIC_IDS = count(1_000_001)
ROWS = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("payload", pa.binary()),
    ]
)


class RoundDriver:
    def __init__(self, lakehouse: Lakehouse, namespace: str, name: str) -> None:
        """Makes the table of a topic, with one shard at offset 0."""
        self._lakehouse = lakehouse
        self.table = Identifier((namespace,), name)
        self.topic_id = next(TOPIC_IDS)
        self.next = 0
        self._run(self._bound)

    async def _bound(self, catalog: Catalog, store: RemoteStore) -> None:
        await store.put(catalog_keys.LEASE, catalog_records.encode(catalog_records.LeaseRecord(EPOCH)))
        await catalog.tables.create(self.table, {"schema": topic_schema.new_schema()})
        await catalog.topics.bind(
            self.table, f"/{self.table.namespace[0]}/{self.table.name}", self.topic_id, {0: (0, 0)}
        )

    def state(self) -> TableState:
        """The catalog's state of the table beside the pointer: its binding and its removals."""

        async def load(catalog: Catalog, _: RemoteStore) -> TableState:
            return (await catalog.commits.load(self.table)).state

        return self._run(load)

    def commit(self, rows: int) -> tuple[int, Any]:
        """A round: so many messages behind those that are there. The answer's status and document."""
        table = self._lakehouse.pyiceberg().load_table((*self.table.namespace, self.table.name))
        numbers = range(self.next, self.next + rows)
        batch = pa.table([[0] * rows, list(numbers), [b"message"] * rows], schema=ROWS)
        transaction = table.transaction()
        transaction.append(batch)
        claim = {
            "type": "assert-icestream-range",
            "round-id": str(uuid.uuid4()),
            "topic-id": self.topic_id,
            "pipeline-epoch": EPOCH,
            "ranges": [{"shard": 0, "epoch": 0, "start": self.next, "end": self.next + rows}],
        }
        body = {
            "requirements": [*map(_plain, transaction._requirements), claim],
            "updates": [*map(_plain, transaction._updates)],
        }
        path = f"/v1/namespaces/{self.table.namespace[0]}/tables/{self.table.name}"
        status, answer = request(self._lakehouse.port, "POST", path, body)
        if status == 200:
            self.next += rows
        return status, json.loads(answer)

    def _run(self, work: Callable[[Catalog, RemoteStore], Awaitable[Result]]) -> Result:
        async def connected() -> Result:
            clock = SystemClock()
            keeper = LinkKeeper(self._lakehouse.data_dir / "broker.sock", "driver", clock)
            keeping = asyncio.create_task(keeper.run())
            store = RemoteStore(keeper, clock, SystemRandomness())
            files = LocalFiles(open_local, InlineOffload())
            try:
                await store.ready()
                warehouse = f"file:{self._lakehouse.warehouse}"
                return await work(Catalog(store, files, clock, SystemRandomness(), warehouse), store)
            finally:
                await store.close()
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)

        return asyncio.run(connected())


def _plain(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
