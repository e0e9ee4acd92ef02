"""Which messages must be stored: what a route names, and what some durable session can replay (R03, R20 to R25).

Truth is the set of pairs (filter, session id), never a count (hazard 56): adding or removing a pair twice changes
nothing, and a removal cannot take away what another session needs. Subscriptions of QoS 0 are no pairs (R23).

**A node that is not sure stores**: until it has all pairs of the cluster (`revision` of the metadata store that it has
applied is at least the one that it must have), every message is stored, in the route's topic or in the default one. It
costs bytes; the opposite costs messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from icestream.mqtt.topic_index import TopicIndex
from icestream.mqtt.topics import matches


class ReplayRule(NamedTuple):
    """A filter whose messages are always stored, from a minimum QoS on (R24, R25)."""

    filter: str
    min_qos: int = 0


class PersistenceFilter:
    """The predicate of one node. Filters are valid (mqtt/topics.py)."""

    def __init__(self, rules: Iterable[ReplayRule]) -> None:
        self._rules = tuple(rules)
        self._pairs: TopicIndex[int, None] = TopicIndex()
        self._applied_revision = 0
        self._required_revision: int | None = None  # None: not known yet, after a start or a resync

    def require(self, revision: int) -> None:
        """The node is sure once it has applied this revision of the pairs."""
        self._required_revision = max(revision, self._required_revision or 0)

    def resync(self) -> None:
        """The node may have missed changes: it is not sure until `require` and `applied` say so again."""
        self._required_revision, self._applied_revision = None, 0

    def applied(self, revision: int) -> None:
        """All pairs up to this revision are added or removed here: what a node confirms before a SUBACK."""
        self._applied_revision = max(self._applied_revision, revision)

    @property
    def is_sure(self) -> bool:
        return self._required_revision is not None and self._applied_revision >= self._required_revision

    def add(self, topic_filter: str, session_id: int) -> None:
        """Adds a pair. Raises PolicyReached if the node has too many."""
        self._pairs.put(topic_filter, session_id, None)

    def remove(self, topic_filter: str, session_id: int) -> None:
        """Removes a pair, if it is there."""
        self._pairs.remove(topic_filter, session_id)

    def must_store(self, topic: str, qos: int, *, is_retained: bool = False) -> bool:
        """Whether a message is stored. A retained one always is: the retained set is a fold of the log (hazard 62)."""
        return (
            is_retained
            or not self.is_sure
            or any(qos >= rule.min_qos and matches(rule.filter, topic) for rule in self._rules)
            or self._pairs.has_match(topic)
        )
