"""Compares the SHA-256 of the nodes' state machines at the same log entries. Pure; every node judges by itself.

The snapshot taken at a TakeSnapshot entry must be equal on every node, and so its digest (metadata/snapshot.py). Each
node sends its own digest to the others:

    EQUAL      all reported digests equal the digest of this node
    DIFFERENT  a node reported another digest, and no majority of voters contradicts this node
    OUTVOTED   a majority of voters has one other digest: this node stops before it serves wrong state
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import Enum

from icestream import limits


class Verdict(Enum):
    UNKNOWN = "nothing to compare with"
    EQUAL = "equal"
    DIFFERENT = "different"
    OUTVOTED = "outvoted"


class StateHashes:
    def __init__(self, node_id: int) -> None:
        self._id = node_id
        self._digests: dict[int, dict[int, bytes]] = {}  # by index: node -> digest
        self.compared = 0

    def note(self, node_id: int, index: int, digest: bytes) -> None:
        """Records a digest; only the newest indexes are kept."""
        digests = self._digests.setdefault(index, {})
        if node_id in digests or len(digests) < limits.STATE_HASH_NODES_MAX:
            digests[node_id] = digest
        while len(self._digests) > limits.STATE_HASHES_KEPT:
            del self._digests[min(self._digests)]

    def judge(self, index: int, voters: Collection[int]) -> Verdict:
        digests = self._digests.get(index, {})
        own = digests.get(self._id)
        others = [digest for node_id, digest in digests.items() if node_id != self._id]
        if own is None or not others:
            return Verdict.UNKNOWN
        self.compared += 1
        if all(digest == own for digest in others):
            return Verdict.EQUAL
        votes = Counter(digest for node_id, digest in digests.items() if node_id in voters)
        digest, most = votes.most_common(1)[0] if votes else (own, 0)
        return Verdict.OUTVOTED if digest != own and 2 * most > len(voters) else Verdict.DIFFERENT

    def differing(self, index: int) -> list[int]:
        """Nodes whose digest differs from this node's."""
        digests = self._digests.get(index, {})
        return sorted(node_id for node_id, digest in digests.items() if digest != digests.get(self._id))
