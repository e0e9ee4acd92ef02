"""A planned transaction: what it compares and does, how to tell that it happened, and how to make sure that it never
will (hazard 13).

Every change of the catalog is one. When its outcome is unknown, `key` is read:

    it is what the transaction would have made of it     it happened
    it is at the revision that was compared              it has not happened yet, and may still be on its way: the fence
                                                         changes a key that it compares, so that it never will
    anything else                                        others went on: it did not happen, or it did before them, which
                                                         only whoever planned it can tell

A fence is a transaction with the same comparisons. So either it holds, and what was on its way will not; or the other
one was faster, and the next look shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from icestream import errors
from icestream.metadata import command as cmd
from icestream.metadata.bounds import refusal
from icestream.metadata.entry import Entry

Made = Callable[[Entry | None], bool]


class PlannedTransaction(NamedTuple):
    compare: list[cmd.Compare]
    then: list[cmd.Operation]
    key: str  # where it can be seen
    revision: int  # of that key as it was compared; 0: it was not there
    made: Made  # whether what is there now was made by it
    fence: cmd.Operation

    def checked(self) -> PlannedTransaction:
        """Raises InvalidInput when no transaction can be that large (hazard 10)."""
        rejected = refusal(cmd.Txn(self.compare, self.then))
        if rejected is not None:
            raise errors.InvalidInput(
                f"Cannot be stored in one step: {rejected.message}",
                hint="commit fewer tables at once, or shorter properties",
            )
        return self

    def with_more(self, compare: list[cmd.Compare], then: list[cmd.Operation]) -> PlannedTransaction:
        return self._replace(compare=[*self.compare, *compare], then=[*self.then, *then])


class TransactionOutcome(Enum):
    DONE = auto()
    NOT_DONE = auto()  # and it never will be
    OVERTAKEN = auto()  # others changed the key: it was not done, or it was before them


def outcome_from_record(planned: PlannedTransaction, found: Entry | None) -> TransactionOutcome | None:
    """What became of it, as far as its key tells; None: nothing yet."""
    if planned.made(found):
        return TransactionOutcome.DONE
    return None if (found.mod_revision if found else 0) == planned.revision else TransactionOutcome.OVERTAKEN
