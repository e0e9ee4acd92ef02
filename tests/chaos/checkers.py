"""What must hold of everything that clients saw. Each function gives sentences about what does not."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.chaos.history import OK, Operation, OperationHistory, TtlWrite, WatchObservation

MS = 1_000_000
SHOWN_MAX = 10
EXPIRY_SLACK_MS = 3_000
Events = dict[str, bytes | None]


# --- watches ----------------------------------------------------------------------------------------------------------


def watch_violations(watchings: Iterable[WatchObservation]) -> tuple[list[str], dict[int, Events]]:
    """Every revision once, in order, none left out, the same for every watcher; and what each revision changed."""
    violations: list[str] = []
    ledger: dict[int, Events] = {}
    for watching in watchings:
        last = watching.after
        for revision, events in watching.events:
            if revision != last + 1:
                violations.append(f"watcher {watching.watcher} was told revision {revision} after {last}")
            last = revision
            content = dict(events)
            if ledger.setdefault(revision, content) != content:
                violations.append(f"revision {revision} was told as {content} and as {ledger[revision]}")
    return violations, ledger


# --- revisions --------------------------------------------------------------------------------------------------------


def revision_violations(operations: Iterable[Operation], ledger: dict[int, Events], keys: Any) -> list[str]:
    """Writes have revisions in the order of real time, and the watches saw them there; reads miss nothing answered."""
    done = sorted(
        (operation for operation in operations if operation.outcome == OK), key=lambda operation: operation.invoked
    )
    ends = sorted((operation.completed or 0, operation.revision) for operation in done if is_write(operation))
    reached, highest = [], 0
    for _, revision in ends:
        highest = max(highest, revision)
        reached.append(highest)
    times = [end for end, _ in ends]
    changes = _changes(ledger)
    violations = []
    owners: dict[int, Operation] = {}
    for operation in done:
        before = bisect_right(times, operation.invoked)
        known_revision = reached[before - 1] if before else 0
        if operation.kind == "get":
            violations += _read(
                operation, known_revision, changes.get(keys(operation.group, operation.arguments[0]), [])
            )
        elif is_write(operation):
            if operation.revision <= known_revision:
                violations.append(f"{operation} has a revision that was answered before it was asked")
            if (other := owners.setdefault(operation.revision, operation)) is not operation:
                violations.append(f"{operation} and {other} have one revision")
            if (observed := ledger.get(operation.revision)) is not None:
                violations += _event_violations(operation, observed, keys)
    return violations


def is_write(operation: Operation) -> bool:
    """True if the operation changed something and so has a revision of its own."""
    return operation.kind in ("put", "txn") or (operation.kind == "cas" and bool(operation.result))


def _event_violations(operation: Operation, observed: Events, keys: Any) -> list[str]:
    place, value = operation.arguments[0], operation.arguments[-1]
    if operation.kind == "txn":
        place, value = operation.arguments[2], operation.arguments[3 if operation.result else 4]
    key = keys(operation.group, place)
    return [] if observed.get(key) == value else [f"{operation} was sent to watchers as {observed}"]


def _changes(ledger: dict[int, Events]) -> dict[str, list[int]]:
    changes: dict[str, list[int]] = defaultdict(list)
    for revision in sorted(ledger):
        for key in ledger[revision]:
            changes[key].append(revision)
    return changes


def _read(operation: Operation, known_revision: int, changes: list[int]) -> list[str]:
    """A violation if the value read was replaced at a revision that was answered before the read began."""
    if not operation.revision:
        return []
    later = bisect_right(changes, operation.revision)
    if later < len(changes) and changes[later] <= known_revision:
        return [f"{operation} is older than revision {changes[later]}, which replaced it and was answered before"]
    return []


# --- ids --------------------------------------------------------------------------------------------------------------


def id_violations(ids: list[tuple[int, int, int, int]]) -> list[str]:
    """No id twice; a later request gets higher ids."""
    ranges = sorted((first, first + count) for _, _, first, count in ids)
    violations = [
        f"ids from {second[0]} on were given twice" for first, second in pairwise(ranges) if second[0] < first[1]
    ]
    ends = sorted((completed, first + count - 1) for _, completed, first, count in ids)
    times, reached, highest = [end for end, _ in ends], [], 0
    for _, last in ends:
        highest = max(highest, last)
        reached.append(highest)
    for invoked, _, first, _ in ids:
        before = bisect_right(times, invoked)
        if before and first <= reached[before - 1]:
            violations.append(f"id {first} was given after {reached[before - 1]}")
    return violations


# --- times to live ----------------------------------------------------------------------------------------------------


def ttl_violations(history: OperationHistory) -> list[str]:
    """No key is gone before its time; and after all is whole none outlives its time by much."""
    writes: dict[str, list[TtlWrite]] = defaultdict(list)
    for write in history.ttl_writes:
        writes[write.key].append(write)
    violations = []
    longest_ms = max((write.ttl_ms for write in history.ttl_writes), default=0)
    for read in history.ttl_reads:
        earlier = [
            write for write in writes[read.key] if write.completed is not None and write.completed < read.invoked
        ]
        alive = [write for write in earlier if read.completed < write.invoked + write.ttl_ms * MS]
        if alive and not read.is_present:
            violations.append(f"{read} found nothing, though {alive[-1]} lives")
        last = max((write.completed or 0 for write in writes[read.key]), default=0)
        since = max(last, history.healed)
        if history.healed and read.is_present and read.invoked > since + (longest_ms + EXPIRY_SLACK_MS) * MS:
            violations.append(f"{read} found a key that should be gone")
    return violations


# --- evidence of the nodes --------------------------------------------------------------------------------------------


def vote_violations(folders: Iterable[Path]) -> list[str]:
    """A node votes once in a term, and a start finds what was promised."""
    violations = []
    for folder in folders:
        granted: dict[int, int] = {}
        newest = (0, 0)
        for kind, term, vote in _lines(folder / "votes"):
            if kind == "granted":
                if granted.setdefault(term, vote) != vote:
                    violations.append(f"{folder.name} has voted twice in term {term}")
                newest = max(newest, (term, vote))
            elif term < newest[0] or (term == newest[0] and newest[0] and vote != newest[1]):
                violations.append(f"{folder.name} found term {term} and vote {vote:x} after it had promised {newest}")
    return violations


def hash_violations(folders: Iterable[Path]) -> tuple[list[str], int]:
    """Equal states at equal places; and how many places were compared between nodes."""
    violations, compared = [], 0
    digests: dict[int, dict[str, str]] = defaultdict(dict)
    for folder in folders:
        for index, digest in _lines(folder / "hashes"):
            digests[index][folder.name] = digest
    for index, those in digests.items():
        compared += len(those) > 1
        if len(set(those.values())) > 1:
            violations.append(f"at entry {index} the states differ: {those}")
    return violations, compared


def _lines(path: Path) -> list[Any]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
