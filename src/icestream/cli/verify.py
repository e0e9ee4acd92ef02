"""`icestream verify`: whether the tables of topics hold every committed message once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from icestream import errors
from icestream.cli.arguments import OptionalTopicName
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.lake_http import LakeApi, error_of
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat, say_aside
from icestream.cli.progress import progress
from icestream.observability.words import counted

SHOWN_MAX = 1_000  # of one table, at a terminal
UNLOOKED: Final = 14  # the exit code of --deep where nothing is wrong, but something was not looked at
Report = dict[str, Any]
_WRONG, _KNOWN = "wrong", "known"
_LINE = ("topic", "check", "weight", "shard", "start", "end", "text")


def verify(
    topic: OptionalTopicName = None,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every column of every row, not only manifests.")] = False,
    broker: BrokerOption = None,
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

    api = LakeApi(catalog_settings(Target(broker, config, sets), needs_node=True), "verify", needs_own=False)
    answer = Output(output)
    keep_all = not answer.for_people
    if topic is not None:
        reports = [_verified(api, topic, deep, keep_all)]
    else:
        reports = [_reported(api, one, deep, keep_all) for one in sorted(_listed(api, "bound"), key=_by_topic)]
        reports += [_parted(one, deep) for one in sorted(_listed(api, "parted"), key=_by_topic)]
    _show(reports, answer, is_one=topic is not None)
    if code := exit_code(reports, deep):
        raise typer.Exit(code)


def exit_code(reports: Sequence[Report], deep: bool) -> int:
    """Without --deep nobody expects that all was looked at."""
    if not all(one["is_good"] for one in reports):
        return 1
    return UNLOOKED if deep and not all(one["is_complete"] for one in reports) else 0


def last_words(reports: Sequence[Report]) -> str:
    tables = [one for one in reports if not one["is_parted"]]
    wrong = sum(not one["is_good"] for one in tables)
    unlooked = [one for one in tables if one["is_good"] and not one["is_complete"]]
    absent = sum(one["absent_offsets"] for one in tables)
    words = [f"{wrong} with something wrong"] if wrong else []
    if tables and not wrong:
        words = ["nothing wrong was found" if unlooked else _all_there(absent)]
    if absent and (wrong or unlooked):
        words += [f"{counted(absent, 'offset')} absent for reasons named above"]
    if unlooked:
        deeper = "" if all(one["is_deep"] for one in unlooked) else ", --deep looks at more"
        words += [f"{len(unlooked)} not looked at in full (`bounds-only` says why{deeper})"]
    if parted := len(reports) - len(tables):
        words += [f"{counted(parted, 'topic')} without a table any more"]
    return f"{counted(len(tables), 'table')}: {', '.join(words) or 'no topic has one yet'}"


def _all_there(absent: int) -> str:
    if not absent:
        return "nothing is missing, nothing is twice"
    return f"{counted(absent, 'offset')} absent for reasons named above, nothing else is missing, nothing is twice"


def _reported(api: LakeApi, bound: dict[str, Any], deep: bool, keep_all: bool) -> Report:
    """Of one among others: what keeps us from looking at it is wrong with it, and does not end the rest."""
    if bound["problem"] is not None:
        return _of_one_finding(bound["topic"], None, deep, _WRONG, bound["problem"])
    try:
        return _verified(api, bound["topic"], deep, keep_all)
    except errors.IcestreamError as error:
        return _of_one_finding(bound["topic"], None, deep, _WRONG, f"{error.message}; {error.hint}".rstrip("; "))


def _parted(parted: dict[str, Any], deep: bool) -> Report:
    """Whoever took it away said so: it is no fault. But nobody looked at what was committed there."""
    if parted["problem"] is not None:
        return _of_one_finding(parted["topic"], None, deep, _WRONG, parted["problem"])
    messages = counted(sum(parted["committed"].values()), "offset")
    text = (
        f"had the table {parted['table']} and has none: {messages} were committed there, and were not looked at; "
        "`icestream lake adopt` or `recreate` gives it one again"
    )
    return _of_one_finding(parted["topic"], parted["table"], deep, _KNOWN, text) | {"is_parted": True}


def _of_one_finding(topic: str, table: str | None, deep: bool, weight: str, text: str) -> Report:
    finding = {"check": "table", "weight": weight, "text": text, "shard": None, "start": 0, "end": 0}
    return {
        "topic": topic,
        "table": table,
        "snapshot_id": None,
        "is_deep": deep,
        "files": 0,
        "is_good": weight != _WRONG,
        "is_complete": False,
        "is_parted": False,
        "absent_offsets": 0,
        "finding_count": 1,
        "findings": [finding],
    }


def _verified(api: LakeApi, topic: str, deep: bool, keep_all: bool) -> Report:
    """The report of one topic, with its findings; for people not more than anybody reads."""
    findings: list[dict[str, Any]] = []
    absent = 0
    told = api.lines("verify/lines", topic=topic, deep="true" if deep else "false")
    with progress(topic, 1_000) as advance:
        permille = 0
        for line in told:
            if "problem" in line:
                raise error_of(line["problem"])
            if "report" in line:
                return {**line["report"], "is_parted": False, "absent_offsets": absent, "findings": findings}
            if "finding" in line:
                absent += _absent_offsets(line["finding"])
                if keep_all or len(findings) < SHOWN_MAX:
                    findings.append(line["finding"])
            if "progress" in line:
                now = max(permille, 1_000 * line["progress"]["done"] // max(line["progress"]["all"], 1))
                advance(now - permille)
                permille = now
    raise errors.ConnectionLost("the answer ended too early", hint="the lake process went away: ask again")


def _absent_offsets(finding: dict[str, Any]) -> int:
    """Offsets below committed that are no rows, and whose absence is explained."""
    is_absence = finding["check"] == "dense" and finding["weight"] == _KNOWN
    return int(finding["end"] - finding["start"]) if is_absence else 0


def _listed(api: LakeApi, listing: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = api.get(listing, after=after)
        found += page["items"]
        if page["next"] is None:
            return found
        after = page["next"]


def _by_topic(one: dict[str, Any]) -> str:
    return str(one["topic"])


def _show(reports: Sequence[Report], answer: Output, *, is_one: bool) -> None:
    """For programs one document: the report of a topic that was named, else a list of reports."""
    if not answer.for_people:
        answer.document(reports[0] if is_one else list(reports))
        return
    rows = [[one["topic"], *(found[name] for name in _LINE[1:])] for one in reports for found in one["findings"]]
    if rows:
        answer.table(_LINE, rows, drop=("check", "weight", "end"), keep=("text",))
    left = sum(one["finding_count"] - len(one["findings"]) for one in reports)
    if left:
        say_aside(f"… and {left} more: --output json names them all")
    say_aside(last_words(reports))
