"""Resolves a commit: sends it, reads the table back after an ambiguous reply, and sends it again only if that cannot
apply it twice.

    reply                         then
    success                       CommitDone
    conflict, any refusal         read. THERE (a proxy sent it twice): CommitDone. Else CommitRefused or that error,
                                  unless an earlier copy may still be in flight
    cut off, 5xx, no reply        read. THERE: CommitDone. IMPOSSIBLE: CommitRefused. ELSEWHERE: CommitUnknown, because
                                  the table may have been renamed with the commit in it. OPEN: sent again, with backoff,
                                  until the deadline; then CommitUnknown. Not readable: read again before sending
    not reached at all            the caller has retried; the error is raised
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

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

Send = Callable[[], Awaitable[LoadedTable]]
Answer = TypeVar("Answer")


async def resolve_change(
    caller: StorageCaller,
    operation: str,
    send: Callable[[], Awaitable[Answer]],
    is_done: Callable[[], Awaitable[bool]],
) -> Answer | None:
    """Resolves a change other than a commit, such as a creation. Returns the response; None if the reply was lost and
    `is_done` finds that the change was applied.

    It is sent again only while it is not applied, and then a late first copy does no harm: creations, drops and renames
    are refused by name when they come second. Raises OutcomeUnknown, or the error of a refusal.
    """
    deadline_ns = caller.deadline_ns()
    may_be_applied = False
    attempt = 0
    while True:
        attempt += 1
        refusal: errors.IcestreamError | None = None
        try:
            return await caller.change(operation, send, deadline_ns)
        except errors.StorageUnavailable as error:
            # Not sent at all: the caller may treat it as not applied. After an ambiguous copy that no longer follows.
            if not error.is_ambiguous and not may_be_applied:
                raise
            may_be_applied = True
        except errors.IcestreamError as error:
            if not may_be_applied:
                raise
            # Perhaps our own first copy is the reason ("already exists"): the read below decides.
            refusal = error
        try:
            if await is_done():
                return None
        except errors.PersistentStorageError as error:
            raise errors.OutcomeUnknown(
                f"{operation}: the reply was lost, and the result cannot be read: {error.message}",
                hint="it may have been applied; check before you repeat it",
            ) from None
        if refusal is not None:
            raise refusal
        if not await caller.pause(attempt, deadline_ns):
            raise errors.OutcomeUnknown(
                f"{operation}: outcome not determined before the deadline",
                hint="it may still be applied; check before you repeat it",
            )


class CommitResolver:
    """Resolves one commit to one table."""

    def __init__(self, caller: StorageCaller, operation: str, change: TableChange, send: Send, load: Send) -> None:
        """`send` raises CommitConflict or StorageUnavailable; `load` reads the table, with retries of its own."""
        self._caller = caller
        self._operation = operation
        self._change = change
        self._send = send
        self._load = load
        self._deadline_ns = caller.deadline_ns()
        self._may_be_in_flight = False  # a copy may still be in flight
        self._is_read = False  # the table was read after the last copy was sent

    async def resolve(self) -> CommitOutcome:
        """Sends the commit until its outcome is determined, or until the deadline. Raises an error only if nothing was
        changed."""
        attempt = 0
        answer = await self._send_once()
        while True:
            if isinstance(answer, CommitDone):
                return answer
            outcome = await self._read_outcome(answer)
            if outcome is not None:
                return outcome
            attempt += 1
            if not await self._caller.pause(attempt, self._deadline_ns):
                reason = "it may still be applied" if self._is_read else "the table cannot be read"
                return CommitUnknown(f"{self._operation}: outcome not determined before the deadline, {reason}")
            # Never sent again without a look at the table: the first copy may have been applied since.
            if self._is_read and is_safe_to_resend(self._change):
                answer = await self._send_once()

    async def _send_once(self) -> CommitDone | errors.IcestreamError | None:
        """Sends the commit once. Returns the error if this copy was refused; None if the reply is ambiguous."""
        self._is_read = False
        try:
            return CommitDone(await self._caller.change(self._operation, self._send, self._deadline_ns))
        except errors.StorageUnavailable as error:
            if not error.is_ambiguous and not self._may_be_in_flight:
                raise
            self._may_be_in_flight = True
            return None
        # After a lost reply these say nothing about the first copy: the table may have been dropped or renamed since.
        except (errors.UnknownTable, errors.UnknownNamespace, errors.AccessDenied):
            if not self._may_be_in_flight:
                raise  # refused before the commit was evaluated
            return None
        except errors.IcestreamError as error:
            # Not raised yet: a proxy may have sent the commit twice, and the second copy conflicts with the first.
            return error

    async def _read_outcome(self, refusal: errors.IcestreamError | None) -> CommitOutcome | None:
        """Reads the table back; returns the outcome, None if it is undetermined or the table cannot be read."""
        try:
            table = await self._load()
        except errors.IcestreamError:
            return None
        self._is_read = True
        presence = commit_presence(table.metadata, self._change)
        if presence is CommitPresence.THERE:
            return CommitDone(table, was_read_back=True)
        if self._may_be_in_flight and presence is CommitPresence.ELSEWHERE:
            return CommitUnknown(f"{self._operation}: outcome not determined, and another table has the name now")
        # Another copy would be accepted, and one is perhaps on its way: not refused yet.
        if self._may_be_in_flight and presence is CommitPresence.OPEN:
            return None
        if isinstance(refusal, errors.CommitConflict):
            return CommitRefused(refusal.message, table, refusal.details)
        if refusal is not None:
            raise refusal
        # IMPOSSIBLE: a requirement is violated for good, so no copy that is still in flight can be applied either.
        return CommitRefused("the table was changed by another commit", table)
