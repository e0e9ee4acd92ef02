"""What clients asked and were told, and when, by one clock. The checkers know nothing else of a run.

An operation on registers belongs to a group of keys and is a function of the group's values:
    get i   put i value   delete i   cas i expected value   txn i expected j value otherwise
where i and j are places in the group, and None is the value of an absent key. A txn puts `value` to j when i has
`expected`, else `otherwise`.

    ok        the result came
    unknown   it may have been carried out, or will be, or never
    refused   the node says that it was not carried out
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OK, UNKNOWN, REFUSED = "ok", "unknown", "refused"


@dataclass
class Operation:
    client: int
    kind: str
    group: int
    arguments: tuple[Any, ...]
    invoked: int  # ns
    completed: int | None = None
    outcome: str = UNKNOWN
    result: Any = None
    revision: int = 0  # of a write that was carried out, or of the value that was read


@dataclass
class TtlWrite:
    key: str
    ttl_ms: int
    invoked: int
    completed: int | None = None  # None: unknown


@dataclass
class TtlRead:
    key: str
    invoked: int
    completed: int
    is_present: bool


@dataclass
class WatchObservation:
    """The events of one watch after revision `after`, without a resync between them."""

    watcher: int
    after: int
    events: list[tuple[int, list[tuple[str, bytes | None]]]] = field(default_factory=list)


@dataclass
class OperationHistory:
    operations: list[Operation] = field(default_factory=list)
    ids: list[tuple[int, int, int, int]] = field(default_factory=list)  # invoked, completed, first, count
    ttl_writes: list[TtlWrite] = field(default_factory=list)
    ttl_reads: list[TtlRead] = field(default_factory=list)
    watchings: list[WatchObservation] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    healed: int = 0  # since then nothing was broken
    terms: set[int] = field(default_factory=set)
    installs: int = 0
    renewals: int = 0  # of leases

    @property
    def acked(self) -> int:
        return sum(operation.outcome == OK for operation in self.operations) + len(self.ids) + len(self.ttl_reads)

    def save(self, path: Path) -> None:
        with path.open("w") as file:
            for name in ("operations", "ttl_writes", "ttl_reads", "watchings"):
                for record in getattr(self, name):
                    file.write(json.dumps({name: asdict(record)}, default=repr) + "\n")
            file.write(json.dumps({"ids": self.ids, "faults": self.faults}) + "\n")
