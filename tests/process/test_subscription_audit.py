"""The audit of cursors itself: what breaks a promise is seen, and what a broker may do is not called broken."""

from __future__ import annotations

import pytest

from tests.support.history import HistoryViolation
from tests.support.subscription_audit import AuditedCursor, ShardAudit

ACKED = 125  # an offset; nothing of it is stored in the beginning


def audit_of_a_life() -> ShardAudit:
    """A life has begun; 123 waits for its last try, and everything before it is acked."""
    audit = ShardAudit("sorted/0", is_ordered=False, is_keyed=False)
    audit.life_began(AuditedCursor(100, 0, 122, []), was_stopped=False)
    return audit


def count_the_ack(audit: ShardAudit, revision: int) -> None:
    audit.handed("s1", 0, ACKED, b"", 0)
    audit.acked(0, ACKED, b"")
    audit.counted([(0, ACKED)], revision)


def test_a_started_write_may_lack_an_ack_and_the_next_may_not() -> None:
    audit = audit_of_a_life()
    count_the_ack(audit, 104)
    audit.written(AuditedCursor(105, 0, 122, []))
    with pytest.raises(HistoryViolation, match="S3 acked before the last write but one"):
        audit.written(AuditedCursor(106, 0, 123, []))


def test_an_ack_in_the_next_write_is_settled() -> None:
    audit = audit_of_a_life()
    count_the_ack(audit, 104)
    audit.written(AuditedCursor(105, 0, 122, []))
    audit.written(AuditedCursor(106, 0, 122, [(ACKED, ACKED + 1)]))
    assert not audit.waiting
    assert not audit.repeated


def test_the_first_write_of_a_start_need_not_contain_unwritten_acks() -> None:
    """The start found the dead letter of 122 and wrote the cursor; the crash had prevented a write with the ack."""
    audit = audit_of_a_life()
    count_the_ack(audit, 104)
    audit.written(AuditedCursor(105, 0, 122, []))
    audit.life_began(AuditedCursor(110, 0, 123, []), was_stopped=False)
    assert audit.repeated == 1
    audit.handed("s1", 0, ACKED, b"", 0)  # it comes again


def test_a_start_with_less_than_was_written_before_is_detected() -> None:
    audit = audit_of_a_life()
    count_the_ack(audit, 104)
    audit.written(AuditedCursor(106, 0, 122, [(ACKED, ACKED + 1)]))
    with pytest.raises(HistoryViolation, match="S4 a cursor has shrunk"):
        audit.life_began(AuditedCursor(110, 0, 123, []), was_stopped=False)


def test_a_stop_that_forgets_an_ack_is_caught() -> None:
    audit = audit_of_a_life()
    count_the_ack(audit, 104)
    with pytest.raises(HistoryViolation, match="S3 a stop in order forgot acks"):
        audit.life_began(AuditedCursor(110, 0, 123, []), was_stopped=True)
