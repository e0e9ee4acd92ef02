"""Compares the SHA-256 of the nodes' state machines at the same log entries, and stops this node if it is outvoted.

The snapshot taken at a TakeSnapshot entry must be equal on every node, and so its digest (metadata/snapshot.py). Each
node sends its own digest to the others, and every node judges by itself:

    EQUAL      all reported digests equal the digest of this node
    DIFFERENT  a node reported another digest, and no majority of voters contradicts this node
    OUTVOTED   a majority of voters has one other digest: this node stops before it serves wrong state

`StateHashes` is the judgement, pure; `StateComparison` sends and receives.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection
from enum import Enum

from icestream import errors, limits
from icestream.cluster.peers import Peers
from icestream.cluster.wire import id_text
from icestream.metadata.node import Node
from icestream.observability import metrics
from icestream.observability.log import get_logger

_log = get_logger("cluster")


class Verdict(Enum):
    """The result of a comparison at one entry."""

    UNKNOWN = "nothing to compare with"
    EQUAL = "equal"
    DIFFERENT = "different"
    OUTVOTED = "outvoted"


class StateHashes:
    """The digests of all nodes at the newest common snapshots."""

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
        """Compares the digests at an entry; majorities are counted among the voters."""
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


class StateComparison:
    """Exchanges digests with the other nodes at each common snapshot."""

    def __init__(self, node: Node, peers: Peers) -> None:
        self._node = node
        self._peers = peers
        self.hashes = StateHashes(node.id)

    def on_snapshot(self, index: int, digest: bytes) -> None:
        """Called when a snapshot of this node is on disk."""
        self.hashes.note(self._node.id, index, digest)
        members = self._node.members
        for other in {*members.voters, *members.learners} - {self._node.id}:
            self._node.tasks.start(self._send_digest(other, index, digest), "state-hash")
        self._judge(index)

    async def _send_digest(self, other: int, index: int, digest: bytes) -> None:
        """Best effort: an unreachable node compares at the next snapshot."""
        arguments = {"node": id_text(self._node.id), "index": index, "hash": digest}
        with contextlib.suppress(errors.IcestreamError):
            await self._peers.call(other, "StateHash", arguments)

    def on_digest(self, other: int, index: int, digest: bytes) -> None:
        """Called with the digest of another node."""
        if other != self._node.id:
            self.hashes.note(other, index, digest)
            self._judge(index)

    def _judge(self, index: int) -> None:
        """Judges the digests at an entry; stops this node if a majority contradicts it."""
        verdict = self.hashes.judge(index, self._node.members.voters)
        metrics.RAFT_STATES_COMPARED.value += verdict is not Verdict.UNKNOWN
        if verdict not in (Verdict.DIFFERENT, Verdict.OUTVOTED):
            return
        metrics.RAFT_STATES_DIFFERENT.value += 1
        others = [id_text(other) for other in self.hashes.differing(index)]
        _log.error("state machines of nodes differ", index=index, nodes=others, verdict=verdict.value)
        if verdict is Verdict.OUTVOTED:
            self._node.fail(
                errors.LogStopped(
                    f"the state of this node at entry {index} differs from the state of a majority of nodes",
                    hint="keep its data_dir for a report, then start the node with an empty one: it joins again",
                )
            )
