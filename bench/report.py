"""The results: a line for each figure for people, JSON for everything else.

log-append: goal of the issue                 make bench ARGS="--only log-append"
  reached       1.2x (1.1 to 1.3), goal ≥ 1x  what was measured
                ours 10,000/s, Kafka 8,000/s (4.1); a note
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from bench.figures import Figure, Row, Verdict

_STYLE = {Verdict.REACHED: "green", Verdict.MISSED: "red", Verdict.NOT_MEASURED: "yellow", Verdict.NO_GOAL: "dim"}
_INDENT = 2
_VERDICT = max(len(run.value) for run in Verdict) + 2


def show(console: Console, rows: Sequence[Row], machine: dict[str, str], goals: dict[str, str]) -> None:
    for name in dict.fromkeys(row.scenario for row in rows):
        for line in _wrapped(f"{name}: {goals[name]}", 0, console.width):
            console.print(Text(line, style="bold"))
        console.print(Text(f'{"":{_INDENT}}make bench ARGS="--only {name}"', style="dim"), soft_wrap=True)
        for row in (row for row in rows if row.scenario == name):
            for line in row_lines(row, console.width):
                text = Text(line)
                text.stylize(_STYLE[row.verdict], _INDENT, _INDENT + _VERDICT)
                console.print(text, soft_wrap=True)
    for line in (
        "Figures: median over rounds (lowest to highest); ratios were computed within each round.",
        f"Machine: {', '.join(f'{name} {value}' for name, value in machine.items())}",
    ):
        console.print(Text("\n".join(_wrapped(line, 0, console.width))))
    counted = [row.verdict for row in rows if row.goal or row.missing]
    console.print(", ".join(f"{counted.count(kind)} {kind.value}" for kind in Verdict if kind is not Verdict.NO_GOAL))


def row_lines(row: Row, width: int) -> Iterator[str]:
    """The verdict, the figure and what it is of; below, both sides of a comparison and the note."""
    measured = str(row.figure or "")
    figure = ", ".join(part for part in (measured, f"goal {row.goal}" if row.goal else "") if part)
    peer = " ".join(part for part in (row.peer, f"({row.peer_version})" if row.peer_version else "") if part)
    sides = ", ".join(part for part in (f"ours {row.ours}" if row.ours else "", peer) if part)
    more = "; ".join(part for part in (sides, row.missing or row.note) if part)
    first = f"{'':{_INDENT}}{row.verdict.value:{_VERDICT}}"
    lines = _wrapped("  ".join(part for part in (figure, row.what) if part), len(first), width)
    yield (first + lines[0].lstrip()).rstrip()
    yield from lines[1:]
    if more:
        yield from _wrapped(more, len(first), width)


def _wrapped(text: str, indent: int, width: int) -> list[str]:
    lines = textwrap.wrap(text, max(width - indent, 1), break_long_words=False, break_on_hyphens=False)
    return [" " * indent + line for line in lines] or [""]


def as_json(rows: Sequence[Row], machine: dict[str, str], goals: dict[str, str]) -> str:
    return json.dumps({"machine": machine, "rows": [_row(row, goals) for row in rows]}, indent=2, ensure_ascii=False)


def _row(row: Row, goals: dict[str, str]) -> dict[str, object]:
    return {
        "scenario": row.scenario,
        "issue_goal": goals[row.scenario],
        "what": row.what,
        "goal": str(row.goal) if row.goal else None,
        "measured": _figure(row.figure),
        "verdict": row.verdict.value or None,
        "ours": row.ours,
        "peer": row.peer,
        "peer_version": row.peer_version,
        "note": row.note,
        "missing": row.missing,
        "command": row.command,
        "details": {name: _figure(figure) for name, figure in row.details.items()},
    }


def _figure(figure: Figure | None) -> dict[str, object] | None:
    if figure is None:
        return None
    samples = figure.samples
    return {
        "value": figure.value,
        "low": figure.low,
        "high": figure.high,
        "unit": figure.unit.strip(),
        "rounds": samples,
    }
