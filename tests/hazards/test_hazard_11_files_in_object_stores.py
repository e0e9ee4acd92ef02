"""Hazard 11 with a warehouse in an object store: the pointer moves only when the metadata file is there for certain."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors
from icestream.catalogs.embedded import EmbeddedCatalog
from icestream.catalogs.table_catalog import CommitDone, CommitRefused, LoadedTable
from icestream.iceberg.identifier import Identifier
from tests.contract.test_table_catalog import ASKED, appending, snapshots
from tests.support.catalog_servers import own_on_s3
from tests.support.fault_proxy import fault_proxy
from tests.support.seaweed import Seaweed

pytestmark = pytest.mark.asyncio

TABLE = Identifier(("ns",), "t")


@pytest.mark.parametrize("fault", ["cut-before", "cut-after", "cut-in-answer", "500", "503-after", "twice", "hold"])
async def test_a_commit_outlives_one_bad_answer_of_the_store(seaweed_server: Seaweed, fault: str) -> None:
    async with fault_proxy(seaweed_server.endpoint, rb"^PUT /") as proxy:
        catalog = EmbeddedCatalog(own_on_s3(seaweed_server, f"http://127.0.0.1:{proxy.port}"))
        await catalog.create_namespace(TABLE.namespace, {})
        await catalog.create(TABLE, ASKED)
        proxy.plan(fault)
        assert isinstance(await catalog.commit(TABLE, appending(await catalog.load(TABLE), 1)), CommitDone)
        assert proxy.seen >= 1
        await proxy.release()
        assert snapshots(await catalog.load(TABLE)) == [1]


async def test_a_store_that_refuses_writes_leaves_the_table_unchanged(seaweed_server: Seaweed) -> None:
    async with fault_proxy(seaweed_server.endpoint, rb"^PUT /") as proxy:
        catalog = EmbeddedCatalog(own_on_s3(seaweed_server, f"http://127.0.0.1:{proxy.port}"))
        await catalog.create_namespace(TABLE.namespace, {})
        await catalog.create(TABLE, ASKED)
        before = await catalog.load(TABLE)
        proxy.plan(*["500"] * 99)
        with pytest.raises(errors.StorageUnavailable):
            await catalog.commit(TABLE, appending(before, 1))
        proxy.plan()
        assert (await loaded(catalog)).metadata_location == before.metadata_location
        assert not isinstance(await catalog.commit(TABLE, appending(before, 2)), CommitRefused)


async def loaded(catalog: EmbeddedCatalog) -> LoadedTable:
    """The table, loaded as soon as the circuit breaker lets a request through again."""
    while True:
        try:
            return await catalog.load(TABLE)
        except errors.CircuitOpen:
            await asyncio.sleep(0.05)
