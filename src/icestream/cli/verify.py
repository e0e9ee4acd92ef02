"""`icestream verify`: checks that the tables of topics contain every committed message exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from icestream import errors
from icestream.admin_api.table_api import VerifyFinding
from icestream.cli.arguments import OptionalTopicName
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.lake_http import LakeApi, problem_error
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat, columns_of, print_note
from icestream.cli.progress_bar import progress_bar
from icestream.observability.words import counted

SHOWN_MAX = 1_000  # lines of one table in text output
EXIT_INCOMPLETE: Final = 14  # with --deep: no error found, but something could not be checked
Report = dict[str, Any]
# Weights of findings as the API names them, and the severities that the text output shows instead.
_WRONG, _KNOWN = "wrong", "known"
_SEVERITIES: Final = {_WRONG: "error", _KNOWN: "info", "bounds-only": "info"}
_COLUMNS = columns_of(
    VerifyFinding, "topic", "check", "severity", "shard", "start", "end", "text", computed=("topic", "severity")
)


def verify(
    topic: OptionalTopicName = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Decode every column of every row, not only the manifests.")
    ] = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Check that tables contain every committed message exactly once; list every known absence.

    Exit code 1: an error was found. 14, with --deep: no error found, but something could not be checked.

    Example: icestream verify
    Example: icestream verify /default/orders --deep
    """
    from icestream.cli.catalog_access import catalog_settings

    api = LakeApi(catalog_settings(Target(broker, config, sets), needs_node=True), "verify", needs_embedded=False)
    answer = Output(output)
    keep_all = not answer.is_text
    if topic is not None:
        reports = [_verify_topic(api, topic, deep, keep_all)]
    else:
        reports = [
            _verify_bound(api, entry, deep, keep_all) for entry in sorted(_list_all(api, "bound"), key=_by_topic)
        ]
        reports += [_detached_report(entry, deep) for entry in sorted(_list_all(api, "parted"), key=_by_topic)]
    _show(reports, answer, is_single=topic is not None)
    if code := exit_code(reports, deep):
        raise typer.Exit(code)


def exit_code(reports: Sequence[Report], deep: bool) -> int:
    """The exit code of the command. Without --deep an incomplete check is expected and does not count."""
    if not all(report["is_good"] for report in reports):
        return 1
    return EXIT_INCOMPLETE if deep and not all(report["is_complete"] for report in reports) else 0


def summary_line(reports: Sequence[Report]) -> str:
    """One line about all reports, such as `3 tables: no messages missing or duplicated`."""
    tables = [report for report in reports if not report["is_parted"]]
    faulty = sum(not report["is_good"] for report in tables)
    incomplete = [report for report in tables if report["is_good"] and not report["is_complete"]]
    absent = sum(report["absent_offsets"] for report in tables)
    parts = [f"{faulty} with errors"] if faulty else []
    if tables and not faulty:
        parts = ["no errors found" if incomplete else _complete_text(absent)]
    if absent and (faulty or incomplete):
        parts += [f"{counted(absent, 'offset')} absent for the reasons above"]
    if incomplete:
        advice = "" if all(report["is_deep"] for report in incomplete) else "; --deep checks more"
        parts += [f"{len(incomplete)} not fully checked (see the findings with severity info{advice})"]
    if detached := len(reports) - len(tables):
        parts += [f"{counted(detached, 'topic')} without a table"]
    return f"{counted(len(tables), 'table')}: {', '.join(parts) or 'no topic that you may see has a table yet'}"


def _complete_text(absent: int) -> str:
    if not absent:
        return "no messages missing or duplicated"
    return f"{counted(absent, 'offset')} absent for the reasons above, no other messages missing or duplicated"


def _verify_bound(api: LakeApi, entry: dict[str, Any], deep: bool, keep_all: bool) -> Report:
    """The report of one of several topics. A table that cannot be checked gets an error, and the others are checked."""
    if entry["problem"] is not None:
        return _single_finding_report(entry["topic"], None, deep, _WRONG, entry["problem"])
    try:
        return _verify_topic(api, entry["topic"], deep, keep_all)
    except errors.IcestreamError as error:
        text = f"{error.message}; {error.hint}".rstrip("; ")
        return _single_finding_report(entry["topic"], None, deep, _WRONG, text)


def _detached_report(entry: dict[str, Any], deep: bool) -> Report:
    """The report of a topic whose table was detached. That is no error, but its committed rows were not checked."""
    if entry["problem"] is not None:
        return _single_finding_report(entry["topic"], None, deep, _WRONG, entry["problem"])
    offsets = counted(sum(entry["committed"].values()), "offset")
    text = (
        f"table {entry['table']} was detached; {offsets} committed to it not checked; "
        "bind a table with `icestream lake adopt` or `icestream lake recreate`"
    )
    return _single_finding_report(entry["topic"], entry["table"], deep, _KNOWN, text) | {"is_parted": True}


def _single_finding_report(topic: str, table: str | None, deep: bool, weight: str, text: str) -> Report:
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


def _verify_topic(api: LakeApi, topic: str, deep: bool, keep_all: bool) -> Report:
    """The report of one topic with its findings; unless `keep_all` they are merged, and at most SHOWN_MAX.

    Raises the error that the lake process reports, and ConnectionLost if the response ends early.
    """
    findings: list[dict[str, Any]] = []
    absent = listed = 0
    lines = api.lines("verify/lines", topic=topic, deep="true" if deep else "false")
    with progress_bar(topic, 1_000) as advance:
        permille = 0
        for line in lines:
            if "problem" in line:
                raise problem_error(line["problem"])
            if "report" in line:
                report = {**line["report"], "is_parted": False, "absent_offsets": absent, "findings": findings}
                return report if keep_all else report | {"omitted_findings": report["finding_count"] - listed}
            if "finding" in line:
                absent += _absent_offsets(line["finding"])
                if keep_all:
                    findings.append(line["finding"])
                else:
                    listed += add_merged(findings, line["finding"])
            if "progress" in line:
                now = max(permille, 1_000 * line["progress"]["done"] // max(line["progress"]["all"], 1))
                advance(now - permille)
                permille = now
    raise errors.ConnectionLost("incomplete response from the lake process", hint="the lake process stopped: retry")


def add_merged(findings: list[dict[str, Any]], finding: dict[str, Any]) -> bool:
    """Adds a finding to those of the text output; False if there are too many.

    Absences of one shard that follow each other with one reason are one line: an erasure of every second message would
    be a line for each. The merged finding has the number of its `ranges`, and of their `offsets`.
    """
    added = finding | {"ranges": 1, "offsets": _absent_offsets(finding)}
    last = findings[-1] if findings else None
    if last and added["offsets"] and all(last[name] == added[name] for name in ("check", "weight", "text", "shard")):
        last["end"] = added["end"]
        last["ranges"] += 1
        last["offsets"] += added["offsets"]
        return True
    if len(findings) >= SHOWN_MAX:
        return False
    findings.append(added)
    return True


def _absent_offsets(finding: dict[str, Any]) -> int:
    """The number of offsets below the committed offset without a row, whose absence is explained."""
    is_absence = finding["check"] == "dense" and finding["weight"] == _KNOWN
    return int(finding["end"] - finding["start"]) if is_absence else 0


def _list_all(api: LakeApi, listing: str) -> list[dict[str, Any]]:
    """The items of all pages of a listing."""
    items: list[dict[str, Any]] = []
    after = ""
    while True:
        page = api.get(listing, after=after)
        items += page["items"]
        if page["next"] is None:
            return items
        after = page["next"]


def _by_topic(entry: dict[str, Any]) -> str:
    return str(entry["topic"])


def _show(reports: Sequence[Report], answer: Output, *, is_single: bool) -> None:
    """Prints the findings and a summary; as JSON the report of the single topic, or a list of reports."""
    if not answer.is_text:
        answer.document(reports[0] if is_single else list(reports))
        return
    rows = [_finding_row(report["topic"], finding) for report in reports for finding in report["findings"]]
    if rows:
        answer.table(_COLUMNS, rows, drop=("check", "severity", "end"), keep=("text",))
    omitted = sum(report.get("omitted_findings", 0) for report in reports)
    if omitted:
        print_note(f"… and {omitted} more; --output json lists all")
    print_note(summary_line(reports))


def _finding_row(topic: str, finding: dict[str, Any]) -> list[object]:
    severity = _SEVERITIES.get(finding["weight"], finding["weight"])
    row = finding
    if finding.get("ranges", 1) > 1:
        numbers = f"{counted(finding['offsets'], 'offset')} in {counted(finding['ranges'], 'range')}"
        row = finding | {"text": f"{finding['text']} ({numbers})"}
    return [topic, finding["check"], severity, *(row[name] for name in _COLUMNS[3:])]
