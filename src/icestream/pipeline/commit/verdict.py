"""What a catalog's answer about one table means for the round that asked. Pure (hazards 13, 14, 47).

Done                                          DONE        the offsets are in the table; a repeat says so too
Conflict, another table stood in the way      TOGETHER    send it again, without that one
Conflict, the driver has lost its lease       LEASE_LOST  nothing more is committed by this driver
Conflict, these offsets are not next          TAKEN       they are in the table, or cannot come now: plan anew
any other Conflict                            ALONE       others changed the table: look, build anew on that, by itself
Unknown                                       OPEN        it may still happen: look before anything else is done
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, CommitRefused


class OutcomeVerdict(Enum):
    DONE = auto()
    TOGETHER = auto()
    ALONE = auto()
    TAKEN = auto()
    LEASE_LOST = auto()
    OPEN = auto()


# Reasons of our own catalog (catalog/topic_rules/claim_check.py).
_TAKEN: Final = frozenset(("not_next", "other_epoch", "unknown_shard", "other_topic", "round_reused", "not_bound"))


def verdict(outcome: CommitOutcome) -> OutcomeVerdict:
    if isinstance(outcome, CommitDone):
        return OutcomeVerdict.DONE
    if not isinstance(outcome, CommitRefused):
        return OutcomeVerdict.OPEN
    if outcome.is_bystander:
        return OutcomeVerdict.TOGETHER
    reason = outcome.details.get("reason")
    if reason == "stale_pipeline":
        return OutcomeVerdict.LEASE_LOST
    return OutcomeVerdict.TAKEN if reason in _TAKEN else OutcomeVerdict.ALONE
