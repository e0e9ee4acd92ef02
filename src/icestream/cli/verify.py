"""`icestream verify`: whether the tables of topics hold every committed message once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from icestream import errors
from icestream.cli import completion
from icestream.cli.connection import SocketOption, Target
from icestream.cli.lake_http import LakeApi, error_of
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat, say_aside
from icestream.cli.progress import progress
from icestream.observability.words import counted

SHOWN_MAX = 1_000  # of one table, at a terminal
UNLOOKED: Final = 14  # the exit code of --deep where nothing is wrong, but something was not looked at
Report = dict[str, Any]
_LINE = ("topic", "check", "weight", "shard", "start", "end", "text")


def verify(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="Such as /default/orders; else all with a table.", autocompletion=completion.topics
        ),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read the offsets of all rows, not only manifests.")] = False,
    socket: SocketOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Check that tables hold every committed message once; name every absence that is known.

    Exit code 1: something is wrong. 14, with --deep: nothing is wrong, but something could not be looked at.

    Example: icestream verify
    Example: icestream verify /default/orders --deep
    """
    from icestream.cli.table_catalog import catalog_settings

    api = LakeApi(catalog_settings(Target(None, socket, config, sets)), "verify", needs_own=False)
    wanted = [topic] if topic is not None else _topics(api)
    answer = Output(output)
    reports = [_verified(api, one, deep, keep_all=not answer.for_people) for one in wanted]
    _show(reports, answer)
    if code := exit_code(reports, deep):
        raise typer.Exit(code)


def exit_code(reports: Sequence[Report], deep: bool) -> int:
    """Without --deep nobody expects that all was looked at."""
    if not all(one["is_good"] for one in reports):
        return 1
    return UNLOOKED if deep and not all(one["is_complete"] for one in reports) else 0


def last_words(reports: Sequence[Report]) -> str:
    wrong = sum(not one["is_good"] for one in reports)
    unlooked = [one for one in reports if not one["is_complete"]]
    words = [f"{wrong} with something wrong"] if wrong else []
    if unlooked:
        deeper = "" if all(one["is_deep"] for one in unlooked) else ", --deep looks at more"
        words += ["nothing wrong was found"] if not wrong else []
        words += [f"{len(unlooked)} not looked at in full (`bounds-only` says why{deeper})"]
    return f"{counted(len(reports), 'table')}: {', '.join(words) or 'nothing is missing, nothing is twice'}"


def _verified(api: LakeApi, topic: str, deep: bool, keep_all: bool) -> Report:
    """The report of one topic, with its findings; for people not more than anybody reads."""
    findings: list[dict[str, Any]] = []
    told = api.lines("verify/lines", topic=topic, deep="true" if deep else "false")
    with progress(topic, 1_000) as advance:
        permille = 0
        for line in told:
            if "problem" in line:
                raise error_of(line["problem"])
            if "report" in line:
                return {**line["report"], "findings": findings}
            if "finding" in line and (keep_all or len(findings) < SHOWN_MAX):
                findings.append(line["finding"])
            if "progress" in line:
                now = max(permille, 1_000 * line["progress"]["done"] // max(line["progress"]["all"], 1))
                advance(now - permille)
                permille = now
    raise errors.ConnectionLost("the answer ended too early", hint="the lake process went away: ask again")


def _topics(api: LakeApi) -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        page = api.get("bound", after=after)
        found += [one["topic"] for one in page["items"]]
        if page["next"] is None:
            return sorted(found)
        after = page["next"]


def _show(reports: Sequence[Report], answer: Output) -> None:
    if not answer.for_people:
        for one in reports:
            answer.record(one)
        return
    rows = [[one["topic"], *(found[name] for name in _LINE[1:])] for one in reports for found in one["findings"]]
    if rows:
        answer.table(_LINE, rows)
    left = sum(one["finding_count"] - len(one["findings"]) for one in reports)
    if left:
        say_aside(f"… and {left} more: --output json names them all")
    say_aside(last_words(reports))
