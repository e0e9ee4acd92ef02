"""The command line of the benchmark."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench import machine, report, scenarios
from bench.figures import Row
from bench.harness import Bench, Scenario
from icestream.runtime.native import native

# Kept out of version control together with the data of a broker, and on the same disk.
DATA = Path(__file__).resolve().parent.parent / "data"


class Part(Enum):
    LOG = "log"
    BROKER = "broker"
    LAKE = "lake"
    RAFT = "raft"
    PIPELINE = "pipeline"


class Output(Enum):
    TABLE = "table"
    JSON = "json"


def run(
    only: Annotated[list[str] | None, typer.Option(help="Run this scenario (can be given several times).")] = None,
    part: Annotated[
        Part | None, typer.Option(help="Run the scenarios of the log, of the broker, of the lake, or of Raft.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short and small: does it run, not how fast is it.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each scenario.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Measure on the disk of this directory.")] = None,
    output: Annotated[Output, typer.Option(help="table or json")] = Output.TABLE,
    show_list: Annotated[bool, typer.Option("--list", help="Show the scenarios and end.")] = False,
) -> None:
    """Measure the log and the broker against their peers. Writes up to 30 GB below --dir, and deletes it afterwards."""
    chosen = scenarios.load(_names(only, part))
    console, talk = Console(), Console(stderr=True)
    if show_list:
        for scenario in chosen:
            console.print(f"{scenario.NAME:14}{scenario.GOAL}", highlight=False, soft_wrap=True)
        return
    if native is None:
        talk.print("The goals are for the native build, and there is none here: make native", style="red")
        raise typer.Exit(1)
    place = (directory or DATA).resolve()
    is_new = not place.exists()
    place.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=place))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        about = machine.describe(path)
        about["load before"] = machine.load()
        about["kind"] = "quick: the figures mean little" if quick else "full"
        rows = _measure(chosen, Bench(path, quick, rounds), talk)
        about["load after"] = machine.load()
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if is_new and not any(place.iterdir()):
            place.rmdir()
    goals = {scenario.NAME: scenario.GOAL for scenario in chosen}
    if output is Output.JSON:
        print(report.as_json(rows, about, goals))
    else:
        report.show(console, rows, about, goals)
    if quick:
        talk.print("This was --quick: it shows that everything runs, the figures mean little.", style="yellow")


def _names(only: list[str] | None, part: Part | None) -> list[str]:
    unknown = sorted(set(only or ()) - set(scenarios.NAMES))
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: known are {', '.join(scenarios.NAMES)}", param_hint="--only")
    among = scenarios.PARTS[part.value] if part else scenarios.NAMES
    return [name for name in (scenarios.NAMES if only else among) if not only or name in only]


def _measure(chosen: list[Scenario], bench: Bench, talk: Console) -> list[Row]:
    rows: list[Row] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bench.warn = lambda text: talk.print(text, style="yellow", highlight=False)
    with Progress(*columns, console=talk, disable=not talk.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        for scenario in chosen:

            def tell(text: str, name: str = scenario.NAME) -> None:
                progress.update(task, description=f"{name}: {text}")
                if not talk.is_terminal:
                    talk.print(f"{datetime.now(UTC):%H:%M:%S} {name}: {text}", highlight=False)

            bench.tell = tell
            tell("begins")
            rows += bench.attempt(scenario.NAME, scenario.GOAL, None, partial(scenario.measure, bench))
            progress.advance(task)
    return rows


def main() -> None:
    typer.run(run)
