"""The results: a table for people, JSON for everything else."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.figures import Figure, Row, Verdict

_STYLE = {Verdict.REACHED: "green", Verdict.MISSED: "red", Verdict.NOT_MEASURED: "yellow", Verdict.NO_GOAL: "dim"}


def show(console: Console, rows: Sequence[Row], machine: dict[str, str], goals: dict[str, str]) -> None:
    table = Table(title="Icestream", title_style="bold", show_lines=True)
    for heading in ("scenario", "what", "goal", "measured", "verdict", "ours", "peer", "peer version", "note"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(
            row.scenario,
            row.what,
            str(row.goal or ""),
            str(row.figure or ""),
            f"[{_STYLE[row.verdict]}]{row.verdict.value}[/]",
            row.ours,
            row.peer,
            row.peer_version,
            row.missing or row.note,
        )
    console.print(table)
    console.print("Figures: median over rounds (lowest to highest); ratios were computed within each round.")
    console.print(f"Machine: {', '.join(f'{name} {value}' for name, value in machine.items())}")
    for name in dict.fromkeys(row.scenario for row in rows):
        console.print(f'{name}: {goals[name]}   make bench ARGS="--only {name}"', style="dim", highlight=False)
    counted = [row.verdict for row in rows if row.goal or row.missing]
    console.print(", ".join(f"{counted.count(kind)} {kind.value}" for kind in Verdict if kind is not Verdict.NO_GOAL))


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
