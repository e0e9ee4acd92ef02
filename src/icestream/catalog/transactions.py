"""How every change of the catalog is made: read, plan, write what the plan needs, move; again when others were faster.

After an unknown outcome others may have gone on, and what was planned may have been done before them. Then it is not
planned again as if it had not: that would undo what they were told is done. Whoever planned it says how to find out
(`was_done`), or that planned again it is refused where it was done, because what it makes must not be there
(`is_once`); else it stays unknown.

Files that a step wrote are taken back when it is certain that nothing points to them: the comparisons failed, or the
store refused. After an unknown outcome they stay (hazard 13), and so they do when others went on and nobody can tell
whether it was done before them: it may have a pointer under another name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from icestream import errors, limits
from icestream.catalog.cleanup.retired_files import RetiredFiles
from icestream.catalog.documents import Documents
from icestream.catalog.idempotency import EMPTY_RESULT, IdempotentRequest, RequestLog, RequestResult
from icestream.catalog.key_locks import KeyLocks
from icestream.catalog.mover import LOOK_FIRST, Mover
from icestream.catalog.plans.planned_transaction import PlannedTransaction, TransactionOutcome
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.runtime.clock import Clock

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Step(Generic[Answer]):
    """What one attempt comes to."""

    planned: PlannedTransaction | None  # None: there is nothing to change, as long as `unchanged` holds
    answer: Answer
    written: Sequence[str] = ()  # files that only this transaction points to
    dropped: Sequence[str] = ()  # files that nothing names when it is done: they go later
    was_done: Callable[[], Awaitable[bool]] | None = None  # None: nobody can tell
    told: Callable[[int], None] | None = None  # of the revision, when it is done and known
    is_once: bool = False
    noted: RequestResult = EMPTY_RESULT  # for a repeat, when the request has a name
    unchanged: Sequence[cmd.Compare] = ()


Plan = Callable[[], Awaitable[Step[Answer]]]
Again = Callable[[RequestResult], Awaitable[Answer]]


class Steps:
    def __init__(self, store: MetadataStore, documents: Documents, clock: Clock) -> None:
        self.store = store
        self.documents = documents
        self.clock = clock
        self.retired = RetiredFiles()
        self._mover = Mover(store, clock)
        self._requests = RequestLog(store)
        self._turns = KeyLocks()

    def now_ms(self) -> int:
        return self.clock.wall_us() // 1000

    async def make(
        self,
        turns: Sequence[str],
        plan: Plan[Answer],
        request: IdempotentRequest | None = None,
        again: Again[Answer] | None = None,
    ) -> Answer:
        """`turns`: the keys that it changes. `again`: what a repeat of a request that was done is answered; whoever
        takes requests with names has it."""
        async with self._turns.of(turns if request is None else (*turns, request.key)):
            if request is None or again is None:
                return await self._make(plan)
            try:
                return await self._make_once(plan, request, again)
            except (errors.InvalidInput, errors.MetadataFileMissing) as error:
                await self._requests.note_error(request, error)
                raise

    async def _make(self, plan: Plan[Answer]) -> Answer:
        for _ in range(limits.CATALOG_ATTEMPTS_MAX):
            step = await plan()
            if step.planned is None or await self._move(step, step.planned):
                return step.answer
        raise _overtaken()

    async def _make_once(self, plan: Plan[Answer], request: IdempotentRequest, again: Again[Answer]) -> Answer:
        for _ in range(limits.CATALOG_ATTEMPTS_MAX):
            noted = await self._requests.done(request)
            if noted is not None:
                return await _answered(again, noted)
            step = await plan()
            planned = (
                request.alone(step.unchanged, step.noted)
                if step.planned is None
                else request.added_to(step.planned, step.noted)
            )
            if await self._move(step, planned, request):
                return step.answer
        raise _overtaken()

    async def _move(
        self, step: Step[Answer], planned: PlannedTransaction, request: IdempotentRequest | None = None
    ) -> bool:
        """Whether it was done."""
        is_done = await self._moved(step, planned, request)
        if is_done:
            self.retired.add(step.dropped, self.now_ms())
        return is_done

    async def _moved(self, step: Step[Answer], planned: PlannedTransaction, request: IdempotentRequest | None) -> bool:
        try:
            moved = await self._mover.move(planned if request is None else planned.checked(), step.told)
        except (errors.Refused, errors.InvalidInput):
            await self.take_back(step.written)
            raise
        if moved is TransactionOutcome.OVERTAKEN:
            return await self._was_done(step, request)
        if moved is not TransactionOutcome.DONE:
            await self.take_back(step.written)
        return moved is TransactionOutcome.DONE

    async def _was_done(self, step: Step[Answer], request: IdempotentRequest | None) -> bool:
        """Before others went on. Whatever stands in the way of finding out, it is unknown: the client may not hear of
        the table that is gone, or of the store that is away, as if nothing had been done."""
        try:
            if request is not None:  # written in the same transaction
                was_done = await self._requests.done(request) is not None
            elif step.is_once:
                return False
            elif step.was_done is None:
                raise errors.OutcomeUnknown("it may or may not have happened before others went on", hint=LOOK_FIRST)
            else:
                was_done = await step.was_done()
        except errors.OutcomeUnknown:
            raise
        except errors.IcestreamError as error:
            raise errors.OutcomeUnknown(
                f"it may or may not have happened before others went on: {error.message}", hint=LOOK_FIRST
            ) from error
        if not was_done:
            await self.take_back(step.written)
        return was_done

    async def take_back(self, written: Sequence[str]) -> None:
        for location in written:
            await self.documents.forget(location)


async def _answered(again: Again[Answer], noted: RequestResult) -> Answer:
    """A repeat of a request that was done. Whatever became of it since, nobody is told that it had failed."""
    try:
        return await again(noted)
    except errors.OutcomeUnknown:
        raise
    except errors.IcestreamError as error:
        raise errors.OutcomeUnknown(
            f"it was done, and what it made cannot be shown: {error.message}", hint=LOOK_FIRST
        ) from error


def _overtaken() -> errors.CommitConflict:
    return errors.CommitConflict(f"others were faster {limits.CATALOG_ATTEMPTS_MAX} times", hint="try again")
