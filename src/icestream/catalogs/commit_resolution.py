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
    what: str,
    send: Callable[[], Awaitable[Answer]],
    is_done: Callable[[], Awaitable[bool]],
) -> Answer | None:
    """Resolves a change other than a commit, such as a creation. Returns the response; None if the reply was lost and
    `is_done` tells that it was applied.

    It is sent again only while it is not done: a second copy is refused by its name. Raises OutcomeUnknown.
    """
    deadline_ns = caller.deadline_ns()
    may_have_come = False
    attempt = 0
    while True:
        attempt += 1
        refusal: errors.IcestreamError | None = None
        try:
            return await caller.change(what, send, deadline_ns)
        except errors.StorageUnavailable as error:
            if not error.is_ambiguous and not may_have_come:
                raise
            may_have_come = True
        except errors.IcestreamError as error:
            if not may_have_come:
                raise
            refusal = error
        try:
            if await is_done():
                return None
        except errors.PersistentStorageError as error:
            raise errors.OutcomeUnknown(f"{what}: the answer was lost: {error.message}", hint="look again") from None
        if refusal is not None:
            raise refusal
        if not await caller.pause(attempt, deadline_ns):
            raise errors.OutcomeUnknown(f"{what}: no clear answer until the deadline", hint="look again later")


class CommitResolver:
    """Resolves one commit to one table."""

    def __init__(self, caller: StorageCaller, what: str, change: TableChange, send: Send, look: Send) -> None:
        """`send` raises CommitConflict or StorageUnavailable; `look` reads the table, with retries of its own."""
        self._caller = caller
        self._what = what
        self._change = change
        self._send = send
        self._look = look
        self._deadline_ns = caller.deadline_ns()
        self._may_come = False  # a copy may still be in flight
        self._is_read = False  # since it was sent last

    async def settle(self) -> CommitOutcome:
        attempt = 0
        answer = await self._sent()
        while True:
            if isinstance(answer, CommitDone):
                return answer
            outcome = await self._judged(answer)
            if outcome is not None:
                return outcome
            attempt += 1
            if not await self._caller.pause(attempt, self._deadline_ns):
                why = "it may still happen" if self._is_read else "the table cannot be read"
                return CommitUnknown(f"{self._what}: no clear answer until the deadline, and {why}")
            if self._is_read and is_safe_to_resend(self._change):
                answer = await self._sent()

    async def _sent(self) -> CommitDone | errors.IcestreamError | None:
        """Sends the commit once. Returns the error if this copy was refused; None if the reply is ambiguous."""
        self._is_read = False
        try:
            return CommitDone(await self._caller.change(self._what, self._send, self._deadline_ns))
        except errors.StorageUnavailable as error:
            if not error.is_ambiguous and not self._may_come:
                raise
            self._may_come = True
            return None
        except (errors.UnknownTable, errors.UnknownNamespace, errors.AccessDenied):
            if not self._may_come:
                raise  # refused before the commit was evaluated
            return None
        except errors.IcestreamError as error:
            return error

    async def _judged(self, refusal: errors.IcestreamError | None) -> CommitOutcome | None:
        """Reads the table back; returns the outcome, None if it is undetermined or the table cannot be read."""
        try:
            table = await self._look()
        except errors.IcestreamError:
            return None
        self._is_read = True
        presence = commit_presence(table.metadata, self._change)
        if presence is CommitPresence.THERE:
            return CommitDone(table, was_read_back=True)
        if self._may_come and presence is CommitPresence.ELSEWHERE:
            return CommitUnknown(f"{self._what}: no clear answer, and another table has the name by now")
        if self._may_come and presence is CommitPresence.OPEN:
            return None
        if isinstance(refusal, errors.CommitConflict):
            return CommitRefused(refusal.message, table, refusal.details)
        if refusal is not None:
            raise refusal
        return CommitRefused("the table was changed by another commit", table)
