"""What `icestream lake describe` says of a table, where no broker is needed to see it."""

from __future__ import annotations

import io

import pytest

from icestream.cli.lake_tables import _show_topic_state, owner
from icestream.cli.output import Output, OutputFormat


@pytest.mark.parametrize(
    ("topic", "is_deleted", "shown"),
    [
        ("/default/again", False, "/default/again"),
        ("/default/again", True, "/default/again (deleted, id 7)"),
        (None, False, None),
    ],
)
def test_a_deleted_topic_is_distinguished_from_a_new_one_of_the_same_name(
    topic: str | None, is_deleted: bool, shown: str | None
) -> None:
    assert owner({"topic": topic, "topic_id": 7, "is_topic_deleted": is_deleted}) == shown


class WideTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def removal(**more: object) -> dict[str, object]:
    fields = {"operation": "delete", "time_ms": 1_800_000_000_000, "is_exact": False, "rows": 6}
    return fields | {"ranges": {"0": (0, 1_000_000)}, "first_snapshot_id": None} | more


def test_missing_rows_name_their_snapshots_and_keep_every_column_but_the_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    first, last = "4325345345345345345", "7777777777777777777"
    removals = [
        removal(snapshot_id=last, first_snapshot_id=first),
        removal(snapshot_id=last, operation="rollback", is_exact=True),
    ]
    stream = WideTerminal()
    _show_topic_state(Output(OutputFormat.TABLE, stream), {"topic": "/default/a", "runs": [], "removals": removals})
    text = " ".join(stream.getvalue().split())
    assert "missing by snapshot shard first last rows" in text
    assert f"delete one of {first} 0" in text
    assert f"to {last}" in text
    assert "6 of these at most" in text
    assert "all of these" in text
    assert "columns not shown, terminal too narrow: time;" in capsys.readouterr().err
