"""What `icestream lake erase` says to people, and what it refuses before it asks the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from icestream import errors
from icestream.admin_api.admin_call import AdminCall
from icestream.admin_api.erasure_api import BEGIN_ERASURE
from icestream.broker.erasure_service import is_signed, sign_report
from icestream.cli import lake_erase

REPORT: dict[str, Any] = {
    "kind": "erasure",
    "topic": "/default/orders",
    "table": "default.orders",
    "messages": 2,
    "erased": 2,
    "deleted_before": 1,
    "newer": 1,
    "files_searched": 4,
    "files_rewritten": 1,
    "history": "drop",
    "snapshots": ["7"],
    "references": ["monday"],
    "left": [],
    "pending": ["log: file 3 is kept for /default/other"],
    "must_do": ["backup: tag icestream-backup-b1"],
    "dead_letter_topics": ["/default/dead"],
    "not_covered": ["memory"],
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ["Erased 2 messages; wrote 1 data file again, removed 1 snapshot.", "Pending: log: file 3"]),
        ({}, ["To be done: backup: tag icestream-backup-b1", "dead letters in /default/dead", "Not covered: memory"]),
        ({"history": "rewrite"}, ["rewrote 1 snapshot."]),
        ({"kind": "dry run"}, ["2 messages of /default/orders in default.orders.", "1 row", "branches monday"]),
        (
            {"kind": "check"},
            ["Searched 4 data files", "1 message matching", "Nothing is left."],
        ),
        ({"kind": "check", "left": ["table: a.parquet"]}, ["Left: table: a.parquet"]),
    ],
)
def test_a_report_is_shown(capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: list[str]) -> None:
    lake_erase._show(REPORT | changes)
    shown = "".join(capsys.readouterr())
    assert [text for text in says if text not in shown] == []
    assert ("Nothing is left" in shown) == (changes == {"kind": "check"})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "no predicate"),
        ({"where": "key ="}, "not understood"),
        ({"where": "key = 'a'", "dry_run": True, "check": True}, "exclude each other"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_broker_is_asked(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(errors.InvalidInput, match=problem):
        lake_erase.erase("/default/orders", **{"history": None, "verify": None, "report": None, **arguments})


def test_dead_letters_are_erased_with_the_topic(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each has a report of its own; those without letters are passed over."""
    runs: list[tuple[str, str]] = []

    def run(target: object, topic: str, where: str, mode: str, *_: object) -> dict[str, Any]:
        runs.append((topic, mode))
        if topic == "/default/none":
            raise errors.UnknownTopic("there is no topic /default/none")
        if topic == "/default/empty":
            raise errors.TopicTableConflict("topic /default/empty has no table")
        topics = ["/default/dead", "/default/empty", "/default/none"] if topic == "/default/orders" else []
        return {"report": REPORT | {"kind": mode, "topic": topic, "dead_letter_topics": topics}}

    monkeypatch.setattr(lake_erase, "_run", run)
    options: dict[str, Any] = {"history": lake_erase.History.DROP, "verify": None, "yes": True, "dead_letters": True}
    lake_erase.erase("/default/orders", where="key = 'a'", report=tmp_path / "report.json", **options)
    assert [topic for topic, mode in runs if mode == "erase"] == ["/default/orders", "/default/dead"]
    stored = json.loads((tmp_path / "report.json").read_bytes())
    assert [entry["report"]["topic"] for entry in stored["dead_letters"]] == ["/default/dead"]
    with pytest.raises(errors.InvalidInput, match="offset of a dead letter"):
        lake_erase.erase("/default/orders", where="offset = 1", report=None, **options)
    capsys.readouterr()


class ScriptedErasure:
    """Answers the calls of an erasure: each question for its state gets the next phase, then the report."""

    def __init__(self, *phases: str) -> None:
        self._phases = list(phases)

    async def call(self, call: AdminCall, **_: object) -> dict[str, Any]:
        if call is BEGIN_ERASURE:
            return {"id": "1"}
        is_done = not self._phases
        phase = "log" if is_done else self._phases.pop(0)
        report = {"report": REPORT} if is_done else None
        return {"phase": phase, "done": 0, "all": 0, "is_done": is_done, "error": "", "hint": "", "report": report}


@pytest.mark.asyncio
async def test_each_phase_is_a_line_where_no_bar_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_erase, "_POLL_SECONDS", 0)
    broker: Any = ScriptedErasure("waiting", "commit", "search", "search", "erase", "log", "log")
    document = await lake_erase._follow(broker, "/default/orders", "key = 'a'", "erase", 60, None)
    assert document == {"report": REPORT}
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "Erasing /default/orders: waiting until the pipeline takes the request",
        "Erasing /default/orders: waiting until everything published so far is in the table",
        "Erasing /default/orders: reading data files",
        "Erasing /default/orders: writing the data files that have the messages again",
        "Erasing /default/orders: retiring the log files that have the messages",
    ]


def test_a_report_that_was_changed_is_no_report(tmp_path: Path) -> None:
    document = sign_report(REPORT, bytes(32))
    assert is_signed(document)
    for changed in (
        {**document, "report": REPORT | {"erased": 3}},
        {**document, "signature": "00" * 64},
        {**document, "public_key": "x"},
        {"report": REPORT},
    ):
        assert not is_signed(changed)
    file = tmp_path / "report.json"
    file.write_bytes(b"{}")
    with pytest.raises(errors.InvalidInput, match="signature is wrong"):
        lake_erase.erase("/default/orders", verify=file, history=None, report=None)
