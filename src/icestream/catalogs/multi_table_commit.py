"""Resolves a commit to several tables in one request, until the outcome of each is determined (hazard 47).

After an ambiguous reply every table is read before anything is sent again. The catalog applies all changes or none, but
each table is judged by its own content.
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
    """Resolves one commit to several tables."""

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
        self._operation = f"commit to {len(changes)} tables"
        self._deadline_ns = caller.deadline_ns()
        self._may_be_in_flight = False  # a copy was sent, and its reply lost
        self._is_read = False  # all tables were read after the last copy was sent

    async def resolve(self) -> Outcomes:
        """Sends the request until the outcome of each table is determined, or until the deadline. Raises an error only
        if nothing was changed."""
        attempt = 0
        outcomes = await self._send_once()
        while True:
            outcomes = outcomes if outcomes is not None else await self._read_outcomes()
            if outcomes is not None:
                return outcomes
            attempt += 1
            if not await self._caller.pause(attempt, self._deadline_ns):
                unknown = CommitUnknown("outcome not determined before the deadline; it may still be applied")
                return dict.fromkeys(self._changes, unknown)
            # As for one table (commit_resolution.py): sent again only after a look, and only if no table could take it
            # twice.
            if self._is_read and all(map(is_safe_to_resend, self._changes.values())):
                outcomes = await self._send_once()

    async def _send_once(self) -> Outcomes | None:
        """Sends the request once. Returns the outcomes; None if they must be read from the tables."""
        self._is_read = False
        try:
            response = await self._caller.change(self._operation, self._send, self._deadline_ns)
        # A conflict after a lost reply may be with our own first copy: the tables are read back.
        except errors.CommitConflict as error:
            return None if self._may_be_in_flight else await self._refused_outcomes(error)
        except errors.StorageUnavailable as error:
            if not error.is_ambiguous and not self._may_be_in_flight:
                raise
            self._may_be_in_flight = True
            return None
        except errors.IcestreamError:
            if not self._may_be_in_flight:
                raise
            return None
        repeated = {
            Identifier(tuple(entry["namespace"]), entry["name"]): int(entry["snapshot-id"])
            for entry in response.get("repeated") or ()
        }
        return {identifier: CommitDone(None, repeated=repeated.get(identifier)) for identifier in self._changes}

    async def _refused_outcomes(self, error: errors.CommitConflict) -> Outcomes | None:
        """Returns the outcomes of a refused request. Our own catalog names the tables in conflict; of another catalog
        all tables count as conflicting.

        None if the conflict is with our own first copy, which a proxy sent twice. One table decides that: the catalog
        applies all changes or none.
        """
        conflicts = {str(entry.get("table")): entry for entry in error.details.get("tables") or ()}
        checked = next(
            (identifier for identifier in self._changes if str(identifier) in conflicts), next(iter(self._changes))
        )
        try:
            table = await self._load(checked)
        except errors.IcestreamError:
            return None
        if commit_presence(table.metadata, self._changes[checked]) is CommitPresence.THERE:
            return None
        return {
            identifier: CommitRefused(
                str(conflicts.get(str(identifier), {}).get("message") or error.message),
                details=conflicts.get(str(identifier), {}) if conflicts else error.details,
                is_bystander=bool(conflicts) and str(identifier) not in conflicts,
            )
            for identifier in self._changes
        }

    async def _read_outcomes(self) -> Outcomes | None:
        """Reads all tables back; returns their outcomes, None if undetermined or a table cannot be read."""
        try:
            tables = {identifier: await self._load(identifier) for identifier in self._changes}
        except errors.IcestreamError:
            return None
        self._is_read = True
        presences = {
            identifier: commit_presence(table.metadata, self._changes[identifier])
            for identifier, table in tables.items()
        }
        # Nothing is decided while every table would still accept the request.
        if all(presence is CommitPresence.OPEN for presence in presences.values()):
            return None
        is_applied = CommitPresence.THERE in presences.values()
        return {
            identifier: _outcome(presences[identifier], tables[identifier], is_applied) for identifier in self._changes
        }


def _outcome(presence: CommitPresence, table: LoadedTable, is_applied: bool) -> CommitOutcome:
    """Returns the outcome of one table. `is_applied`: some table of the request has the commit."""
    if presence is CommitPresence.THERE:
        return CommitDone(table, was_read_back=True)
    if presence is CommitPresence.ELSEWHERE:
        return CommitUnknown("another table has the name now; the commit may be in the original table")
    if presence is CommitPresence.OPEN and is_applied:
        # A catalog should apply all or none, but not every server does, and readers may see the tables move one by one.
        return CommitUnknown("other tables of the request were committed; this one may follow")
    reason = (
        "the table was changed by another commit"
        if presence is CommitPresence.IMPOSSIBLE
        else "another table of the request was refused"
    )
    return CommitRefused(reason, table, is_bystander=presence is CommitPresence.OPEN)
