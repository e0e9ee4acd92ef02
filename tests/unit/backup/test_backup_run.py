"""Backups of a real node: the cut, the copy, the root, and what may interrupt them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from icestream import errors, limits
from icestream.backup import backup_layout as layout
from icestream.backup.backup_root import BackupBegin, BackupRoot, decode_document
from icestream.backup.backup_run import BackupEffect
from icestream.backup.encryption import BackupKey
from icestream.backup.inventory_table import update_inventory
from icestream.backup.object_list import ObjectRow
from icestream.backup.seed_manifest import SeedOptions
from icestream.backup.tail_object import decode_tail
from icestream.broker import records
from icestream.broker.records import CURSORS, CursorRecord
from icestream.catalog.catalog_holds import BACKUP_TAG, holds_prefix
from icestream.catalogs.table_catalog import CommitRefused, TableChange
from icestream.metadata.snapshot import load_snapshot
from icestream.model.shard import ShardKey
from icestream.wal.checkpoint import decode_checkpoint
from tests.support.backup_world import BackupWorld, Crash, PowerLossTarget, RecordingSource, backup_world
from tests.support.lakehouse import duckdb_with_iceberg
from tests.support.topic_lake import TABLE

pytestmark = pytest.mark.asyncio
KEY = BackupKey(bytes(range(32)))
OTHER_KEY = BackupKey(bytes(range(1, 33)))


async def prepare(world: BackupWorld, published: int = 10, committed: int = 6) -> int:
    topic_id = await world.create_topic()
    await world.bind()
    await world.publish(published)
    await world.commit(committed, is_floor_moved=True)
    return topic_id


async def test_a_backup_has_the_table_the_tail_and_the_producers(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        root = await world.back_up()
        (topic,) = [topic for topic in root.topics if topic.id == topic_id]
        (shard,) = topic.shards
        assert (root.state, shard.committed, shard.end) == ("complete", 6, 10)
        (tail,) = shard.tails
        data = await world.stored().content(tail.object, "tail")
        offsets = {
            section.base_offset + number
            for section in decode_tail("tail", data, ShardKey(topic_id, 0))
            for number in range(section.rows)
        }
        assert {6, 7, 8, 9} <= offsets
        (node,) = root.nodes
        log = decode_checkpoint(await world.stored().content(node.checkpoint, "checkpoint")).state
        assert log.shards[ShardKey(topic_id, 0)].synced == 10
        assert [window.expected for _, _, window in log.producers.windows()] == [10]
        assert await world.verify(root.id) == []


async def test_duckdb_and_pyiceberg_read_the_inventory(tmp_path: Path) -> None:
    from pyiceberg.table import StaticTable

    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        first = await world.back_up()
        second = await world.back_up()
        inventory = world.target.location("inventory/metadata/v2.metadata.json")
        rows = StaticTable.from_metadata(inventory).scan(row_filter="role = 'data'").to_arrow().to_pylist()
        assert [(row["topic_id"], row["first_offset"], row["end_offset"]) for row in rows] == [(topic_id, 0, 6)] * 2
        with duckdb_with_iceberg() as duckdb:
            counts = duckdb.sql(f"SELECT backup_id, count(*) FROM iceberg_scan('{inventory}') GROUP BY 1 ORDER BY 1")
            assert counts.fetchall() == sorted([(first.id, first.files), (second.id, second.files)])
        steps: list[tuple[int, int]] = []
        await world.stored().delete(first.id, now_ms=0, on_progress=lambda done, all_: steps.append((done, all_)))
        assert steps == [(number, len(steps)) for number in range(1, len(steps) + 1)]
        assert steps
        location = await update_inventory(world.target, world.stored(), 1)
        assert len(StaticTable.from_metadata(location).scan().to_arrow()) == second.files


async def test_hazard_84_no_cursor_passes_the_cut(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        await world.call("create_subscription", topic="/default/orders", subscription="s")
        run = world.run()

        async def freeze(method: str, /, **arguments: object) -> object:
            if method == "backup_freeze":
                await world.publish(5)
                cursor = CursorRecord(1, 12, topic_id, 0, acked=[1, 1], attempts=[2, 1, 3])
                await world.node.store.put(f"{CURSORS}s/default/orders", records.encode(cursor))
            return await world.link.call(method, dict(arguments))

        run._node._call = freeze
        root = await run.run()
        (topic,) = [topic for topic in root.topics if topic.id == topic_id]
        assert topic.shards[0].end == 10
        state = load_snapshot(io.BytesIO(await world.stored().content(root.metadata, "metadata")).read)
        stored = records.decode(CursorRecord, "cursor", state.entries[f"{CURSORS}s/default/orders"].value)
        assert (stored.offset, stored.end, stored.attempts) == (10, 10, [])
        assert not [key for key in state.entries if key.startswith("/holds/")]


async def test_a_copy_gives_its_pins_back_and_a_reference_keeps_them(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        assert world.lake is not None
        uuid = (await world.lake.table()).uuid or ""
        copy = await world.back_up()
        assert not await world.node.store.list_all(holds_prefix(uuid))
        assert not [name for name in (await world.lake.table()).references if name.startswith(BACKUP_TAG)]
        reference = await world.back_up(kind="reference")
        assert [key for key, _ in await world.node.store.list_all(holds_prefix(uuid))] == [
            f"{holds_prefix(uuid)}backup-{reference.id}"
        ]
        data = [row for row in await world.stored().rows_of(reference.id) if row.role == "data"]
        assert all(row.path.startswith("file:") for row in data)
        assert await world.verify(reference.id) == []
        assert len(await world.stored().backups()) == 2
        assert copy.bytes > 0


async def test_hazard_89_a_held_tag_is_not_removed_by_others(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up(kind="reference")
        change = TableChange([], [{"action": "remove-snapshot-ref", "ref-name": f"{BACKUP_TAG}{root.id}"}])
        with pytest.raises(errors.TopicTableConflict, match="belongs to a backup"):
            await world.catalog.commit(TABLE, change)
        await world.node.store.delete_prefix("/holds/")
        assert not isinstance(await world.catalog.commit(TABLE, change), CommitRefused)


async def test_hazard_89_a_pin_that_is_taken_away_leaves_no_root(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        run = world.run()
        removed = False

        async def call(method: str, /, **arguments: object) -> object:
            nonlocal removed
            answer = await world.link.call(method, dict(arguments))
            if method == "backup_end" and not removed:
                removed = True
                await world.node.store.delete_prefix("/holds/")
                tag = f"{BACKUP_TAG}{arguments['id']}"
                await world.catalog.commit(TABLE, TableChange([], [{"action": "remove-snapshot-ref", "ref-name": tag}]))
            return answer

        run._node._call = call
        with pytest.raises(errors.BackupDamaged, match="is gone"):
            await run.run()
        assert [backup.root for backup in await world.stored().backups()] == [None]


# Locks need a store: tests/contract/test_locked_backups.py
@pytest.mark.parametrize("effect", [effect for effect in BackupEffect if effect is not BackupEffect.LOCK])
async def test_a_run_that_is_killed_at_an_effect_is_resumed_or_begun_again(
    tmp_path: Path, effect: BackupEffect
) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)

        def strike(reached: BackupEffect) -> None:
            if reached is effect:
                raise Crash

        killed = world.run(on_effect=strike, seed=SeedOptions(enable=True))
        with pytest.raises(Crash):
            await killed.run()
        backup_id = killed._plan.id
        roots = [backup.root for backup in await world.stored().backups() if backup.root is not None]
        if effect in (BackupEffect.INVENTORY, BackupEffect.RELEASE):
            assert [root.id for root in roots] == [backup_id], "the root is there"
            return
        assert not roots, "no root, no backup"
        await world.publish(3)
        if await world.target.get(layout.progress_name(backup_id, 0)) is None:
            with pytest.raises(errors.InvalidInput, match="before its cut was recorded"):
                await world.run(id=backup_id).resume()
            root = await world.back_up()
            assert max(shard.end for topic in root.topics for shard in topic.shards) == 13
        else:
            resumed = world.run(id=backup_id, seed=SeedOptions(enable=True))
            root = await resumed.resume()
            assert max(shard.end for topic in root.topics for shard in topic.shards) == 10, "the same cut"
        assert await world.verify(root.id) == []


async def test_a_resumed_run_uploads_nothing_twice(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)

        def strike(reached: BackupEffect) -> None:
            if reached is BackupEffect.ROOT:
                raise Crash

        killed = world.run(on_effect=strike)
        with pytest.raises(Crash):
            await killed.run()
        resumed = world.run(id=killed._plan.id)
        await resumed.resume()
        assert resumed._upload.uploaded == 0


async def test_an_incremental_backup_reads_only_new_files(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        parent = await world.back_up()
        await world.commit(9, is_floor_moved=True)
        child = world.run(parent=parent.id)
        source = RecordingSource(child)
        root = await child.run()
        rows = [row for row in await world.stored().rows_of(root.id) if row.role == "data"]
        assert sorted((row.first_offset, row.end_offset) for row in rows) == [(0, 6), (6, 9)]
        assert len([path for path in source.read if path.endswith(".parquet")]) == 1
        # The parent goes, the child stays whole (hazard 92).
        deleted = await world.stored().delete(parent.id, now_ms=0)
        assert deleted.kept > 0
        assert await world.verify(root.id) == []


@pytest.mark.parametrize("kind", ["copy", "reference"])
async def test_a_backup_is_incremental_from_a_reference_backup_of_a_bucket(tmp_path: Path, kind: str) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        parent = await world.back_up(kind="reference")
        run = world.run(kind=kind, parent=parent.id)
        rows_of = run._stored.rows_of

        async def in_a_bucket(backup_id: str) -> list[ObjectRow]:
            return [
                row._replace(path=row.path.replace("file:/", "s3://bucket/")) if row.is_original else row
                for row in await rows_of(backup_id)
            ]

        run._stored.rows_of = in_a_bucket  # type: ignore[method-assign]
        root = await run.run()
        assert root.state == "complete"
        assert await world.verify(root.id) == []


@pytest.mark.parametrize("kind", ["copy", "reference"])
async def test_no_record_names_an_object_that_a_power_loss_would_take(tmp_path: Path, kind: str) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        target = PowerLossTarget(tmp_path / "target")
        world.target = target
        await world.back_up(kind=kind, seed=SeedOptions(enable=True))
        # What a run finds there may be of one that ended before the names were durable.
        await world.back_up(kind=kind)
        assert (target.fragile, target.records > 6) == (set(), True)


async def test_hazard_92_deletion_spares_a_running_backup_and_its_parent(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        first, second = await world.back_up(), await world.back_up()

        def strike(reached: BackupEffect) -> None:
            if reached is BackupEffect.ROOT:
                raise Crash

        running = world.run(parent=first.id, on_effect=strike)
        with pytest.raises(Crash):
            await running.run()
        for backup in (first, second):
            await world.stored().delete(backup.id, now_ms=0)
        root = await world.run(id=running._plan.id).resume()
        assert await world.verify(root.id) == []


async def test_deletion_removes_everything_of_the_last_backup(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        deleted = await world.stored().delete(root.id, now_ms=0)
        assert deleted.removed > 0
        assert not await world.target.names("objects/")
        assert not await world.target.names("backups/")
        with pytest.raises(errors.UnknownBackup):
            await world.stored().delete(root.id, now_ms=0)


async def test_hazard_92_a_run_notices_a_deletion_of_what_it_reuses(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        first = await world.back_up()
        rows = await world.stored().rows_of(first.id)
        removed = next(tmp_path / "backups" / row.path for row in rows if row.role == "data")

        def strike(reached: BackupEffect) -> None:
            if reached is BackupEffect.ROOT:
                removed.unlink()  # by a deletion that listed the backups before this root

        with pytest.raises(errors.Refused, match="removed by a deletion"):
            await world.run(parent=first.id, on_effect=strike).run()
        assert [backup.id for backup in await world.stored().backups() if backup.root is not None] == [first.id]


async def test_hazard_92_a_deletion_that_was_cut_off_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.limits.BACKUP_DELETION_LOOKS", 1)
    monkeypatch.setattr("icestream.limits.BACKUP_DELETION_LOOK_SECONDS", 0.0)
    async with backup_world(tmp_path) as world:
        await prepare(world)
        first, second = await world.back_up(), await world.back_up()
        await world.target.put(layout.deletion_name(first.id), b"{}")
        with pytest.raises(errors.Refused, match="did not end"):
            await world.back_up()
        await world.stored().delete(first.id, now_ms=0)
        assert not await world.stored().deletions()
        assert await world.verify(second.id) == []
        assert (await world.back_up()).state == "complete"


async def test_hazard_92_objects_of_runs_that_ended_are_swept(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        kept = await world.back_up()
        await world.publish(2)

        def strike(reached: BackupEffect) -> None:
            if reached is BackupEffect.PROGRESS:
                raise Crash

        ended = world.run(on_effect=strike)
        with pytest.raises(Crash):
            await ended.run()
        assert (await world.stored().delete(ended._plan.id, now_ms=0)).removed > 0
        named = {row.path for row in await world.stored().rows_of(kept.id)}
        assert {*await world.target.names("objects/")} <= named
        assert await world.verify(kept.id) == []


async def test_an_encrypted_backup_has_no_plain_byte_of_a_message(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(4, payload=b"canary-in-the-log")
        await world.commit(2, payload=b"canary-in-the-table")
        root = await world.back_up(key=KEY)
        for path in (tmp_path / "backups").rglob("*"):
            assert not path.is_file() or b"canary" not in path.read_bytes(), path
        assert await world.verify(root.id, key=KEY) == []
        assert [finding.severity for finding in await world.verify(root.id)] == ["warning"], "without the key"
        wrong = await world.verify(root.id, key=BackupKey(bytes(32)))
        assert wrong
        assert all("encrypted with key" in finding.text for finding in wrong)


@pytest.mark.parametrize("former", [None, OTHER_KEY], ids=["plain parent", "rotated key"])
async def test_an_incremental_backup_has_no_object_of_another_key(tmp_path: Path, former: BackupKey | None) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        parent = await world.back_up(key=former)
        child = await world.back_up(key=KEY, parent=parent.id)
        await world.stored().delete(parent.id, now_ms=0)
        assert {row.key_id for row in await world.stored().rows_of(child.id)} == {KEY.id}
        assert await world.verify(child.id, key=KEY) == []
        # The key of the parent is that of the run again: nothing of a table is read.
        run = world.run(key=KEY, parent=child.id)
        source = RecordingSource(run)
        root = await run.run()
        assert not [path for path in source.read if path.endswith(".parquet")]
        assert await world.verify(root.id, key=KEY) == []


async def test_a_plain_incremental_backup_of_an_encrypted_one_is_plain(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        parent = await world.back_up(key=KEY)
        child = await world.back_up(parent=parent.id)
        assert {row.key_id for row in await world.stored().rows_of(child.id)} == {""}
        assert await world.verify(child.id) == []


@pytest.mark.parametrize("keys", [(None, KEY), (KEY, None), (KEY, OTHER_KEY)], ids=["set", "unset", "rotated"])
async def test_a_run_is_not_resumed_with_another_key(
    tmp_path: Path, keys: tuple[BackupKey | None, BackupKey | None]
) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)

        def strike(reached: BackupEffect) -> None:
            if reached is BackupEffect.ROOT:
                raise Crash

        killed = world.run(on_effect=strike, key=keys[0])
        with pytest.raises(Crash):
            await killed.run()
        with pytest.raises(errors.ConfigurationError, match="was begun with"):
            await world.run(id=killed._plan.id, key=keys[1]).resume()
        root = await world.run(id=killed._plan.id, key=keys[0]).resume()
        assert await world.verify(root.id, key=keys[0]) == []


async def test_verify_names_every_flipped_bit_and_every_missing_object(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        folder = tmp_path / "backups"
        rows = await world.stored().rows_of(root.id)
        assert {row.role for row in rows} >= {"data", "tail", "checkpoint", "metadata", "table-metadata", "view"}
        for row in rows:
            path = folder / row.path
            data = path.read_bytes()
            for at in (0, len(data) // 2, len(data) - 1):
                path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
                named = {finding.object for finding in await world.verify(root.id) if finding.severity == "error"}
                assert row.path in named, row.path
            path.unlink()
            assert row.path in {finding.object for finding in await world.verify(root.id, deep=False)}
            path.write_bytes(data)
        listed = folder / root.objects.path
        listed.write_bytes(listed.read_bytes()[:-1] + b"\0")
        assert [finding.object for finding in await world.verify(root.id)] == [root.objects.path]


@pytest.mark.parametrize("damage", ["flip", "cut"])
async def test_a_full_backup_replaces_a_damaged_object(tmp_path: Path, damage: str) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        first = await world.back_up()
        (row,) = [row for row in await world.stored().rows_of(first.id) if row.role == "data"]
        damage_object(tmp_path / "backups" / row.path, damage)
        assert [finding.object for finding in await world.verify(first.id)] == [row.path]
        second = await world.back_up()
        for root in (first, second):
            assert await world.verify(root.id) == [], "both name the object, which has its bytes again"


async def test_an_incremental_backup_replaces_a_cut_object(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        parent = await world.back_up()
        (row,) = [row for row in await world.stored().rows_of(parent.id) if row.role == "data"]
        damage_object(tmp_path / "backups" / row.path, "cut")
        root = await world.back_up(parent=parent.id)
        assert await world.verify(root.id) == []


def damage_object(path: Path, damage: str) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-10] if damage == "cut" else data[:100] + bytes([data[100] ^ 1]) + data[101:])


async def test_hazard_92_two_swapped_objects_are_named(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up(key=KEY)
        first, second = [row for row in await world.stored().rows_of(root.id) if row.role in ("data", "tail")]
        paths = [tmp_path / "backups" / row.path for row in (first, second)]
        contents = [path.read_bytes() for path in paths]
        for path, content in zip(paths, reversed(contents), strict=True):
            path.write_bytes(content)
        named = {finding.object for finding in await world.verify(root.id, key=KEY)}
        assert {first.path, second.path} <= named


async def test_verify_names_every_flipped_bit_of_root_and_begin(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        assert await world.stored().root(root.id) == root
        name, folder = layout.root_name(root.id), tmp_path / "backups"
        data = (folder / name).read_bytes()
        for changed in flipped(data):
            with pytest.raises(errors.BackupDamaged, match=name):
                decode_document(BackupRoot, name, changed)
        (folder / name).write_bytes(data.replace(b'"end": 10', b'"end": 8'))
        with pytest.raises(errors.BackupDamaged, match=f"{name} was changed"):
            await world.verify(root.id)
        (folder / name).write_bytes(data)
        begin = layout.begin_name(root.id)
        written = (folder / begin).read_bytes()
        for changed in flipped(written):
            with pytest.raises(errors.BackupDamaged, match=begin):
                decode_document(BackupBegin, begin, changed)
        (folder / begin).write_bytes(written.replace(b'"kind": "copy"', b'"kind": "reference"'))
        assert [finding.object for finding in await world.verify(root.id)] == [begin]


def flipped(data: bytes) -> Iterator[bytes]:
    """The data with each of its bits flipped, one at a time."""
    for at in range(len(data)):
        for bit in range(8):
            yield data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


async def test_a_root_without_a_digest_is_one_of_an_earlier_version(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        path = tmp_path / "backups" / layout.root_name(root.id)
        document = orjson.loads(path.read_bytes())
        digest = document.pop("sha256")
        path.write_bytes(orjson.dumps(document))
        assert await world.verify(root.id) == []
        for field in ("sha256", "sha25v"):
            path.write_bytes(orjson.dumps(document | {field: digest}))
            with pytest.raises(errors.BackupDamaged, match="was changed"):
                await world.verify(root.id)


async def test_a_backup_with_a_damaged_root_stops_no_other_and_is_deleted(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        damaged = await world.back_up()
        path = tmp_path / "backups" / layout.root_name(damaged.id)
        path.write_bytes(path.read_bytes().replace(b'"end": 10', b'"end": 8'))
        root = await world.back_up()
        assert [backup.id for backup in await world.stored().readable()] == [root.id]
        with pytest.raises(errors.BackupDamaged, match=damaged.id):  # it might need any object
            await world.stored().delete(root.id, now_ms=0)
        await world.stored().delete(damaged.id, now_ms=0)
        assert [backup.id for backup in await world.stored().backups()] == [root.id]
        assert await world.verify(root.id) == []


async def test_a_root_of_a_later_version_is_refused(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        path = tmp_path / "backups" / layout.root_name(root.id)
        path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"format_version": 2}))
        with pytest.raises(errors.FormatUnknown):
            await world.verify(root.id)


async def test_the_hold_on_the_log_outlives_a_new_driver_and_ends_with_the_cut(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        assert world.node.log is not None
        leases = world.node.log.lifecycle.leases
        run = world.run()
        held: list[bool] = []

        def look(effect: BackupEffect) -> None:
            leases.hold("round", 7 + len(held), [1], limits.LEASE_TTL_MS_MAX)
            held.append(leases.is_active(f"backup-{run._plan.id}"))

        run._on_effect = look
        await run.run()
        effects = [*BackupEffect]
        assert held[1], "held behind the first effect"
        assert held[effects.index(BackupEffect.CUT)]
        assert not held[-1]
