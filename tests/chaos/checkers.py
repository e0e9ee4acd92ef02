"""What must hold of everything that clients saw. Each function gives sentences about what does not."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.chaos.history import OK, History, Operation, TtlWrite, Watching

MS = 1_000_000
SHOWN_MAX = 10
EXPIRY_SLACK_MS = 3_000
Events = dict[str, bytes | None]


# --- watches ----------------------------------------------------------------------------------------------------------


def watch_violations(watchings: Iterable[Watching]) -> tuple[list[str], dict[int, Events]]:
    """Every revision once, in order, none left out, the same for everybody; and what each revision changed."""
    found: list[str] = []
    ledger: dict[int, Events] = {}
    for watching in watchings:
        last = watching.after
        for revision, events in watching.told:
            if revision != last + 1:
                found.append(f"watcher {watching.watcher} was told revision {revision} after {last}")
            last = revision
            told = dict(events)
            if ledger.setdefault(revision, told) != told:
                found.append(f"revision {revision} was told as {told} and as {ledger[revision]}")
    return found, ledger


# --- revisions --------------------------------------------------------------------------------------------------------


def revision_violations(operations: Iterable[Operation], ledger: dict[int, Events], keys: Any) -> list[str]:
    """Writes have revisions in the order of real time, and the watches saw them there; reads miss nothing answered."""
    done = sorted((one for one in operations if one.outcome == OK), key=lambda one: one.invoked)
    ends = sorted((one.completed or 0, one.revision) for one in done if is_write(one))
    reached, highest = [], 0
    for _, revision in ends:
        highest = max(highest, revision)
        reached.append(highest)
    times = [end for end, _ in ends]
    changes = _changes(ledger)
    found = []
    owners: dict[int, Operation] = {}
    for one in done:
        before = bisect_right(times, one.invoked)
        known = reached[before - 1] if before else 0
        if one.kind == "get":
            found += _read(one, known, changes.get(keys(one.group, one.arguments[0]), []))
        elif is_write(one):
            if one.revision <= known:
                found.append(f"{one} has a revision that was answered before it was asked")
            if (other := owners.setdefault(one.revision, one)) is not one:
                found.append(f"{one} and {other} have one revision")
            if (told := ledger.get(one.revision)) is not None:
                found += _told(one, told, keys)
    return found


def is_write(one: Operation) -> bool:
    """It changed something: it has a revision of its own."""
    return one.kind in ("put", "txn") or (one.kind == "cas" and bool(one.result))


def _told(one: Operation, told: Events, keys: Any) -> list[str]:
    place, value = one.arguments[0], one.arguments[-1]
    if one.kind == "txn":
        place, value = one.arguments[2], one.arguments[3 if one.result else 4]
    key = keys(one.group, place)
    return [] if told.get(key) == value else [f"{one} was told to watches as {told}"]


def _changes(ledger: dict[int, Events]) -> dict[str, list[int]]:
    changes: dict[str, list[int]] = defaultdict(list)
    for revision in sorted(ledger):
        for key in ledger[revision]:
            changes[key].append(revision)
    return changes


def _read(one: Operation, known: int, changes: list[int]) -> list[str]:
    """What was read must not have been replaced at a revision that was answered before the read began."""
    if not one.revision:
        return []
    later = bisect_right(changes, one.revision)
    if later < len(changes) and changes[later] <= known:
        return [f"{one} is older than revision {changes[later]}, which replaced it and was answered before"]
    return []


# --- ids --------------------------------------------------------------------------------------------------------------


def id_violations(ids: list[tuple[int, int, int, int]]) -> list[str]:
    """No id twice; whoever asks later gets higher ones."""
    ranges = sorted((first, first + count) for _, _, first, count in ids)
    found = [f"ids from {second[0]} on were given twice" for first, second in pairwise(ranges) if second[0] < first[1]]
    ends = sorted((completed, first + count - 1) for _, completed, first, count in ids)
    times, reached, highest = [end for end, _ in ends], [], 0
    for _, last in ends:
        highest = max(highest, last)
        reached.append(highest)
    for invoked, _, first, _ in ids:
        before = bisect_right(times, invoked)
        if before and first <= reached[before - 1]:
            found.append(f"id {first} was given after {reached[before - 1]}")
    return found


# --- times to live ----------------------------------------------------------------------------------------------------


def ttl_violations(history: History) -> list[str]:
    """No key is gone before its time; and after all is whole none outlives its time by much."""
    writes: dict[str, list[TtlWrite]] = defaultdict(list)
    for write in history.ttl_writes:
        writes[write.key].append(write)
    found = []
    longest_ms = max((write.ttl_ms for write in history.ttl_writes), default=0)
    for read in history.ttl_reads:
        known = [one for one in writes[read.key] if one.completed is not None and one.completed < read.invoked]
        alive = [one for one in known if read.completed < one.invoked + one.ttl_ms * MS]
        if alive and not read.is_present:
            found.append(f"{read} found nothing, though {alive[-1]} lives")
        last = max((one.completed or 0 for one in writes[read.key]), default=0)
        since = max(last, history.healed)
        if history.healed and read.is_present and read.invoked > since + (longest_ms + EXPIRY_SLACK_MS) * MS:
            found.append(f"{read} found a key that should be gone")
    return found


# --- evidence of the nodes --------------------------------------------------------------------------------------------


def vote_violations(folders: Iterable[Path]) -> list[str]:
    """A node votes once in a term, and a start finds what was promised."""
    found = []
    for folder in folders:
        granted: dict[int, int] = {}
        newest = (0, 0)
        for kind, term, who in _lines(folder / "votes"):
            if kind == "granted":
                if granted.setdefault(term, who) != who:
                    found.append(f"{folder.name} has voted twice in term {term}")
                newest = max(newest, (term, who))
            elif term < newest[0] or (term == newest[0] and newest[0] and who != newest[1]):
                found.append(f"{folder.name} found term {term} and vote {who:x} after it had promised {newest}")
    return found


def hash_violations(folders: Iterable[Path]) -> tuple[list[str], int]:
    """Equal states at equal places; and how many places were compared between nodes."""
    found, compared = [], 0
    digests: dict[int, dict[str, str]] = defaultdict(dict)
    for folder in folders:
        for index, digest in _lines(folder / "hashes"):
            digests[index][folder.name] = digest
    for index, those in digests.items():
        compared += len(those) > 1
        if len(set(those.values())) > 1:
            found.append(f"at entry {index} the states differ: {those}")
    return found, compared


def _lines(path: Path) -> list[Any]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
