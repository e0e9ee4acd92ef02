"""The generations of the routes, as records of the metadata store (ADR 82): where messages were stored before.

    key /mqtt/routes                                a document in JSON: generation, routes. Those in force: written
                                                    before the first message is stored by them
    key /mqtt/route_ends/<generation>/<topic id>    a list of numbers in JSON: where each shard of the topic ended when
                                              that generation did. Deleted when no session is below one of them

    row of generation g    one whose offset is below the end of g in its shard, and not below that of an older one
    order                  a session reads the rows of an older generation before those of a newer one, in all shards
                           (hazard 64): an MQTT topic that went from one shard to another keeps its order

One node writes them: the one that serves MQTT.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.model.shard import ShardKey

ROUTES_KEY: Final = "/mqtt/routes"
ENDS_PREFIX: Final = "/mqtt/route_ends/"


class RouteRecord(msgspec.Struct, frozen=True, array_like=True):
    """A route: filter and minimum QoS, and the topic that it stores in."""

    filter: str
    min_qos: int
    topic: str
    topic_id: int
    shards: int


class RoutesRecord(msgspec.Struct, frozen=True):
    """The routes in force, in the order of the settings."""

    generation: int
    routes: tuple[RouteRecord, ...]

    @property
    def default_topic(self) -> str:
        """The topic of the last route: the node that has it serves MQTT."""
        return self.routes[-1].topic


class GenerationEnd(NamedTuple):
    """Where a generation of the routes ended in a shard."""

    generation: int
    end: int


class FormerGenerations:
    """Where former generations ended in one shard."""

    __slots__ = ("_ends", "_generations")

    def __init__(self, ends: Iterable[GenerationEnd] = ()) -> None:
        rising = sorted(ends)
        self._generations = [entry.generation for entry in rising]
        self._ends = [entry.end for entry in rising]

    def generation_at(self, offset: int) -> int:
        """The former generation of a row; 0 for one of the routes in force."""
        index = bisect_right(self._ends, offset)
        return self._generations[index] if index < len(self._ends) else 0

    def end_after(self, offset: int, bound: int) -> int:
        """Where the generation of a row ends, at most `bound`."""
        index = bisect_right(self._ends, offset)
        return min(self._ends[index], bound) if index < len(self._ends) else bound


NO_FORMER: Final = FormerGenerations()


def decode_routes(value: bytes) -> RoutesRecord:
    """Raises MetadataDamaged."""
    try:
        return msgspec.json.decode(value, type=RoutesRecord)
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.MetadataDamaged(f"the record of the MQTT routes cannot be decoded: {error}") from None


class RouteGenerations:
    """The present routes and the ends of former ones, as the store has them. `load` comes first."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.current: RoutesRecord | None = None
        self._ends: dict[tuple[int, int], list[int]] = {}  # by generation and topic id

    async def load(self) -> None:
        entry = await self._store.get(ROUTES_KEY)
        self.current = None if entry is None else decode_routes(entry.value)
        self._ends = {}
        for key, ends in await self._store.list_all(ENDS_PREFIX):
            generation, topic_id = map(int, key.removeprefix(ENDS_PREFIX).split("/"))
            self._ends[generation, topic_id] = msgspec.json.decode(ends.value, type=list[int])

    async def begin(
        self,
        routes: Sequence[RouteRecord],
        end_of: Callable[[ShardKey], int | None],
        is_owed_below: Callable[[ShardKey, int], bool],
    ) -> None:
        """Makes these the routes in force; those before them end where their shards end now. Durable when it returns.

        `end_of`: None for a topic that was deleted. `is_owed_below`: whether a session has to read below an offset.
        """
        former, operations = self.current, list[cmd.Operation]()
        if former is None or list(former.routes) != list(routes):
            generation = former.generation + 1 if former is not None else 1
            if former is not None:
                for topic_id, shards in {route.topic_id: route.shards for route in former.routes}.items():
                    ends = [end_of(ShardKey(topic_id, shard)) for shard in range(shards)]
                    if None not in ends:
                        self._ends[former.generation, topic_id] = [end or 0 for end in ends]
            self.current = RoutesRecord(generation, tuple(routes))
            operations.append(cmd.Put(ROUTES_KEY, msgspec.json.encode(self.current)))
        operations += self._forget_passed(is_owed_below)
        if former is not None and self.current is not former:
            operations += [
                cmd.Put(_ends_key(former.generation, topic_id), msgspec.json.encode(ends))
                for (generation, topic_id), ends in self._ends.items()
                if generation == former.generation
            ]
        # Few of the largest fit into one transaction. The routes come last: ends of a generation that is still the
        # present one are written again by the next attempt.
        for operation in reversed(operations):
            await self._store.txn([], [operation])

    def _forget_passed(self, is_owed_below: Callable[[ShardKey, int], bool]) -> list[cmd.Operation]:
        """Removes the ends that no session is below, and the oldest beyond the bound."""
        ends_by_key = {
            (generation, topic_id): ends
            for (generation, topic_id), ends in self._ends.items()
            if any(is_owed_below(ShardKey(topic_id, shard), end) for shard, end in enumerate(ends))
        }
        newest = sorted({generation for generation, _ in ends_by_key})[-limits.MQTT_ROUTE_GENERATIONS_MAX :]
        ends_by_key = {key: ends for key, ends in ends_by_key.items() if key[0] in newest}
        removed = self._ends.keys() - ends_by_key.keys()
        self._ends = ends_by_key
        return [cmd.Delete(_ends_key(*key)) for key in removed]

    def former_of(self, key: ShardKey) -> FormerGenerations:
        """Where former generations ended in a shard."""
        return _former(self._ends, key)


def _former(ends: Mapping[tuple[int, int], list[int]], key: ShardKey) -> FormerGenerations:
    entries = [
        GenerationEnd(generation, values[key.shard])
        for (generation, topic_id), values in ends.items()
        if topic_id == key.topic_id and key.shard < len(values)
    ]
    return FormerGenerations(entries) if entries else NO_FORMER


def _ends_key(generation: int, topic_id: int) -> str:
    return f"{ENDS_PREFIX}{generation:08d}/{topic_id}"
