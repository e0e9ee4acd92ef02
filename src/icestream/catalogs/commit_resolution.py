"""A commit, until its outcome is known: sent, read back after an answer that says too little, sent again only while
that cannot count twice.

    answer                        then
    done                          Done
    conflict, any refusal         read: there (somebody on the way sent it twice): Done. Else Conflict or that error,
                                  unless an earlier copy may still come
    cut off, 5xx, no answer       read: there: Done. Impossible: Conflict. Another table has the name: Unknown, because
                                  ours may have been renamed with the commit in it. Open: the same commit again, with
                                  pauses, until the deadline; then Unknown. Cannot be read: read again, nothing is sent
                                  before
    not reached at all            the caller has repeated it; the error is handed on
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
    """A change that is no commit, such as a creation: its answer; None when that was lost and `is_done` sees it done.

    It is sent again only while it is not done: a second copy is refused by its name.
    """
    deadline_ns = caller.deadline_ns()
    may_have_come = False
    number = 0
    while True:
        number += 1
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
        if not await caller.pause(number, deadline_ns):
            raise errors.OutcomeUnknown(f"{what}: no clear answer until the deadline", hint="look again later")


class CommitResolver:
    """Of one commit to one table."""

    def __init__(self, caller: StorageCaller, what: str, change: TableChange, send: Send, look: Send) -> None:
        """`send` raises CommitConflict, or StorageUnavailable; `look` reads the table, with repeats of its own."""
        self._caller = caller
        self._what = what
        self._change = change
        self._send = send
        self._look = look
        self._deadline_ns = caller.deadline_ns()
        self._may_come = False  # a copy is on its way, as far as we know
        self._is_read = False  # since it was sent last

    async def settle(self) -> CommitOutcome:
        number = 0
        answer = await self._sent()
        while True:
            if isinstance(answer, CommitDone):
                return answer
            outcome = await self._judged(answer)
            if outcome is not None:
                return outcome
            number += 1
            if not await self._caller.pause(number, self._deadline_ns):
                why = "it may still happen" if self._is_read else "the table cannot be read"
                return CommitUnknown(f"{self._what}: no clear answer until the deadline, and {why}")
            if self._is_read and is_safe_to_resend(self._change):
                answer = await self._sent()

    async def _sent(self) -> CommitDone | errors.IcestreamError | None:
        """An error is a refusal of this copy. None: nobody knows."""
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
                raise  # nobody got so far as to look at the commit
            return None
        except errors.IcestreamError as error:
            return error

    async def _judged(self, refusal: errors.IcestreamError | None) -> CommitOutcome | None:
        """None: it is open, or cannot be seen now."""
        try:
            found = await self._look()
        except errors.IcestreamError:
            return None
        self._is_read = True
        seen = commit_presence(found.metadata, self._change)
        if seen is CommitPresence.THERE:
            return CommitDone(found, was_read_back=True)
        if self._may_come and seen is CommitPresence.ELSEWHERE:
            return CommitUnknown(f"{self._what}: no clear answer, and another table has the name by now")
        if self._may_come and seen is CommitPresence.OPEN:
            return None
        if isinstance(refusal, errors.CommitConflict):
            return CommitRefused(refusal.message, found, refusal.details)
        if refusal is not None:
            raise refusal
        return CommitRefused("others changed the table first", found)
