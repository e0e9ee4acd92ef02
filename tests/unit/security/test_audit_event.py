"""Events of the audit: merging compared with a model, quotas, and texts that carry nothing they should not."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.security.audit_event import MASK, AuditEvent, AuditMerge, audit_event, clean_text
from icestream.security.caller_address import address_group, host_of

TOKEN = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"
EVENTS = st.lists(
    st.builds(
        audit_event,
        st.integers(0, 10**6),
        st.sampled_from(["denied", "login-failed", "access"]),
        principal=st.sampled_from(["alice", "bob"]),
        address=st.sampled_from(["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"]),
        resource=st.sampled_from([f"topic:/shop/{number}" for number in range(6)]),
    ),
    max_size=60,
)


def facts(event: AuditEvent) -> tuple[str, ...]:
    return (event.event, event.principal, event.address, event.resource)


@given(EVENTS, st.integers(1, 20))
def test_merging_keeps_every_count_and_the_quotas(events: list[AuditEvent], per_second: int) -> None:
    merge = AuditMerge(per_second)
    share = max(per_second // limits.AUDIT_SHARE, 1)
    kept: set[tuple[str, ...]] = set()
    counts: Counter[tuple[str, ...]] = Counter()
    dropped = 0
    for event in events:
        of_caller = sum(other[1:3] == facts(event)[1:3] for other in kept)
        is_new = facts(event) not in kept
        fits = not is_new or (len(kept) < per_second and of_caller < share)
        assert merge.add(event) is fits
        if fits:
            kept.add(facts(event))
            counts[facts(event)] += 1
        else:
            dropped += 1
    recorded = merge.take(10**7)
    summary = [event for event in recorded if event.event == "dropped"]
    others = [event for event in recorded if event.event != "dropped"]
    assert {facts(event): event.count for event in others} == counts
    assert sum(event.count for event in summary) == dropped
    assert len(others) <= per_second
    assert sum(event.count for event in recorded) == len(events)
    for event in others:
        times = [other.time_us for other in events if facts(other) == facts(event)]
        assert (event.time_us, event.last_us) == (times[0], max(times))
    assert merge.is_empty
    assert merge.take(10**7) == []


def test_hazard_121_a_flood_of_denials_is_bounded_and_hides_no_principal() -> None:
    merge = AuditMerge(100)
    for number in range(20_000):
        merge.add(
            audit_event(number, "denied", principal="attacker", address="10.0.0.1", resource=f"topic:/a/{number}")
        )
    assert merge.add(audit_event(7, "denied", principal="mallory", address="10.0.0.2", resource="topic:/shop/orders"))
    events = merge.take(8)
    assert Counter(event.event for event in events) == {"denied": 26, "dropped": 1}
    assert sum(event.count for event in events) == 20_001
    assert "mallory" in {event.principal for event in events}


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("alice", "alice"),
        ("al\nice\x00\x1b[31m\u202e\ud800", "al\ufffdice\ufffd\ufffd[31m\ufffd\ufffd"),
        (TOKEN, MASK),
        (f"Bearer {TOKEN}", MASK),
        ("basic YWxpY2U6c2VjcmV0", MASK),
        (f"user {TOKEN} of {TOKEN}", f"user {MASK} of {MASK}"),
        ("x" * 5000, "x" * 1021 + "…"),
        ("é" * 5000, "é" * 510 + "…"),
    ],
)
def test_hazard_121_texts_have_no_control_characters_and_no_tokens(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned
    assert len(clean_text(text).encode()) <= limits.AUDIT_TEXT_BYTES_MAX


@given(st.text(max_size=40))
def test_every_text_can_be_recorded(text: str) -> None:
    event = audit_event(1, "login-failed", principal=text, address=text, listener=text, rule=text, detail=text)
    decoded = msgspec.json.decode(event.encode(), type=AuditEvent)
    assert decoded == event
    assert all(value.isprintable() for value in (decoded.principal, decoded.rule, decoded.detail, decoded.address))
    assert decoded.principal == clean_text(decoded.principal)


@pytest.mark.parametrize(
    ("address", "host", "group"),
    [
        ("10.1.2.3:50123", "10.1.2.3", "10.1.2.3"),
        ("10.1.2.3", "10.1.2.3", "10.1.2.3"),
        ("[2001:db8::1]:5", "2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::1", "2001:db8::ffff:0:0:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::1", "fe80::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3", "10.1.2.3"),
        ("[::ffff:10.1.2.3]:99", "10.1.2.3", "10.1.2.3"),
        ("local", "local", "local"),
        ("", "", ""),
        ("a:b:c", "a:b:c", "a:b:c"),
    ],
)
def test_addresses_of_one_caller_are_one(address: str, host: str, group: str) -> None:
    assert host_of(address) == host
    assert address_group(address) == group
