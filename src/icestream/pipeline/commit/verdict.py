"""What the outcome of a commit to one table means for the round. Pure (hazards 13, 14, 47).

outcome                                        verdict      consequence
CommitDone                                     DONE         the offsets are in the table; also of a repeated commit
CommitRefused, another table was refused       TOGETHER     retry without that table
CommitRefused, the driver has lost its lease   LEASE_LOST   this driver commits nothing more
CommitRefused, these offsets are not next      TAKEN        they are in the table, or cannot be added now: plan again
CommitRefused, a replaced file is gone or      TAKEN        the rewrite must be planned again
changed
any other CommitRefused                        ALONE        the table was changed: reload it, rebuild, retry by itself
CommitUnknown                                  OPEN         it may still be applied: reload before anything else is done
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, CommitRefused


class OutcomeVerdict(Enum):
    """What to do about a commit; the head of the module explains each."""

    DONE = auto()
    TOGETHER = auto()
    ALONE = auto()
    TAKEN = auto()
    LEASE_LOST = auto()
    OPEN = auto()


# Reasons that our own catalog gives (catalog/topic_rules/claim_check.py and rewrite_check.py).
_TAKEN_REASONS: Final = frozenset(
    (
        "not_next",
        "other_epoch",
        "unknown_shard",
        "other_topic",
        "round_reused",
        "not_bound",
        "not_live",
        "deleted_rows",
    )
)


def verdict(outcome: CommitOutcome) -> OutcomeVerdict:
    """Returns what the outcome means: see the table at the head of the module."""
    if isinstance(outcome, CommitDone):
        return OutcomeVerdict.DONE
    if not isinstance(outcome, CommitRefused):
        return OutcomeVerdict.OPEN
    if outcome.is_bystander:
        return OutcomeVerdict.TOGETHER
    reason = outcome.details.get("reason")
    if reason == "stale_pipeline":
        return OutcomeVerdict.LEASE_LOST
    return OutcomeVerdict.TAKEN if reason in _TAKEN_REASONS else OutcomeVerdict.ALONE
