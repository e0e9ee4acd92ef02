"""Hazard 122: tasks of the pipeline get keys of their tables. In a real store they write data files of one table, read
those that they have to read, and nothing else."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from icestream import errors
from icestream.catalogs.store_keys import StoreKeys
from icestream.catalogs.store_options import StoreOptions
from icestream.model.task_messages import TopicTaskResult
from icestream.pipeline.compaction.compaction_job import CompactionOptions
from icestream.pipeline.compaction.group_messages import decode_job
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.files.file_store import FileStore
from icestream.pipeline.round_plan import RoundPlan, TableTarget
from icestream.pipeline.task.task_run import open_store
from icestream.pipeline.task_keys import TaskFiles, TaskKeys, settings_storage
from icestream.processes.configured_catalog import open_table_role
from icestream.runtime.clock import SystemClock
from tests.support.compaction import RULE, LocalGroupWriter, add_compaction, compact
from tests.support.fault_world import FaultWorld
from tests.support.pipeline_harness import PipelineHarness
from tests.support.seaweed import BUCKET, KEY, SECRET, TABLE_ROLE, Seaweed
from tests.support.signed_store import RecordingRole

OWN, NEIGHBOUR, IMPORTED = (f"s3://{BUCKET}/task-keys/{name}" for name in ("orders/data", "orders2/data", "imported"))
STORE = StoreOptions(
    kind="s3", bucket=BUCKET, access_key_id=KEY, secret_access_key=SECRET, path_style=True, table_role_arn=TABLE_ROLE
)


def target(location: str, options: StoreOptions = STORE) -> TableTarget:
    return TableTarget(location, {}, {}, storage=settings_storage(options))


def put(store: FileStore, location: str) -> str:
    """Writes a file; returns why it could not be written."""
    store.put(location, b"rows")
    return store.settle().get(location, "")


def is_readable(store: FileStore, location: str) -> bool:
    try:
        return store.read(location) == b"rows"
    except errors.AccessDenied:
        return False


async def narrowed(options: StoreOptions, read: Sequence[str]) -> TableTarget:
    clock = SystemClock()
    role = open_table_role(options, StoreKeys(options, clock), clock)
    assert role is not None
    try:
        return await TaskKeys(options, role).narrow(TaskFiles(target(OWN, options), read))
    finally:
        await role.close()


def test_hazard_122_keys_of_a_task_open_the_files_of_its_table_only(seaweed_server: Seaweed) -> None:
    options = dataclasses.replace(STORE, endpoint=seaweed_server.endpoint, region="us-east-1")
    for location in (NEIGHBOUR, IMPORTED):
        assert put(open_store(target(location, options)), f"{location}/old.parquet") == ""
    for read, is_imported in (([], False), ([f"{IMPORTED}/old.parquet", f"{OWN}/old.parquet"], True)):
        narrow = asyncio.run(narrowed(options, read))
        assert SECRET not in str(narrow)
        task = open_store(narrow)
        assert put(task, f"{OWN}/{is_imported}.parquet") == ""
        assert is_readable(open_store(narrow), f"{OWN}/{is_imported}.parquet")
        assert is_readable(open_store(narrow), f"{IMPORTED}/old.parquet") == is_imported
        assert not is_readable(open_store(narrow), f"{NEIGHBOUR}/old.parquet")
        for location in (NEIGHBOUR, IMPORTED, f"s3://{BUCKET}/task-keys/orders/metadata", f"s3://{BUCKET}/elsewhere"):
            assert "refuses access" in put(open_store(narrow), f"{location}/new.parquet"), location


@pytest.mark.asyncio
async def test_keys_of_a_task_are_for_what_it_writes_and_reads() -> None:
    role = RecordingRole()
    read = [f"{NEIGHBOUR}/p=1/a.parquet", f"{IMPORTED}/b.parquet"]
    targets = await TaskKeys(STORE, role).narrow_all([TaskFiles(target(OWN)), TaskFiles(target(NEIGHBOUR), read)])
    for entry in targets:
        assert SECRET not in str(entry.storage)
        assert entry.storage["session_token"] == "token of the session"
        assert entry.storage["table_role_arn"] is None, "with it and other keys a task could ask for more"
    own, both = (json.loads(policy)["Statement"] for policy in role.policies)
    assert [statement["Resource"] for statement in own] == [[f"arn:aws:s3:::{BUCKET}/task-keys/orders/data/*"]]
    assert [statement["Action"] for statement in both] == [
        ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"],
        ["s3:GetObject"],
    ]
    assert both[1]["Resource"] == [f"arn:aws:s3:::{BUCKET}/task-keys/imported/*"]


@pytest.mark.asyncio
async def test_a_location_that_no_policy_can_name_is_written_with_the_keys_of_the_settings() -> None:
    role = RecordingRole()
    for location in (f"s3://{BUCKET}/a*/data", f"s3://{BUCKET}"):
        assert await TaskKeys(STORE, role).narrow(TaskFiles(target(location))) == target(location)
    assert role.policies == []


class MarkedKeys(TaskKeys):
    """Marks each target that was narrowed."""

    def __init__(self) -> None:
        super().__init__(STORE, RecordingRole())

    async def narrow(self, files: TaskFiles) -> TableTarget:
        return msgspec.structs.replace(files.target, storage={"narrowed": sorted(files.read)})


@pytest.mark.asyncio
async def test_hazard_122_every_plan_of_ingest_goes_through_it(tmp_path: Path) -> None:
    pipeline = PipelineHarness(tmp_path / "warehouse", options=DriverOptions(keys=MarkedKeys()))
    plans: list[RoundPlan] = []
    write = pipeline.writer.write

    def recorded(plan: RoundPlan) -> list[TopicTaskResult]:
        plans.append(plan)
        return write(plan)

    pipeline.writer.write = recorded  # type: ignore[method-assign]
    for topic_id in (1, 2):
        pipeline.broker.publish(topic_id, 3)
    await pipeline.round()
    assert [{entry.storage.get("narrowed") is not None for entry in plan.targets.values()} for plan in plans] == [
        {True}
    ]
    assert plans[0].targets.keys() == {1, 2}
    await pipeline.close()


class RecordingGroupWriter(LocalGroupWriter):
    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[bytes] = []

    def rewrite(self, group_jobs: Sequence[bytes]) -> list[bytes]:
        self.jobs += group_jobs
        return super().rewrite(group_jobs)


@pytest.mark.asyncio
async def test_hazard_122_every_plan_of_compaction_goes_through_it(tmp_path: Path) -> None:
    world, writer = await FaultWorld.open(tmp_path), RecordingGroupWriter()
    life = world.driver()
    options = CompactionOptions(rule=RULE, interval_ms=0, keys=MarkedKeys())
    job = add_compaction(life, writer=writer, options=options)
    for _ in range(3):
        await world.publish_some()
        await world.drain(life)
    await world.publish_some()
    await compact(life, job)
    assert writer.jobs
    for group in map(decode_job, writer.jobs):
        assert group.target.storage == {"narrowed": sorted(file.location for file in group.files)}
    await world.close()
