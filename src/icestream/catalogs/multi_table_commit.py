"""A commit to several tables in one request, until the outcome of each is known (hazard 47).

The answer has no body, so after an ambiguous one every table is read before anything else happens. The catalog takes
all of them or none; but each table is judged by what it says itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from icestream import errors
from icestream.catalogs.commit_recognition import CommitPresence, commit_presence, is_safe_to_resend
from icestream.catalogs.storage_caller import StorageCaller
from icestream.catalogs.table_catalog import (
    CommitDone,
    CommitOutcome,
    CommitRefused,
    CommitUnknown,
    LoadedTable,
    TableChange,
)
from icestream.iceberg.identifier import Identifier

Outcomes = dict[Identifier, CommitOutcome]


class MultiTableCommit:
    def __init__(
        self,
        caller: StorageCaller,
        changes: Mapping[Identifier, TableChange],
        send: Callable[[], Awaitable[Any]],
        load: Callable[[Identifier], Awaitable[LoadedTable]],
    ) -> None:
        self._caller = caller
        self._changes = changes
        self._send = send
        self._load = load
        self._what = f"commit to {len(changes)} tables"
        self._deadline_ns = caller.deadline_ns()
        self._may_come = False
        self._is_read = False  # since it was sent last

    async def settle(self) -> Outcomes:
        number = 0
        found = await self._sent()
        while True:
            found = found if found is not None else await self._judged()
            if found is not None:
                return found
            number += 1
            if not await self._caller.pause(number, self._deadline_ns):
                return self._all(CommitUnknown("no clear answer until the deadline; it may still happen"))
            if self._is_read and all(map(is_safe_to_resend, self._changes.values())):
                found = await self._sent()

    async def _sent(self) -> Outcomes | None:
        self._is_read = False
        try:
            answer = await self._caller.change(self._what, self._send, self._deadline_ns)
        except errors.CommitConflict as error:
            return None if self._may_come else await self._refused(error)
        except errors.StorageUnavailable as error:
            if not error.is_ambiguous and not self._may_come:
                raise
            self._may_come = True
            return None
        except errors.IcestreamError:
            if not self._may_come:
                raise
            return None
        repeated = {
            Identifier(tuple(one["namespace"]), one["name"]): int(one["snapshot-id"])
            for one in answer.get("repeated") or ()
        }
        return {one: CommitDone(None, repeated=repeated.get(one)) for one in self._changes}

    async def _refused(self, error: errors.CommitConflict) -> Outcomes | None:
        """Our own catalog names the tables that stood in the way; another one leaves it open, and all of them did.

        It may be our own first copy that stands in the way, if somebody on the way sent it twice; one table tells.
        """
        named = {str(one.get("table")): one for one in error.details.get("tables") or ()}
        first = next((one for one in self._changes if str(one) in named), next(iter(self._changes)))
        try:
            found = await self._load(first)
        except errors.IcestreamError:
            return None
        if commit_presence(found.metadata, self._changes[first]) is CommitPresence.THERE:
            return None
        return {
            one: CommitRefused(
                str(named.get(str(one), {}).get("message") or error.message),
                details=named.get(str(one), {}) if named else error.details,
                is_bystander=bool(named) and str(one) not in named,
            )
            for one in self._changes
        }

    async def _judged(self) -> Outcomes | None:
        """None: it is open, or cannot be seen now."""
        try:
            found = {one: await self._load(one) for one in self._changes}
        except errors.IcestreamError:
            return None
        self._is_read = True
        seen = {one: commit_presence(table.metadata, self._changes[one]) for one, table in found.items()}
        if all(one is CommitPresence.OPEN for one in seen.values()):
            return None
        is_taken = CommitPresence.THERE in seen.values()
        return {one: _outcome(seen[one], found[one], is_taken) for one in self._changes}

    def _all(self, outcome: CommitOutcome) -> Outcomes:
        return dict.fromkeys(self._changes, outcome)


def _outcome(seen: CommitPresence, table: LoadedTable, is_taken: bool) -> CommitOutcome:
    """`is_taken`: another table of the request has it."""
    if seen is CommitPresence.THERE:
        return CommitDone(table, was_read_back=True)
    if seen is CommitPresence.ELSEWHERE:
        return CommitUnknown("another table has its name by now; it may be in the one that it was made for")
    if seen is CommitPresence.OPEN and is_taken:
        return CommitUnknown("other tables of the request were changed; this one may follow")
    reason = (
        "others changed the table first"
        if seen is CommitPresence.IMPOSSIBLE
        else "another table of the request was refused"
    )
    return CommitRefused(reason, table, is_bystander=seen is CommitPresence.OPEN)
