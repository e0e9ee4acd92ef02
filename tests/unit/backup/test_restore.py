"""Restores into a real node: offsets, rows, subscriptions, and what may interrupt them."""

from __future__ import annotations

import copy
import io
import random
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pyarrow.parquet as pq
import pytest

from icestream import errors, limits
from icestream.backup.encryption import BackupKey
from icestream.broker import records
from icestream.catalog.catalog_keys import retention_key
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifests import DATA_CONTENT, decode_manifest_list, live_entries
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.pipeline.retention.commit_times import CommitPoint, RetentionIndex
from icestream.processes.restore_run import RestoreEffect, RestorePlan
from icestream.runtime.clock import SystemClock
from tests.support.backup_world import ORDERS, BackupWorld, Crash, LocalSource, backup_world
from tests.support.broker_machine import quiet, subscribe
from tests.support.lakehouse import duckdb_with_iceberg
from tests.support.restore_world import BESIDE, RestoreWorld, content
from tests.support.topic_lake import row

pytestmark = pytest.mark.asyncio
TOPIC_EFFECTS = [effect for effect in RestoreEffect if effect not in (RestoreEffect.ACCOUNTS, RestoreEffect.SESSIONS)]


async def prepare(world: BackupWorld, published: int = 10, committed: int = 6) -> int:
    topic_id = await world.create_topic()
    await world.bind()
    await world.publish(published)
    if committed:
        await world.commit(committed, is_floor_moved=True)
    return topic_id


def files_below(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def expected(count: int) -> list[tuple[int, bytes]]:
    return [(offset, b"m%d" % offset) for offset in range(count)]


async def test_a_reference_backup_of_many_files_comes_back_with_every_row(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(9)
        for end in (2, 4, 6):
            await world.commit(end)
        root = await world.back_up(kind="reference")
        assert (await RestoreWorld(world).restore(root)).files == 4, "three of the table, and the tail"
        assert await RestoreWorld(world).rows() == [(offset, b"m%d" % offset) for offset in range(9)]
        file = next((tmp_path / "warehouse").glob("default/orders-*/data/*.parquet"))
        file.write_bytes(file.read_bytes() + b"x")
        with pytest.raises(errors.BackupDamaged, match=file.name):
            await RestoreWorld(world).restore(root, TopicName("default", "damaged"))


async def test_a_topic_is_restored_beside_the_live_one_with_its_offsets_and_rows(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        root = await world.back_up()
        await world.publish(5)
        restored = await RestoreWorld(world).restore(root)
        assert restored.id != topic_id
        assert (restored.messages, restored.table) == (10, "default.orders_restored")
        assert await RestoreWorld(world).rows() == expected(10), "the table and the tail, and nothing after the cut"
        record = world.node.broker.topics.get(BESIDE).record
        stream = world.node.broker.storage.shard_stream(ShardKey(record.id, 0))
        assert stream.visible == restored.next_offsets[0] > 10
        (gap,) = stream.gaps()
        assert (gap.start, gap.end, gap.reason) == (10, restored.next_offsets[0], f"restored from backup {root.id}")
        assert await world.node.store.list_all("/restores/") == []


async def test_no_file_or_path_of_the_source_is_left_in_a_restored_table(tmp_path: Path) -> None:
    """Hazards 76 and 88: the source may be purged."""
    async with backup_world(tmp_path) as world:
        await prepare(world)
        source = (await RestoreWorld(world).catalog.tables.load(Identifier(("default",), "orders"))).table
        root = await world.back_up()
        await RestoreWorld(world).restore(root)
        loaded = await RestoreWorld(world).catalog.tables.load(Identifier(("default",), "orders_restored"))
        folder = Path(loaded.table.location.removeprefix("file:"))
        assert loaded.table.uuid not in (None, source.uuid)
        for file in files_below(folder):
            assert source.location.encode() not in file.read_bytes(), file
        for file in files_below(Path(source.location.removeprefix("file:"))):
            file.unlink()
        assert await RestoreWorld(world).rows() == expected(10)


async def prepare_deletes_of_replaced_files(world: BackupWorld) -> None:
    """Files of deletes as engines leave them: for two data files, of which one was rewritten since, or for that one."""
    await world.create_topic()
    await world.bind()
    await world.publish(8)
    assert world.lake is not None
    lake = world.lake
    first, second = await lake.write([row(n) for n in range(3)]), await lake.write([row(n) for n in range(3, 6)])
    await lake.round((0, 0, 6), entries=[first, second])
    world.committed = 6
    of_both = await lake.write_deletes(first, [1], more={second["data_file"]["file_path"]: [2]})
    of_first = await lake.write_deletes(first, [1])
    of_second = await lake.write_deletes(second, [2])
    named = await lake.write_deletes(first, [1])
    named["data_file"]["referenced_data_file"] = first["data_file"]["file_path"]
    deletes = [of_both, of_first, of_second, named]
    await lake.replace([first, second, *deletes], "delete")
    await lake.replace([await lake.write([row(0), row(2)]), second, *deletes])


@pytest.mark.parametrize(
    "options", [{}, {"key": BackupKey(bytes(32))}, {"kind": "reference"}], ids=["plain", "encrypted", "reference"]
)
async def test_deletes_of_files_that_are_not_live_are_left_out(tmp_path: Path, options: dict[str, Any]) -> None:
    async with backup_world(tmp_path) as world:
        await prepare_deletes_of_replaced_files(world)
        root = await world.back_up(**options)
        key = options.get("key")
        assert await world.verify(root.id, key=key) == []
        await RestoreWorld(world).restore(root, key=key)
        table = await RestoreWorld(world).catalog.tables.load(Identifier(("default",), BESIDE.name))
        metadata = [table.location]
        (topic,) = root.topics
        if topic.table is not None and topic.table.view:
            metadata.append(world.target.location(topic.table.view))
        for location in metadata:
            is_rewritten = location == table.location or root.kind == "copy"
            # Of both, of the second one; a view of the warehouse has the file for the replaced one, too.
            count = 2 if is_rewritten else 3
            assert rows_after_deletes(location, is_rewritten=is_rewritten) == ([0, 2, 3, 4], count), location


async def test_a_reference_backup_of_a_copy_names_the_files_that_its_deletes_name(tmp_path: Path) -> None:
    """Its files of deletes are those of the warehouse, so its data files are, too."""
    async with backup_world(tmp_path) as world:
        await prepare_deletes_of_replaced_files(world)
        parent = await world.back_up()
        root = await world.back_up(kind="reference", parent=parent.id)
        (topic,) = root.topics
        assert topic.table is not None
        offsets, _ = rows_after_deletes(world.target.location(topic.table.view), is_rewritten=False)
        assert offsets == [0, 2, 3, 4]


def rows_after_deletes(location: str, *, is_rewritten: bool) -> tuple[list[int], int]:
    """The offsets below 6 in a table, and the number of its files of deletes. `is_rewritten`: these name live files
    alone, and their entries say what they have."""
    document = orjson.loads(content(location))
    (snapshot,) = document["snapshots"]
    entries = [
        entry
        for manifest in decode_manifest_list("list", content(snapshot["manifest-list"]))
        for entry in live_entries(manifest.path, content(manifest.path))
    ]
    live = {entry.file_path for entry in entries if entry.content == DATA_CONTENT}
    deleted: set[tuple[str, int]] = set()
    deletes = [entry for entry in entries if entry.content != DATA_CONTENT]
    for entry in deletes:
        data = content(entry.file_path)
        rows = pq.read_table(io.BytesIO(data)).to_pylist()
        deleted |= {(row["file_path"], row["pos"]) for row in rows}
        if is_rewritten:
            assert (entry.file_size_bytes, entry.record_count) == (len(data), len(rows))
            assert {row["file_path"] for row in rows} <= live
    offsets = [
        row["offset"]
        for path in live
        for at, row in enumerate(pq.read_table(io.BytesIO(content(path))).to_pylist())
        if (path, at) not in deleted and row["offset"] < 6
    ]
    return sorted(offsets), len(deletes)


async def test_a_topic_whose_table_is_empty_or_whose_tail_is_empty_is_restored(tmp_path: Path) -> None:
    from pyiceberg.table import StaticTable

    for committed in (0, 10):
        async with backup_world(tmp_path / str(committed)) as world:
            await prepare(world, 10, committed)
            await RestoreWorld(world).restore(await world.back_up())
            assert await RestoreWorld(world).rows() == expected(10)
            if not committed:  # the manifests are all ours
                table = await RestoreWorld(world).catalog.tables.load(Identifier(("default",), BESIDE.name))
                rows = StaticTable.from_metadata(table.location).scan().to_arrow()
                assert sorted(rows["offset"].to_pylist()) == [*range(10)]
                with duckdb_with_iceberg() as duckdb:
                    read = duckdb.sql(f"SELECT \"offset\" FROM iceberg_scan('{table.location}') ORDER BY 1").fetchall()
                assert [offset for (offset,) in read] == [*range(10)]


async def test_an_encrypted_and_a_reference_backup_are_restored(tmp_path: Path) -> None:
    key = BackupKey(bytes(range(32)))
    async with backup_world(tmp_path) as world:
        await prepare(world)
        encrypted, reference = await world.back_up(key=key), await world.back_up(kind="reference")
        await RestoreWorld(world).restore(encrypted, key=key)
        assert await RestoreWorld(world).rows() == expected(10)
        other = TopicName("default", "third")
        await RestoreWorld(world).restore(reference, other)
        assert await RestoreWorld(world).rows(other) == expected(10)
        with pytest.raises(errors.ConfigurationError, match="encrypted"):
            await RestoreWorld(world).restore(encrypted, TopicName("default", "fourth"))


async def test_subscriptions_resume_at_their_cursors_and_get_new_messages(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world, committed=0)
        reader = await subscribe(world.node.broker, "s", topic=ORDERS)
        await quiet()
        reader.ack(0, 1, 2, 4)
        await quiet()
        reader.leave()
        root = await world.back_up()
        restored = await RestoreWorld(world).restore(root)
        assert restored.subscriptions == 1
        topic = world.node.broker.topics.get(BESIDE)
        cursor = topic.subscriptions["s"].delivery(0).cursor()
        assert (cursor.offset, cursor.topic_id) == (3, topic.record.id)
        assert cursor.end == 5, "the ack of message 4 counts"
        live = world.node.broker.topics.get(ORDERS).subscriptions["s"]
        assert topic.subscriptions["s"].record.id != live.record.id


async def test_a_name_that_exists_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        before = await world.node.store.list_all("/")
        with pytest.raises(errors.AlreadyExists, match="--as"):
            await RestoreWorld(world).restore(root, ORDERS)
        assert await world.node.store.list_all("/") == before


async def test_under_its_old_name_a_topic_resumes_far_beyond_the_offsets_of_the_source(tmp_path: Path) -> None:
    """Hazard 78: the source published beyond the cut."""
    async with backup_world(tmp_path / "source") as source:
        await prepare(source)
        root = await source.back_up()
        await source.publish(500)
        async with backup_world(tmp_path / "other") as world:
            await world.create_topic()
            await world.node.broker.delete_topic(ORDERS)
            world.target = source.target
            restored = await RestoreWorld(world).restore(root, ORDERS)
            assert restored.next_offsets[0] > 510
            await world.publish(1)
            assert await RestoreWorld(world).rows(ORDERS) == expected(10)


async def test_a_flipped_bit_ends_the_restore_before_a_topic_is_made(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        rows = await world.stored().rows_of(root.id)
        (row,) = [row for row in rows if row.role == "data"]
        path = world.folder / "backups" / row.path
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(errors.BackupDamaged, match="SHA-256 differs"):
            await RestoreWorld(world).restore(root)
        assert world.node.broker.topics.find(BESIDE) is None


async def test_a_changed_object_is_never_read_to_its_end(tmp_path: Path) -> None:
    """A restored file that was killed while it was written has the size of its object only if it has its bytes."""
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(1)
        payload = random.Random(1).randbytes(3 * limits.BACKUP_CHUNK_BYTES)
        await world.commit(1, payload=payload)
        root = await world.back_up()
        stored = world.stored()
        (row,) = [row for row in await stored.rows_of(root.id) if row.role == "data"]
        whole = [len(chunk) for chunk in stored.checked_chunks(row, LocalSource().chunks)]
        assert sum(whole) == row.size > 3 * limits.BACKUP_CHUNK_BYTES
        path = tmp_path / "backups" / row.path
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)
        sizes: list[int] = []
        with pytest.raises(errors.BackupDamaged, match="SHA-256"):
            sizes += (len(chunk) for chunk in stored.checked_chunks(row, LocalSource().chunks))
        assert sizes == whole[:-1]


async def test_files_with_the_same_bytes_are_restored_as_one(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world, committed=0)
        assert world.lake is not None
        entry = await world.lake.write([row(0)])
        twin = copy.deepcopy(entry)
        path = Path(entry["data_file"]["file_path"].removeprefix("file:"))
        twin["data_file"]["file_path"] = f"file:{path.with_name('twin.parquet')}"
        path.with_name("twin.parquet").hardlink_to(path)
        await world.lake.round((0, 0, 1), entries=[entry, twin])
        root = await world.back_up()
        restored = await RestoreWorld(world).restore(root)
        assert restored.files >= 2
        assert [payload for _, payload in await RestoreWorld(world).rows()][:2] == [b"m0", b"m0"]


@pytest.mark.parametrize("effect", TOPIC_EFFECTS, ids=str)
async def test_a_restore_that_ended_before_any_step_is_completed_by_a_second_one(
    tmp_path: Path, effect: RestoreEffect
) -> None:
    def crash(reached: RestoreEffect) -> None:
        if reached is effect:
            raise Crash

    async with backup_world(tmp_path) as world:
        await prepare(world)
        reader = await subscribe(world.node.broker, "s", topic=ORDERS)
        reader.leave()
        root = await world.back_up()
        with pytest.raises(Crash):
            await RestoreWorld(world).restore(root, on_effect=crash)
        restored = await RestoreWorld(world).restore(root)
        assert await RestoreWorld(world).rows() == expected(10)
        assert list(world.node.broker.topics.get(BESIDE).subscriptions) == ["s"]
        topics = [
            msgspec.json.decode(entry.value, type=records.TopicRecord).id
            for key, entry in await world.node.store.list_all(records.TOPICS)
            if key.endswith("orders_restored")
        ]
        assert topics == [restored.id]
        with pytest.raises(errors.AlreadyExists):
            await RestoreWorld(world).restore(root)


async def test_hazard_98_the_time_in_a_backup_does_not_count_as_age(tmp_path: Path) -> None:
    """A topic that keeps a week comes back from a backup of last month with all messages."""
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        now_ms, month_ms, week_ms = SystemClock().wall_us() // 1_000, 30 * 86_400_000, 7 * 86_400_000
        index = RetentionIndex((CommitPoint(now_ms - 1_000, {0: 6}),))
        await world.node.store.put(retention_key(topic_id), msgspec.json.encode(index))
        root = await world.back_up()
        aged = msgspec.structs.replace(root, cut_ms=root.cut_ms - month_ms)
        restored = await RestoreWorld(world).restore(aged)
        entry = await world.node.store.get(retention_key(restored.id))
        assert entry is not None
        moved = msgspec.json.decode(entry.value, type=RetentionIndex)
        assert moved.points[0].ends == {0: 6}
        assert 0 <= moved.points[0].time_ms - (now_ms - 1_000) - month_ms < 60_000
        assert moved.expired(week_ms, now_ms + month_ms) == {}, "a month after the cut the messages are young"
        assert moved.expired(week_ms, now_ms + month_ms + 2 * week_ms) == {0: 6}


async def test_hazard_98_an_index_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        await world.node.store.put(retention_key(topic_id), b"of a later version")
        restored = await RestoreWorld(world).restore(await world.back_up())
        assert await world.node.store.get(retention_key(restored.id)) is None


async def test_hazard_78_a_restore_to_an_earlier_time_is_beyond_what_the_archive_has(tmp_path: Path) -> None:
    """The source gave out offsets behind the cut: under its old name the topic goes on beyond them."""
    async with backup_world(tmp_path / "old") as world, backup_world(tmp_path / "new") as new:
        await prepare(world, 10)
        root = await world.back_up()
        await world.publish(500)  # archived, or lost: a restore to the backup does not have them
        source = world.node.broker.storage.shard_stream(
            ShardKey(world.node.broker.topics.get(ORDERS).record.id, 0)
        )  # fmt: skip
        new.folder, new.target = world.folder, world.target
        (restored,), _ = await RestoreWorld(new).restore_all(root)
        assert restored.next_offsets[0] > source.visible == 510


async def test_gaps_that_the_source_declared_are_declared_in_the_restored_topic(tmp_path: Path) -> None:
    """A restored topic is restored again: the offsets that the first restore stepped over have a reason in both."""
    second = TopicName("default", "orders_again")
    async with backup_world(tmp_path) as world:
        await prepare(world)
        first = await RestoreWorld(world).restore(await world.back_up())
        root = await world.back_up()
        (cut,) = [topic for topic in root.topics if topic.name == str(BESIDE)]
        (restored,) = await RestoreWorld(world).run_of(RestorePlan([(cut, second)]), None).run(root)
        gaps = world.node.broker.storage.shard_stream(ShardKey(restored.id, 0)).gaps()
        assert [(gap.start, gap.end) for gap in gaps] == [
            (10, first.next_offsets[0]),
            (first.next_offsets[0], restored.next_offsets[0]),
        ]
        assert [gap.reason.partition(" backup ")[0] for gap in gaps] == ["a gap of the source, in", "restored from"]
        await world.restart()
        assert world.node.broker.storage.shard_stream(ShardKey(restored.id, 0)).gaps() == gaps
