"""Which node founds a cluster, which join it and which become voters: pure decisions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.cluster.formation import FoundCluster, JoinCluster, WaitForSeeds, decide
from icestream.cluster.members import (
    VOTER,
    NodeRecord,
    decode_record,
    encode_record,
    node_key,
    promotions,
    removed_key,
    voters_wanted,
)
from icestream.cluster.node_info import NodeInfo, from_document, to_document
from icestream.metadata.eraftpb import Membership

SEEDS = ("a:1", "b:2", "c:3")
ONE, OTHER = bytes([1] * 16), bytes([2] * 16)


def infos(*ids: int) -> dict[str, NodeInfo]:
    return {address: NodeInfo(node_id) for address, node_id in zip(SEEDS, ids, strict=True)}


def test_exactly_one_of_the_seed_nodes_begins_the_cluster() -> None:
    for ids in itertools.permutations((5, 9, 7)):
        decisions = {own: decide(own, SEEDS, infos(*ids)) for own in ids}
        assert decisions[5] == FoundCluster()
        assert decisions[9] == decisions[7] == WaitForSeeds("node 0000000000000005 founds the cluster")


def test_formation_waits_for_all_answers() -> None:
    answers = infos(5, 9, 7)
    del answers["b:2"]
    assert decide(5, SEEDS, answers) == WaitForSeeds("no answer from b:2")


def test_an_existing_cluster_is_joined_whichever_node_is_missing() -> None:
    answers = {"a:1": NodeInfo(1), "c:3": NodeInfo(7, ONE, founder=7)}
    assert decide(1, SEEDS, answers) == JoinCluster(ONE, 7, "c:3")


def test_seed_nodes_of_two_clusters_are_refused() -> None:
    answers = {"a:1": NodeInfo(1), "b:2": NodeInfo(9, OTHER, founder=9), "c:3": NodeInfo(7, ONE, founder=7)}
    with pytest.raises(errors.ForeignCluster, match="different clusters"):
        decide(1, SEEDS, answers)


@given(st.integers(1, 64))
def test_the_number_of_voters_is_odd_and_at_most_five(nodes: int) -> None:
    assert voters_wanted(nodes) in (1, 3, 5)
    assert voters_wanted(nodes) <= nodes


def caught_up(*ids: int, last: int = 10_000) -> dict[int, tuple[int, int, bool]]:
    return dict.fromkeys(ids, (last, last + 1, True))


def test_learners_become_voters_together_when_they_have_caught_up() -> None:
    members = Membership((1,), (2, 3))
    assert promotions(members, caught_up(1, 2, 3), 10_000) == [(VOTER, 2), (VOTER, 3)]
    assert promotions(members, caught_up(1, 2), 10_000) == [], "two voters would be worse than one"
    behind = caught_up(1, 2) | {3: (10_000 - limits.LEARNER_BEHIND_MAX - 1, 1, True)}
    assert promotions(members, behind, 10_000) == []
    away = caught_up(1, 2) | {3: (10_000, 10_001, False)}
    assert promotions(members, away, 10_000) == []


def test_a_fourth_node_remains_a_learner_and_a_fifth_makes_five_voters() -> None:
    assert promotions(Membership((1, 2, 3), (4,)), caught_up(1, 2, 3, 4), 10_000) == []
    changes = promotions(Membership((1, 2, 3), (4, 5)), caught_up(1, 2, 3, 4, 5), 10_000)
    assert changes == [(VOTER, 4), (VOTER, 5)]


def test_no_membership_change_starts_while_one_is_in_progress() -> None:
    members = Membership((1, 2, 3), (4, 5), voters_outgoing=(1,))
    assert promotions(members, caught_up(1, 2, 3, 4, 5), 10_000) == []


def test_node_records_round_trip() -> None:
    record = NodeRecord("node-1", "127.0.0.1:7650", native="127.0.0.1:6651")
    assert decode_record(encode_record(record)) == record
    assert node_key(255) == "/cluster/nodes/00000000000000ff"
    assert removed_key(255) == "/cluster/removed/00000000000000ff"
    for value in (b"", b"[]", b"{}", b"\xff"):
        with pytest.raises(errors.MetadataDamaged):
            decode_record(value)


def test_node_information_round_trips() -> None:
    info = NodeInfo(2**64 - 1, ONE, 7, "node-1", "a:1", "leader", 3, 2**63, 5, 5, 6, 4, (1, 2**64 - 1), (9,), 3, "ab")
    assert from_document(to_document(info)) == info
    assert from_document(to_document(NodeInfo(1))) == NodeInfo(1)


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"node": "x"},
        {"node": 7},
        {"node": "7", "voters": 3},
        {"node": "7", "cluster": "zz"},
        {"node": "7", "term": "x"},
    ],
)
def test_a_description_that_does_not_add_up_is_refused(description: dict[str, object]) -> None:
    if not description:
        assert from_document(description).node == 0
        return
    with pytest.raises(errors.DecodeError):
        from_document(description)
