"""The retained messages: the last value of each topic, as a fold of the message shards (hazard 62). Pure.

    row of a shard, retained    sets the value of its topic; an empty payload clears it
    applied offset              of a shard: the values are those of all its rows below. Rows below it change nothing

A topic has all its rows in one shard (ADR 60), so the last row in order of offsets is the last value. The set holds the
values themselves: retention of a row does not lose it. `take_changes` gives what changed since the last call as one
transaction of the state topic; it is written later than the rows, and a start folds the rows behind the applied offset.

A subscription that wants retained messages takes `matching` and `applied` in one step and starts at these offsets: what
was retained before is in the set, all later is in the log, nothing is in neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice

from icestream import limits
from icestream.durable import session_records as rec
from icestream.durable.session_records import AnyRecord, RetainedValue, shard_of
from icestream.model.shard import ShardKey
from icestream.mqtt.topics import has_wildcard, matches


class RetainedSet:
    """The last values of one node's shards, within bounds of number and bytes."""

    def __init__(
        self,
        values_max: int = limits.RETAINED_VALUES_MAX,
        bytes_max: int = limits.RETAINED_BYTES_MAX,
    ) -> None:
        self._values: dict[str, RetainedValue] = {}
        self._applied: dict[ShardKey, int] = {}
        self._changed: set[str] = set()
        self._moved: set[ShardKey] = set()
        self._values_max = values_max
        self._bytes_max = bytes_max
        self.held_bytes = 0

    @property
    def applied(self) -> Mapping[ShardKey, int]:
        """The applied offset of each shard."""
        return self._applied

    def __len__(self) -> int:
        return len(self._values)

    def fold(self, value: RetainedValue) -> bool:
        """Applies a retained row; False if the set is full and the value is not taken.

        A row below the applied offset changes nothing, so rows may be folded twice.
        """
        key = shard_of(value)
        if value.offset < self._applied.get(key, 0):
            return True
        self.pass_rows(key, value.offset + 1)
        is_taken = not value.payload or self._has_room(value)
        # A value that is not taken clears the one before it: an old value must not be served as the last one.
        self._set(value.topic, value if value.payload and is_taken else None)
        self._changed.add(value.topic)
        return is_taken

    def pass_rows(self, key: ShardKey, end: int) -> None:
        """Notes that all retained rows of the shard below `end` are folded."""
        if end > self._applied.get(key, 0):
            self._applied[key] = end
            self._moved.add(key)

    def matching(self, topic_filter: str) -> list[RetainedValue]:
        """The values whose topic a valid filter matches, in the order of their rows by shard."""
        if not has_wildcard(topic_filter):
            value = self._values.get(topic_filter)
            return [] if value is None else [value]
        values = [value for topic, value in self._values.items() if matches(topic_filter, topic)]
        return sorted(values, key=lambda value: (shard_of(value), value.offset))

    def places(self, topic_id: int) -> list[tuple[int, int]]:
        """Shard and offset of the rows of an Icestream topic that values were taken from, in order."""
        return sorted((value.shard, value.offset) for value in self._values.values() if value.topic_id == topic_id)

    def forget(self, topic_id: int, places: AbstractSet[tuple[int, int]]) -> list[RetainedValue]:
        """Drops the values of erased rows; returns them. No change is noted: a record of it would have the name of the
        MQTT topic. The log of the set must be compacted (RetainedLog.forget)."""
        values = [
            value
            for value in self._values.values()
            if value.topic_id == topic_id and (value.shard, value.offset) in places
        ]
        for value in values:
            self._set(value.topic, None)
            self._changed.discard(value.topic)
        return values

    def put_back(self, values: Iterable[RetainedValue]) -> None:
        """Takes values of `forget` again, because the log still has them. A topic that changed meanwhile is left."""
        for value in values:
            if value.topic not in self._values and value.topic not in self._changed:
                self._set(value.topic, value)
                self._changed.add(value.topic)  # it may have been noted as changed before

    def take_changes(self) -> list[AnyRecord]:
        """What changed since the last call, as one transaction; nothing if nothing did."""
        records: list[AnyRecord] = [
            self._values.get(topic) or rec.RetainedCleared(0, 0, topic) for topic in sorted(self._changed)
        ]
        # Values and applied offsets in one transaction: an offset without its values would lose them.
        records += [rec.RetainedApplied(0, 0, *key, self._applied[key]) for key in sorted(self._moved)]
        self._changed.clear()
        self._moved.clear()
        return records

    def keep_changes(self, records: Iterable[AnyRecord]) -> None:
        """Notes records of `take_changes` that could not be stored as changed: they are in the next transaction."""
        for record in records:
            match record:
                case rec.RetainedValue() | rec.RetainedCleared():
                    self._changed.add(record.topic)
                case rec.RetainedApplied():
                    self._moved.add(shard_of(record))

    def topics(self) -> list[str]:
        """The topics that have a value."""
        return list(self._values)

    def latest(self, count: int) -> list[RetainedValue]:
        """The values that were set last, at most so many, the last one at the end."""
        return list(islice(self._values.values(), max(0, len(self._values) - count), None))

    def value(self, topic: str) -> RetainedValue | None:
        return self._values.get(topic)

    def apply(self, records: Iterable[AnyRecord]) -> None:
        """Replays a transaction of `take_changes`."""
        for record in records:
            match record:
                case rec.RetainedValue():
                    self._set(record.topic, record)
                case rec.RetainedCleared():
                    self._set(record.topic, None)
                case rec.RetainedApplied():
                    self._applied[shard_of(record)] = record.offset

    def _has_room(self, value: RetainedValue) -> bool:
        before = self._values.get(value.topic)
        count = len(self._values) + (before is None)
        size = self.held_bytes + _size(value) - (_size(before) if before is not None else 0)
        return count <= self._values_max and size <= self._bytes_max

    def _set(self, topic: str, value: RetainedValue | None) -> None:
        before = self._values.pop(topic, None)
        self.held_bytes += (_size(value) if value is not None else 0) - (_size(before) if before is not None else 0)
        if value is not None:
            self._values[topic] = value


def _size(value: RetainedValue) -> int:
    return len(value.payload) + len(value.properties) + len(value.topic.encode())
