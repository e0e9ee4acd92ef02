"""Carries out planned transactions: the thin shell around the metadata store, and what it does when an answer is lost.

held                    DONE
comparisons failed      NOT_DONE: nothing was changed; whoever planned it reads again and plans anew
refused                 nothing was changed; the refusal is raised
unknown                 resolved by reading, and by a fence where it may still be on its way (plan/planned.py); if
                        that does not end in time, OutcomeUnknown: never "failed", never "conflict" (hazard 13)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from icestream import errors, limits
from icestream.catalog.plans.planned_transaction import PlannedTransaction, TransactionOutcome, outcome_from_record
from icestream.metadata.store import MetadataStore
from icestream.runtime.clock import Clock

LOOK_FIRST: Final = "look at what is there before trying again"


class Mover:
    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def move(self, planned: PlannedTransaction, told: Callable[[int], None] | None = None) -> TransactionOutcome:
        """OVERTAKEN only after an unknown outcome. `told`: of the revision at which it was done, where it is known."""
        try:
            done = await self._store.txn(planned.compare, planned.then)
        except errors.OutcomeUnknown as lost:
            return await self._resolved(planned, lost)
        if done.held and told is not None:
            told(done.revision)
        return TransactionOutcome.DONE if done.held else TransactionOutcome.NOT_DONE

    async def _resolved(self, planned: PlannedTransaction, lost: errors.OutcomeUnknown) -> TransactionOutcome:
        end_ns = self._clock.monotonic_ns() + int(limits.CATALOG_RESOLVE_SECONDS_MAX * 1e9)
        while self._clock.monotonic_ns() < end_ns:
            try:
                found = await self._look(planned)
            except (errors.OutcomeUnknown, errors.Refused):
                found = None
            if found is not None:
                return found
            await self._clock.sleep(limits.CATALOG_RESOLVE_RETRY_SECONDS)
        raise errors.OutcomeUnknown(f"it may or may not have happened: {lost.message}", hint=LOOK_FIRST)

    async def _look(self, planned: PlannedTransaction) -> TransactionOutcome | None:
        """What became of it; None: ask again. A fence that holds settles it: what compares the same cannot."""
        found = outcome_from_record(planned, await self._store.get(planned.key))
        if found is not None:
            return found
        if not (await self._store.txn(planned.compare, [planned.fence])).held:
            return None
        return (
            TransactionOutcome.DONE if planned.made(await self._store.get(planned.key)) else TransactionOutcome.NOT_DONE
        )
