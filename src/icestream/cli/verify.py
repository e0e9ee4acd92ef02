"""`icestream verify`: whether the tables of topics hold every committed message once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from icestream.cli import completion
from icestream.cli.lake_http import LakeApi
from icestream.cli.options import ConfigFile, OutputChoice, Sets, load_settings
from icestream.cli.output import Output, OutputFormat, say_aside
from icestream.cli.progress import progress
from icestream.observability.words import counted

_LINE = ("topic", "check", "weight", "shard", "start", "end", "text")


def verify(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="Such as /default/orders; else all with a table.", autocompletion=completion.topics
        ),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read the offsets of all rows, not only manifests.")] = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Check that tables hold every committed message once; name every absence that is known.

    Example: icestream verify
    Example: icestream verify /default/orders --deep
    """
    api = LakeApi(load_settings(config, sets).settings, "verify", needs_own=False)
    wanted = [topic] if topic is not None else _topics(api)
    reports: list[dict[str, Any]] = []
    with progress("tables", len(wanted)) as advance:
        for one in wanted:
            reports.append(api.get("verify", topic=one, deep="true" if deep else "false"))
            advance(1)
    _show(reports, Output(output))
    if not all(one["is_good"] for one in reports):
        raise typer.Exit(1)


def _topics(api: LakeApi) -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        page = api.get("bound", after=after)
        found += [one["topic"] for one in page["items"]]
        if page["next"] is None:
            return sorted(found)
        after = page["next"]


def _show(reports: list[dict[str, Any]], answer: Output) -> None:
    if not answer.for_people:
        for one in reports:
            answer.record(one)
        return
    rows = [[one["topic"], *(found[name] for name in _LINE[1:])] for one in reports for found in one["findings"]]
    if rows:
        answer.table(_LINE, rows)
    wrong = sum(not one["is_good"] for one in reports)
    words = counted(len(reports), "table")
    say_aside(f"{words}: {wrong} with something wrong" if wrong else f"{words}: nothing is missing, nothing is twice")
