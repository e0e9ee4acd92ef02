"""Rounds of the pipeline whose catalog answers over real HTTP, behind a proxy that does what networks and gateways do
(fault_proxy.py): lost and doubled commits, refusals, silence, and errors behind a success. Own catalog and foreign one.

After each fault: tests/support/table_check.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from icestream import limits
from icestream.catalogs.factory import open_catalog
from icestream.catalogs.storage_caller import CallTimeouts
from icestream.catalogs.table_catalog import TableCatalog
from icestream.pipeline.driver.effects import Effect, Fault
from tests.support.catalog_servers import CATALOG, served, settings_of
from tests.support.driver_life import DriverLife, Struck
from tests.support.fault_proxy import FaultProxy, fault_proxy
from tests.support.fault_world import FaultWorld

pytestmark = pytest.mark.asyncio

COMMIT = rb"^POST /v1/(transactions/commit|namespaces/[^/]+/tables/\S)"
FAULTS = (
    "cut-before", "cut-after", "cut-in-answer", "late", "hold", "twice", "500", "502", "503", "504", "429", "409",
    "500-after", "502-after", "503-after", "504-after", "409-after", "silence",
)  # fmt: skip
# One of each kind; all of them in `make chaos`.
SOME = ("cut-after", "late", "hold", "twice", "503", "500-after", "silence")
SETS = pytest.mark.parametrize("faults", [SOME, pytest.param(FAULTS, marks=pytest.mark.chaos)], ids=["some", "all"])
# So short that silence costs little. Whoever is slower than that tries again.
WAITS = CallTimeouts(request_seconds=1.0, retry_seconds_min=0.01, retry_seconds_max=0.02)

STEALS = 20


class HttpWorld:
    def __init__(self, world: FaultWorld, proxy: FaultProxy) -> None:
        self.world = world
        self.proxy = proxy
        self._catalogs: list[TableCatalog] = []

    def driver(self, fault: Fault | None = None, owner: str = "node/child") -> DriverLife:
        """With a connection of its own."""

        def wrap(inner: TableCatalog) -> TableCatalog:
            settings = settings_of(f"{CATALOG}.uri=http://127.0.0.1:{self.proxy.port}")
            self._catalogs.append(open_catalog(settings, waits=WAITS))
            return self._catalogs[-1]

        return self.world.driver(fault, wrap=wrap, owner=owner)

    async def check(self) -> None:
        """When everything has arrived that was under way."""
        await self.proxy.release()
        await self.world.check()

    async def close(self) -> None:
        for one in self._catalogs:
            await one.close()


@asynccontextmanager
async def http_world(folder: Path, kind: str) -> AsyncIterator[HttpWorld]:
    world = await FaultWorld.open(folder, is_foreign=kind == "foreign")
    async with served(world.making) as uri, fault_proxy(uri, COMMIT) as proxy:
        found = HttpWorld(world, proxy)
        try:
            yield found
        finally:
            await found.close()
            await world.close()


@contextmanager
def naming(fault: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"the fault was {fault}")
        raise


@SETS
@pytest.mark.parametrize("kind", ["own", "foreign"])
async def test_a_catalog_behind_a_bad_network(tmp_path: Path, kind: str, faults: Sequence[str]) -> None:
    async with http_world(tmp_path, kind) as found:
        one = found.driver()
        await found.world.publish_some()
        await found.world.drain(one)
        for fault in faults:
            with naming(fault):
                found.proxy.plan(fault)
                await found.world.publish_some()
                await found.world.drain(one)
                assert found.proxy.seen
                await found.check()


@pytest.mark.parametrize("fault", ["cut-after", "hold", "503", "500-after"])
@pytest.mark.parametrize("kind", ["own", "foreign"])
async def test_a_network_that_is_bad_for_longer_than_a_commit_is_tried(tmp_path: Path, kind: str, fault: str) -> None:
    """Then the driver itself must look, wait and come again."""
    async with http_world(tmp_path, kind) as found:
        one = found.driver()
        await found.world.publish_some()
        await found.world.drain(one)
        found.proxy.plan(*[fault] * (limits.STORAGE_ATTEMPTS_MAX + 1))
        await found.world.publish_some()
        await found.world.drain(one)
        await found.check()


@SETS
@pytest.mark.parametrize("kind", ["own", "foreign"])
async def test_a_driver_that_ends_behind_a_bad_network(tmp_path: Path, kind: str, faults: Sequence[str]) -> None:
    """The one behind it finds whatever became of the last commit, and of what still comes."""
    async with http_world(tmp_path, kind) as found:
        await found.world.publish_some()
        await found.world.drain(found.driver())
        for fault in faults:
            with naming(fault):
                first = found.driver(Fault(False, Effect.COMMIT))
                found.proxy.plan(fault)
                await found.world.publish_some()
                with pytest.raises(Struck):
                    await found.world.drain(first)
                await first.end()
                await found.world.publish_some()
                await found.world.drain(found.driver())
                await found.check()


@pytest.mark.parametrize("kind", ["own", "foreign"])
async def test_two_pipelines_at_once(tmp_path: Path, kind: str) -> None:
    """Neither keeps the lease, and each believes that it has it; until somebody lets them."""
    async with http_world(tmp_path, kind) as found:
        drivers = [found.driver(owner=name) for name in ("first", "second")]
        times = 0
        while times < 3 or not all(one.effects.counts[Effect.COMMIT] for one in drivers):
            times += 1
            await found.world.publish_some()
            draining = [asyncio.ensure_future(found.world.drain(one)) for one in drivers]
            for _ in range(STEALS):
                await found.world.end_lease()
                await asyncio.sleep(0.005)
            await asyncio.gather(*draining)
            await found.check()
