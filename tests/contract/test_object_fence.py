"""The fence of a warehouse in an object store (ADR 48): the object by itself, and a node that is told of it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.catalogs.bucket import Objects
from icestream.catalogs.object_files import ObjectFiles, open_files
from icestream.catalogs.warehouse_fence import FenceWatch, WarehouseFence
from icestream.catalogs.warehouse_fence_record import FenceReport, FenceTerms, replaced_error
from icestream.cluster.force_new_cluster import force_new_cluster
from icestream.iceberg.identifier import Identifier
from icestream.metadata.node_store import NodeStore
from icestream.processes.broker_process import BrokerNode
from icestream.processes.component_options import object_warehouse, store_options
from icestream.processes.configured_catalog import open_catalog, open_objects
from icestream.processes.node.fence_monitor import ObjectFenceMonitor, fenced_note_path
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SimulatedClock, SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.settings import Settings
from tests.contract.test_table_catalog import ASKED, appending
from tests.support.catalog_servers import STORE, azure_flags, glue_flags, new_name, s3_flags, settings_of
from tests.support.node_settings import node_settings
from tests.support.seaweed import BUCKET, Seaweed

pytestmark = pytest.mark.asyncio
SECONDS = 30.0
WAREHOUSE = "s3://objects/tables/"


@pytest.fixture(params=["memory", "s3", "azure", "gcs"])
def objects(request: pytest.FixtureRequest) -> Objects:
    if request.param == "memory":
        return open_objects(settings_of(f"{STORE}.type=memory"))
    if request.param == "gcs":
        return open_objects(settings_of(*request.getfixturevalue("gcs_flags")))
    if request.param == "azure":
        return open_objects(settings_of(*azure_flags(request.getfixturevalue("azure_endpoint"))))
    return open_objects(settings_of(*s3_flags(request.getfixturevalue("seaweed_server"))))


# --- the object -------------------------------------------------------------------------------------------------------


async def test_a_cluster_that_was_replaced_is_fenced_off(objects: Objects) -> None:
    fence = WarehouseFence(objects, f"s3://objects/{new_name()}/")
    assert await fence.check(FenceTerms("a")) == FenceReport("a")
    for _ in range(2):
        assert await fence.check(FenceTerms("b", ["a"])) == FenceReport("b")
    assert await fence.check(FenceTerms("a")) == FenceReport("a", "a", "b")


async def test_a_cluster_replaced_twice_keeps_its_first_successor(objects: Objects) -> None:
    fence = WarehouseFence(objects, f"s3://objects/{new_name()}")
    await fence.check(FenceTerms("b", ["a"]))
    assert await fence.check(FenceTerms("c", ["a", "b"])) == FenceReport("c"), "the fence replaced the successor too"
    assert await fence.check(FenceTerms("b", ["a"])) == FenceReport("b", "b", "c")
    assert await fence.check(FenceTerms("a")) == FenceReport("a", "a", "b")


async def test_of_two_clusters_that_replace_the_same_one_only_one_may_use_the_warehouse(objects: Objects) -> None:
    fence = WarehouseFence(objects, f"s3://objects/{new_name()}")
    reports = await asyncio.gather(*(fence.check(FenceTerms(name, ["a"])) for name in ("b", "c")))
    (winner,) = [report.cluster for report in reports if not report.successor]
    (loser,) = [report for report in reports if report.successor]
    assert (loser.replaced, loser.successor) == ("a", winner)


async def test_an_unreadable_fence_is_reported(objects: Objects) -> None:
    folder = new_name()
    await objects.put_new(f"{folder}/.icestream-fence/a", b"no JSON")
    with pytest.raises(errors.ConfigurationError, match="cannot be read as the fence"):
        await WarehouseFence(objects, f"s3://objects/{folder}").check(FenceTerms("a"))


# --- a node -----------------------------------------------------------------------------------------------------------


class RecordingFence:
    """The fence as the lake process and the pipeline of a node use it, in this process."""

    def __init__(self, settings: Settings, objects: Objects) -> None:
        self.clock = SimulatedClock()
        self._keeper = LinkKeeper(settings.local_socket, "lake", SystemClock())
        self._watch = FenceWatch(self._keeper, WarehouseFence(objects, WAREHOUSE), self.clock)
        self.files = ObjectFiles(lambda _kind, _bucket: objects)
        self.files.admit = self._watch.admit
        self._tasks = [asyncio.create_task(work) for work in (self._keeper.run(), self._watch.run())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def settings_at(folder: Path) -> Settings:
    store = {"type": "s3", "bucket": "objects", "region": "eu-central-1"}
    return node_settings(folder, iceberg={"warehouse": WAREHOUSE, "object_store": store})


async def test_members_of_a_replaced_cluster_stop_writing(tmp_path: Path) -> None:
    objects = open_objects(settings_of(f"{STORE}.type=memory"))
    new, old = settings_at(tmp_path / "new"), settings_at(tmp_path / "old")
    assert object_warehouse(new) == WAREHOUSE
    node = await BrokerNode.start(new)
    await node.stop()
    shutil.copytree(new.data_dir, old.data_dir)  # another member has the same metadata log
    member = await BrokerNode.start(old)
    looking = RecordingFence(old, objects)
    await looking.files.create(f"{WAREHOUSE}before", [b"1"])
    assert "[+] fence" in "".join(check.line for check in await member.services.checks())

    forced = await force_new_cluster(new.meta_store.data_dir, SystemClock(), SystemRandomness())
    replaced = await BrokerNode.start(new)
    successor = RecordingFence(new, objects)
    await successor.files.create(f"{WAREHOUSE}after", [b"2"])
    await successor.close()
    await replaced.stop()
    async with asyncio.timeout(SECONDS):
        while not member.failed.done():
            looking.clock.advance(limits.WAREHOUSE_FENCE_LOOK_SECONDS)
            await asyncio.sleep(0.01)
    assert isinstance(error := member.failed.exception(), errors.ForeignCluster)
    assert f"was replaced by cluster {forced.cluster_id.hex()}" in str(error)
    assert not (await member.services.checks())[0].ok
    with pytest.raises(errors.ForeignCluster, match="may not use the warehouse"):
        await looking.files.create(f"{WAREHOUSE}late", [b"3"])
    await looking.files.remove(f"{WAREHOUSE}before")
    assert await objects.exists("tables/before"), "no object is removed either"
    assert not await objects.exists("tables/late")
    await looking.close()
    await member.stop()
    with pytest.raises(errors.ForeignCluster, match="was replaced by cluster") as refused:
        await BrokerNode.start(old)
    assert str(fenced_note_path(old)) in refused.value.hint, "it is refused before the store is read"


async def test_a_pointer_catalog_moves_no_pointer_on_the_wrong_side_of_the_fence(
    glue: str, seaweed_server: Seaweed
) -> None:
    """Both clusters share the pointers there: an old member must not move one."""
    warehouse = f"s3://{BUCKET}/{new_name()}"
    flags = [*glue_flags(glue), *s3_flags(seaweed_server), f"storage.iceberg_config.warehouse={warehouse}"]
    settings = settings_of(*flags)
    files = open_files(store_options(settings))
    catalog = open_catalog(settings, files=files)
    table = Identifier((new_name(),), "orders")
    await catalog.create_namespace(table.namespace, {})
    before = await catalog.create(table, ASKED)
    fence = WarehouseFence(files.objects_at(warehouse), warehouse)
    await fence.check(FenceTerms("b", ["a"]))

    async def admit() -> None:
        report = await fence.check(FenceTerms("a"))
        if report.successor:
            raise replaced_error(report, warehouse)

    files.admit_by(admit)
    with pytest.raises(errors.ForeignCluster, match="cluster a was replaced by cluster b"):
        await catalog.commit(table, appending(before, 1))
    assert (await catalog.load(table)).metadata_location == before.metadata_location
    await catalog.close()


async def test_no_write_happens_before_the_fence_was_read(tmp_path: Path) -> None:
    objects = open_objects(settings_of(f"{STORE}.type=memory"))
    settings = settings_at(tmp_path / "data")
    node = await BrokerNode.start(settings)
    assert isinstance(node.store, NodeStore)
    cluster = node.store.identity.cluster_id.hex()
    await objects.put_new(f"tables/.icestream-fence/{cluster}", b"no JSON")
    looking = RecordingFence(settings, objects)
    try:
        with pytest.raises(errors.StorageUnavailable, match=r"was not read yet: .*cannot be read as the fence"):
            await looking.files.create(f"{WAREHOUSE}early", [b"1"])
        await objects.remove(f"tables/.icestream-fence/{cluster}")
        async with asyncio.timeout(SECONDS):
            while "[+] fence" not in "".join(check.line for check in await node.services.checks()):
                looking.clock.advance(limits.WAREHOUSE_FENCE_RETRY_SECONDS)
                await asyncio.sleep(0.01)
        await looking.files.create(f"{WAREHOUSE}early", [b"1"])
    finally:
        await looking.close()
        await node.stop()


async def test_a_node_is_not_ready_before_its_processes_have_read_the_fence(tmp_path: Path) -> None:
    node = await BrokerNode.start(settings_at(tmp_path / "data"))
    try:
        assert isinstance(node.store, NodeStore)
        clock = SimulatedClock()
        desk = ObjectFenceMonitor(node.store, WAREHOUSE, tmp_path / "note", clock, has_children=True)
        assert (desk.check().ok, desk.check().is_needed) == (False, True)
        clock.advance(limits.WAREHOUSE_FENCE_WAIT_SECONDS)
        assert (desk.check().ok, desk.check().is_needed) == (False, False), "the lake process is away: others say so"
    finally:
        await node.stop()
