"""TopicIndex: from the filters of many subscribers to those that match a topic.

Filters without a wildcard are keys of one dictionary, so that a device with a topic of its own costs one look-up. The
others are paths of a trie by level:

    node      children by level (`+` is a level like any other here); `here`: subscribers whose filter ends at this
              node; `below`: subscribers whose filter ends with `#` behind this node

A match walks all paths that the topic can take: at each level the child of that name and the child `+`. It visits at
most the nodes that exist, and at most two for each node of the level above. The walk has no recursion, because the
depth of a filter is a client's choice.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from icestream import errors, limits
from icestream.mqtt.topics import has_wildcard

Subscriber = TypeVar("Subscriber", bound=Hashable)
Options = TypeVar("Options")


class _Node(Generic[Subscriber, Options]):
    __slots__ = ("below", "children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Node[Subscriber, Options]] = {}
        self.here: dict[Subscriber, Options] = {}
        self.below: dict[Subscriber, Options] = {}


class TopicIndex(Generic[Subscriber, Options]):
    """Filters are valid and without `$share` and `$replay` (topics.py). A pair of filter and subscriber occurs once."""

    def __init__(self, pairs_max: int = limits.MQTT_INDEX_PAIRS_MAX) -> None:
        """`pairs_max`: the most pairs of filter and subscriber."""
        self._pairs_max = pairs_max
        self._exact: dict[str, dict[Subscriber, Options]] = {}
        self._root: _Node[Subscriber, Options] = _Node()
        self._pairs = 0

    def __len__(self) -> int:
        """The number of pairs of filter and subscriber."""
        return self._pairs

    def put(self, topic_filter: str, subscriber: Subscriber, options: Options) -> bool:
        """Adds or replaces a pair; True if it is new. Raises PolicyReached if the index is full."""
        subscribers = self._subscribers(topic_filter)
        is_new = subscribers is None or subscriber not in subscribers
        if is_new and self._pairs >= self._pairs_max:
            raise errors.PolicyReached(
                f"the node has {self._pairs} MQTT subscriptions, the most that it may have",
                hint="unsubscribe clients, or use wildcards instead of a filter for each topic",
            )
        if subscribers is None:
            subscribers = self._create(topic_filter)
        subscribers[subscriber] = options
        self._pairs += is_new
        return is_new

    def remove(self, topic_filter: str, subscriber: Subscriber) -> bool:
        """Removes a pair and what of the trie only it needed; False if there is no such pair."""
        subscribers = self._subscribers(topic_filter)
        if subscribers is None or subscriber not in subscribers:
            return False
        del subscribers[subscriber]
        self._pairs -= 1
        if not has_wildcard(topic_filter):
            if not subscribers:
                del self._exact[topic_filter]
        else:
            self._prune(topic_filter)
        return True

    def match(self, topic: str) -> list[tuple[Subscriber, Options]]:
        """All pairs whose filter matches; a subscriber with several matching filters occurs once for each."""
        result: list[tuple[Subscriber, Options]] = []
        if (exact := self._exact.get(topic)) is not None:
            result.extend(exact.items())
        root = self._root
        if not root.children and not root.below:
            return result
        levels = topic.split("/")
        nodes: list[_Node[Subscriber, Options]] = [root]
        is_hidden = topic.startswith("$")  # from wildcards at the first level
        for level in levels:
            following: list[_Node[Subscriber, Options]] = []
            for node in nodes:
                if not is_hidden:
                    if node.below:
                        result.extend(node.below.items())
                    if (wild := node.children.get("+")) is not None:
                        following.append(wild)
                if (child := node.children.get(level)) is not None:
                    following.append(child)
            is_hidden = False
            nodes = following
            if not nodes:
                return result
        for node in nodes:
            result.extend(node.here.items())
            result.extend(node.below.items())  # `a/#` matches `a`
        return result

    def has_match(self, topic: str) -> bool:
        """True if any filter matches."""
        return bool(self.match(topic))

    # --- the trie ---

    def _subscribers(self, topic_filter: str) -> dict[Subscriber, Options] | None:
        if not has_wildcard(topic_filter):
            return self._exact.get(topic_filter)
        node = self._root
        for level in _path(topic_filter):
            child = node.children.get(level)
            if child is None:
                return None
            node = child
        return node.below if topic_filter.endswith("#") else node.here

    def _create(self, topic_filter: str) -> dict[Subscriber, Options]:
        if not has_wildcard(topic_filter):
            return self._exact.setdefault(topic_filter, {})
        node = self._root
        for level in _path(topic_filter):
            node = node.children.setdefault(level, _Node())
        return node.below if topic_filter.endswith("#") else node.here

    def _prune(self, topic_filter: str) -> None:
        """Removes the nodes of a path that nothing needs any more, from its end."""
        path: list[tuple[_Node[Subscriber, Options], str]] = []
        node = self._root
        for level in _path(topic_filter):
            path.append((node, level))
            node = node.children[level]
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.children or child.here or child.below:
                return
            del parent.children[level]

    def nodes(self) -> Iterator[object]:
        """All nodes of the trie, for tests of its size."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())


def _path(topic_filter: str) -> list[str]:
    """The levels of a wildcard filter, without a last `#`."""
    levels = topic_filter.split("/")
    return levels[:-1] if levels[-1] == "#" else levels
