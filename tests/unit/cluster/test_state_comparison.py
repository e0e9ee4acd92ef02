"""Which state counts when nodes have different ones: a majority of the voters, never one other node."""

from __future__ import annotations

import pytest

from icestream import limits
from icestream.cluster.state_comparison import StateHashes, Verdict

GOOD, BAD = b"g" * 32, b"b" * 32


@pytest.mark.parametrize(
    ("digests", "verdict"),
    [
        ({1: GOOD}, Verdict.UNKNOWN),
        ({2: GOOD, 3: GOOD}, Verdict.UNKNOWN),
        ({1: GOOD, 2: GOOD}, Verdict.EQUAL),
        ({1: GOOD, 9: GOOD}, Verdict.EQUAL),
        ({1: GOOD, 2: BAD}, Verdict.DIFFERENT),
        ({1: GOOD, 2: BAD, 3: BAD}, Verdict.OUTVOTED),
        ({1: GOOD, 2: BAD, 3: GOOD}, Verdict.DIFFERENT),
        ({1: GOOD, 2: BAD, 9: BAD, 8: BAD}, Verdict.DIFFERENT),
    ],
    ids=str,
)
def test_a_majority_of_the_voters_decides(digests: dict[int, bytes], verdict: Verdict) -> None:
    hashes = StateHashes(1)
    for node_id, digest in digests.items():
        hashes.note(node_id, 7, digest)
    assert hashes.judge(7, (1, 2, 3)) is verdict
    assert hashes.differing(7) == sorted(node_id for node_id, digest in digests.items() if digest != digests.get(1))


def test_old_indexes_are_forgotten_and_unknown_nodes_bounded() -> None:
    hashes = StateHashes(1)
    for index in range(100):
        hashes.note(1, index, GOOD)
        hashes.note(2, index, GOOD)
    assert hashes.judge(99 - limits.STATE_HASHES_KEPT, (1, 2)) is Verdict.UNKNOWN
    assert hashes.judge(100 - limits.STATE_HASHES_KEPT, (1, 2)) is Verdict.EQUAL
    for node_id in range(3, 1000):
        hashes.note(node_id, 99, BAD)
    assert len(hashes.differing(99)) == limits.STATE_HASH_NODES_MAX - 2
