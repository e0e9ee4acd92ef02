"""What `icestream verify` says last, and its exit code: never "nothing is missing" of rows that were not checked."""

from __future__ import annotations

from typing import Any

import pytest

from icestream.cli import verify as verify_command
from icestream.cli.output import Output
from icestream.cli.verify import add_merged, exit_code, summary_line


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


def absence(start: int, end: int, *, shard: int = 0, text: str = "erased", weight: str = "known") -> dict[str, Any]:
    return {"check": "dense", "weight": weight, "text": text, "shard": shard, "start": start, "end": end}


def test_absences_with_one_reason_are_one_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    findings: list[dict[str, Any]] = []
    for offset in range(12, 1346, 2):
        assert add_merged(findings, absence(offset, offset + 1))
    verify_command._show([report(absent=667) | {"findings": findings}], Output(), is_single=True)
    shown = capsys.readouterr()
    heading, line = shown.out.splitlines()
    assert heading.split()[-3:] == ["start", "end", "text"]
    assert line.split(maxsplit=6)[4:] == ["12", "1345", "erased (667 offsets in 667 ranges)"]
    assert shown.err.startswith("1 table: 667 offsets absent")


def test_only_neighbours_of_one_shard_and_reason_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        absence(0, 2),
        absence(0, 2, shard=1),
        absence(4, 5, shard=1),
        absence(6, 7, shard=1, text="removed by the topic's retention"),
        absence(8, 9, shard=1, text="lost", weight="wrong"),
        absence(10, 11, shard=1, text="lost", weight="wrong"),
    ]
    findings: list[dict[str, Any]] = []
    assert all(add_merged(findings, part) for part in parts)
    assert [(entry["start"], entry["end"], entry["ranges"], entry["offsets"]) for entry in findings] == [
        (0, 2, 1, 2), (0, 5, 2, 3), (6, 7, 1, 1), (8, 9, 1, 0), (10, 11, 1, 0),
    ]  # fmt: skip
    monkeypatch.setattr(verify_command, "SHOWN_MAX", len(findings))
    assert not add_merged(findings, absence(12, 13)), "beyond the bound"
