"""The streams of many topics at once: `LearnedStructure.resolve` (mqtt/learned_structure.py) level by level, by numpy.

All topics go down the trie together. An edge is found by one number, node and level, among the sorted numbers of all
edges; a level that no edge knows has the number of none.

A task writes the streams that the structure of its round has (`resolve_topics`), and reports topics that have none yet.
It orders its rows as if these were learned already (`order_of_topics`): their files are then as well clustered as later
ones, and what a task learned by itself is in no column, because another task may have learned otherwise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from icestream import limits
from icestream.mqtt.learned_structure import DOLLAR_ROOT, ROOT, LearnedStructure

Ints = NDArray[np.int64]
NO_STREAM = -1


class DistinctTopics(NamedTuple):
    """Topics, each once, with their levels (mqtt/topic_arrays.py)."""

    topics: Any
    levels: list[Any]
    counts: Ints  # of levels

    def select(self, indices: Ints) -> DistinctTopics:
        where = pa.array(indices)
        return DistinctTopics(
            self.topics.take(where), [level.take(where) for level in self.levels], self.counts[indices]
        )


class TopicStreams(NamedTuple):
    """The streams of topics: keys, each once, and the index of each topic's key or NO_STREAM."""

    keys: list[str]
    codes: Ints


class TopicOrder(NamedTuple):
    """How topics are ordered in a file, and what is new about them."""

    streams: Ints  # the place of each topic's stream among all streams
    topics: Ints  # the place of each topic among all topics
    new_topics: list[str]  # for the owner of the structure to learn, in this order


def resolve_topics(structure: LearnedStructure, distinct: DistinctTopics) -> TopicStreams:
    """The stream of each topic by this version of the structure."""
    nodes, is_rest = _walk(structure, distinct)
    ends = np.where(nodes < 0, NO_STREAM, 2 * nodes + is_rest)
    distinct_ends, codes = np.unique(ends, return_inverse=True)
    has_none = int(len(distinct_ends) > 0 and distinct_ends[0] == NO_STREAM)
    keys = [structure.key_of(end // 2, is_rest=bool(end % 2)) for end in distinct_ends[has_none:].tolist()]
    return TopicStreams(keys, codes.reshape(-1) - has_none)


def _walk(structure: LearnedStructure, distinct: DistinctTopics) -> tuple[Ints, NDArray[np.bool_]]:
    """The node at which each topic ends, -1 if it has no stream; and whether it is in the rest there."""
    edges = _Edges(structure)
    is_dollar = pc.starts_with(distinct.topics, "$").to_numpy(zero_copy_only=False)
    nodes = np.where(is_dollar, DOLLAR_ROOT, ROOT).astype(np.int64)
    is_rest = np.zeros(len(nodes), np.bool_)
    for number, level in enumerate(distinct.levels):
        is_below = (distinct.counts > number) & ~is_rest & (nodes >= 0)
        if not is_below.any():
            break
        sizes = pc.fill_null(pc.binary_length(level), 0).to_numpy(zero_copy_only=False)
        is_long = sizes > limits.STRUCTURE_TOKEN_BYTES_MAX
        following = np.where(is_long, -1, edges.follow(nodes, level))
        ends_here = is_below & (following < 0)
        is_rest |= ends_here & (is_long | structure.is_full)
        nodes = np.where(is_below & ~is_rest, following, nodes)
    is_rest |= (distinct.counts > len(distinct.levels)) & (nodes >= 0)
    return nodes, is_rest


class _Edges:
    """The edges of a structure as sorted numbers."""

    def __init__(self, structure: LearnedStructure) -> None:
        edges = structure.literal_edges()
        tokens = sorted({token for _, token, _ in edges})
        numbers = {token: number for number, token in enumerate(tokens)}
        self._tokens = pa.array(tokens, pa.utf8())
        self._width = len(tokens) + 1
        keys = np.array([node * self._width + numbers[token] for node, token, _ in edges], np.int64)
        order = np.argsort(keys)
        self._keys = keys[order]
        self._children = np.array([child for _, _, child in edges], np.int64)[order]
        self._plus = np.array(structure.plus_edges, np.int64)

    def follow(self, nodes: Ints, level: Any) -> Ints:
        """The node behind the edge that each level takes; -1 if there is none."""
        plus: Ints = self._plus[np.maximum(nodes, 0)]
        if not len(self._keys):
            return plus
        # A level that no edge has gets the number behind all others.
        tokens = pc.fill_null(pc.index_in(level, self._tokens), self._width - 1).to_numpy().astype(np.int64)
        keys = nodes * self._width + tokens
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._children[places], plus)


def order_of_topics(structure: LearnedStructure, distinct: DistinctTopics, streams: TopicStreams) -> TopicOrder:
    """The order of topics by stream, then by topic. `streams`: as `resolve_topics` returned them; topics without one
    are learned in a copy of the structure."""
    new_topics: list[str] = []
    unknown = np.flatnonzero(streams.codes == NO_STREAM)
    learned = LearnedStructure.decode(structure.encode()) if len(unknown) else structure
    while len(unknown) and len(new_topics) < limits.LEARNED_TOPICS_MAX:
        # A few at a time: once an edge `+` is learned, the thousands behind it need not be looked at.
        some = distinct.topics.take(pa.array(unknown[: limits.LEARNED_AT_ONCE])).to_pylist()
        new_topics += [topic for topic in some if learned.learn(topic)]
        unknown = unknown[resolve_topics(learned, distinct.select(unknown)).codes == NO_STREAM]
    if new_topics:
        streams = resolve_topics(learned, distinct)
    by_key = np.argsort(np.array(streams.keys, np.str_))
    places = np.empty(len(streams.keys) + 1, np.int64)
    places[by_key] = np.arange(len(streams.keys))
    places[NO_STREAM] = len(streams.keys)  # the last one: what could not be learned in this round
    topics = np.empty(len(streams.codes), np.int64)
    topics[pc.sort_indices(distinct.topics).to_numpy()] = np.arange(len(topics))
    return TopicOrder(places[streams.codes], topics, new_topics[: limits.LEARNED_TOPICS_MAX])
