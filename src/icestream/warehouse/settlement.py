"""A commit, until its outcome is known: sent, read back after an answer that says too little, sent again only while
that cannot count twice.

    answer                        then
    done                          Done
    conflict                      read: there (somebody on the way sent it twice): Done. Else Conflict, unless an
                                  earlier copy may still come
    cut off, 5xx, no answer       read: there: Done. Impossible: Conflict. Open: the same commit again, with pauses,
                                  until the deadline; then Unknown
    not reached at all            the caller has repeated it; the error is handed on
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from icestream import errors
from icestream.warehouse.caller import Caller
from icestream.warehouse.catalog import Conflict, Done, LoadedTable, Outcome, TableChange, Unknown
from icestream.warehouse.recognition import Sight, may_be_sent_again, sight

Send = Callable[[], Awaitable[LoadedTable]]
Answer = TypeVar("Answer")


async def settled(
    caller: Caller,
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


class Settlement:
    """Of one commit to one table."""

    def __init__(self, caller: Caller, what: str, change: TableChange, send: Send, look: Send) -> None:
        """`send` raises CommitConflict, or StorageUnavailable; `look` reads the table, with repeats of its own."""
        self._caller = caller
        self._what = what
        self._change = change
        self._send = send
        self._look = look
        self._deadline_ns = caller.deadline_ns()
        self._may_come = False  # a copy is on its way, as far as we know

    async def settle(self) -> Outcome:
        number = 0
        while True:
            number += 1
            conflict = await self._sent()
            if isinstance(conflict, Done):
                return conflict
            outcome = await self._judged(conflict)
            if outcome is not None:
                return outcome
            if not await self._caller.pause(number, self._deadline_ns):
                return Unknown(f"{self._what}: no clear answer until the deadline; it may still happen")

    async def _sent(self) -> Done | errors.CommitConflict | None:
        """None: nobody knows."""
        if self._may_come and not may_be_sent_again(self._change):
            return None  # only look again
        try:
            return Done(await self._caller.change(self._what, self._send, self._deadline_ns))
        except errors.CommitConflict as error:
            return error
        except errors.StorageUnavailable as error:
            if not error.is_ambiguous and not self._may_come:
                raise
            self._may_come = True
            return None

    async def _judged(self, conflict: errors.CommitConflict | None) -> Outcome | None:
        """None: it is open."""
        try:
            found = await self._look()
        except (errors.PersistentStorageError, errors.InvalidInput) as error:
            if isinstance(error, errors.UnknownTable):
                raise  # what is not there cannot have got it, and will not
            return Unknown(f"{self._what}: no clear answer, and the table cannot be read: {error.message}")
        seen = sight(found.metadata, self._change)
        if seen is Sight.THERE:
            return Done(found, was_read_back=True)
        if conflict is not None and not self._may_come:
            return Conflict(conflict.message, found, conflict.details)
        if seen is Sight.IMPOSSIBLE:
            reason = conflict.message if conflict is not None else "others changed the table first"
            return Conflict(reason, found, conflict.details if conflict is not None else {})
        return None
