"""The requirements B-01 to B-20 of seed 003, one test each (docs/backup.md has its terms)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from icestream import errors
from icestream.backup import seed_manifest
from icestream.backup.backup_run import BackupEffect
from icestream.backup.backup_target import DirectoryTarget
from icestream.backup.encryption import BackupKey
from icestream.backup.object_upload import WriteRate
from icestream.backup.seed_manifest import SeedOptions, check_options, manifest_name, normalized_namespace
from icestream.broker.backup_service import BackupService
from icestream.observability import metrics
from icestream.runtime.tasks import InlineOffload
from icestream.settings import load
from tests.support.backup_world import BackupWorld, Crash, RecordingSource, backup_world
from tests.support.node_group import NodeGroup

pytestmark = pytest.mark.asyncio
ENABLED = SeedOptions(enable=True)


async def prepare(world: BackupWorld) -> None:
    await world.create_topic()
    await world.bind()
    await world.publish(10)
    await world.commit(6, is_floor_moved=True)


def manifests_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/metadata/manifest_*.json"))


def documents(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in manifests_in(folder)]


def of_tables(folder: Path) -> list[dict[str, Any]]:
    """The manifests of table files; the first one is of the cut."""
    return [document for document in documents(folder) if {file["cf"] for file in document["files"]} == {"data"}]


def described(folder: Path) -> list[dict[str, Any]]:
    return [file for document in documents(folder) for file in document["files"]]


def names_without_ids(folder: Path) -> list[str]:
    """The names of a target, without what differs from backup to backup."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(
        re.sub(r"[0-9a-f]{2}/[0-9a-f]{64}|[0-9a-f]{64}|[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}", "X", name) for name in names
    )


async def test_b_01_off_by_default_writes_nothing_more(tmp_path: Path) -> None:
    assert not load(None, {}, ()).settings.backup.iceberg.enable
    async with backup_world(tmp_path) as world:
        await prepare(world)
        await world.back_up(seed=SeedOptions(enable=False))
        disabled = names_without_ids(tmp_path / "backups")
        world.target = DirectoryTarget(tmp_path / "second", InlineOffload())
        await world.back_up(seed=ENABLED)
        enabled = names_without_ids(tmp_path / "second")
    assert not [name for name in disabled if "manifest_" in name]
    assert [name for name in enabled if "manifest_" not in name] == disabled


@pytest.mark.parametrize(
    ("name", "value"),
    [("warehouse", "a/../b"), ("namespace", "a\x00"), ("table", ""), ("table", "/"), ("manifest_prefix", "")],
)
async def test_b_02_an_invalid_option_is_named(name: str, value: str) -> None:
    options = SeedOptions(**{"enable": True, name: value})
    with pytest.raises(errors.ConfigurationError, match=rf"backup\.iceberg\.{name}"):
        check_options(options)


@pytest.mark.parametrize(
    ("text", "path"),
    [("a.b.c", "a/b/c"), ("a/b", "a/b"), ("/a.b/", "a/b"), ("", ""), ("a//b..c", "a/b/c"), ("größe.東", "größe/東")],
)
async def test_b_03_dots_of_a_namespace_become_slashes(text: str, path: str) -> None:
    assert normalized_namespace(text) == path
    middle = f"{path}/" if path else ""
    assert manifest_name(SeedOptions(namespace=text), 5, 7) == f"warehouse/{middle}backup/metadata/manifest_5_7.json"


async def test_b_04_names_never_collide_over_restarts(tmp_path: Path) -> None:
    numbers: list[int] = []
    for _ in range(3):  # each a start of the node, as a counter in memory would begin anew
        async with backup_world(tmp_path) as world:
            numbers += await asyncio.gather(*(world.link.call("backup_numbers", {"count": 1}) for _ in range(100)))
    assert len({answer["first"] for answer in numbers}) == 300  # type: ignore[index]
    name = re.compile(r"warehouse/icestream/backup/metadata/manifest_[0-9]{13}_[0-9]+\.json")
    assert name.fullmatch(manifest_name(ENABLED, 1_700_000_000_000, 3))


async def test_b_04_names_of_three_nodes_never_collide(tmp_path: Path) -> None:
    """They back up at the same moment, into one target; the node that gives the numbers out loses its power in
    between."""
    group = await NodeGroup.form(3)
    target = DirectoryTarget(tmp_path / "backups", InlineOffload())
    log: Any = None  # numbers are of the metadata store alone
    written = 0
    try:
        for leads in (True, False):
            services = [
                BackupService(log, store, group.clock, asyncio.sleep, asyncio.sleep, InlineOffload())  # type: ignore[arg-type]
                for store in group.stores.values()
            ]
            numbers = [service.allocate_numbers(1) for _ in range(20) for service in services]
            for number in await group.do(asyncio.gather(*numbers)):
                # Exclusively: a second one of this name with other bytes is an error.
                await target.put_new(manifest_name(ENABLED, 1_700_000_000_000, number), b"%d" % written)
                written += 1
            if leads:
                leader = next(node_id for node_id, store in group.stores.items() if store is group.leader)
                await group.kill(leader, power_loss=True)
                await group.until(lambda: group.is_ready)
        assert len(manifests_in(tmp_path)) == written == 100
    finally:
        await group.close()


async def test_b_05_a_manifest_for_each_flushed_batch_and_none_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.limits.BACKUP_BATCH_FILES", 1)
    async with backup_world(tmp_path) as world:
        await prepare(world)
        for end in range(7, 11):
            await world.commit(end)
        root = await world.back_up(seed=ENABLED)
        assert root.manifests.written == len(manifests_in(tmp_path / "backups")) > 1
        assert all(document["files"] for document in documents(tmp_path / "backups"))
    async with backup_world(tmp_path / "empty") as world:
        await world.create_topic()
        assert (await world.back_up(seed=ENABLED)).manifests.written == 1, "of the cut; no table has files"
        (document,) = documents(tmp_path / "empty" / "backups")
        assert {file["role"] for file in document["files"]} == {"metadata", "checkpoint"}


async def test_b_06_a_manifest_has_every_field_and_its_files_exist(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up(seed=ENABLED)
    assert {(file["cf"], file["role"]) for file in described(tmp_path / "backups")} == {
        ("data", "data"), ("data", "table-metadata"), ("wal", "tail"), ("meta", "metadata"), ("meta", "checkpoint"),
    }  # fmt: skip
    (tail,) = [file for file in described(tmp_path / "backups") if file["role"] == "tail"]
    assert (tail["first_offset"], tail["end_offset"]) == (6, 10)
    (document,) = of_tables(tmp_path / "backups")
    assert {"format_version", "warehouse", "namespace", "table", "generated_at_ms", "snapshot_start_ts"} <= {*document}
    assert (document["backup_id"], document["begin_revision"]) == (root.id, root.begin_revision)
    (data,) = [file for file in document["files"] if file["role"] == "data"]
    assert (data["cf"], data["total_kvs"], data["first_offset"], data["end_offset"]) == ("data", 6, 0, 6)
    for file in document["files"]:
        assert {"file_name", "cf", "sha256", "start_version", "end_version", "total_kvs", "total_bytes"} <= {*file}
        assert (tmp_path / "backups" / file["file_name"]).stat().st_size == file["size"]


async def test_b_07_keys_are_base64_of_topic_shard_and_offset(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        topic_id = await world._topic_id()
        await world.back_up(seed=ENABLED)
    (data,) = [file for file in described(tmp_path / "backups") if file["role"] == "data"]
    keys = [base64.b64decode(data[name], validate=True) for name in ("start_key", "end_key")]
    assert keys == [seed_manifest.encode_key(topic_id, 0, offset) for offset in (0, 6)]
    assert b"\x00" in keys[0]
    assert seed_manifest.encode_key(1, 0, 255)[-1] == 0xFF
    others = [file for file in described(tmp_path / "backups") if file["role"] == "table-metadata"]
    assert {(file["start_key"], file["end_key"]) for file in others} == {("", "")}, "open bounds"


async def test_b_08_sha256_of_every_file_in_one_read(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        run = world.run(seed=ENABLED)
        source = RecordingSource(run)
        await run.run()
    assert len(source.read) == len(set(source.read)), "no file is read twice"
    for file in described(tmp_path / "backups"):
        content = (tmp_path / "backups" / file["file_name"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(content).hexdigest()


async def test_b_09_timestamps_are_milliseconds(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up(seed=ENABLED)
    (document,) = of_tables(tmp_path / "backups")
    start, end = document["snapshot_start_ts"], document["snapshot_end_ts"]
    assert (start, end) == (root.begun_ms, root.cut_ms)
    assert 1_600_000_000_000 < start <= end <= document["generated_at_ms"] < 5_000_000_000_000
    assert {(file["start_version"], file["end_version"]) for file in document["files"]} == {(start, end)}


async def test_b_10_no_manifest_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        for effect in (BackupEffect.COPY, BackupEffect.MANIFEST, BackupEffect.VIEW):

            def strike(reached: BackupEffect, effect: BackupEffect = effect) -> None:
                if reached is effect:
                    raise Crash

            with pytest.raises(Crash):
                await world.run(seed=ENABLED, on_effect=strike).run()
            for file in described(tmp_path / "backups"):
                assert (tmp_path / "backups" / file["file_name"]).exists()
    # Those of the cuts, but for the run that ended before its first; and of the run that ended behind its manifest.
    assert len(of_tables(tmp_path / "backups")) == 1


async def failing(tmp_path: Path, world: BackupWorld, seed: SeedOptions) -> Any:
    """A backup whose manifests cannot be written: a file has the name of their folder."""
    (tmp_path / "backups" / "warehouse").write_bytes(b"")
    return await world.back_up(seed=seed)


async def test_b_11_a_failed_manifest_is_a_warning(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        counter = metrics.BACKUP_MANIFESTS.labels("failed")
        before = counter._value.get()
        with capture_logs() as logs:
            root = await failing(tmp_path, world, ENABLED)
        assert (root.state, root.manifests.written, len(root.manifests.missing)) == ("complete", 0, 2)
        assert counter._value.get() == before + 2
        assert [line["log_level"] for line in logs if line["event"] == "backup manifest not written"] == ["warning"] * 2
        findings = await world.verify(root.id)
        assert [(finding.object, finding.severity) for finding in findings] == [("manifests", "warning")] * 2


async def test_b_11_a_strict_run_ends_with_the_failure(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        with pytest.raises((errors.IcestreamError, OSError)):
            await failing(tmp_path, world, SeedOptions(enable=True, strict=True))
        assert [backup.root for backup in await world.stored().backups()] == [None]


async def test_b_12_a_retry_repeats_files_under_the_same_names(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)

        def strike(reached: BackupEffect) -> None:
            if reached is BackupEffect.PROGRESS and of_tables(tmp_path / "backups"):
                raise Crash

        killed = world.run(seed=ENABLED, on_effect=strike)
        with pytest.raises(Crash):
            await killed.run()
        root = await world.run(id=killed._plan.id, seed=ENABLED).resume()
        rows = await world.stored().rows_of(root.id)
    first, second = of_tables(tmp_path / "backups")
    assert first["batch_id"] == second["batch_id"]
    assert {file["file_name"] for file in first["files"]} == {file["file_name"] for file in second["files"]}
    sources = [row.source for row in rows if row.source]
    assert len(sources) == len(set(sources)), "the object list has each file once"


async def test_b_13_options_are_read_when_a_backup_begins(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        assert not (await world.call("backup_options"))["enable"]
        run = world.run(seed=SeedOptions(**await world.call("backup_options")))
        await world.call("set_setting", key="backup.iceberg.enable", value=True)
        assert (await run.run()).manifests.written == 0, "a running backup keeps its copy"
        assert (await world.back_up(seed=SeedOptions(**await world.call("backup_options")))).manifests.written == 2


async def test_b_14_no_request_is_made_while_it_is_off(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        await world.back_up()
        without = set(world.calls)
        world.calls.clear()
        await world.back_up(seed=ENABLED)
        assert {*world.calls} - without == {"backup_numbers"}


async def test_b_15_one_rate_for_files_and_manifests() -> None:
    rate = WriteRate(1_000)
    assert rate.delay(500, 10.0) == 0, "a second of bytes may be ahead"
    waits = [rate.delay(500, 10.0) for _ in range(9)]
    assert waits[-1] == pytest.approx(4.0)
    assert WriteRate(0).delay(10**12, 0.0) == 0


async def test_b_15_a_backup_takes_as_long_as_its_rate_allows(tmp_path: Path) -> None:
    waited: list[int] = []

    class CountedRate(WriteRate):
        def delay(self, size: int, now: float) -> float:
            waited.append(size)
            return 0.0

    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up(seed=ENABLED, bucket=CountedRate(1))
        uploaded = sum(row.size for row in await world.stored().rows_of(root.id) if row.role != "view")
        manifests = sum(path.stat().st_size for path in manifests_in(tmp_path / "backups"))
    assert sum(waited) >= uploaded + manifests


async def test_b_16_manifests_lie_in_the_target_beside_encrypted_files(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        key = BackupKey(bytes(range(32)))
        root = await world.back_up(seed=ENABLED, key=key)
        assert root.encryption is not None
        assert all(file["file_name"].endswith(".enc") for file in described(tmp_path / "backups"))
        assert await world.verify(root.id, key=key) == []


async def test_b_17_no_manifest_has_bytes_of_a_message(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(3, payload=b"canary")
        await world.commit(3, payload=b"canary")
        await world.back_up(seed=ENABLED)
    stored = b"".join(path.read_bytes() for path in manifests_in(tmp_path / "backups"))
    assert stored
    assert b"canary" not in stored
    assert base64.b64encode(b"canary")[:7] not in stored


async def test_b_18_a_log_line_for_each_manifest(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        with capture_logs() as logs:
            await world.back_up(seed=ENABLED)
    of_cut, line = [line for line in logs if line["event"] == "backup manifest written"]
    assert of_cut["path"] != line["path"]
    assert (tmp_path / "backups" / line["path"]).exists()
    assert (line["log_level"], line["files"] > 0, line["bytes"] > 0, line["ms"] >= 0) == ("info", True, True, True)


async def test_b_19_manifests_make_no_call_of_a_catalog(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)

        async def calls_of_catalog(seed: SeedOptions) -> list[str]:
            names: list[str] = []
            run = world.run(seed=seed)
            catalog = run._catalog

            class Counted:
                def __getattr__(self, name: str) -> Any:
                    names.append(name)
                    return getattr(catalog, name)

            run._catalog = Counted()  # type: ignore[assignment]
            await run.run()
            return names

        assert await calls_of_catalog(SeedOptions()) == await calls_of_catalog(ENABLED)


async def test_b_20_an_enabled_broker_writes_manifests_with_header_and_files(tmp_path: Path) -> None:
    async with backup_world(tmp_path, backup={"iceberg": {"enable": True, "namespace": "a.b"}}) as world:
        await prepare(world)
        root = await world.back_up(seed=SeedOptions(**await world.call("backup_options")))
    path, _ = manifests_in(tmp_path / "backups")
    assert path.parent == tmp_path / "backups" / "warehouse" / "a" / "b" / "backup" / "metadata"
    (document,) = of_tables(tmp_path / "backups")
    assert (document["namespace"], document["table"], document["format_version"]) == ("a/b", "backup", 1)
    sources = [row for row in ((tmp_path / "warehouse").rglob("*")) if row.suffix in (".parquet", ".avro")]
    assert len(document["files"]) == len(sources)
    assert root.manifests.written == 2
