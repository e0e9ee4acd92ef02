"""The ledger of erased offsets in backups (hazard 80): what was erased does not come back with a restore, unless it is
asked for, and a restored topic knows what it lacks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from icestream import errors
from icestream.backup.backup_layout import BACKUPS
from icestream.backup.erased_ledger import ERASED, ErasedLedger, erased_of, extended, put_ledger, stored_ledgers
from icestream.broker import records
from icestream.catalog import catalog_keys
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.model.erased_offsets import ErasedOffsets, decode_erased, encode_erased, ranges_of
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.model.topic_origin import TopicOrigin
from icestream.processes.backup_drill import BackupDrill
from icestream.processes.erased_ledger_copy import ErasedLedgerCopy
from icestream.processes.restore_run import RestoreEffect
from icestream.readers.verify.verify_report import ShardLogState
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.backup_world import ORDERS, BackupWorld, Crash, LocalSource, backup_world
from tests.support.fake_clock import FakeClock
from tests.support.node_settings import node_settings
from tests.support.restore_world import BESIDE, RestoreWorld, content
from tests.support.topic_lake import row

pytestmark = pytest.mark.asyncio
THIRD = TopicName("default", "third")


async def prepare(world: BackupWorld, published: int = 10, committed: int = 6) -> int:
    topic_id = await world.create_topic()
    await world.bind()
    await world.publish(published, payload=b"secret-%d-")
    await world.commit(committed, is_floor_moved=True)
    return topic_id


async def erase(world: BackupWorld, topic_id: int, offsets: Sequence[int]) -> ErasedRecord:
    """Notes offsets as erased, as the commit of an erasure does. The rows stay: what takes them out of the live table
    is not what is tested here."""
    key = catalog_keys.erased_key(topic_id)
    entry = await world.node.store.get(key)
    erased = ErasedOffsets({0: ranges_of(offsets)})
    if entry is not None:
        before = msgspec.json.decode(entry.value, type=ErasedRecord)
        erased = erased.plus(decode_erased(content(before.offsets)))
    data = encode_erased(erased)
    digest = hashlib.sha256(data).hexdigest()
    path = world.folder / "warehouse" / f"erased-{digest[:16]}.bin"
    path.write_bytes(data)
    record = ErasedRecord(f"file:{path}", digest, erased.offset_count, erased.range_count, {0: max(offsets) + 1})
    await world.node.store.put(key, msgspec.json.encode(record))
    return record


async def record_of(world: BackupWorld, name: TopicName) -> ErasedRecord:
    topic_id = world.node.broker.topics.get(name).record.id
    entry = await world.node.store.get(catalog_keys.erased_key(topic_id))
    assert entry is not None
    return msgspec.json.decode(entry.value, type=ErasedRecord)


async def offsets(world: BackupWorld, name: TopicName = BESIDE) -> list[int]:
    return [offset for offset, _ in await RestoreWorld(world).rows(name)]


async def check_whole(world: BackupWorld, name: TopicName = BESIDE) -> None:
    """`verify --deep` of a restored topic: each absent offset has a reason."""
    assert world.lake is not None
    record = world.node.broker.topics.get(name).record
    view = await world.lake.scans.tables.fresh(record.id)
    stream = world.node.broker.storage.shard_stream(ShardKey(record.id, 0))
    gaps = [(gap.start, gap.end, gap.reason) for gap in stream.gaps()]
    assert view is not None
    log = ShardLogState(stream.log_start(), stream.visible, gaps)
    report = world.lake.scans.verifier(view, {0: log}).verify(deep=True)
    assert report.is_good, report.findings


def files_with(folder: Path, text: bytes) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and text in file.read_bytes()]


async def test_a_restored_topic_knows_the_erased_offsets_of_its_backup(tmp_path: Path) -> None:
    """Also where the pinned table still had the rows: the ledger is of the frozen store, and may be younger."""
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        await erase(world, topic_id, [2, 3, 8])
        root = await world.back_up()
        (cut,) = root.topics
        assert cut.erased is not None
        assert await world.verify(root.id) == []
        await world.node.store.delete(catalog_keys.erased_key(topic_id))  # another cluster would not have it
        await RestoreWorld(world).restore(root)
        assert await offsets(world) == [0, 1, 4, 5, 6, 7, 9]
        await check_whole(world)
        record = await record_of(world, BESIDE)
        assert (record.count, record.ranges, record.cut) == (3, 2, {0: 9})
        folder = world.folder / "warehouse" / "default"
        (table_folder,) = [path for path in folder.iterdir() if path.name.startswith("orders_restored-")]
        assert record.offsets.startswith(f"file:{table_folder}/metadata/erased-"), "a file of its own (hazard 76)"


async def test_messages_that_were_erased_after_the_backup_stay_erased(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        root = await world.back_up()
        await erase(world, topic_id, [1, 8])
        restored = await RestoreWorld(world).restore(root)
        assert (restored.messages, restored.erased) == (8, 2)
        assert await offsets(world) == [0, 2, 3, 4, 5, 6, 7, 9]
        folder = world.folder / "warehouse" / "default"
        (table_folder,) = [path for path in folder.iterdir() if path.name.startswith("orders_restored-")]
        assert files_with(table_folder, b"m1") == [], "not only hidden: their bytes are not in the table"
        assert (await record_of(world, BESIDE)).count == 2


async def test_erased_messages_come_back_where_it_is_asked_for(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        await erase(world, topic_id, [4])
        root = await world.back_up()
        await erase(world, topic_id, [1, 8])
        restored = await RestoreWorld(world).restore(root, brings_back_erased=True)
        assert (restored.messages, restored.erased) == (9, 1)
        await check_whole(world)
        assert await offsets(world) == [0, 1, 2, 3, 5, 6, 7, 8, 9], "what the backup itself lacks does not come"


async def test_the_ledger_of_the_target_serves_a_cluster_that_knows_nothing_of_the_erasure(tmp_path: Path) -> None:
    """A disaster: the broker that erased is lost, and an older backup is restored."""
    async with backup_world(tmp_path / "source") as source, backup_world(tmp_path / "empty") as empty:
        topic_id = await prepare(source)
        root = await source.back_up()
        await erase(source, topic_id, [1, 8])
        later = await source.back_up()
        await source.stored().delete(later.id, now_ms=0)  # a ledger outlives the backup that wrote it
        empty.target = source.target
        restored = await RestoreWorld(empty).restore(root)
        assert restored.erased == 2
        assert await offsets(empty) == [0, 2, 3, 4, 5, 6, 7, 9]


async def test_the_ledger_is_written_with_the_erasure_where_there_is_a_target(tmp_path: Path) -> None:
    """No backup comes after it, and the broker is lost. While the target is away it is tried again."""
    async with backup_world(tmp_path / "source") as source, backup_world(tmp_path / "empty") as empty:
        topic_id = await prepare(source)
        root = await source.back_up()
        target = tmp_path / "source" / "backups"
        settings = node_settings(tmp_path / "s", "iceberg", backup={"target": str(target)})
        clock = FakeClock()
        files = LocalFiles(open_local, InlineOffload())
        copy = ErasedLedgerCopy(
            settings, source.node.store, source.call, files, clock, SystemRandomness(), InlineOffload()
        )
        await copy.run_pass()
        assert await source.target.names(ERASED) == []
        await erase(source, topic_id, [1])
        target.rename(tmp_path / "away")
        target.write_bytes(b"")
        with pytest.raises((errors.IcestreamError, OSError)):
            await copy.run_pass()
        target.unlink()
        (tmp_path / "away").rename(target)
        await copy.run_pass()
        await erase(source, topic_id, [8])
        await copy.run_pass()
        assert len(await source.target.names(ERASED)) == 2
        empty.target = source.target
        assert (await RestoreWorld(empty).restore(root)).erased == 2


@pytest.mark.parametrize("is_backed_up", [True, False], ids=["by the next backup", "with the erasure"])
async def test_a_backup_of_another_node_of_the_cluster_meets_the_ledger(tmp_path: Path, is_backed_up: bool) -> None:
    """Topic ids are those of the cluster, the ledger lies below the log of the node that wrote it."""
    other = "0b" * 16
    async with backup_world(tmp_path / "source") as source, backup_world(tmp_path / "empty") as empty:
        topic_id = await prepare(source)
        await source.node.store.put(f"{records.NODE_LOGS}other", msgspec.json.encode(records.NodeLogRecord(other)))
        root = msgspec.structs.replace(await source.back_up(), log_id=other)
        await erase(source, topic_id, [1, 8])
        if is_backed_up:
            await source.back_up()
        else:
            settings = node_settings(tmp_path / "s", "iceberg", backup={"target": str(source.folder / "backups")})
            await ErasedLedgerCopy(
                settings, source.node.store, source.call, LocalFiles(open_local, InlineOffload()), FakeClock(),
                SystemRandomness(), InlineOffload(),
            ).run_pass()  # fmt: skip
        empty.target = source.target
        assert (await RestoreWorld(empty).restore(root)).erased == 2
        assert await offsets(empty) == [0, 2, 3, 4, 5, 6, 7, 9]


async def test_what_is_erased_from_a_restored_topic_is_erased_from_the_backup_it_came_from(tmp_path: Path) -> None:
    """In place, then erased, then the same backup once more: under its name there is another topic by now."""
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        await RestoreWorld(world).restore(root)
        restored = world.node.broker.topics.get(BESIDE).record
        assert restored.restored_from == [TopicOrigin(root.log_id, root.topics[0].id, {0: 10})]
        await erase(world, restored.id, [5])
        again = await RestoreWorld(world).restore(root, THIRD)
        assert again.erased == 1
        assert await offsets(world, THIRD) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert (await record_of(world, THIRD)).count == 1


async def test_rows_that_an_engine_deleted_do_not_come_back_with_a_file_that_is_written_anew(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await world.create_topic()
        await world.bind()
        assert world.lake is not None
        await world.publish(10)
        entry = await world.lake.write([row(number) for number in range(6)])
        await world.lake.round((0, 0, 6), entries=[entry])
        await world.lake.replace([entry, await world.lake.write_deletes(entry, [0, 3])], "delete")
        root = await world.back_up()
        await erase(world, topic_id, [4])
        await RestoreWorld(world).restore(root)
        assert await offsets(world) == [1, 2, 5, 6, 7, 8, 9]


async def test_a_drill_compares_a_backup_without_what_its_ledger_has(tmp_path: Path) -> None:
    """And with what was erased since: a drill tells whether the backup can be restored, and is removed."""
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        await erase(world, topic_id, [2, 8])
        root = await world.back_up()
        await erase(world, topic_id, [5])
        await world.back_up()
        drill = BackupDrill(
            world.stored(), LocalSource().chunks, SystemClock(), InlineOffload(), node="n", directory=tmp_path / "drill"
        )
        report = await drill.run(root.id)
        assert (report.findings, report.messages) == ([], 8)


async def test_a_topic_whose_messages_are_all_erased_is_restored_without_any(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        root = await world.back_up()
        await erase(world, topic_id, [*range(10)])
        restored = await RestoreWorld(world).restore(root)
        assert (restored.messages, restored.erased) == (0, 10)
        assert await offsets(world) == []
        await check_whole(world)
        assert (await record_of(world, BESIDE)).count == 10


async def test_a_restore_that_an_erasure_overtakes_is_refused_and_the_next_one_knows_it(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        root = await world.back_up()
        call, calls = world.call, []

        async def calling(method: str, /, **arguments: object) -> object:
            if method == "restore_erased":
                calls.append(method)
                if len(calls) == 2:
                    await erase(world, topic_id, [1, 7])
            return await call(method, **arguments)

        world.call = calling  # type: ignore[method-assign]
        with pytest.raises(errors.Refused, match="were erased while it was restored"):
            await RestoreWorld(world).restore(root)
        await RestoreWorld(world).restore(root)
        assert await offsets(world) == [0, 2, 3, 4, 5, 6, 8, 9]
        (table_folder,) = (world.folder / "warehouse" / "default").glob("orders_restored-*")
        files = [*table_folder.rglob("*.parquet")]
        left = {offset for file in files for offset in pq.read_table(file)["offset"].to_pylist()} & {1, 7}
        assert not left, "the first run wrote them, and nothing names its files"


async def test_a_restore_that_brought_erased_messages_back_and_ended_leaves_none_to_its_repeat(tmp_path: Path) -> None:
    def crash(reached: RestoreEffect) -> None:
        if reached is RestoreEffect.CREATE:
            raise Crash

    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        root = await world.back_up()
        await erase(world, topic_id, [1, 8])
        with pytest.raises(Crash):
            await RestoreWorld(world).restore(root, brings_back_erased=True, on_effect=crash)
        (table_folder,) = (world.folder / "warehouse" / "default").glob("orders_restored-*")
        before = {*table_folder.rglob("*.parquet")}
        await RestoreWorld(world).restore(root)
        assert await offsets(world) == [0, 2, 3, 4, 5, 6, 7, 9]
        after = {*table_folder.rglob("*.parquet")}
        assert not before & after, "each had an erased message"
        await check_whole(world)


async def test_undelete_brings_erased_messages_back_only_where_it_is_asked_for(tmp_path: Path) -> None:
    """A restore in place, an erasure in the restored topic, then the former topic comes back."""
    async with backup_world(tmp_path) as world:
        former = await prepare(world)
        await erase(world, former, [9])
        root = await world.back_up()
        await RestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        broker = world.node.broker
        await erase(world, broker.topics.get(ORDERS).record.id, [1, 8])
        await broker.delete_topic(ORDERS)
        with pytest.raises(errors.Refused, match="after it was replaced: 3 from /default/orders") as refusal:
            await broker.undelete_topic(ORDERS, former)
        assert "--bring-back-erased" in (refusal.value.hint or "")
        returned = await broker.undelete_topic(ORDERS, former, brings_back_erased=True)
        assert returned.record.id == former


async def test_a_former_topic_comes_back_without_a_question_where_nothing_more_was_erased(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        former = await prepare(world)
        await erase(world, former, [9])
        root = await world.back_up()
        await RestoreWorld(world).restore(root, ORDERS, is_in_place=True)
        await world.node.broker.delete_topic(ORDERS)
        assert (await world.node.broker.undelete_topic(ORDERS, former)).record.id == former


async def test_a_ledger_that_was_changed_ends_the_restore(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        await erase(world, topic_id, [2])
        root = await world.back_up()
        (name,) = await world.target.names(ERASED)
        path = world.folder / "backups" / name
        ledger = msgspec.json.decode(path.read_bytes(), type=ErasedLedger)
        for changed in (
            msgspec.structs.replace(ledger, offsets=encode_erased(ErasedOffsets({0: [(5, 6)]}))),
            msgspec.structs.replace(ledger, topic_id=ledger.topic_id + 1),
        ):
            path.write_bytes(msgspec.json.encode(changed))
            with pytest.raises(errors.BackupDamaged, match="was changed"):
                await RestoreWorld(world).restore(root)
        path.write_bytes(b"{")
        with pytest.raises(errors.BackupDamaged, match="not a ledger"):
            await RestoreWorld(world).restore(root)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(ledger, format_version=9)))
        with pytest.raises(errors.FormatUnknown):
            await RestoreWorld(world).restore(root)


async def test_a_side_file_that_is_lost_makes_the_backup_incomplete_and_no_restore_guesses(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        root = await world.back_up()
        record = await erase(world, topic_id, [2])
        (world.folder / "warehouse" / record.offsets.rpartition("/")[2]).unlink()
        lacking = await world.back_up()
        assert ["erased offsets cannot be read" in entry.reason for entry in lacking.incomplete] == [True]
        with pytest.raises(errors.TableUnreadable, match="erased offsets"):
            await RestoreWorld(world).restore(root)
        await RestoreWorld(world).restore(root, brings_back_erased=True)
        assert await offsets(world) == [*range(10)]


async def test_verify_names_a_changed_and_a_missing_object_of_erased_offsets(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        await erase(world, topic_id, [2])
        root = await world.back_up()
        reference = root.topics[0].erased
        assert reference is not None
        path = world.folder / "backups" / reference.path
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert [finding.object for finding in await world.verify(root.id)] == [reference.path]
        path.unlink()
        assert [finding.object for finding in await world.verify(root.id)] == [reference.path]
        assert not [name for name in await world.target.names(BACKUPS) if name.endswith(".erased")]


async def test_ledgers_count_below_the_point_where_topics_part() -> None:
    def ledger(topic_id: int, origins: list[TopicOrigin], *erased: int) -> ErasedLedger:
        return ErasedLedger("a", topic_id, "/x/y", origins, encode_erased(ErasedOffsets({0: ranges_of(erased)})))

    first = TopicOrigin("a", 1, {0: 10, 1: 4})
    second = extended([first], TopicOrigin("a", 2, {0: 6}), 16)
    assert second == [TopicOrigin("a", 1, {0: 6, 1: 0}), TopicOrigin("a", 2, {0: 6})]
    ledgers = [ledger(1, [], 3), ledger(2, [first], 7, 12), ledger(3, second, 5, 6, 7)]
    assert erased_of(ledgers, "a", 1, {0: 100}).shards == {0: [(3, 4), (5, 6), (7, 8)]}
    assert erased_of(ledgers, "a", 2, {0: 100}).shards == {0: [(5, 6), (7, 8), (12, 13)]}
    assert erased_of(ledgers, "a", 2, {0: 6}).shards == {0: [(5, 6)]}
    assert erased_of(ledgers, "b", 1, {0: 100}).shards == {}
    assert len(extended(second, TopicOrigin("b", 9, {}), 2)) == 2


async def test_ledgers_count_for_all_logs_that_had_the_topic_ids_of_their_cluster() -> None:
    def ledger(log_id: str, logs: list[str], erased: int, *origins: TopicOrigin) -> ErasedLedger:
        offsets = encode_erased(ErasedOffsets({0: ranges_of([erased])}))
        return ErasedLedger(log_id, 1, "/x/y", [*origins], offsets, logs=logs)

    ledgers = [ledger("a", ["a", "b"], 3), ledger("c", ["b", "c"], 5), ledger("z", ["z"], 7)]
    for log_id in ("a", "b", "c"):
        assert erased_of(ledgers, log_id, 1, {0: 100}).shards == {0: [(3, 4), (5, 6)]}
        assert erased_of(ledgers, log_id, 2, {0: 100}).shards == {}
    assert erased_of(ledgers, "z", 1, {0: 100}).shards == {0: [(7, 8)]}
    restored = ledger("z", ["z"], 9, TopicOrigin("b", 2, {0: 100}))
    assert erased_of([*ledgers, restored], "a", 2, {0: 100}).shards == {0: [(9, 10)]}


async def test_a_ledger_is_written_once(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        ledger = ErasedLedger("ab", 1, "/x/y", [], encode_erased(ErasedOffsets({0: [(1, 2)]})))
        await put_ledger(world.target, ledger)
        await put_ledger(world.target, msgspec.structs.replace(ledger, topic="/x/z"))
        assert await stored_ledgers(world.target) == [ledger]


@pytest.mark.parametrize("effect", [RestoreEffect.COPY, RestoreEffect.TAILS, RestoreEffect.CREATE, RestoreEffect.ADOPT])
async def test_a_restore_without_erased_messages_that_ended_is_continued(tmp_path: Path, effect: RestoreEffect) -> None:
    def crash(reached: RestoreEffect) -> None:
        if reached is effect:
            raise Crash

    async with backup_world(tmp_path) as world:
        topic_id = await prepare(world)
        root = await world.back_up()
        await erase(world, topic_id, [1, 8])
        with pytest.raises(Crash):
            await RestoreWorld(world).restore(root, on_effect=crash)
        await RestoreWorld(world).restore(root)
        assert await offsets(world) == [0, 2, 3, 4, 5, 6, 7, 9]
        records_of_topics = await world.node.store.list_all(records.TOPICS)
        assert sum(key.endswith("orders_restored") for key, _ in records_of_topics) == 1
