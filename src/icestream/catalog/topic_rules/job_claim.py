"""The claims of jobs, by their kind: what `assert-icestream-job` can ask for."""

from __future__ import annotations

from icestream.catalog.topic_rules.erase_claim import ERASE_KIND, EraseClaim, read_erase
from icestream.catalog.topic_rules.history_claim import HISTORY_KIND, HistoryClaim, read_history
from icestream.catalog.topic_rules.retention_claim import RETENTION_KIND, RetentionClaim, read_retention
from icestream.catalog.topic_rules.rewrite import RewriteClaim, read_rewrite
from icestream.iceberg import values
from icestream.iceberg.values import Object

JobClaim = RewriteClaim | RetentionClaim | EraseClaim | HistoryClaim


def read_job(requirement: Object) -> JobClaim:
    """The claim of a job, by its kind. Raises InvalidInput for a requirement that could not hold for any table."""
    match values.text(requirement, "kind"):
        case kind if kind == RETENTION_KIND:
            return read_retention(requirement)
        case kind if kind == ERASE_KIND:
            return read_erase(requirement)
        case kind if kind == HISTORY_KIND:
            return read_history(requirement)
    return read_rewrite(requirement)
