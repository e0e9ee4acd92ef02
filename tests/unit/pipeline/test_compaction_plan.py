"""Which files are rewritten together: disjoint bands of neighbours, and never the same rows again and again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.pipeline.compaction.compaction_plan import (
    CandidateFile,
    CompactionRule,
    FileGroup,
    plan_groups,
    small_files,
)

NOW_US = 10**15
MIB = limits.MIB
RULE = CompactionRule(group_bytes=64 * MIB, files_min=8)


def file(number: int, mib: float = 1.0, partition: tuple[object, ...] = (), age_us: int = 0) -> CandidateFile:
    time_us = NOW_US - 1_000_000 + number - age_us
    return CandidateFile(f"f{number}", 10, int(mib * MIB), partition, time_us, time_us, number)


def numbers(groups: list[FileGroup]) -> list[list[int]]:
    return [[file.first_offset for file in group.files] for group in groups]


def planned(*sizes: float, rule: CompactionRule = RULE, age_us: int = 0) -> list[list[int]]:
    files = [file(number, size, age_us=age_us) for number, size in enumerate(sizes)]
    return numbers(plan_groups(files, rule, NOW_US))


def test_small_files_wait_until_there_are_enough_of_them() -> None:
    assert planned(*[1] * 7) == []
    assert planned(*[1] * 8) == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_two_files_are_enough_in_an_idle_table_and_on_request() -> None:
    assert planned(1, 1, age_us=RULE.idle_ms * 1000) == [[0, 1]]
    assert planned(1, 1, rule=RULE._replace(is_requested=True)) == [[0, 1]]
    assert planned(1, age_us=10**12) == []


def test_a_finished_file_is_never_touched_and_divides_the_others() -> None:
    assert planned(60, *[1] * 8, 32, *[1] * 7) == [[1, 2, 3, 4, 5, 6, 7, 8]]


def test_a_large_file_is_rewritten_only_when_its_size_doubles() -> None:
    assert planned(16, *[1] * 8) == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert planned(8, *[1] * 8) == [[0, 1, 2, 3, 4, 5, 6, 7, 8]]


def test_a_full_group_is_closed() -> None:
    groups = planned(*[20] * 8)
    assert groups == [[0, 1, 2], [3, 4, 5]]


def test_a_group_spans_a_bounded_time() -> None:
    """Hazard 85: retention by age removes whole files."""
    rule = RULE._replace(files_min=2, span_us=5)
    files = [file(number) for number in range(12)]
    groups = plan_groups(files, rule, NOW_US)
    assert sorted(numbers(groups)) == [[*range(6)], [*range(6, 12)]]
    merged_files = [merged(group)._replace(last_time_us=group.files[-1].last_time_us) for group in groups]
    assert plan_groups(merged_files, rule, NOW_US) == []


def test_partitions_are_apart() -> None:
    files = [file(number, partition=(number % 2,)) for number in range(16)]
    assert sorted(numbers(plan_groups(files, RULE, NOW_US))) == [[*range(0, 16, 2)], [*range(1, 16, 2)]]


def test_a_group_that_cannot_get_better_is_left_alone() -> None:
    files = [file(number) for number in range(8)]
    (group,) = plan_groups(files, RULE, NOW_US)
    assert plan_groups(files, RULE, NOW_US, {group.key}) == []


def test_a_group_has_a_bound_of_files() -> None:
    groups = planned(*[0.001] * (limits.COMPACTION_GROUP_FILES_MAX + 20))
    assert [len(group) for group in groups] == [limits.COMPACTION_GROUP_FILES_MAX, 20]


@given(st.lists(st.integers(1, 70 * MIB), max_size=60), st.booleans())
def test_a_plan_is_disjoint_bands_and_ends(sizes: list[int], is_requested: bool) -> None:
    """Carried out again and again, it comes to rest; each group is a run of neighbours that gets better."""
    rule = RULE._replace(is_requested=is_requested)
    files = [file(number, size / MIB) for number, size in enumerate(sizes)]
    for _ in range(20):
        in_order = sorted(files, key=lambda entry: entry.age_order)
        groups = plan_groups(files, rule, NOW_US)
        if not groups:
            break
        for group in groups:
            first = in_order.index(group.files[0])
            assert in_order[first : first + len(group.files)] == list(group.files)
            assert len(group.files) >= 2
            assert group.bytes <= rule.group_bytes
        locations = [entry.location for group in groups for entry in group.files]
        assert len(set(locations)) == len(locations)
        before = len(files)
        files = [entry for entry in files if entry.location not in locations]
        files += [merged(group) for group in groups]
        assert len(files) < before
    else:
        pytest.fail("the plan does not come to rest")


def merged(group: FileGroup) -> CandidateFile:
    first = group.files[0]
    return first._replace(location=f"m{first.location}", bytes=group.bytes)


def test_a_busy_table_rewrites_each_row_a_few_times_and_has_few_files() -> None:
    """A commit of 64 KiB every second, for six hours: the bound of docs/table-care.md."""
    files: list[CandidateFile] = []
    rewritten = written = most = 0
    for number in range(6 * 3_600):
        files.append(file(number, 1 / 16))
        written += files[-1].bytes
        if number % 30:
            continue
        for group in plan_groups(files, RULE, NOW_US):
            files = [entry for entry in files if entry not in group.files] + [merged(group)]
            rewritten += group.bytes
        most = max(most, small_files(files, RULE.group_bytes))
    assert most <= 64
    assert rewritten <= 8 * written


def with_deletes(number: int, mib: float, deleted_rows: int, *names: str) -> CandidateFile:
    return file(number, mib)._replace(rows=100, deletes=names, applied=names, deleted_rows=deleted_rows)


@pytest.mark.parametrize(
    ("deleted_rows", "deletes", "is_planned"),
    [(9, 1, False), (10, 1, True), (0, 7, False), (0, 8, True), (0, 0, False)],
)
def test_a_finished_file_is_rewritten_for_many_deletes(deleted_rows: int, deletes: int, is_planned: bool) -> None:
    """Hazard 77: a tenth of its rows, or as many delete files as make a group."""
    entry = with_deletes(1, 60, deleted_rows, *(f"d{number}" for number in range(deletes)))
    assert bool(plan_groups([file(0), entry, file(2)], RULE, NOW_US)) is is_planned


def test_any_delete_is_applied_on_request() -> None:
    entry = with_deletes(1, 60, 0, "d")
    (group,) = plan_groups([file(0, 60), entry, file(2, 60)], RULE._replace(is_requested=True), NOW_US)
    assert group.files == (entry,)


def test_a_delete_that_no_row_of_the_file_can_have_is_no_reason() -> None:
    """It may name the file by its bounds, and does not apply by partition or sequence number."""
    entry = with_deletes(1, 60, 0, "d")._replace(applied=())
    assert plan_groups([entry], RULE._replace(is_requested=True), NOW_US) == []


def test_a_group_that_could_not_be_improved_is_planned_again_after_a_delete() -> None:
    rule = RULE._replace(is_requested=True)
    entry = with_deletes(1, 60, 50, "d")
    (group,) = plan_groups([entry], rule, NOW_US)
    assert plan_groups([entry], rule, NOW_US, {group.key}) == []
    more = entry._replace(deletes=("d", "e"), applied=("d", "e"))
    assert plan_groups([more], rule, NOW_US, {group.key}) != []
