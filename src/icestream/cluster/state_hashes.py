"""The SHA-256 of the nodes' states at the same places of the log, compared by every node for itself. Pure.

A snapshot at a TakeSnapshot is of the same state on every node, so its digest must be the same (metadata/snapshot.py).
Each node tells the others its own; whoever has heard of a difference judges it:

    EQUAL      everybody who has told it has the digest of this node
    DIFFERENT  somebody has another one, and no majority of the voters says that it is this node which is wrong
    OUTVOTED   a majority of the voters has one other digest: this node stops, before it serves or spreads what is wrong
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import Enum

from icestream import limits


class Verdict(Enum):
    UNKNOWN = "nobody to compare with"
    EQUAL = "equal"
    DIFFERENT = "different"
    OUTVOTED = "outvoted"


class StateHashes:
    def __init__(self, node_id: int) -> None:
        self._id = node_id
        self._told: dict[int, dict[int, bytes]] = {}  # by index: node -> digest
        self.compared = 0

    def note(self, node_id: int, index: int, digest: bytes) -> None:
        """The newest places are kept, within a bound."""
        known = self._told.setdefault(index, {})
        if node_id in known or len(known) < limits.STATE_HASH_NODES_MAX:
            known[node_id] = digest
        while len(self._told) > limits.STATE_HASHES_KEPT:
            del self._told[min(self._told)]

    def judge(self, index: int, voters: Collection[int]) -> Verdict:
        told = self._told.get(index, {})
        own = told.get(self._id)
        others = [digest for node_id, digest in told.items() if node_id != self._id]
        if own is None or not others:
            return Verdict.UNKNOWN
        self.compared += 1
        if all(digest == own for digest in others):
            return Verdict.EQUAL
        votes = Counter(digest for node_id, digest in told.items() if node_id in voters)
        digest, most = votes.most_common(1)[0] if votes else (own, 0)
        return Verdict.OUTVOTED if digest != own and 2 * most > len(voters) else Verdict.DIFFERENT

    def differing(self, index: int) -> list[int]:
        """Nodes whose state is not the one of this node."""
        told = self._told.get(index, {})
        return sorted(node_id for node_id, digest in told.items() if digest != told.get(self._id))
