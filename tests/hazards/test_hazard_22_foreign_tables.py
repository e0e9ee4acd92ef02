"""Hazard 22: a reader of a table that others compacted, sorted, doubled, deleted from or expired gets every row once,
in order, and is told of every offset that is none."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.model.scan_messages import ScanKind
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from tests.support.topic_lake import TABLE, TopicLake, damage, remove, row, rows

pytestmark = pytest.mark.asyncio


async def filled(folder: Path, *ends: int, cache: RowGroupCacheOptions | None = None) -> TopicLake:
    """One shard, one round and one file up to each of these offsets."""
    lake = TopicLake(folder, cache=cache)
    await lake.bind()
    start = 0
    for end in ends:
        await lake.round((0, start, end), entries=[await lake.write(rows(start, end))])
        start = end
    return lake


def payloads(*ranges: tuple[int, int]) -> dict[int, bytes]:
    return {at: b"m%d" % at for start, end in ranges for at in range(start, end)}


async def test_hazard_22_rounds_are_read_in_order_from_anywhere(tmp_path: Path) -> None:
    lake = await filled(tmp_path, 10, 25, 40)
    for position in (0, 7, 10, 39):
        delivery, gaps = await lake.read_all(position, bytes_max=300)
        assert delivery == payloads((position, 40))
        assert list(delivery) == list(range(position, 40))
        assert not gaps


async def test_hazard_22_sections_have_one_append_time_and_one_epoch(tmp_path: Path) -> None:
    lake = await filled(tmp_path, 25)
    scanned = await lake.ask(ScanKind.READ, 5)
    assert [
        (section.base_offset, section.rows, section.append_time_us, section.epoch) for section in scanned.sections
    ] == [
        (5, 5, 0, 0),
        (10, 10, 1_000, 0),
        (20, 5, 2_000, 0),
    ]
    assert (scanned.next_offset, scanned.end, scanned.missing) == (25, 25, [])


async def test_hazard_22_files_sorted_by_any_column_are_read_in_offset_order(tmp_path: Path) -> None:
    lake = await filled(tmp_path, 100, 200)
    mixed = rows(0, 200)
    random.Random(1).shuffle(mixed)
    files = [await lake.write(mixed[at::3], groups=17) for at in range(3)]
    await lake.replace(files)
    assert await lake.read_all(bytes_max=2_000) == (payloads((0, 200)), [])
    delivery, _ = await lake.read_all(133)
    assert list(delivery) == list(range(133, 200))


async def test_hazard_22_windows_over_overlapping_files_use_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = await filled(tmp_path, 300)
    mixed = rows(0, 300)
    random.Random(2).shuffle(mixed)
    await lake.replace([await lake.write(mixed[at::4], groups=40) for at in range(4)])
    monkeypatch.setattr(limits, "SCAN_WINDOW_BYTES", 1_000)
    monkeypatch.setattr(limits, "SCAN_GROUP_BYTES_MAX", 1)  # nothing is decoded as a whole
    seen: list[int] = []
    read = lake.reader.shard_rows

    def counted(*arguments: object) -> object:
        rows_read = read(*arguments)  # type: ignore[arg-type]
        seen.append(len(rows_read))
        return rows_read

    monkeypatch.setattr(lake.reader, "shard_rows", counted)
    assert await lake.read_all() == (payloads((0, 300)), [])
    assert max(seen) < 40
    assert len(seen) > 30


@pytest.mark.wrong_tables("that is what others left")
async def test_hazard_22_duplicate_rows_are_delivered_once(tmp_path: Path) -> None:
    lake = await filled(tmp_path, 20)
    again = await lake.write([row(at, payload=b"again") for at in (3, 4, 19)])
    await lake.replace([*lake.live, again], "append")
    delivery, gaps = await lake.read_all(bytes_max=100)
    assert list(delivery) == list(range(20))
    assert not gaps


async def test_hazard_22_copy_on_write_deletes_are_gaps_with_their_reason(tmp_path: Path) -> None:
    lake = await filled(tmp_path, 10, 20)
    left = await lake.write([row for row in rows(0, 10) if row["offset"] not in (0, 1, 5)])
    snapshot = await lake.replace([left, lake.live[1]], "overwrite", deleted_records="10", added_records="7")
    delivery, gaps = await lake.read_all()
    assert delivery == payloads((2, 5), (6, 20))
    assert gaps == [
        (0, 2, f"removed from the table by overwrite, snapshot {snapshot}"),
        (5, 6, f"removed from the table by overwrite, snapshot {snapshot}"),
    ]
    assert (await lake.ask(ScanKind.EARLIEST)).offset == 2


@pytest.mark.parametrize("group_bytes", [limits.SCAN_GROUP_BYTES_MAX, 1])
async def test_hazard_22_position_deletes_remove_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int
) -> None:
    monkeypatch.setattr(limits, "SCAN_GROUP_BYTES_MAX", group_bytes)
    lake = TopicLake(tmp_path)
    await lake.bind()
    file = await lake.write(rows(0, 30), groups=8)
    await lake.round((0, 0, 30), entries=[file])
    deletes = await lake.write_deletes(file, [0, 7, 8, 9, 29])
    await lake.replace([file, deletes], "delete", added_position_deletes="5")
    delivery, gaps = await lake.read_all(bytes_max=200)
    assert delivery == payloads((1, 7), (10, 29))
    assert [(start, end) for start, end, _ in gaps] == [(0, 1), (7, 8), (8, 10), (29, 30)]  # by row groups
    newer = await lake.write(rows(30, 40))
    await lake.round((0, 30, 40), entries=[newer])
    assert list((await lake.read_all(28))[0]) == [28, *range(30, 40)]


async def test_hazard_22_deleted_rows_are_no_longer_delivered(tmp_path: Path) -> None:
    """A reader that stopped in the middle of the deleted rows continues behind them."""
    lake = await filled(tmp_path, 30)
    (file,) = lake.live
    assert (await lake.ask(ScanKind.READ, 0, bytes_max=100)).next_offset < 20
    deletes = await lake.write_deletes(file, range(20, 25))
    await lake.replace([file, deletes], "delete", added_position_deletes="5")
    delivery, gaps = await lake.read_all()
    assert delivery == payloads((0, 20), (25, 30))
    assert [(start, end) for start, end, _ in gaps] == [(20, 25)]


@pytest.mark.wrong_tables("consumers cannot read it")
async def test_hazard_22_equality_deletes_on_other_columns_stop_the_reader_with_the_reason(tmp_path: Path) -> None:
    lake = await filled(tmp_path, 10, 20)
    deletes = await lake.write_deletes(lake.live[0], [1], content=2)
    await lake.replace([*lake.live, deletes], "delete", added_equality_deletes="1")
    with pytest.raises(
        errors.TableUnreadable, match="deletes rows by the values of columns that are not columns of a message"
    ):
        await lake.ask(ScanKind.READ, 0)


@pytest.mark.wrong_tables("that is what others left")
async def test_hazard_22_other_formats_stop_the_reader_with_the_reason(tmp_path: Path) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind()
    await lake.round((0, 0, 5), entries=[await lake.write(rows(0, 5), file_format="LANCE")])
    with pytest.raises(errors.TableUnreadable, match="format lance"):
        await lake.ask(ScanKind.READ, 0)


async def test_hazard_22_a_missing_file_is_planned_around(tmp_path: Path) -> None:
    """Compacted and expired between the plan and the opening."""
    lake = await filled(tmp_path, 10, 20)
    view = await lake.tables.fresh(12)
    assert view is not None
    old = list(lake.live)
    await lake.replace([await lake.write(rows(0, 20))])
    await lake.expire(10_001, 10_002)
    for entry in old:
        remove(entry)
    lake.tables._views[12] = view  # as it was known
    lake.tables._is_watched = True
    assert await lake.read_all() == (payloads((0, 20)), [])


@pytest.mark.wrong_tables("that is what others left")
async def test_hazard_22_a_missing_file_is_an_error_after_four_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = await filled(tmp_path, 10)
    remove(lake.live[0])
    plans: list[int] = []
    fresh = lake.tables.fresh

    async def counted(topic_id: int) -> object:
        plans.append(topic_id)
        return await fresh(topic_id)

    monkeypatch.setattr(lake.tables, "fresh", counted)
    with pytest.raises(errors.TableUnreadable, match="does not exist"):
        await lake.ask(ScanKind.READ, 0)
    assert len(plans) == 1 + limits.SCAN_PLANS_MAX


@pytest.mark.parametrize("statistics", [True, False])
async def test_hazard_22_files_without_bounds_are_read(tmp_path: Path, statistics: bool) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind(shards=2)
    files = [
        await lake.write([*rows(0, 20), *rows(0, 5, 1)], groups=6, bounds=False, statistics=statistics),
        await lake.write(rows(20, 30)),
        await lake.write([*rows(5, 9, 1), *rows(30, 33)], bounds=False, statistics=statistics, ids=False),
    ]
    await lake.round((0, 0, 33), (1, 0, 9), entries=files)
    assert await lake.read_all() == (payloads((0, 33)), [])
    assert await lake.read_all(3, shard=1) == (payloads((3, 9)), [])


@pytest.mark.wrong_tables("one of its files is damaged")
@pytest.mark.parametrize("column", ["offset", "payload"])
async def test_hazard_22_a_damaged_page_stops_the_reader_with_the_reason(tmp_path: Path, column: str) -> None:
    lake = await filled(tmp_path, 10, 20)
    path = damage(lake.live[0], column)
    with pytest.raises(errors.TableUnreadable, match="is damaged") as stopped:
        await lake.read_all()
    assert (path in stopped.value.message, "verify --deep" in stopped.value.hint) == (True, True)


async def test_hazard_22_machine_errors_are_not_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = await filled(tmp_path, 10)

    def crowded(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("icestream.readers.parquet_format.pq.ParquetFile", crowded)
    with pytest.raises(OSError, match="Too many open files"):
        await lake.read_all()


async def test_hazard_22_shards_that_are_far_apart_in_one_file(tmp_path: Path) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind()
    far = 10**12
    await lake.catalog.topics.detach(TABLE)
    await lake.catalog.topics.bind(TABLE, "/default/orders", 12, {0: (0, far), 1: (0, 0)})
    file = await lake.write([*rows(far, far + 10), *rows(0, 10, 1)], groups=7)
    await lake.round((0, far, far + 10), (1, 0, 10), entries=[file])
    assert await lake.read_all(far) == (payloads((far, far + 10)), [])
    assert await lake.read_all(shard=1) == (payloads((0, 10)), [])
    delivery, gaps = await lake.read_all()
    assert list(delivery) == list(range(far, far + 10))
    assert gaps == [(0, far, f"the table begins at offset {far}")]


@pytest.mark.wrong_tables("that is what others left")
async def test_hazard_22_rows_beyond_the_committed_offset_are_not_delivered(tmp_path: Path) -> None:
    """Another engine inserted the rows: the pipeline will write these offsets with the log's messages."""
    lake = await filled(tmp_path, 10)
    await lake.replace([*lake.live, await lake.write(rows(10, 15, payload=b"made up"))], "append")
    assert await lake.read_all() == (payloads((0, 10)), [])
    assert (await lake.ask(ScanKind.READ, 10)).next_offset == 10


@pytest.mark.wrong_tables("rows lie behind the end")
async def test_hazard_22_rows_beyond_the_end_are_not_delivered_in_an_unchanged_snapshot(tmp_path: Path) -> None:
    """Bound again, the topic is not as far as it was when a reader left in the midst of these rows."""
    lake = await filled(tmp_path, 30)
    assert (await lake.ask(ScanKind.READ, 0, bytes_max=100)).next_offset < 20
    await lake.catalog.topics.detach(TABLE)
    await lake.catalog.topics.bind(TABLE, lake.topic, lake.topic_id, {0: (0, 20)})
    scanned = await lake.ask(ScanKind.READ, 5)
    assert (scanned.end, scanned.next_offset) == (20, 20)
    assert sum(section.rows for section in scanned.sections) == 15


async def test_hazard_22_an_empty_and_a_missing_table_deliver_nothing(tmp_path: Path) -> None:
    lake = TopicLake(tmp_path)
    assert (await lake.ask(ScanKind.READ, 0)).end is None
    await lake.bind()
    assert (await lake.ask(ScanKind.READ, 0)).end == 0
    assert (await lake.ask(ScanKind.EARLIEST)).offset is None


async def test_hazard_40_row_groups_are_decoded_once_across_commits(tmp_path: Path) -> None:
    lake = await filled(tmp_path, 100)
    await lake.read_all(bytes_max=500)
    before = lake.reader.groups_read
    await lake.round((0, 100, 110), entries=[await lake.write(rows(100, 110))])
    await lake.read_all(50, bytes_max=500)
    assert (before, lake.reader.groups_read) == (1, 2)


async def test_a_disabled_cache_costs_only_reads(tmp_path: Path) -> None:
    lake = await filled(tmp_path, 100, cache=RowGroupCacheOptions(enabled=False))
    assert await lake.read_all(bytes_max=500) == (payloads((0, 100)), [])
    assert lake.reader.groups_read == 1  # what of it did not fit an answer was kept for the next
    await lake.read_all(bytes_max=500)
    assert lake.reader.groups_read == 2
