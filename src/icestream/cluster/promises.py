"""What the nodes of a cluster have confirmed, as remembered by the others (ADR 45). Pure.

A promise (metadata/log_format.py) is a term and the last entry written in it. The promise of a node never decreases, so
a node whose log shows less than another node remembers has lost entries: its directory was restored from a backup, or
the end of its log is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from icestream import limits
from icestream.metadata.core import Role, Status
from icestream.metadata.eraftpb import Membership
from icestream.metadata.log_format import Promise

NONE = Promise(0, 0)


class Promises:
    """The highest promise of each other node."""

    def __init__(self, remembered: Mapping[int, Promise]) -> None:
        self._highest = dict(remembered)

    def note(self, node_id: int, promise: Promise) -> None:
        """Raises the promise of a node; a lower one is ignored."""
        self._highest[node_id] = max(promise, self.of(node_id))

    def of(self, node_id: int) -> Promise:
        """The highest known promise of a node."""
        return self._highest.get(node_id, NONE)

    def keep(self, node_ids: Collection[int]) -> dict[int, Promise]:
        """Forgets all nodes but these and returns their promises, bounded to what one record holds."""
        remaining = sorted(node_ids & self._highest.keys())[: limits.METADATA_PROMISES_MAX]
        self._highest = {node_id: self._highest[node_id] for node_id in remaining}
        return dict(self._highest)


def confirmed(status: Status, own_id: int) -> dict[int, Promise]:
    """What the other nodes have confirmed to this leader in its term; empty on a follower."""
    if status["role"] != Role.LEADER:
        return {}
    term = status["term"]
    return {
        node_id: Promise(term, node_progress[0])
        for node_id, node_progress in status["progress"].items()
        if node_id != own_id and node_progress[0]
    }


def present(status: Status) -> Promise:
    """The promise that this node's log proves."""
    return Promise(status["term"], status["last"])


def is_quorum(members: Membership, respondents: Collection[int]) -> bool:
    """True if these nodes are a majority of the voters, and of the outgoing voters during a change of members."""
    groups = [group for group in (members.voters, members.voters_outgoing) if group]
    return all(2 * len(set(group) & set(respondents)) > len(group) for group in groups)


def may_take_part(own_id: int, members: Membership, respondents: Collection[int]) -> bool:
    """True if a starting member has heard from enough other nodes to take part.

    A voter needs a majority including itself; a node that is not a voter, as far as it knows, needs one voter.
    """
    if own_id in members.voters or own_id in members.voters_outgoing:
        return is_quorum(members, {own_id, *respondents})
    return bool(set(members.voters) & set(respondents))
