"""What a restore hands on of the session log."""

from __future__ import annotations

from icestream.backup.backed_up_state import TailSections, restored_sessions
from icestream.durable import session_records as rec
from icestream.durable.session_records import encode_transaction
from icestream.wal.tail import SectionRead


def test_messages_in_flight_name_the_new_topics_and_those_of_other_topics_are_left_out() -> None:
    own = (7, 1)
    records = [
        rec.SessionRecord(*own, "c", 60),
        rec.InFlightEntry(*own, 1, 5, 0, 10, 1, 1),
        rec.InFlightRun(*own, 2, 5, 0, ((11, 2), (20, 1)), 1, 1),
        rec.InFlightRun(*own, 5, 6, 0, ((1, 2),), 1, 1),
    ]
    body = encode_transaction(records)
    section = SectionRead(0, len(records), 1, 0, body)
    session, _ = restored_sessions([TailSections(0, len(records), [section])], {5: 50}, keeps_owners=False)
    assert session[1:] == [
        rec.InFlightEntry(*own, 1, 50, 0, 10, 1, 1), rec.InFlightRun(*own, 2, 50, 0, ((11, 2), (20, 1)), 1, 1),
    ]  # fmt: skip
