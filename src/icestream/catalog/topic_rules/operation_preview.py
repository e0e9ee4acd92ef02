"""The preview of an operation on a topic's table: its effects, shard by shard, before it is carried out. Pure.

    offsets of a shard

    0 ──────────── held ──────── goes on at ──────── committed before ──────── end of the log
      in the table       missing            written again              written for the first time

`held` is the first offset that the table lacks, `goes_on_at` the first one from there that the log still has. What lies
between is in neither and becomes a declared gap. The log keeps what was never committed, or declares a gap itself. Two
effects need the operator's consent:

    accept-gap           offsets are missing for good
    accept-duplicates    rows may be written twice, because it is unknown which offsets the table holds
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from icestream import errors, limits
from icestream.catalog.topic_rules.removal import Removal, Removals
from icestream.observability.words import counted


class Consent(StrEnum):
    """An effect that an operator must accept, by the name of its command line option."""

    GAP = "accept-gap"
    DUPLICATES = "accept-duplicates"


class ShardLog(NamedTuple):
    """The offsets that the log of a shard holds, as reported by the shard's owner."""

    epoch: int
    earliest: int
    end: int  # of the synced messages

    def checked(self) -> ShardLog:
        """Returns itself. Raises InvalidInput for impossible numbers: they come from another process."""
        if self.epoch < 0 or not 0 <= self.earliest <= self.end <= limits.OFFSET_MAX:
            raise errors.InvalidInput(f"invalid shard log: epoch {self.epoch}, offsets [{self.earliest}, {self.end})")
        return self


class TopicLog(NamedTuple):
    """A topic and its shards, as reported by its broker."""

    topic: str
    topic_id: int
    shards: Mapping[int, ShardLog]


class ShardPreview(NamedTuple):
    """The effect on one shard."""

    shard: int
    held: int  # the first offset that the table lacks
    goes_on_at: int  # where the pipeline resumes
    committed: int | None  # before the operation; None: unknown, or the topic never had a table
    end: int

    @property
    def missing(self) -> tuple[int, int] | None:
        """Offsets [start, end) that neither the table nor the log has; None if there are none."""
        return (self.held, self.goes_on_at) if self.held < self.goes_on_at else None

    @property
    def written_again(self) -> tuple[int, int] | None:
        """Committed offsets [start, end) that the pipeline writes a second time; None if there are none."""
        is_again = self.committed is not None and self.committed > self.goes_on_at
        return (self.goes_on_at, self.committed or 0) if is_again else None


class OperationPreview(NamedTuple):
    """The effects of an operation on a topic's table, and the consents that it needs."""

    operation: str
    topic: str
    shards: tuple[ShardPreview, ...]
    doubts: tuple[str, ...] = ()  # why rows may be written twice
    losses: tuple[str, ...] = ()  # rows that main loses, beyond what `shards` says
    changes: tuple[str, ...] = ()  # other effects

    @property
    def needed(self) -> frozenset[Consent]:
        """The consents without which `check` refuses the operation."""
        gap = {Consent.GAP} if self.losses or any(preview.missing for preview in self.shards) else set()
        return frozenset(gap | ({Consent.DUPLICATES} if self.doubts else set()))

    def words(self) -> list[str]:
        """The preview as sentences, the most important first."""
        lines = [*self.changes]
        for preview in self.shards:
            lines.append(f"shard {preview.shard}: the pipeline resumes at {preview.goes_on_at}")
            if preview.missing:
                lines.append(
                    f"shard {preview.shard}: {_offsets(preview.missing)} are in neither table nor log: a declared gap"
                )
            if preview.written_again:
                lines.append(f"shard {preview.shard}: {_offsets(preview.written_again)} are written again from the log")
        return [*lines, *self.losses, *(f"rows may be written twice: {doubt}" for doubt in self.doubts)]

    def check(self, consents: Collection[Consent]) -> None:
        """Raises TopicTableConflict if rows would be lost or duplicated without the consent to it."""
        for consent in sorted(self.needed - set(consents)):
            raise errors.TopicTableConflict(
                f"{self.operation} is refused: {self._why(consent)}",
                hint=f"to accept it pass --{consent}; --dry-run shows all effects",
            )

    def _why(self, consent: Consent) -> str:
        if consent is Consent.DUPLICATES:
            return f"rows may be written twice: {self.doubts[0]}"
        return self.losses[0] if self.losses else _first_gap(self.shards)

    def gaps(self, snapshot_id: int | None, time_ms: int) -> Removals:
        """The declared gaps of this operation, as removals of the table."""
        ranges = {preview.shard: preview.missing for preview in self.shards if preview.missing}
        return (Removal(self.operation, snapshot_id or 0, time_ms, ranges, True),) if ranges else ()


def shard_previews(held: Mapping[int, int], log: TopicLog, committed: Mapping[int, int]) -> tuple[ShardPreview, ...]:
    """The effect on each shard. `held`: per shard the first offset that the table lacks; 0 for a shard that it does not
    have. Raises InvalidInput if the table holds more than the topic has."""
    unknown = sorted(set(held) - set(log.shards))
    if unknown:
        raise errors.InvalidInput(
            f"the table holds shard {unknown[0]}, but topic {log.topic} has {counted(len(log.shards), 'shard')}",
            hint="it is the table of another topic",
        )
    return tuple(
        _shard_preview(shard, held.get(shard, 0), shard_log.checked(), committed.get(shard))
        for shard, shard_log in sorted(log.shards.items())
    )


def _shard_preview(shard: int, held: int, log: ShardLog, committed: int | None) -> ShardPreview:
    # A table that is ahead of its log holds other messages under these offsets: writing on would mix two histories.
    if held > log.end:
        raise errors.InvalidInput(
            f"the table holds offsets of shard {shard} up to {held}, but the log of the topic ends at {log.end}",
            hint="these rows are not of this topic: give it a fresh table (`icestream lake recreate`)",
        )
    return ShardPreview(shard, held, max(held, log.earliest), committed, log.end)


def _first_gap(previews: tuple[ShardPreview, ...]) -> str:
    first = next(preview for preview in previews if preview.missing)
    assert first.missing is not None
    return f"{_offsets(first.missing)} of shard {first.shard} are in neither table nor log"


def _offsets(offsets: tuple[int, int]) -> str:
    return f"offsets {offsets[0]} to {offsets[1] - 1}"
