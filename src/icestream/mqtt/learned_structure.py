"""The learned structure of MQTT topics: which of their levels vary, so that a table keeps alike topics together.

    structure   a trie over the levels of topics. A node has literal edges; when it gets the last one that its threshold
                allows, it gets an edge `+` too, which takes every level that comes later
    stream      the path of a topic: its levels, `+` in place of those that an edge `+` took, such as `plant/+/heat`
    varying     the levels that an edge `+` took, in their order
    rest        `plant/#` is the stream of topics that the trie does not follow further: they have more than
                MQTT_LEVEL_COLUMNS levels, a level is longer than STRUCTURE_TOKEN_BYTES_MAX, or the structure is full
    $           topics whose first level begins with `$` have a root of their own, so that a `+` of one never takes the
                other: the keys of its edge `+` and of its rest begin with `$+` and `$#`

The rules, and why each of them is one:
1. A structure only grows, and no literal edge is added to a node that has an edge `+`. A literal edge wins over `+`. So
   a topic that has a stream keeps it for ever: in every later version it takes the same edges.
2. A topic whose next level has no edge has no stream yet (None). `learn` adds the edges; the owner of the structure
   stores the next version before any row refers to it.
3. A full structure stays full, whatever its bounds are later: a topic in the rest keeps its stream.

    bytes       msgpack array [format 1, version, is full, parents, tokens]: the parent and the level of each node but
                the roots (0: ordinary, 1: `$`), nil for `+`, in the order in which they were added; parents come first
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from icestream import errors, limits

FORMAT: Final = 1
ROOT: Final = 0
DOLLAR_ROOT: Final = 1
_NODE_BYTES: Final = 5  # of a node beside its level, in the bytes of a structure
_Fields = tuple[
    Annotated[int, Meta(ge=FORMAT, le=FORMAT)],
    Annotated[int, Meta(ge=0, le=2**31 - 1)],
    bool,
    Annotated[list[int], Meta(max_length=limits.STRUCTURE_NODES_MAX)],
    Annotated[list[str | None], Meta(max_length=limits.STRUCTURE_NODES_MAX)],
]
_decoder: Final = msgspec.msgpack.Decoder(_Fields)


class TopicStream(NamedTuple):
    """The stream of a topic."""

    key: str
    varying: tuple[str, ...]


class LearnedStructure:
    """One version of the structure of a table's topics; `learn` makes it the next one."""

    __slots__ = ("_literals", "_parents", "_plus", "_tokens", "is_full", "size_bytes", "version")

    def __init__(self) -> None:
        self.version = 0
        self.is_full = False
        self.size_bytes = 0
        self._parents: list[int] = [-1, -1]
        self._tokens: list[str | None] = ["", "$"]
        self._literals: list[dict[str, int]] = [{}, {}]
        self._plus: list[int] = [-1, -1]

    # --- the trie ---

    @property
    def node_count(self) -> int:
        return len(self._parents)

    @property
    def plus_edges(self) -> list[int]:
        """The node behind the edge `+` of each node; -1 if it has none."""
        return self._plus

    def literal_edges(self) -> list[tuple[int, str, int]]:
        """(node, level, next node) of all literal edges."""
        return [(node, token, child) for node, edges in enumerate(self._literals) for token, child in edges.items()]

    def key_of(self, node: int, *, is_rest: bool = False) -> str:
        """The key of the stream that ends at a node, or of the rest there."""
        is_dollar = False
        levels = ["#"] if is_rest else []
        while node > DOLLAR_ROOT:
            token = self._tokens[node]
            levels.append("+" if token is None else token)
            node = self._parents[node]
            is_dollar = node == DOLLAR_ROOT
        if (is_dollar or node == DOLLAR_ROOT) and levels[-1] in ("+", "#"):
            levels[-1] = f"${levels[-1]}"
        return "/".join(reversed(levels))

    def _next(self, node: int, token: str) -> int:
        """The node behind the edge that a level takes; -1 if it has none."""
        return self._literals[node].get(token, self._plus[node])

    # --- topics ---

    def resolve(self, topic: str) -> TopicStream | None:
        """The stream of a topic; None if it has none yet."""
        node = root_of(topic)
        varying: list[str] = []
        for level, token in enumerate(topic.split("/")):
            following = -1 if is_beyond(level, token) else self._next(node, token)
            if following < 0:
                # An edge `+` does not take a long level either: the topic had its stream before the edge was learned.
                if self.is_full or is_beyond(level, token):
                    return TopicStream(self.key_of(node, is_rest=True), tuple(varying))
                return None
            if following == self._plus[node]:
                varying.append(token)
            node = following
        return TopicStream(self.key_of(node), tuple(varying))

    def learn(self, topic: str) -> bool:
        """Adds the edges that the topic needs; False if it needs none or nothing can be added. The caller gives a
        structure that changed its next version (`next_version`)."""
        node, has_changed = root_of(topic), False
        for level, token in enumerate(topic.split("/")):
            if is_beyond(level, token):
                break
            following = self._next(node, token)
            if following < 0:
                if self.is_full or not self._has_room(token):
                    has_changed |= not self.is_full
                    self.is_full = True
                    break
                following = self._add(node, token)
                has_changed = True
                if len(self._literals[node]) >= threshold(level):
                    self._plus[node] = self._add(node, None)
            node = following
        return has_changed

    def next_version(self) -> None:
        self.version += 1

    def _has_room(self, token: str) -> bool:
        # For a literal edge and an edge `+`: a node never exceeds its threshold because there was room for one only.
        needed = 2 * _NODE_BYTES + len(token.encode())
        is_within_bytes = self.size_bytes + needed <= limits.STRUCTURE_BYTES_MAX
        return is_within_bytes and self.node_count + 2 <= limits.STRUCTURE_NODES_MAX

    def _add(self, parent: int, token: str | None) -> int:
        node = self.node_count
        self._parents.append(parent)
        self._tokens.append(token)
        self._literals.append({})
        self._plus.append(-1)
        self.size_bytes += _NODE_BYTES + len((token or "").encode())
        if token is not None:
            self._literals[parent][token] = node
        return node

    # --- bytes ---

    def encode(self) -> bytes:
        return msgspec.msgpack.encode((FORMAT, self.version, self.is_full, self._parents[2:], self._tokens[2:]))

    @classmethod
    def decode(cls, data: bytes) -> LearnedStructure:
        """Raises DecodeError for bytes that are not a structure."""
        try:
            _, version, is_full, parents, tokens = _decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise errors.DecodeError(f"not a learned structure: {error}") from None
        if len(parents) != len(tokens):
            raise errors.DecodeError(f"not a learned structure: {len(parents)} parents and {len(tokens)} levels")
        structure = cls()
        structure.version, structure.is_full = version, is_full
        for parent, token in zip(parents, tokens, strict=True):
            structure._restore(parent, token)
        return structure

    def _restore(self, parent: int, token: str | None) -> None:
        if not 0 <= parent < self.node_count:
            raise errors.DecodeError(f"not a learned structure: node {self.node_count} has the parent {parent}")
        if token is None:
            if self._plus[parent] >= 0:
                raise errors.DecodeError(f"not a learned structure: node {parent} has two edges +")
            self._plus[parent] = self._add(parent, None)
        elif token in self._literals[parent] or "/" in token:
            raise errors.DecodeError(f"not a learned structure: level {token!r} below node {parent}")
        else:
            self._add(parent, token)


def root_of(topic: str) -> int:
    return DOLLAR_ROOT if topic.startswith("$") else ROOT


def is_beyond(level: int, token: str) -> bool:
    """True for a level that the trie does not follow: the topic is in the rest."""
    # A token has at most four bytes for each character: most are decided without being encoded.
    is_long = (
        4 * len(token) > limits.STRUCTURE_TOKEN_BYTES_MAX and len(token.encode()) > limits.STRUCTURE_TOKEN_BYTES_MAX
    )
    return level >= limits.MQTT_LEVEL_COLUMNS or is_long


def threshold(level: int) -> int:
    """How many literal edges a node at this level gets; the last of them brings the edge `+`."""
    thresholds = limits.STRUCTURE_THRESHOLDS
    return thresholds[min(level, len(thresholds) - 1)]
