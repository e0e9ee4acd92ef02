"""The report of `make bench` for people: a line for each figure, in 80 columns."""

from __future__ import annotations

import io
import json

from rich.console import Console

from bench.figures import Figure, Goal, Row
from bench.report import as_json, row_lines, show

ROWS = [
    Row(
        "key-shared-catch-up",
        "messages per second of a key-shared subscription with 1,000 keys behind the tail",
        Figure([0.61, 0.55, 0.7], "x"),
        Goal(at_least=0.5),
        "103,000 messages/s (99,000 to 110,000)",
        "exclusive: 170,000 messages/s",
        "26.1.4",
        "the same backlog for both; four consumers",
    ),
    Row("many-topics", "seconds until 5,000 topics have rows", Figure([51.0], " s"), Goal(at_most=45, unit=" s")),
    Row("many-topics", "seconds with Spark", missing="Spark is not installed: `icestream pipeline setup` installs it"),
]
GOALS = {"key-shared-catch-up": "at least half of exclusive", "many-topics": "5,000 new topics within 45 s"}


def test_lines_have_at_most_80_columns_and_no_word_is_split() -> None:
    stream = io.StringIO()
    machine = {"cpu": "some processor of 2 cores", "disk": "ext4 on /dev/vda", "python": "3.11.7", "kernel": "6.12.3"}
    show(Console(file=stream, width=80, color_system=None), ROWS, machine, GOALS)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    printed_words = stream.getvalue().split()
    for row in ROWS:
        assert {*row.what.split(), *row.note.split(), *row.missing.split()} <= set(printed_words)
    assert lines[-1] == "1 reached, 1 missed, 1 not measured"


def test_a_figure_is_a_line_with_its_verdict_and_goal() -> None:
    (line,) = row_lines(ROWS[1], 80)
    assert line == "  missed        51 s, goal ≤ 45 s  seconds until 5,000 topics have rows"


def test_programs_get_every_figure() -> None:
    rows = json.loads(as_json(ROWS, {}, GOALS))["rows"]
    assert [row["verdict"] for row in rows] == ["reached", "missed", "not measured"]
    assert rows[0]["measured"]["rounds"] == [0.61, 0.55, 0.7]
