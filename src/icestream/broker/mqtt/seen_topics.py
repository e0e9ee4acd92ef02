"""SeenTopics: the MQTT topics that had messages, with how many, when the last one was stored and where. Pure.

    learned   by the feeds, once for each block that they read, and for each message that is not stored
    bound     MQTT_TOPICS_SEEN_MAX topics of a node, and MQTT_TOPICS_SEEN_BYTES of their names; beyond it one
              whose last message is long ago is forgotten, and counted. A topic that had a message since it was last
              looked at gets a second chance, so that a message moves nothing
    restart   not stored: counts begin again. The topics of retained messages are known from the start, all others
              from their next message on. The table has every topic that was ever stored

A topic has a number, which rises with the first message of each: pages of a listing go by it, since a topic may be too
long for a URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from icestream import limits
from icestream.durable.session_records import RetainedValue, shard_of
from icestream.model.shard import ShardKey


class SeenTopic:
    """A topic. `offset`: of its last message in the shard; None if that was not stored."""

    __slots__ = ("is_recent", "key", "last_us", "messages", "number", "offset", "topic")

    def __init__(self, topic: str, number: int, key: ShardKey) -> None:
        self.topic = topic
        self.number = number
        self.key = key
        self.messages = 0
        self.last_us = 0
        self.offset: int | None = None
        self.is_recent = False


class SeenTopics:
    """The topics of a node."""

    def __init__(
        self, topics_max: int = limits.MQTT_TOPICS_SEEN_MAX, bytes_max: int = limits.MQTT_TOPICS_SEEN_BYTES
    ) -> None:
        self._topics_max = topics_max
        self._bytes_max = bytes_max
        self._topics: dict[str, SeenTopic] = {}
        self._held_bytes = 0
        self._last_number = 0
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[SeenTopic]:
        return iter(list(self._topics.values()))

    def get(self, topic: str) -> SeenTopic | None:
        return self._topics.get(topic)

    def add_stored(self, key: ShardKey, base: int, topics: Sequence[str], time_us: int) -> None:
        """Adds the rows of a block: their topics in order, the first one at the offset `base`."""
        count = len(topics)
        if topics.count(topics[0]) == count:  # of one client that publishes fast, nearly always
            self._add(key, topics[0], count, time_us, base + count - 1)
            return
        for offset, topic in enumerate(topics, base):
            self._add(key, topic, 1, time_us, offset)

    def add_live(self, key: ShardKey, topic: str, time_us: int) -> None:
        """Adds a message that is not stored."""
        self._add(key, topic, 1, time_us, None)

    def add_retained(self, values: Iterable[RetainedValue]) -> None:
        """Adds the topics of retained messages of an earlier run, in the order in which they were stored."""
        for value in values:
            self._add(shard_of(value), value.topic, 0, value.append_time_us, value.offset)

    def _add(self, key: ShardKey, topic: str, messages: int, time_us: int, offset: int | None) -> None:
        entry = self._topics.get(topic)
        if entry is None:
            entry = self._create(key, topic)
        else:
            entry.is_recent = True
        entry.messages += messages
        entry.last_us = time_us
        entry.offset = offset

    def _create(self, key: ShardKey, topic: str) -> SeenTopic:
        self._held_bytes += len(topic)
        while self._topics and (len(self._topics) >= self._topics_max or self._held_bytes > self._bytes_max):
            self._forget_one()
        self._last_number += 1
        entry = self._topics[topic] = SeenTopic(topic, self._last_number, key)
        return entry

    def _forget_one(self) -> None:
        for _ in range(limits.MQTT_TOPICS_SECOND_CHANCES):
            first = next(iter(self._topics.values()))
            if not first.is_recent:
                break
            first.is_recent = False
            self._topics[first.topic] = self._topics.pop(first.topic)
        oldest = next(iter(self._topics))
        del self._topics[oldest]
        self._held_bytes -= len(oldest)
        self.forgotten += 1
