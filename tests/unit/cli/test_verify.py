"""What `icestream verify` says last, and its exit code: never "nothing is missing" of rows that were not checked."""

from __future__ import annotations

from typing import Any

import pytest

from icestream.cli.verify import exit_code, summary_line


def report(
    *, good: bool = True, complete: bool = True, deep: bool = False, parted: bool = False, absent: int = 0
) -> dict[str, Any]:
    return {
        "topic": "/default/t",
        "is_good": good,
        "is_complete": complete and not parted,
        "is_deep": deep,
        "is_parted": parted,
        "absent_offsets": absent,
    }


@pytest.mark.parametrize(
    ("reports", "deep", "words", "code"),
    [
        ([report(), report()], False, "2 tables: no messages missing or duplicated", 0),
        ([report(), report(good=False)], True, "2 tables: 1 with errors", 1),
        (
            [report(), report(complete=False)],
            False,
            "2 tables: no errors found, 1 not fully checked (see the findings with severity info; --deep checks more)",
            0,
        ),
        (
            [report(deep=True), report(complete=False, deep=True)],
            True,
            "2 tables: no errors found, 1 not fully checked (see the findings with severity info)",
            14,
        ),
        (
            [report(good=False, deep=True), report(complete=False, deep=True)],
            True,
            "2 tables: 1 with errors, 1 not fully checked (see the findings with severity info)",
            1,
        ),
        (
            [report(), report(absent=50_000)],
            True,
            "2 tables: 50000 offsets absent for the reasons above, no other messages missing or duplicated",
            0,
        ),
        (
            [report(good=False, absent=1)],
            False,
            "1 table: 1 with errors, 1 offset absent for the reasons above",
            1,
        ),
        ([], True, "0 tables: no topic that you may see has a table yet", 0),
        ([report(parted=True)], False, "0 tables: 1 topic without a table", 0),
        (
            [report(), report(parted=True)],
            True,
            "1 table: no messages missing or duplicated, 1 topic without a table",
            14,
        ),
    ],
)
def test_the_last_line_reports_what_was_not_checked(
    reports: list[dict[str, Any]], deep: bool, words: str, code: int
) -> None:
    assert (summary_line(reports), exit_code(reports, deep)) == (words, code)
