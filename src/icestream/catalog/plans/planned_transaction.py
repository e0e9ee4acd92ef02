"""A planned transaction: its comparisons and operations, how to recognise that it was applied, and the fence that keeps
it from being applied later (hazard 13).

Every change of the catalog is one. If the reply is lost, the record at `key` tells what became of it:

    the record is what the transaction writes     COMMITTED
    it is at the revision that was compared       undetermined: the transaction may still be in flight. The fence
                                                  changes a key that it compares, so that it can no longer be applied
    anything else                                 SUPERSEDED: another transaction changed the record. This one was not
                                                  applied, or was applied before; only its planner can tell

The fence is a transaction with the same comparisons: either it commits, and the original cannot; or the original was
applied first, and the next read shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.metadata import command as cmd
from icestream.metadata.bounds import refusal
from icestream.metadata.entry import Entry

IsAppliedIn = Callable[[Entry | None], bool]
# Part of every change that chooses where a table or a namespace lies. The same value again raises the revision, which
# another such change has compared (operations/table_places.py).
PLACES_CHANGED: Final = cmd.Put(catalog_keys.PLACES, b"{}")


class PlannedTransaction(NamedTuple):
    """A transaction, and how to find out whether it was applied."""

    comparisons: list[cmd.Compare]
    operations: list[cmd.Operation]
    key: str  # of the record that shows whether the transaction was applied
    revision: int  # of that record when it was compared; 0: it did not exist
    is_applied_in: IsAppliedIn  # whether the record, as read now, was written by this transaction
    fence: cmd.Operation

    def checked(self) -> PlannedTransaction:
        """Returns itself. Raises InvalidInput if it is too large for one transaction of the store (hazard 10)."""
        rejected = refusal(cmd.Txn(self.comparisons, self.operations))
        if rejected is not None:
            raise errors.InvalidInput(
                f"transaction too large for the metadata store: {rejected.message}",
                hint="commit fewer tables at once, or shorter properties",
            )
        return self

    def with_more(self, comparisons: list[cmd.Compare], operations: list[cmd.Operation]) -> PlannedTransaction:
        return self._replace(comparisons=[*self.comparisons, *comparisons], operations=[*self.operations, *operations])


class TransactionOutcome(Enum):
    """What became of a transaction."""

    COMMITTED = auto()
    CONFLICT = auto()  # not applied, and it never will be
    SUPERSEDED = auto()  # another transaction changed the record; this one may have been applied before it


def outcome_from_record(transaction: PlannedTransaction, entry: Entry | None) -> TransactionOutcome | None:
    """Returns the outcome by the record at the transaction's key; None if it is undetermined."""
    if transaction.is_applied_in(entry):
        return TransactionOutcome.COMMITTED
    revision = entry.mod_revision if entry else 0
    return None if revision == transaction.revision else TransactionOutcome.SUPERSEDED
