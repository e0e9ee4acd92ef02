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
from icestream.catalogs.storage_caller import CallTimeouts
from icestream.catalogs.table_catalog import TableCatalog
from icestream.pipeline.driver.effects import Effect, Fault
from icestream.processes.configured_catalog import open_catalog
from tests.support.catalog_servers import CATALOG, served, settings_of
from tests.support.fault_proxy import FaultProxy, fault_proxy
from tests.support.fault_world import FaultWorld
from tests.support.interruptible_driver import DriverKilled, InterruptibleDriver

pytestmark = pytest.mark.asyncio

COMMIT = rb"^POST /v1/(transactions/commit|namespaces/[^/]+/tables/\S)"
FAULTS = (
    "cut-before", "cut-after", "cut-in-answer", "late", "hold", "twice", "500", "502", "503", "504", "429", "409",
    "500-after", "502-after", "503-after", "504-after", "409-after", "silence",
)  # fmt: skip
# One of each kind; all of them in `make chaos`.
SOME = ("cut-after", "late", "hold", "twice", "503", "500-after", "silence")
SETS = pytest.mark.parametrize("faults", [SOME, pytest.param(FAULTS, marks=pytest.mark.chaos)], ids=["some", "all"])
# So short that silence costs little. A slower request is retried.
WAITS = CallTimeouts(request_seconds=1.0, retry_seconds_min=0.01, retry_seconds_max=0.02)

STEALS = 20
ROUNDS = 3


class HttpWorld:
    def __init__(self, world: FaultWorld, proxy: FaultProxy) -> None:
        self.world = world
        self.proxy = proxy
        self._catalogs: list[TableCatalog] = []

    def driver(self, fault: Fault | None = None, owner: str = "node/child") -> InterruptibleDriver:
        """With a connection of its own."""

        def wrap(inner: TableCatalog) -> TableCatalog:
            settings = settings_of(f"{CATALOG}.uri=http://127.0.0.1:{self.proxy.port}")
            self._catalogs.append(open_catalog(settings, timeouts=WAITS))
            return self._catalogs[-1]

        return self.world.driver(fault, wrap=wrap, owner=owner)

    async def check(self) -> None:
        """When everything has arrived that was under way."""
        await self.proxy.release()
        await self.world.check()

    async def close(self) -> None:
        for catalog in self._catalogs:
            await catalog.close()


@asynccontextmanager
async def http_world(folder: Path, kind: str) -> AsyncIterator[HttpWorld]:
    world = await FaultWorld.open(folder, is_foreign=kind == "foreign")
    async with served(world.making) as uri, fault_proxy(uri, COMMIT) as proxy:
        network = HttpWorld(world, proxy)
        try:
            yield network
        finally:
            await network.close()
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
async def test_a_faulty_network_before_the_catalog_loses_nothing(
    tmp_path: Path, kind: str, faults: Sequence[str]
) -> None:
    async with http_world(tmp_path, kind) as network:
        driver = network.driver()
        await network.world.publish_some()
        await network.world.drain(driver)
        for fault in faults:
            with naming(fault):
                network.proxy.plan(fault)
                await network.world.publish_some()
                await network.world.drain(driver)
                assert network.proxy.seen
                await network.check()


@pytest.mark.parametrize("fault", ["cut-after", "hold", "503", "500-after"])
@pytest.mark.parametrize("kind", ["own", "foreign"])
async def test_a_network_that_is_bad_for_longer_than_a_commit_is_tried(tmp_path: Path, kind: str, fault: str) -> None:
    """Then the driver itself must read the outcome, back off and retry."""
    async with http_world(tmp_path, kind) as network:
        driver = network.driver()
        await network.world.publish_some()
        await network.world.drain(driver)
        network.proxy.plan(*[fault] * (limits.STORAGE_ATTEMPTS_MAX + 1))
        await network.world.publish_some()
        await network.world.drain(driver)
        await network.check()


@SETS
@pytest.mark.parametrize("kind", ["own", "foreign"])
async def test_a_driver_that_ends_on_a_faulty_network_is_followed_by_one_that_finishes(
    tmp_path: Path, kind: str, faults: Sequence[str]
) -> None:
    """The next driver resolves the outcome of the last commit, and of requests that arrive late."""
    async with http_world(tmp_path, kind) as network:
        await network.world.publish_some()
        await network.world.drain(network.driver())
        for fault in faults:
            with naming(fault):
                first = network.driver(Fault(False, Effect.COMMIT))
                network.proxy.plan(fault)
                await network.world.publish_some()
                with pytest.raises(DriverKilled):
                    await network.world.drain(first)
                await first.end()
                await network.world.publish_some()
                await network.world.drain(network.driver())
                await network.check()


@pytest.mark.parametrize("kind", ["own", "foreign"])
async def test_two_concurrent_pipelines_commit_each_offset_once(tmp_path: Path, kind: str) -> None:
    """Neither driver keeps the lease, and each believes that it has it, until renewals work again."""

    async def drain(driver: InterruptibleDriver) -> None:
        await network.world.drain(driver)
        await driver.lease.release()  # as its process does when it stops: the other one waits for it

    async with http_world(tmp_path, kind) as network:
        drivers = [network.driver(owner=name) for name in ("first", "second")]
        for _ in range(ROUNDS):
            await network.world.publish_some()
            draining = [asyncio.ensure_future(drain(driver)) for driver in drivers]
            for _ in range(STEALS):
                await network.world.end_lease()
                await asyncio.sleep(0.005)
            await asyncio.gather(*draining)
            await network.check()
        for driver in drivers:
            # The steals take 0.1 s: on a busy machine one driver may not have got to a commit in any of the rounds.
            # Then it commits now, behind all commits of the other. More rounds until it wins one could take any time.
            if not driver.effects.counts[Effect.COMMIT]:
                await network.world.publish_some()
                await network.world.end_lease()
                await drain(driver)
                await network.check()
        assert all(driver.effects.counts[Effect.COMMIT] for driver in drivers)
