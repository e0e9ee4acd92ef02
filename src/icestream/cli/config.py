"""`icestream config`: what applies, whether a file is good, and what there is to set."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from icestream.cli.command import Commands
from icestream.cli.options import ConfigFile, OutputChoice, Sets, load_settings, note_output
from icestream.cli.output import Cell, Output, OutputFormat
from icestream.settings import KEYS, Key, Loaded, Problem, examine, reference, refusal, value_at

app = Commands("Show, check and explain the settings.")


_REFERENCE_COLUMNS = ("key", "default", "allowed", "environment", "online", "description")


class ReferenceFormat(StrEnum):
    TABLE = "table"  # the word for "for people" of every command; here they get paragraphs
    JSON = "json"
    MARKDOWN = "markdown"


@app.command()
def show(
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
    origin: Annotated[bool, typer.Option("--origin", help="Also show where each value came from.")] = False,
) -> None:
    """Print every setting as it applies here: file < environment < flags.

    Example: icestream config show --origin --set log.level=debug
    """
    loaded = load_settings(config, sets)
    columns = ("key", "value", "origin") if origin else ("key", "value")
    Output(output).table(columns, [row[: len(columns)] for row in _rows(loaded)])


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Settings file (YAML).")], output: OutputChoice = OutputFormat.TABLE
) -> None:
    """Check a settings file alone, without the environment; exit code 3 and all problems if it cannot be used.

    Example: icestream config check config/danube_broker_iceberg.yml
    """
    _, problems = examine(file)
    answer = Output(output)
    if not problems:
        answer.record({"file": str(file), "problems": Cell([], "none")})
        return
    if not answer.for_people:
        answer.record({"file": str(file), "problems": [_plain_problem(problem) for problem in problems]})
    raise refusal(problems)


@app.command("reference")
def show_reference(
    output: Annotated[
        ReferenceFormat, typer.Option("--output", help="How to print it.", callback=note_output)
    ] = ReferenceFormat.TABLE,
) -> None:
    """List every setting: what it does, its default, what is allowed, its environment variable.

    Example: icestream config reference --output markdown > docs/config.md
    """
    if output is ReferenceFormat.JSON:
        Output(OutputFormat.JSON).table(_REFERENCE_COLUMNS, map(_reference_row, KEYS.values()))
    else:
        typer.echo(reference.markdown() if output is ReferenceFormat.MARKDOWN else reference.text(), nl=False)


def _rows(loaded: Loaded) -> list[tuple[object, ...]]:
    return [
        (path, Cell(key.plain(value), key.show(value)), str(loaded.origins[path]))
        for path, key in KEYS.items()
        for value in [value_at(loaded.settings, path)]
    ]


def _reference_row(key: Key) -> tuple[object, ...]:
    default = key.default_words or key.plain(key.default)
    return key.path, default, key.allowed, key.env, key.online, key.description


def _plain_problem(problem: Problem) -> dict[str, str]:
    return {
        "key": problem.path,
        "value": problem.value,
        "origin": str(problem.origin),
        "problem": problem.message,
        "hint": problem.hint,
    }
