"""What an erasure is asked for, and what is known of it: between commands, broker and driver (docs/adr/0119).

Requests and progress are kept in the memory of the broker and of the driver, and nowhere else: a predicate names a
person. What is stored of an erasure is its record (catalog/topic_rules/erase_claim.py) and its report, which has a
keyed hash in place of the predicate.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

_REQUEST_KEY: Final = "/pipeline/erasure"


def request_key(lease_name: str) -> str:
    """The key that a driver watches: the id of the request of its broker, nothing of its content. `lease_name`: of the
    driver's lease; empty for a single node."""
    return f"{_REQUEST_KEY}/{lease_name}" if lease_name else _REQUEST_KEY


class ErasureMode(StrEnum):
    """What is done with the messages that are found."""

    DRY_RUN = "dry-run"  # counted
    ERASE = "erase"
    CHECK = "check"  # looked for everywhere, after an erasure


class HistoryChoice(StrEnum):
    """What becomes of older snapshots, tags and branches that have the messages."""

    REFUSE = ""  # as long as there are some, nothing is erased
    DROP = "drop"  # they are removed
    REWRITE = "rewrite"  # they stay, and name other files


class ErasureRequest(msgspec.Struct, frozen=True):
    """`ends`: per shard what was synced when the request came: every message below it is searched."""

    id: str
    topic_id: int
    topic: str
    where: str
    mode: ErasureMode
    history: HistoryChoice = HistoryChoice.REFUSE
    ends: dict[int, int] = {}


class ErasureFindings(msgspec.Struct):
    """What was searched, found and removed; the content of a report."""

    table: str = ""
    cut: dict[str, int] = {}  # per shard: everything below it was searched
    snapshot_id: int | None = None  # main after the erasure
    files_searched: int = 0
    files_rewritten: int = 0
    messages: int = 0  # that match, in the current table
    erased: int = 0  # rows that were removed from it
    deleted_before: int = 0  # rows that match and that an engine had deleted; their bytes go with their files
    newer: int = 0  # of a check: matching messages that were published after the erasure
    files_of_history: int = 0  # files of older snapshots with messages that match
    history: HistoryChoice = HistoryChoice.REFUSE
    snapshots: list[str] = []  # that have the messages: removed or rewritten, or to be
    swept: int = 0  # snapshots that lost entries of removed files, and no row
    references: list[str] = []  # tags and branches, likewise
    retained: int = 0  # retained messages of MQTT that were dropped
    left: list[str] = []  # of a check: places that still have something
    pending: list[str] = []  # removed, but not gone yet, and when it will be
    must_do: list[str] = []  # what remains to be done elsewhere, by hand


class ErasureProgress(msgspec.Struct):
    """How far an erasure is. `error`: it ended without being finished."""

    id: str
    phase: str = "waiting"
    done: int = 0
    all: int = 0
    is_done: bool = False
    error: str = ""
    hint: str = ""
    findings: ErasureFindings = msgspec.field(default_factory=ErasureFindings)


class LogFiles(msgspec.Struct, frozen=True):
    """What the log still has of a topic below a cut, after its files were retired."""

    left: list[str] = []  # in words
