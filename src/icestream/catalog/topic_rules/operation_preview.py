"""What an operation on a topic's table comes to, shard by shard, told before it is done. Pure.

    offsets of a shard

    0 ──────────── held ──────── goes on at ──────── committed before ──────── end of the log
      in the table       missing            written again              written for the first time

`held` is where the table stands, `goes_on_at` the first offset from there that the log still has. What lies between
is in neither: it becomes a declared gap. The log keeps what was never committed, or declares a gap itself. Two
consequences need somebody's word, each its own:

    accept-gap           offsets are missing for good
    accept-duplicates    rows may come twice, because nobody knows what the table holds
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from icestream import errors, limits
from icestream.catalog.topic_rules.removal import Removal, Removals
from icestream.observability.words import counted


class Consent(StrEnum):
    GAP = "accept-gap"
    DUPLICATES = "accept-duplicates"


class ShardLog(NamedTuple):
    """What the log of a shard holds now, as its owner says."""

    epoch: int
    earliest: int
    end: int  # of what is synced

    def checked(self) -> ShardLog:
        if self.epoch < 0 or not 0 <= self.earliest <= self.end <= limits.OFFSET_MAX:
            raise errors.InvalidInput(f"no log of a shard: epoch {self.epoch}, [{self.earliest}, {self.end})")
        return self


class TopicLog(NamedTuple):
    """A topic as its broker knows it."""

    topic: str
    topic_id: int
    shards: Mapping[int, ShardLog]


class ShardPreview(NamedTuple):
    """Of one shard."""

    shard: int
    held: int
    goes_on_at: int
    committed: int | None  # before; None: nobody knows, or it never had a table
    end: int

    @property
    def missing(self) -> tuple[int, int] | None:
        return (self.held, self.goes_on_at) if self.held < self.goes_on_at else None

    @property
    def written_again(self) -> tuple[int, int] | None:
        known = self.committed is not None and self.committed > self.goes_on_at
        return (self.goes_on_at, self.committed or 0) if known else None


class OperationPreview(NamedTuple):
    operation: str
    topic: str
    shards: tuple[ShardPreview, ...]
    doubts: tuple[str, ...] = ()  # why rows may come twice
    losses: tuple[str, ...] = ()  # rows that main has and will not have, beyond what the fates say
    changes: tuple[str, ...] = ()  # what else it does

    @property
    def needed(self) -> frozenset[Consent]:
        gap = {Consent.GAP} if self.losses or any(fate.missing for fate in self.shards) else set()
        return frozenset(gap | ({Consent.DUPLICATES} if self.doubts else set()))

    def words(self) -> list[str]:
        """For a person, in the order in which it matters."""
        told = [*self.changes]
        for fate in self.shards:
            told.append(f"shard {fate.shard}: the pipeline goes on at {fate.goes_on_at}")
            if fate.missing:
                told.append(
                    f"shard {fate.shard}: {_offsets(fate.missing)} are in neither table nor log: a declared gap"
                )
            if fate.written_again:
                told.append(f"shard {fate.shard}: {_offsets(fate.written_again)} are written again from the log")
        return [*told, *self.losses, *(f"rows may come twice: {doubt}" for doubt in self.doubts)]

    def check(self, given: Collection[Consent]) -> None:
        """Raises TopicTableConflict when something would be lost or doubled that nobody agreed to."""
        for wanted in sorted(self.needed - set(given)):
            raise errors.TopicTableConflict(
                f"{self.operation} is refused: {self._why(wanted)}",
                hint=f"if that is meant, say --{wanted}; --dry-run shows all of it",
            )

    def _why(self, wanted: Consent) -> str:
        if wanted is Consent.DUPLICATES:
            return f"rows may come twice: {self.doubts[0]}"
        return self.losses[0] if self.losses else _first_gap(self.shards)

    def gaps(self, snapshot_id: int | None, time_ms: int) -> Removals:
        ranges = {fate.shard: fate.missing for fate in self.shards if fate.missing}
        return (Removal(self.operation, snapshot_id or 0, time_ms, ranges, True),) if ranges else ()


def shard_previews(held: Mapping[int, int], log: TopicLog, committed: Mapping[int, int]) -> tuple[ShardPreview, ...]:
    """`held`: per shard the first offset that the table does not have; a shard that is not there: nothing."""
    unknown = sorted(set(held) - set(log.shards))
    if unknown:
        raise errors.InvalidInput(
            f"the table holds shard {unknown[0]}, but topic {log.topic} has {counted(len(log.shards), 'shard')}",
            hint="it is the table of another topic",
        )
    return tuple(
        _fate(shard, held.get(shard, 0), one.checked(), committed.get(shard))
        for shard, one in sorted(log.shards.items())
    )


def _fate(shard: int, held: int, log: ShardLog, committed: int | None) -> ShardPreview:
    if held > log.end:
        raise errors.InvalidInput(
            f"the table holds offsets of shard {shard} up to {held}, but the topic has come to {log.end} only",
            hint="these rows are not of this topic: give it a fresh table (`icestream lake recreate`)",
        )
    return ShardPreview(shard, held, max(held, log.earliest), committed, log.end)


def _first_gap(found: tuple[ShardPreview, ...]) -> str:
    fate = next(one for one in found if one.missing)
    assert fate.missing is not None
    return f"{_offsets(fate.missing)} of shard {fate.shard} are in neither table nor log"


def _offsets(found: tuple[int, int]) -> str:
    return f"offsets {found[0]} to {found[1] - 1}"
