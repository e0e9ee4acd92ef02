"""What `icestream verify` says last, and its exit code: never "nothing is missing" of what nobody looked at."""

from __future__ import annotations

from typing import Any

import pytest

from icestream.cli.verify import exit_code, last_words


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
        ([report(), report()], False, "2 tables: nothing is missing, nothing is twice", 0),
        ([report(), report(good=False)], True, "2 tables: 1 with something wrong", 1),
        (
            [report(), report(complete=False)],
            False,
            "2 tables: nothing wrong was found, 1 not looked at in full (`bounds-only` says why, --deep looks at more)",
            0,
        ),
        (
            [report(deep=True), report(complete=False, deep=True)],
            True,
            "2 tables: nothing wrong was found, 1 not looked at in full (`bounds-only` says why)",
            14,
        ),
        (
            [report(good=False, deep=True), report(complete=False, deep=True)],
            True,
            "2 tables: 1 with something wrong, 1 not looked at in full (`bounds-only` says why)",
            1,
        ),
        (
            [report(), report(absent=50_000)],
            True,
            "2 tables: 50000 offsets absent for reasons named above, nothing else is missing, nothing is twice",
            0,
        ),
        (
            [report(good=False, absent=1)],
            False,
            "1 table: 1 with something wrong, 1 offset absent for reasons named above",
            1,
        ),
        ([], True, "0 tables: no topic has one yet", 0),
        ([report(parted=True)], False, "0 tables: 1 topic without a table any more", 0),
        (
            [report(), report(parted=True)],
            True,
            "1 table: nothing is missing, nothing is twice, 1 topic without a table any more",
            14,
        ),
    ],
)
def test_the_last_line_says_what_was_not_looked_at(
    reports: list[dict[str, Any]], deep: bool, words: str, code: int
) -> None:
    assert (last_words(reports), exit_code(reports, deep)) == (words, code)
