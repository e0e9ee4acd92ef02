"""Hazard 38: `verify` is green and names every absence that is known, and red for every planted fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import limits
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.readers.verify.verify_report import ShardLogState, VerifyReport, Weight
from tests.support.topic_lake import TABLE, Row, TopicLake, damage, damage_footer, remove, row, rows

pytestmark = [pytest.mark.asyncio, pytest.mark.wrong_tables("most of them, on purpose")]
LOG = {0: ShardLogState(0, 20)}


async def filled(folder: Path, start: int = 0) -> TopicLake:
    lake = TopicLake(folder)
    await lake.bind(start=start)
    for at in (start, start + 10):
        await lake.round((0, at, at + 10), entries=[await lake.write(rows(at, at + 10), groups=4)])
    return lake


async def verified(lake: TopicLake, deep: bool, log: dict[int, ShardLogState] | None = None) -> VerifyReport:
    view = await lake.tables.fresh(lake.topic_id)
    assert view is not None
    return lake.scans.verifier(view, LOG if log is None else log).verify(deep)


def findings_of(report: VerifyReport, weight: Weight) -> list[tuple[str, int, int]]:
    return [(finding.check, finding.start, finding.end) for finding in report.findings if finding.weight is weight]


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_complete_table_has_no_findings(tmp_path: Path, deep: bool) -> None:
    report = await verified(await filled(tmp_path), deep)
    assert (report.is_good, report.findings, report.files, report.is_deep) == (True, [], 2, deep)


# --- what may be absent ---


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_declared_gap_is_green_and_named(tmp_path: Path, deep: bool) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind()
    await lake.round((0, 0, 20), entries=[await lake.write(rows(0, 5)), await lake.write(rows(9, 20))])
    report = await verified(lake, deep, {0: ShardLogState(0, 20, [(5, 9, "power loss")])})
    assert (report.is_good, findings_of(report, Weight.KNOWN)) == (True, [("dense", 5, 9)])
    assert "power loss" in report.findings[0].text
    red = await verified(lake, deep, {0: ShardLogState(0, 20, [(5, 8, "power loss")])})
    assert (red.is_good, findings_of(red, Weight.WRONG)) == (False, [("dense", 8, 9)])


async def test_hazard_38_rows_that_an_engine_deleted_are_green_and_named(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    deletes = await lake.write_deletes(lake.live[0], [0, 4])
    await lake.replace([*lake.live, deletes], "delete", added_position_deletes="2")
    report = await verified(lake, deep=True)
    assert (report.is_good, findings_of(report, Weight.KNOWN)) == (True, [("dense", 0, 1), ("dense", 4, 5)])
    assert "removed from the table by delete" in report.findings[0].text
    shallow = await verified(lake, deep=False)
    assert (shallow.is_good, findings_of(shallow, Weight.BOUNDS_ONLY)) == (True, [("dense", 0, 0)])


async def test_hazard_38_messages_lost_after_an_update_are_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    new = await lake.write(rows(0, 10), groups=4)
    await lake.replace([new, lake.live[1]], "overwrite", added_records="10", deleted_records="10")
    assert (await verified(lake, deep=True)).findings == []
    await lake.replace([new], "replace")
    assert findings_of(await verified(lake, deep=True), Weight.WRONG) == [("dense", 10, 20)]


async def test_hazard_38_more_rows_missing_than_engines_removed_is_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    left = await lake.write(rows(3, 10))
    await lake.replace([left, lake.live[1]], "overwrite", added_records="7", deleted_records="10")
    report = await verified(lake, deep=True)
    assert (report.is_good, findings_of(report, Weight.KNOWN)) == (True, [("dense", 0, 3)])
    await lake.replace([left, await lake.write(rows(10, 19))], "replace")
    report = await verified(lake, deep=True)
    assert findings_of(report, Weight.KNOWN) == [("dense", 0, 3), ("dense", 19, 20)]
    (red,) = [finding for finding in report.findings if finding.weight is Weight.WRONG]
    assert (red.check, red.text) == (
        "dense",
        "4 rows are missing that engines may have removed, but the catalog recorded 3 removed",
    )


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_table_that_begins_later_is_green_and_named(tmp_path: Path, deep: bool) -> None:
    report = await verified(await filled(tmp_path, start=100), deep, {0: ShardLogState(50, 130)})
    assert (report.is_good, findings_of(report, Weight.KNOWN)) == (True, [("dense", 0, 100)])


async def test_hazard_38_known_gaps_are_not_counted_as_removed_by_an_engine(tmp_path: Path) -> None:
    lake = await filled(tmp_path, start=100)
    left = await lake.write(rows(101, 110))
    await lake.replace([left, lake.live[1]], "overwrite", added_records="9", deleted_records="10")
    report = await verified(lake, True, {0: ShardLogState(50, 130)})
    assert (report.is_good, findings_of(report, Weight.KNOWN)) == (True, [("dense", 0, 100), ("dense", 100, 101)])


# --- what must not be ---


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_lost_row_is_red(tmp_path: Path, deep: bool) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind()
    await lake.round((0, 0, 20), entries=[await lake.write(rows(0, 12)), await lake.write(rows(13, 20))])
    report = await verified(lake, deep)
    assert (report.is_good, findings_of(report, Weight.WRONG)) == (False, [("dense", 12, 13)])


async def test_hazard_38_a_lost_row_inside_of_a_file_is_red_where_rows_are_read(tmp_path: Path) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind()
    await lake.round((0, 0, 20), entries=[await lake.write([row(at) for at in range(20) if at != 7])])
    assert findings_of(await verified(lake, deep=True), Weight.WRONG) == [("dense", 7, 8)]
    shallow = await verified(lake, deep=False)
    assert findings_of(shallow, Weight.BOUNDS_ONLY) == [("dense", 0, 0)], (
        "the shallow report names what it cannot check"
    )
    assert findings_of(shallow, Weight.WRONG) == [("dense", 0, 0)], "which one, but not that one is missing"


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_doubled_row_is_red(tmp_path: Path, deep: bool) -> None:
    lake = await filled(tmp_path)
    await lake.replace([*lake.live, await lake.write([row(10)])], "append")
    report = await verified(lake, deep)
    assert (report.is_good, "unique" in {finding[0] for finding in findings_of(report, Weight.WRONG)}) == (False, True)


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_a_missing_file_is_red(tmp_path: Path, deep: bool) -> None:
    lake = await filled(tmp_path)
    remove(lake.live[1])
    report = await verified(lake, deep)
    assert findings_of(report, Weight.WRONG) == [("files", 0, 0), ("dense", 10, 20)]
    assert lake.live[1]["data_file"]["file_path"] in report.findings[0].text


async def test_hazard_38_files_of_other_snapshots_are_checked(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    first, second = lake.live
    await lake.replace([await lake.write(rows(0, 10)), second])
    assert (await verified(lake, deep=False)).findings == []
    remove(first)
    report = await verified(lake, deep=False)
    path = first["data_file"]["file_path"]
    assert [(finding.check, finding.weight, finding.text) for finding in report.findings] == [
        ("files", Weight.WRONG, f"{path} does not exist: snapshot 10001 needs it")
    ]


async def test_hazard_38_a_missing_file_of_a_tag_is_reported_with_the_tag(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    tag = {"action": "set-snapshot-ref", "ref-name": "noon", "type": "tag", "snapshot-id": 10_002}
    await lake.catalog.commits.commit(TABLE, CommitRequest([], [tag]))
    await lake.replace([await lake.write(rows(0, 20))])
    manifest = next((tmp_path / "default").rglob("m2-0.avro"))
    manifest.write_bytes(b"damaged")
    assert ["(tag noon) needs it" in finding.text for finding in (await verified(lake, deep=False)).findings] == [True]
    manifest.unlink()
    (finding,) = (await verified(lake, deep=False)).findings
    assert (finding.weight, "m2-0.avro does not exist" in finding.text) == (Weight.WRONG, True)
    next((tmp_path / "default").rglob("snap-2.avro")).unlink()
    (finding,) = (await verified(lake, deep=False)).findings
    assert (finding.weight, "snap-2.avro does not exist" in finding.text) == (Weight.WRONG, True)


async def test_hazard_38_unchecked_files_of_other_snapshots_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = await filled(tmp_path)
    await lake.replace([await lake.write(rows(0, 20))])
    assert (await verified(lake, deep=True)).is_complete
    monkeypatch.setattr(limits, "VERIFY_OTHER_FILES_MAX", 1)
    report = await verified(lake, deep=True)
    assert (report.is_good, findings_of(report, Weight.BOUNDS_ONLY)) == (True, [("files", 0, 0)])


@pytest.mark.parametrize("has_bounds", [True, False])
async def test_hazard_38_a_damaged_page_is_red_and_the_other_files_are_checked(
    tmp_path: Path, has_bounds: bool
) -> None:
    lake = await filled(tmp_path)
    written = await lake.write(rows(20, 30), statistics=has_bounds)
    await lake.round((0, 20, 30), entries=[written])
    await lake.round((0, 30, 40), entries=[await lake.write([*rows(30, 35), *rows(36, 40)])])
    path = damage(written)
    report = await verified(lake, True, {0: ShardLogState(0, 40)})
    assert sorted(findings_of(report, Weight.WRONG)) == [("dense", 20, 30), ("dense", 35, 36), ("files", 0, 0)]
    assert [f"{path} is damaged" in finding.text for finding in report.findings if finding.check == "files"] == [True]


async def test_hazard_38_a_damaged_footer_is_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    damage_footer(lake.live[0])
    assert findings_of(await verified(lake, deep=False), Weight.WRONG) == [("files", 0, 0), ("dense", 0, 10)]


async def test_hazard_38_a_damaged_file_of_deletes_is_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    deletes = await lake.write_deletes(lake.live[0], [0, 4])
    await lake.replace([*lake.live, deletes], "delete", added_position_deletes="2")
    damage(deletes, "pos")
    report = await verified(lake, deep=True)
    assert ("files", 0, 0) in findings_of(report, Weight.WRONG)


async def test_hazard_38_a_file_of_another_size_or_count_is_red(tmp_path: Path) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind()
    await lake.round((0, 0, 20), entries=[await lake.write(rows(0, 20), record_count=21)])
    assert ("files", 0, 0) in findings_of(await verified(lake, deep=False), Weight.WRONG)
    lake.live[0]["data_file"]["file_size_in_bytes"] += 1
    await lake.replace(lake.live)
    assert ("files", 0, 0) in findings_of(await verified(lake, deep=False), Weight.WRONG)


async def test_hazard_38_a_wrong_property_is_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    view = await lake.tables.fresh(lake.topic_id)
    assert view is not None
    view.table.properties["icestream.committed"] = '{"0":19}'
    report = lake.scans.verifier(view, LOG).verify(deep=False)
    assert findings_of(report, Weight.WRONG) == [("property", 0, 0)]


async def test_hazard_38_a_log_that_does_not_continue_at_the_end_of_the_table_is_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    assert findings_of(await verified(lake, True, {0: ShardLogState(0, 18)}), Weight.WRONG) == [("log", 18, 20)]
    assert findings_of(await verified(lake, True, {0: ShardLogState(25, 30)}), Weight.WRONG) == [("log", 20, 25)]


async def test_hazard_38_rows_beyond_the_committed_offset_are_red(tmp_path: Path) -> None:
    lake = await filled(tmp_path)
    await lake.replace([*lake.live, await lake.write(rows(20, 22))], "append")
    assert findings_of(await verified(lake, deep=True), Weight.WRONG) == [("bounds", 20, 22)]


# --- where offsets are not looked at ---


async def overlapping(folder: Path, *gone: int) -> TopicLake:
    """A table like one that is partitioned by key: even and odd offsets are in separate files."""
    lake = TopicLake(folder)
    await lake.bind()
    parts = [[row(at) for at in range(first, 20, 2) if at not in gone] for first in (0, 1)]
    await lake.round((0, 0, 20), entries=[await lake.write(part) for part in parts])
    return lake


async def test_hazard_38_rows_are_counted_where_files_overlap(tmp_path: Path) -> None:
    lake = await overlapping(tmp_path)
    report = await verified(lake, deep=False)
    assert (report.is_good, report.is_complete, findings_of(report, Weight.BOUNDS_ONLY)) == (
        True,
        False,
        [("dense", 0, 0)],
    )
    await lake.round((0, 20, 1020), entries=[])
    report = await verified(lake, False, {0: ShardLogState(0, 1020)})
    assert findings_of(report, Weight.WRONG) == [("dense", 0, 0)]
    (red,) = [finding for finding in report.findings if finding.weight is Weight.WRONG]
    assert red.text == "the files have 20 rows, but 1020 offsets must have a row"
    assert (await verified(lake, False, {0: ShardLogState(0, 1020, [(20, 1020, "power loss")])})).is_good
    assert not (await verified(lake, False, {0: ShardLogState(0, 1020, [(21, 1020, "power loss")])})).is_good


async def test_hazard_38_row_counts_include_removals_of_engines(tmp_path: Path) -> None:
    lake = await overlapping(tmp_path)
    some = await lake.write([row(at) for at in range(4, 20, 2)])
    await lake.replace([some, lake.live[1]], "overwrite", added_records="8", deleted_records="10")
    assert (await verified(lake, deep=False)).is_good
    fewer = await lake.write([row(at) for at in range(6, 20, 2)])
    await lake.replace([fewer, lake.live[1]], "replace")
    assert findings_of(await verified(lake, deep=False), Weight.WRONG) == [("dense", 0, 0), ("dense", 0, 0)]


async def test_hazard_38_too_many_rows_are_red_where_files_hold_several_shards(tmp_path: Path) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind(shards=2)
    both = [*rows(0, 10), *rows(0, 10, shard=1)]
    await lake.round((0, 0, 10), (1, 0, 10), entries=[await lake.write(both)])
    log = {0: ShardLogState(0, 10), 1: ShardLogState(0, 10)}
    assert (await verified(lake, False, log)).is_good
    await lake.replace([*lake.live, await lake.write([row(3)])], "append")
    report = await verified(lake, False, log)
    assert findings_of(report, Weight.WRONG) == [("unique", 0, 0)]
    assert [finding.text for finding in report.findings if finding.weight is Weight.WRONG] == [
        "the files have 21 rows, but only 20 offsets were committed"
    ]
    await lake.replace([await lake.write(both[1:])], "replace")
    assert findings_of(await verified(lake, False, log), Weight.WRONG) == [("dense", 0, 0)]


@pytest.mark.parametrize("deep", [False, True])
async def test_hazard_38_rows_of_a_shard_that_the_topic_does_not_have_are_red(tmp_path: Path, deep: bool) -> None:
    lake = await filled(tmp_path)
    await lake.replace([*lake.live, await lake.write([row(3, shard=7)])], "append")
    report = await verified(lake, deep)
    assert not report.is_good
    assert any("shard 7" in finding.text for finding in report.findings if finding.weight is Weight.WRONG)


@pytest.mark.parametrize("stray", [row(3, shard=7), {**row(3), "shard": None}, {**row(3), "offset": None}])
async def test_hazard_38_rows_without_shard_or_offset_are_red(tmp_path: Path, stray: Row) -> None:
    """The file with these rows has no bounds: only reading the rows finds the error."""
    lake = await filled(tmp_path)
    await lake.replace([*lake.live, await lake.write([row(20), stray], bounds=False, statistics=False)], "append")
    report = await verified(lake, True, {0: ShardLogState(0, 21)})
    assert findings_of(report, Weight.WRONG) == [("bounds", 20, 21), ("bounds", 0, 0)]
    assert "1 row outside of this topic" in report.findings[-1].text


@pytest.mark.wrong_tables("consumers cannot read it")
async def test_hazard_38_deletes_that_readers_cannot_apply_are_wrong(tmp_path: Path) -> None:
    """The deletes are by values of columns that are not columns of a message."""
    lake = await filled(tmp_path)
    by_value = await lake.write_deletes(lake.live[0], [0], content=2)
    await lake.replace([*lake.live, by_value], "delete", added_equality_deletes="1")
    report = await verified(lake, deep=True)
    assert (report.is_good, report.is_complete) == (False, False)
    assert findings_of(report, Weight.WRONG) == [("files", 0, 0)]
    assert "consumers cannot read it" in report.findings[-2].text
    await lake.replace([by_value, lake.live[0]], "replace")
    report = await verified(lake, True)
    assert findings_of(report, Weight.WRONG) == [("files", 0, 0)], "the removed rows were not counted"
    await lake.round((0, 20, 40), entries=[])
    report = await verified(lake, True, {0: ShardLogState(0, 40)})
    assert (report.is_good, report.is_complete) == (False, False), "later rows were not deleted"
