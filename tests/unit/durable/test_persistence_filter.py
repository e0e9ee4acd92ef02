"""Which messages a node stores (R03, R20, R21, R23 to R25; hazards 56, 62)."""

from __future__ import annotations

import pytest

from icestream.durable.persistence_filter import PersistenceFilter, ReplayRule


def sure(*rules: ReplayRule) -> PersistenceFilter:
    persistence = PersistenceFilter(rules)
    persistence.require(1)
    persistence.applied(1)
    return persistence


def test_r21_a_filter_counts_until_the_last_session_of_it_leaves() -> None:
    persistence = sure()
    assert not persistence.must_store("a/b/c", 2)
    for session_id in (1, 2, 2):  # a retry adds nothing
        persistence.add("a/b/#", session_id)
    persistence.remove("a/b/#", 1)
    persistence.remove("a/b/#", 1)
    assert persistence.must_store("a/b/c", 0)
    assert not persistence.must_store("a/c", 0)
    persistence.remove("a/b/#", 2)
    assert not persistence.must_store("a/b/c", 2)


def test_hazard_56_a_node_that_is_not_sure_stores() -> None:
    persistence = PersistenceFilter(())
    assert persistence.must_store("a", 0), "before it knows what it must have"
    persistence.require(7)
    persistence.applied(6)
    assert persistence.must_store("a", 0)
    persistence.applied(7)
    assert not persistence.must_store("a", 0)
    persistence.require(9)
    assert persistence.must_store("a", 0)
    persistence.applied(9)
    persistence.resync()
    assert persistence.must_store("a", 0), "the watch was interrupted"


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("min_qos", [0, 1, 2])
def test_r25_a_rule_stores_from_its_minimum_qos_on(qos: int, min_qos: int) -> None:
    assert sure(ReplayRule("#", min_qos)).must_store("a", qos) == (qos >= min_qos)


def test_dollar_topics_match_no_wildcard_rule_and_retained_messages_are_always_stored() -> None:
    assert not sure(ReplayRule("#")).must_store("$SYS/uptime", 2)
    assert sure().must_store("a", 0, is_retained=True)
