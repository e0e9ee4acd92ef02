"""`icestream lake erase`: removes the messages of a person from a topic, and proves it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from icestream import errors
from icestream.admin_api.erasure_api import BEGIN_ERASURE, ERASURE_STATE
from icestream.cli.arguments import TopicName
from icestream.cli.broker_connection import BrokerCalls, call_broker
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.confirmation import Yes, confirm
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat, print_note
from icestream.cli.progress_bar import note_without_bar, progress_bar
from icestream.observability.words import counted

_PLACES: Final = frozenset(("shard", "offset", "append_time"))  # where a message is, and since when
EXIT_LEFT: Final = 14  # of a check: something is left, as `verify --deep` ends when something was not checked
_POLL_SECONDS: Final = 0.2
_LABELS: Final = {"dry-run": "Searching", "erase": "Erasing", "check": "Checking"}
_PHASES: Final = {  # what the phases of an erasure (pipeline/erasure/erasure_job.py) wait for
    "waiting": "waiting until the pipeline takes the request",
    "commit": "waiting until everything published so far is in the table",
    "search": "reading data files",
    "erase": "writing the data files that have the messages again",
    "rewrite": "writing data files of older snapshots again",
    "history": "removing or rewriting older snapshots that have the messages",
    "log": "retiring the log files that have the messages",
}
_DRIVER_SECONDS: Final = 120.0  # a pipeline that is busy with a round takes the request after it


class History(Enum):
    """What becomes of older snapshots, tags and branches that have the messages."""

    DROP = "drop"
    REWRITE = "rewrite"


def erase(
    topic: TopicName,
    where: Annotated[
        str, typer.Option("--where", metavar="PREDICATE", help="Which messages, such as: key = 'alice'.")
    ] = "",
    history: Annotated[
        History | None,
        typer.Option(
            "--history",
            help="Of older snapshots and tags that have the messages: drop them, or rewrite them without the messages.",
        ),
    ] = None,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="The same for the topics of dead letters of its subscriptions.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the messages and what has them.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Search the table's files, and list what is left.")] = False,
    verify: Annotated[
        Path | None, typer.Option("--verify", metavar="FILE", help="Only check the signature of a report.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write the signed report to this file.")
    ] = None,
    wait: Annotated[int, typer.Option("--wait", metavar="SECONDS", help="How long to wait for the end.", min=1)] = 3600,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Erase messages from a topic for good: from its table, its history, its log and its caches.

    Counts them first, and asks. `docs/table-care.md` says what is covered, and what is not.

    Example: icestream lake erase /default/orders --where "key = 'alice'" --dry-run
    Example: icestream lake erase /default/orders --where "key = 'alice'" --history drop --yes
    Example: icestream lake erase /default/orders --where "key = 'alice'" --history rewrite
    Example: icestream lake erase /default/orders --where "key = 'alice'" --check
    """
    from icestream.model.erasure_predicate import fields_of, parse_predicate

    target, answer = Target(broker, config, sets), Output(output)
    if verify is not None:
        _verify(target, topic, verify, answer)
        return
    if not where:
        raise errors.InvalidInput("no predicate", hint="--where \"key = 'alice'\"")
    if dry_run and check:
        raise errors.InvalidInput("--dry-run and --check exclude each other", hint="give one of them")
    # Before the broker is asked: so that an error names its position.
    compared = {field.column for field in fields_of(parse_predicate(where))}
    if dead_letters and (places := sorted(compared & _PLACES)):
        raise errors.InvalidInput(
            f"{places[0]} of a dead letter is another one than that of the message",
            hint="compare keys, headers or other columns with --dead-letters",
        )
    mode = "dry-run" if dry_run else "check" if check else "erase"

    def erase_topic(name: str) -> dict[str, Any]:
        return _erase_topic(target, name, where, mode, wait, history, answer, is_confirmed=yes)

    document = erase_topic(topic)
    documents = [document]
    if dead_letters:
        letters = [_of_dead_letters(name, erase_topic) for name in document["report"]["dead_letter_topics"]]
        documents += [entry for entry in letters if entry is not None]
        document = {**document, "dead_letters": documents[1:]}
    if report is not None:
        report.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        if answer.is_text:
            print_note(f"Signed report: {report}")
    if not answer.is_text:
        answer.document(document)
    if any(entry["report"]["left"] for entry in documents):
        raise typer.Exit(EXIT_LEFT)


def _of_dead_letters(name: str, erase_topic: Callable[[str], dict[str, Any]]) -> dict[str, Any] | None:
    """The report about a topic of dead letters; None if it has no letters yet."""
    try:
        return erase_topic(name)
    except errors.UnknownTopic:
        return None
    except errors.TopicTableConflict as error:
        if f"{name} has no table" not in error.message:
            raise
        return None


def _erase_topic(
    target: Target,
    topic: str,
    where: str,
    mode: str,
    wait: int,
    history: History | None,
    answer: Output,
    *,
    is_confirmed: bool,
) -> dict[str, Any]:
    """Does one topic, and shows what was found. An erasure counts first, and asks."""
    if mode == "erase":
        preview = _run(target, topic, where, "dry-run", wait, history)["report"]
        if answer.is_text:
            _show(preview)
        if preview["snapshots"] and history is None:
            raise errors.InvalidInput(
                f"the messages are in {counted(len(preview['snapshots']), 'older snapshot')} of the table, too",
                hint="--history drop removes these snapshots, and their tags and branches; --history rewrite keeps "
                "them, without the messages. Nothing was changed",
            )
        confirm(
            f"Erase {counted(preview['messages'], 'message')} of {topic} for good?",
            is_confirmed=is_confirmed,
            unchanged="nothing was erased",
        )
    document = _run(target, topic, where, mode, wait, history)
    if answer.is_text:
        _show(document["report"])
    return document


def _run(target: Target, topic: str, where: str, mode: str, wait: int, history: History | None) -> dict[str, Any]:
    """Runs one step to its end, and returns its signed report."""
    return call_broker(target, lambda calls: _follow(calls, topic, where, mode, wait, history))


async def _follow(
    calls: BrokerCalls, topic: str, where: str, mode: str, wait: int, history: History | None
) -> dict[str, Any]:
    """Begins and follows one step. Raises NotReady after `wait` seconds, and what ended the step."""
    label, phase = f"{_LABELS[mode]} {topic}", "waiting"
    note_without_bar(f"{label}: {_PHASES[phase]}")
    begun = await calls.call(
        BEGIN_ERASURE, topic=topic, where=where, mode=mode, history=history.value if history else ""
    )
    start = time.monotonic()
    deadline = start + wait
    permille = 0
    with progress_bar(_LABELS[mode], 1_000) as advance:
        while True:
            state = await calls.call(ERASURE_STATE, topic=topic, id=begun["id"])
            if state["is_done"]:
                if state["error"]:
                    raise errors.TopicTableConflict(state["error"], hint=state["hint"])
                document: dict[str, Any] = state["report"]
                return document
            if state["phase"] != phase:
                phase = state["phase"]
                note_without_bar(f"{label}: {_PHASES.get(phase, phase)}")
            now = max(permille, 1_000 * state["done"] // max(1, state["all"]))
            advance(now - permille)
            permille = now
            if state["phase"] == "waiting" and time.monotonic() >= start + _DRIVER_SECONDS:
                raise errors.NotReady(
                    f"the pipeline has not begun within {_DRIVER_SECONDS:.0f} s",
                    hint="`icestream pipeline status` says whether it runs; it begins when it does",
                )
            if time.monotonic() >= deadline:
                raise errors.NotReady(
                    f"not finished within {wait} s: {state['phase']}, "
                    f"{state['done']} of {counted(state['all'], 'file')}",
                    hint="it goes on; the same command, given later, goes on where it ended",
                )
            await asyncio.sleep(_POLL_SECONDS)


def _show(report: dict[str, Any]) -> None:
    """The findings of a report, for people."""
    kind = report["kind"]
    if kind == "check":
        print_note(f"Searched {counted(report['files_searched'], 'data file')}, old metadata and the log.")
        for place in report["left"]:
            print_note(f"Left: {place}")
        if report["newer"]:
            print_note(f"{counted(report['newer'], 'message')} matching the predicate came after the erasure.")
        if not report["left"]:
            print_note("Nothing is left.")
        return
    if kind == "dry run":
        print_note(f"{counted(report['messages'], 'message')} of {report['topic']} in {report['table']}.")
        if report["deleted_before"]:
            print_note(f"{counted(report['deleted_before'], 'row')} that engines deleted before still in files.")
        if report["snapshots"]:
            tags = f", tags and branches {', '.join(report['references'])}" if report["references"] else ""
            print_note(f"Also in {counted(len(report['snapshots']), 'older snapshot')}{tags}.")
        return
    print_note(
        f"Erased {counted(report['erased'], 'message')}; "
        f"wrote {counted(report['files_rewritten'], 'data file')} again, "
        f"{'rewrote' if report['history'] == 'rewrite' else 'removed'} "
        f"{counted(len(report['snapshots']), 'snapshot')}."
    )
    for text in report["pending"]:
        print_note(f"Pending: {text}")
    for text in report["must_do"]:
        print_note(f"To be done: {text}")
    for name in report["dead_letter_topics"]:
        print_note(f"May have copies: the dead letters in {name} (--dead-letters erases them, too)")
    for text in report["not_covered"]:
        print_note(f"Not covered: {text}")


def _verify(target: Target, topic: str, file: Path, answer: Output) -> None:
    """Checks the signature of a report, and whether this node has signed it."""
    from icestream.broker.erasure_service import is_signed

    try:
        document = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise errors.InvalidInput(f"{file} is not a report: {error}", hint="--report FILE writes one") from None
    if not isinstance(document, dict) or not is_signed(document):
        raise errors.InvalidInput(f"{file}: the signature is wrong", hint="the report was changed, or is cut off")
    state = call_broker(target, lambda calls: calls.call(ERASURE_STATE, topic=topic, id=""))
    is_ours = state["public_key"] == document["public_key"]
    if not answer.is_text:
        answer.record({"is_valid": True, "is_of_this_node": is_ours, "public_key": document["public_key"]})
        return
    print_note(f"The signature is valid, by {'this node' if is_ours else 'another node'}: {document['public_key']}")
