"""What the nodes of a cluster have confirmed, as far as others remember it (ADR 45). Pure.

A promise (metadata/log_format.py) is a term and the last entry that was written in it. That of a node never falls, so a
node whose log shows less than another one remembers has forgotten something: its directory was brought back from a
backup, or the end of its log is lost.
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
        self._highest[node_id] = max(promise, self.of(node_id))

    def of(self, node_id: int) -> Promise:
        return self._highest.get(node_id, NONE)

    def keep(self, node_ids: Collection[int]) -> dict[int, Promise]:
        """Those of these nodes, of which there may be more than are written down; the others are forgotten."""
        kept = sorted(node_ids & self._highest.keys())[: limits.METADATA_PROMISES_MAX]
        self._highest = {node_id: self._highest[node_id] for node_id in kept}
        return dict(self._highest)


def confirmed(status: Status, own_id: int) -> dict[int, Promise]:
    """What a leader knows that others have confirmed in its term; of anybody else nothing."""
    if status["role"] != Role.LEADER:
        return {}
    term = status["term"]
    return {node: Promise(term, one[0]) for node, one in status["progress"].items() if node != own_id and one[0]}


def present(status: Status) -> Promise:
    """What a log shows."""
    return Promise(status["term"], status["last"])


def is_quorum(members: Membership, answered: Collection[int]) -> bool:
    """Whether these nodes are a majority of the voters, and of those before a change that is under way."""
    groups = [group for group in (members.voters, members.voters_outgoing) if group]
    return all(2 * len(set(group) & set(answered)) > len(group) for group in groups)


def may_take_part(own_id: int, members: Membership, answered: Collection[int]) -> bool:
    """Whether a member that starts has heard enough others. The only voter needs nobody; a node that does not vote, as
    far as it knows, needs one that does."""
    if own_id in members.voters or own_id in members.voters_outgoing:
        return is_quorum(members, {own_id, *answered})
    return bool(set(members.voters) & set(answered))
