"""Hazard 27: a node that does not see the warehouse of the others is not let into their cluster, and does not start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.cluster.shared_warehouse import MARK_NAME, WAREHOUSE
from icestream.iceberg.file_io import LocalFiles, open_inside
from icestream.metadata.raft_core import has_raft_core
from icestream.metadata.store import MetadataStore
from icestream.processes.node.metadata_startup import OpenedStore, open_store
from icestream.processes.node.warehouse_mark import read_or_create_mark, warehouse_directory
from icestream.runtime.clock import SimulatedClock, SystemClock
from icestream.runtime.randomness import SeededRandomness, SystemRandomness
from icestream.runtime.tasks import InlineOffload
from icestream.settings import Settings
from tests.support.fake_clock import FakeClock
from tests.support.free_ports import free_ports
from tests.support.node_settings import node_settings
from tests.support.tables import SCHEMA
from tests.support.warehouse import NS, TABLE

pytestmark = pytest.mark.asyncio
needs_raft = pytest.mark.skipif(not has_raft_core(), reason="several nodes need the native part")

SECONDS = 30.0


class SimulatedHosts:
    """Hosts by number, each with directories of its own, like machines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = free_ports(3)
        self.seeds = [f"127.0.0.1:{port}" for port in self.ports]
        self.running: dict[int, OpenedStore] = {}

    def settings(self, number: int, warehouse: Path | None = None, *, is_seed: bool = True, **iceberg: Any) -> Settings:
        if warehouse is not None:
            iceberg["warehouse"] = f"file:{warehouse}"
        return node_settings(
            self.folder / str(number),
            node={"name": f"node-{number}"},
            meta_store={"seed_nodes": self.seeds if is_seed else []},
            ports={
                "native": 0,
                "broker_http": 0,
                "lake": 0,
                "danube": 0,
                "danube_admin": 0,
                "raft": self.ports[number],
            },
            iceberg=iceberg,
        )

    async def start(self, number: int, warehouse: Path | None = None, join: str = "") -> OpenedStore:
        async with asyncio.timeout(SECONDS):
            self.running[number] = await open_store(self.settings(number, warehouse, is_seed=not join), join)
        return self.running[number]

    async def refused(self, number: int, warehouse: Path | None = None, join: str = "") -> str:
        with pytest.raises(errors.ConfigurationError) as raised:
            await self.start(number, warehouse, join)
        return str(raised.value)

    async def stop(self, *numbers: int) -> None:
        for number in numbers or tuple(self.running):
            await self.running.pop(number).store.close()

    def names(self, through: int) -> set[int]:
        members = self.running[through].store.node.members
        return {*members.voters, *members.learners}


@pytest_asyncio.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[SimulatedHosts]:
    hosts = SimulatedHosts(tmp_path)
    yield hosts
    await hosts.stop()


@needs_raft
async def test_hazard_27_of_three_hosts_with_separate_directories_one_forms_and_the_others_are_refused(
    hosts: SimulatedHosts, tmp_path: Path
) -> None:
    async with asyncio.timeout(SECONDS):
        outcomes = await asyncio.gather(*(hosts.start(number) for number in range(3)), return_exceptions=True)
    (founder,) = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, OpenedStore)]
    for refusal in (outcome for outcome in outcomes if not isinstance(outcome, OpenedStore)):
        assert isinstance(refusal, errors.ConfigurationError)
        assert f"is not the directory that node-{founder} uses" in str(refusal)
        assert "under the same path, or use an object store" in (refusal.hint or "")
    assert len(hosts.names(founder)) == 1, "no other node is a member: the founder continues alone"

    # what the sentence says helps: all three take one directory, with what they have
    await hosts.stop()
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(hosts.start(number, tmp_path / "shared") for number in range(3)))
        store = hosts.running[founder].store
        await store.node.until(lambda: len(store.node.members.voters) == 3)
    assert len(hosts.names(founder)) == 3


@needs_raft
async def test_hazard_27_a_node_with_another_directory_or_path_cannot_join(
    hosts: SimulatedHosts, tmp_path: Path
) -> None:
    hosts.seeds = hosts.seeds[:1]
    await hosts.start(0, tmp_path / "shared")
    assert "node-1 does not see the warehouse" in await hosts.refused(1, join=hosts.seeds[0])
    (tmp_path / "mounted").symlink_to(tmp_path / "shared")
    assert "at another path" in await hosts.refused(1, tmp_path / "mounted", join=hosts.seeds[0])
    assert len(hosts.names(0)) == 1
    await hosts.start(1, tmp_path / "shared", join=hosts.seeds[0])
    assert len(hosts.names(0)) == 2


@needs_raft
async def test_hazard_27_a_node_whose_share_is_not_mounted_does_not_start(
    hosts: SimulatedHosts, tmp_path: Path
) -> None:
    shared, aside = tmp_path / "shared", tmp_path / "aside"
    hosts.seeds = hosts.seeds[:1]
    await hosts.start(0, shared)
    await hosts.start(1, shared, join=hosts.seeds[0])
    await hosts.stop(1)
    shared.rename(aside)
    shared.mkdir()
    assert "node-1 does not see the warehouse" in await hosts.refused(1, shared, join=hosts.seeds[0])
    (shared / MARK_NAME).unlink()
    shared.rmdir()
    aside.rename(shared)
    await hosts.start(1, shared, join=hosts.seeds[0])
    assert len(hosts.names(0)) == 2


@needs_raft
async def test_hazard_27_object_stores_need_no_proof(hosts: SimulatedHosts) -> None:
    hosts.seeds = hosts.seeds[:1]
    store = {"type": "s3", "bucket": "lake"}
    hosts.running[0] = await open_store(hosts.settings(0, object_store=store))
    assert await hosts.running[0].store.get(WAREHOUSE) is None


@needs_raft
async def test_hazard_27_commits_of_one_node_are_served_by_all_from_the_shared_directory(
    hosts: SimulatedHosts, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(hosts.start(number, shared) for number in range(3)))
        catalogs = [catalog_of(hosts.running[number].store, shared) for number in range(3)]
        await catalogs[0].namespaces.create(NS, {})
        await catalogs[1].tables.create(TABLE, {"schema": SCHEMA})
        for number in range(9):
            writer, *readers = catalogs[number % 3 :] + catalogs[: number % 3]
            updates = [{"action": "set-properties", "updates": {"n": str(number)}}]
            committed = await writer.commits.commit(TABLE, CommitRequest([], updates))
            for reader in readers:
                loaded = await reader.tables.load(TABLE)
                assert (loaded.location, loaded.table.properties["n"]) == (committed.location, str(number))


def catalog_of(store: MetadataStore, warehouse: Path) -> Catalog:
    files = LocalFiles(open_inside([f"file:{warehouse}"]), InlineOffload())
    return Catalog(store, files, SystemClock(), SystemRandomness(), f"file:{warehouse}")


# --- the mark ---------------------------------------------------------------------------------------------------------


async def test_concurrent_creation_of_the_mark_yields_one_mark(tmp_path: Path) -> None:
    location = f"file:{tmp_path}/a/warehouse"
    clock = SystemClock()
    marks = await asyncio.gather(*(read_or_create_mark(location, clock, SeededRandomness(seed)) for seed in range(8)))
    assert len({*marks}) == 1
    assert (tmp_path / "a" / "warehouse" / MARK_NAME).read_text() == f"{marks[0]}\n"
    assert await read_or_create_mark(f"file:{tmp_path}/b", clock, SeededRandomness(9)) != marks[0]


async def test_a_mark_being_written_by_another_machine_is_awaited(tmp_path: Path) -> None:
    (tmp_path / MARK_NAME).write_bytes(b"")

    def write_on_third_sleep(_: float) -> None:
        if len(clock.sleeps) == 3:
            (tmp_path / MARK_NAME).write_text(f"{'ab' * 16}\n")

    clock = FakeClock(auto_advance=True, on_sleep=write_on_third_sleep)
    assert await read_or_create_mark(f"file:{tmp_path}", clock, SeededRandomness(1)) == "ab" * 16
    assert len(clock.sleeps) == 3


async def test_an_invalid_mark_is_reported(tmp_path: Path) -> None:
    (tmp_path / MARK_NAME).write_text("something else that somebody has put here\n")
    with pytest.raises(errors.ConfigurationError, match="is not the mark of a warehouse"):
        await read_or_create_mark(f"file:{tmp_path}", SimulatedClock(), SeededRandomness(1))
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.ConfigurationError, match="cannot be used as a directory"):
        await read_or_create_mark(f"file:{tmp_path}/file", SimulatedClock(), SeededRandomness(1))


@pytest.mark.parametrize(
    ("catalog", "is_marked"),
    [({}, True), ({"type": "sql", "uri": "postgresql://h/d"}, True), ({"type": "rest", "uri": "http://h:1"}, False)],
)
async def test_only_directories_with_tables_of_this_node_are_marked(
    tmp_path: Path, catalog: dict[str, str], is_marked: bool
) -> None:
    settings = node_settings(tmp_path, iceberg={"catalog": catalog})
    assert warehouse_directory(settings) == (f"file:{tmp_path}/warehouse" if is_marked else "")
