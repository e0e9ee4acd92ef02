"""Runs every change of the catalog: read, plan, write files, run the transaction; again after a conflict.

    reply                    outcome
    applied                  COMMITTED
    comparison failed        CONFLICT: nothing changed; the operation re-reads and plans again
    refused                  nothing changed; the refusal is raised
    reply lost               resolved by reading back, and by a fencing transaction if the original may still be in
                             flight; if that does not succeed in time: OutcomeUnknown, never a conflict, because a
                             client that is told "conflict" deletes the files of its commit (hazard 13)

After a lost reply another transaction may have changed the record (SUPERSEDED), and the original may have been applied
before it. The change is not planned again as if it had not been applied: that would undo what others were told is done.
Either the planner can find out (`Attempt.was_applied`), or planning again is refused if it was applied
(`Attempt.is_create`: what it creates must not exist yet), or the outcome stays unknown.

Files that an attempt wrote are removed if it is certain that no pointer leads to them: the comparisons failed, or the
store refused. After an unknown outcome they stay (hazard 13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from icestream import errors, limits
from icestream.catalog.documents import Documents
from icestream.catalog.idempotency import EMPTY_RESULT, RELOAD_HINT, IdempotentRequest, RequestLog, RequestResult
from icestream.catalog.plans.planned_transaction import PlannedTransaction, TransactionOutcome, outcome_from_record
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.runtime.clock import Clock

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Attempt(Generic[Result]):
    """One attempt of an operation: its transaction, and what follows from each outcome."""

    transaction: PlannedTransaction | None  # None: there is nothing to change, as long as `unchanged` holds
    result: Result
    written_files: Sequence[str] = ()  # that only this transaction points to
    was_applied: Callable[[], Awaitable[bool]] | None = None  # asked after SUPERSEDED; None: it cannot be told
    on_committed: Callable[[int], None] | None = None  # receives the store revision, if the store reported it
    is_create: bool = False
    request_result: RequestResult = EMPTY_RESULT  # recorded for repeats of a request with an Idempotency-Key
    unchanged: Sequence[cmd.Compare] = ()


Plan = Callable[[], Awaitable[Attempt[Result]]]
# Raises if a change is not allowed now; returns what its transaction must compare for that to stay so.
TransactionGuard = Callable[[], Awaitable[list[cmd.Compare]]]
AnswerRepeat = Callable[[RequestResult], Awaitable[Result]]


class KeyLocks:
    """In-process locks by key: changes of one table or namespace run one after the other within this process.

    They are an optimisation. Correctness across processes and nodes comes from the comparisons of each transaction;
    without the locks every second commit to a busy table would write its metadata file in vain.
    """

    def __init__(self) -> None:
        self.locks: dict[str, tuple[asyncio.Lock, int]] = {}  # with the number of holders and waiters

    def lock(self, keys: Iterable[str]) -> KeyLockScope:
        """Returns an async context manager that holds the locks of all keys."""
        # Sorted: two scopes always acquire shared keys in the same order, so they cannot deadlock.
        return KeyLockScope(self, sorted(set(keys)))

    def __len__(self) -> int:
        return len(self.locks)


class KeyLockScope:
    """A class and not a generator: every commit enters one, and `asynccontextmanager` costs four times as much."""

    __slots__ = ("_acquired", "_keys", "_owner")

    def __init__(self, owner: KeyLocks, keys: Sequence[str]) -> None:
        self._owner = owner
        self._keys = keys
        self._acquired: list[asyncio.Lock] = []

    async def __aenter__(self) -> None:
        locks = self._owner.locks
        for key in self._keys:
            lock, count = locks.get(key) or (asyncio.Lock(), 0)
            locks[key] = lock, count + 1
        try:
            for key in self._keys:
                lock = locks[key][0]
                await lock.acquire()
                self._acquired.append(lock)
        except BaseException:  # cancelled while it waited
            self._release()
            raise

    async def __aexit__(self, *_error: object) -> None:
        self._release()

    def _release(self) -> None:
        for lock in self._acquired:
            lock.release()
        locks = self._owner.locks
        for key in self._keys:
            lock, count = locks.pop(key)
            if count > 1:
                locks[key] = lock, count - 1


class TransactionRunner:
    """Runs the changes of one catalog."""

    def __init__(self, store: MetadataStore, documents: Documents, clock: Clock) -> None:
        self.store = store
        self.documents = documents
        self.clock = clock
        self.locks = KeyLocks()
        self._requests = RequestLog(store)

    def now_ms(self) -> int:
        return self.clock.wall_us() // 1000

    async def run_until_applied(
        self,
        lock_keys: Sequence[str],
        plan: Plan[Result],
        request: IdempotentRequest | None = None,
        answer_repeat: AnswerRepeat[Result] | None = None,
        guard: TransactionGuard | None = None,
    ) -> Result:
        """Plans and runs attempts until one is applied; returns its result.

        `lock_keys`: the keys that the operation changes. `answer_repeat` makes the answer to a repeat of a `request`
        that was applied before; operations that take requests have it. `guard` is asked before each plan.

        Raises what `plan` raises; CommitConflict after CATALOG_ATTEMPTS_MAX conflicts; OutcomeUnknown if the reply was
        lost and the outcome could not be determined; Refused if the store refused the transaction.
        """
        if request is None or answer_repeat is None:
            async with self.locks.lock(lock_keys):
                for _ in range(limits.CATALOG_ATTEMPTS_MAX):
                    # Planned anew for each attempt: after a conflict everything that was read may be outdated.
                    attempt = await _guarded(plan, guard)
                    # No transaction: the plan found that there is nothing to change.
                    if attempt.transaction is None or await self._run(attempt, attempt.transaction, None):
                        return attempt.result
                raise _too_many_conflicts()
        # The key of the request too: two copies of it that arrive together would both find no result and both be
        # planned.
        async with self.locks.lock((*lock_keys, request.key)):
            try:
                for _ in range(limits.CATALOG_ATTEMPTS_MAX):
                    # Asked in each attempt: a copy of this request may have been applied by another process meanwhile.
                    request_result = await self._requests.find(request)
                    if request_result is not None:
                        return await _repeated(answer_repeat, request_result)
                    attempt = await _guarded(plan, guard)
                    if await self._run(attempt, _with_request(attempt, request), request):
                        return attempt.result
                raise _too_many_conflicts()
            # Final errors only: a repeat gets the same answer. A conflict or an unreachable store may end differently
            # the next time.
            except (errors.InvalidInput, errors.MetadataFileMissing) as error:
                await self._requests.record_error(request, error)
                raise

    async def remove_files(self, locations: Sequence[str]) -> None:
        """Removes files that no pointer leads to and none ever will."""
        for location in locations:
            await self.documents.remove(location)

    async def _run(
        self, attempt: Attempt[Result], transaction: PlannedTransaction, request: IdempotentRequest | None
    ) -> bool:
        """Runs the transaction of an attempt once; returns whether it was applied."""
        try:
            if request is not None:
                transaction.checked()  # the recorded result made it larger
            reply = await self.store.txn(transaction.comparisons, transaction.operations)
        except errors.OutcomeUnknown as lost_reply:
            # The files stay until the outcome is known: a pointer may lead to them already.
            outcome = await self._resolve(transaction, lost_reply)
        # Refused means not applied, now and later: no pointer will lead to the files.
        except (errors.Refused, errors.InvalidInput):
            await self.remove_files(attempt.written_files)
            raise
        else:
            outcome = TransactionOutcome.COMMITTED if reply.held else TransactionOutcome.CONFLICT
            if reply.held and attempt.on_committed is not None:
                attempt.on_committed(reply.revision)
        if outcome is TransactionOutcome.SUPERSEDED:
            return await self._was_applied(attempt, request)
        # The comparisons failed, or a fence made them fail: this transaction cannot be applied any more.
        if outcome is TransactionOutcome.CONFLICT:
            await self.remove_files(attempt.written_files)
        return outcome is TransactionOutcome.COMMITTED

    async def _resolve(self, transaction: PlannedTransaction, lost_reply: errors.OutcomeUnknown) -> TransactionOutcome:
        """Determines the outcome after a lost reply. Raises OutcomeUnknown at the deadline."""
        deadline_ns = self.clock.monotonic_ns() + int(limits.CATALOG_RESOLVE_SECONDS_MAX * 1e9)
        while self.clock.monotonic_ns() < deadline_ns:
            try:
                outcome = await self._read_outcome(transaction)
            except (errors.OutcomeUnknown, errors.Refused):
                outcome = None  # the store is unavailable: retry until the deadline
            if outcome is not None:
                return outcome
            await self.clock.sleep(limits.CATALOG_RESOLVE_RETRY_SECONDS)
        raise errors.OutcomeUnknown(
            "catalog change: reply lost and outcome not determined within "
            f"{limits.CATALOG_RESOLVE_SECONDS_MAX:g} s: {lost_reply.message}",
            hint=RELOAD_HINT,
        )

    async def _read_outcome(self, transaction: PlannedTransaction) -> TransactionOutcome | None:
        """Reads back whether the transaction was applied; None if that cannot be told yet."""
        outcome = outcome_from_record(transaction, await self.store.get(transaction.key))
        if outcome is not None:
            return outcome
        # The original may still be in flight. The fence compares the same revisions and changes one of them: if the
        # fence commits, the original can no longer commit, and the record tells whether it had committed before.
        fence = await self.store.txn(transaction.comparisons, [transaction.fence])
        # Some comparison no longer holds: the original was applied, or another change. The next read of the record
        # tells which.
        if not fence.held:
            return None
        is_applied = transaction.is_applied_in(await self.store.get(transaction.key))
        return TransactionOutcome.COMMITTED if is_applied else TransactionOutcome.CONFLICT

    async def _was_applied(self, attempt: Attempt[Result], request: IdempotentRequest | None) -> bool:
        """Returns whether an attempt was applied before another transaction changed its record.

        Raises OutcomeUnknown for every obstacle: an error such as UnknownTable would tell the client that nothing had
        been done.
        """
        try:
            if request is not None:  # its result is recorded in the same transaction
                was_applied = await self._requests.find(request) is not None
            elif attempt.is_create:
                return False  # planned again, it is refused if it was applied
            elif attempt.was_applied is None:
                raise errors.OutcomeUnknown(
                    "catalog change: reply lost, and a later change hides whether it was applied", hint=RELOAD_HINT
                )
            else:
                was_applied = await attempt.was_applied()
        except errors.OutcomeUnknown:
            raise
        except errors.IcestreamError as error:
            raise errors.OutcomeUnknown(
                f"catalog change: reply lost, and its outcome cannot be read: {error.message}", hint=RELOAD_HINT
            ) from error
        if not was_applied:
            await self.remove_files(attempt.written_files)
        return was_applied


async def _guarded(plan: Plan[Result], guard: TransactionGuard | None) -> Attempt[Result]:
    """Returns an attempt whose transaction compares what the guard has looked at."""
    if guard is None:
        return await plan()
    comparisons = await guard()  # first: a refusal leaves no file behind
    attempt = await plan()
    if attempt.transaction is None:
        return attempt
    return replace(attempt, transaction=attempt.transaction.with_more(comparisons, []))


def _with_request(attempt: Attempt[Result], request: IdempotentRequest) -> PlannedTransaction:
    """Returns the transaction of an attempt, with the record of its request."""
    if attempt.transaction is None:
        return request.alone(attempt.unchanged, attempt.request_result)
    return request.added_to(attempt.transaction, attempt.request_result)


async def _repeated(answer_repeat: AnswerRepeat[Result], request_result: RequestResult) -> Result:
    """Returns the answer to a repeat of a request that was applied. Raises OutcomeUnknown if it cannot be made: any
    other error would tell the client that the request had failed."""
    try:
        return await answer_repeat(request_result)
    except errors.OutcomeUnknown:
        raise
    except errors.IcestreamError as error:
        raise errors.OutcomeUnknown(
            f"the request was applied before, and its result cannot be read: {error.message}", hint=RELOAD_HINT
        ) from error


def _too_many_conflicts() -> errors.CommitConflict:
    return errors.CommitConflict(
        f"commit conflict: gave up after {limits.CATALOG_ATTEMPTS_MAX} attempts against concurrent changes",
        hint="retry the operation",
    )
