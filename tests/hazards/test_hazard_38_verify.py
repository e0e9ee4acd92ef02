"""Hazard 38: `verify` is green and names every absence that is known, and red for every planted fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.lake.verify.report import Report, Weight
from icestream.lake.verify.shard_in_log import ShardInLog
from icestream.lake.verify.verifier import Verifier
from tests.support.topic_lake import TopicLake, remove, row, rows

pytestmark = [pytest.mark.asyncio, pytest.mark.wrong_tables("most of them, on purpose")]
LOG = {0: ShardInLog(0, 20)}


async def filled(folder: Path, start: int = 0) -> TopicLake:
    lake = TopicLake(folder)
    await lake.bind(start=start)
    for at in (start, start + 10):
        await lake.round((0, at, at + 10), entries=[await lake.write(rows(at, at + 10), groups=4)])
    return lake


async def verified(lake: TopicLake, deep: bool, log: dict[int, ShardInLog] | None = None) -> Report:
    view = await lake.tables.fresh(lake.topic_id)
    assert view is not None
    return Verifier(view, lake.parquet, size_of, LOG if log is None else log).verify(deep)


def size_of(location: str) -> int | None:
    path = Path(location.removeprefix("file:"))
    return path.stat().st_size if path.exists() else None


def told(report: Report, weight: Weight) -> list[tuple[str, int, int]]:
    return [(one.check, one.start, one.end) for one in report.findings if one.weight is weight]


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_whole_table_is_green_without_a_word(tmp_path: Path, deep: bool) -> None:
    report = await verified(await filled(tmp_path), deep)
    assert (report.is_good, report.findings, report.files, report.is_deep) == (True, [], 2, deep)


# --- what may be absent ---


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_declared_gap_is_green_and_named(tmp_path: Path, deep: bool) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind()
    await lake.round((0, 0, 20), entries=[await lake.write(rows(0, 5)), await lake.write(rows(9, 20))])
    report = await verified(lake, deep, {0: ShardInLog(0, 20, [(5, 9, "power loss")])})
    assert (report.is_good, told(report, Weight.KNOWN)) == (True, [("dense", 5, 9)])
    assert "power loss" in report.findings[0].text
    red = await verified(lake, deep, {0: ShardInLog(0, 20, [(5, 8, "power loss")])})
    assert (red.is_good, told(red, Weight.WRONG)) == (False, [("dense", 8, 9)])


async def test_hazard_38_rows_that_an_engine_deleted_are_green_and_named(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    deletes = await lake.write_deletes(lake.live[0], [0, 4])
    await lake.replace([*lake.live, deletes], "delete", added_position_deletes="2")
    report = await verified(lake, deep=True)
    assert (report.is_good, told(report, Weight.KNOWN)) == (True, [("dense", 0, 1), ("dense", 4, 5)])
    assert "removed from the table by delete" in report.findings[0].text
    shallow = await verified(lake, deep=False)
    assert (shallow.is_good, told(shallow, Weight.BOUNDS_ONLY)) == (True, [("dense", 0, 0)])


async def test_hazard_38_what_was_lost_behind_an_update_is_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    new = await lake.write(rows(0, 10), groups=4)
    await lake.replace([new, lake.live[1]], "overwrite", added_records="10", deleted_records="10")
    assert (await verified(lake, deep=True)).findings == []
    await lake.replace([new], "replace")
    assert told(await verified(lake, deep=True), Weight.WRONG) == [("dense", 10, 20)]


async def test_hazard_38_more_rows_missing_than_engines_removed_is_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    left = await lake.write(rows(3, 10))
    await lake.replace([left, lake.live[1]], "overwrite", added_records="7", deleted_records="10")
    report = await verified(lake, deep=True)
    assert (report.is_good, told(report, Weight.KNOWN)) == (True, [("dense", 0, 3)])
    await lake.replace([left, await lake.write(rows(10, 19))], "replace")
    report = await verified(lake, deep=True)
    assert told(report, Weight.KNOWN) == [("dense", 0, 3), ("dense", 19, 20)]
    (red,) = [one for one in report.findings if one.weight is Weight.WRONG]
    assert (red.check, red.text) == ("dense", "4 rows are missing that engines may have removed, but they removed 3")


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_table_that_begins_later_is_green_and_named(tmp_path: Path, deep: bool) -> None:
    report = await verified(await filled(tmp_path, start=100), deep, {0: ShardInLog(50, 130)})
    assert (report.is_good, told(report, Weight.KNOWN)) == (True, [("dense", 0, 100)])


async def test_hazard_38_what_is_known_exactly_is_not_counted_as_removed_by_an_engine(tmp_path: Path) -> None:
    lake = await filled(tmp_path, start=100)
    left = await lake.write(rows(101, 110))
    await lake.replace([left, lake.live[1]], "overwrite", added_records="9", deleted_records="10")
    report = await verified(lake, True, {0: ShardInLog(50, 130)})
    assert (report.is_good, told(report, Weight.KNOWN)) == (True, [("dense", 0, 100), ("dense", 100, 101)])


# --- what must not be ---


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_lost_row_is_red(tmp_path: Path, deep: bool) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind()
    await lake.round((0, 0, 20), entries=[await lake.write(rows(0, 12)), await lake.write(rows(13, 20))])
    report = await verified(lake, deep)
    assert (report.is_good, told(report, Weight.WRONG)) == (False, [("dense", 12, 13)])


async def test_hazard_38_a_lost_row_inside_of_a_file_is_red_where_rows_are_read(tmp_path: Path) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind()
    await lake.round((0, 0, 20), entries=[await lake.write([row(at) for at in range(20) if at != 7])])
    assert told(await verified(lake, deep=True), Weight.WRONG) == [("dense", 7, 8)]
    assert told(await verified(lake, deep=False), Weight.BOUNDS_ONLY) == [("dense", 0, 0)], "it says what it cannot see"


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_doubled_row_is_red(tmp_path: Path, deep: bool) -> None:
    lake = await filled(tmp_path)
    await lake.replace([*lake.live, await lake.write([row(10)])], "append")
    report = await verified(lake, deep)
    assert (report.is_good, "unique" in {one[0] for one in told(report, Weight.WRONG)}) == (False, True)


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_missing_file_is_red(tmp_path: Path, deep: bool) -> None:
    lake = await filled(tmp_path)
    remove(lake.live[1])
    report = await verified(lake, deep)
    assert told(report, Weight.WRONG) == [("files", 0, 0), ("dense", 10, 20)]
    assert lake.live[1]["data_file"]["file_path"] in report.findings[0].text


async def test_hazard_38_a_file_of_another_size_or_count_is_red(tmp_path: Path) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind()
    await lake.round((0, 0, 20), entries=[await lake.write(rows(0, 20), record_count=21)])
    assert ("files", 0, 0) in told(await verified(lake, deep=False), Weight.WRONG)
    lake.live[0]["data_file"]["file_size_in_bytes"] += 1
    await lake.replace(lake.live)
    assert ("files", 0, 0) in told(await verified(lake, deep=False), Weight.WRONG)


async def test_hazard_38_a_wrong_property_is_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    view = await lake.tables.fresh(lake.topic_id)
    assert view is not None
    view.table.properties["icestream.committed"] = '{"0":19}'
    report = Verifier(view, lake.parquet, size_of, LOG).verify(deep=False)
    assert told(report, Weight.WRONG) == [("property", 0, 0)]


async def test_hazard_38_a_log_that_does_not_go_on_where_the_table_ends_is_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    assert told(await verified(lake, True, {0: ShardInLog(0, 18)}), Weight.WRONG) == [("log", 18, 20)]
    assert told(await verified(lake, True, {0: ShardInLog(25, 30)}), Weight.WRONG) == [("log", 20, 25)]


async def test_hazard_38_rows_behind_what_was_committed_are_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    await lake.replace([*lake.live, await lake.write(rows(20, 22))], "append")
    assert told(await verified(lake, deep=True), Weight.WRONG) == [("bounds", 20, 22)]
