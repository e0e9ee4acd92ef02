"""Accounts for the messages that a damaged log has lost: follows the offsets of each shard through the good records.

exact      the shard continues at a later offset, or a checkpoint contains it: exactly the offsets in between are lost
unknown    the shard does not continue after the last loss. More offsets are skipped than can have been lost, so that
           none is assigned twice (hazard 0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from icestream import limits
from icestream.model.block import HEAD
from icestream.model.shard import DeclaredGap, GapState, ShardKey
from icestream.wal import format as wire
from icestream.wal import notes
from icestream.wal.format import RECORDS_START, SectionKind
from icestream.wal.state import LogState

REASON: Final = "lost to damage of the log"
# The upper bound of one skip, whatever was lost: the offsets of a shard must last for many repairs.
SKIP_MAX: Final = 2**50


@dataclass(slots=True)
class Loss:
    """Bytes of one file that cannot be read, the records in them, and the messages lost with them.

    `unknown`: offsets that are given up because it is unknown whether they were used. `lsn_first` is 0 if no record is
    lost, only a header that can be rebuilt. `is_noted`: a record in place of the loss declares the gaps.
    """

    file: str
    position: int
    size: int
    lsn_first: int
    lsn_last: int
    is_noted: bool = False
    gaps: list[DeclaredGap] = field(default_factory=list)
    unknown: list[DeclaredGap] = field(default_factory=list)


class LossLedger:
    """The end of each shard at the present record, and the losses so far."""

    def __init__(self, checkpoint: LogState | None, spilled: Mapping[ShardKey, int] | None = None) -> None:
        """`spilled`: the offsets below these, from the floors on, are in the spill log."""
        self.losses: list[Loss] = []
        self.last: Loss | None = None  # offsets that turn out to be missing were lost here at the latest
        self.has_lost_end = False
        self._checkpoint = checkpoint
        self._spilled = spilled or {}
        self._ends: dict[ShardKey, tuple[int, int]] = {}  # offset and epoch
        self._unsure: set[ShardKey] = set()  # shards that may have had more messages than the good records contain
        self._declared: list[DeclaredGap] = []
        self._skip = 0

    @property
    def topic_ids(self) -> set[int]:
        """The topics of all shards met so far."""
        return {key.topic_id for key in self._ends}

    def lose(self, loss: Loss) -> Loss:
        """Adds a loss; offsets that turn out to be missing from now on belong to it."""
        self.losses.append(loss)
        self.last = loss
        return loss

    # --- good sections ---

    def follow(self, data: bytes, entry: wire.SectionEntry) -> None:
        """Applies a good section of a file whose records are `data`."""
        key = ShardKey(entry.topic_id, entry.shard)
        match entry.kind:
            case SectionKind.MESSAGES:
                self.advance(key, entry.base_offset, entry.end_offset, entry.epoch)
            case SectionKind.GAP:
                start = entry.body_position - RECORDS_START
                gap = notes.decode_gap(entry, data[start : start + entry.body_bytes])
                self._declared.append(gap)
                if gap.end > self._start(key):
                    self.advance(key, max(gap.start, self._start(key)), gap.end, gap.epoch)

    def advance(self, key: ShardKey, base: int, end: int, epoch: int) -> None:
        """The shard continues with [base, end): offsets between its present end and `base` belong to the last loss."""
        start = self._start(key)
        if self.last and base > start:
            self.last.gaps.append(DeclaredGap(key, start, base, epoch, REASON, GapState.LOST))
        self._ends[key] = (end, epoch)
        self._unsure.discard(key)

    def _start(self, key: ShardKey) -> int:
        """The present end of the shard; before its first section, the floor in the checkpoint or the spilled end."""
        checkpoint = self._checkpoint
        if key in self._ends:
            start, _ = self._ends[key]
        else:
            floor = checkpoint.shards[key].floor if checkpoint and key in checkpoint.shards else 0
            start = max(floor, self._spilled.get(key, 0))
        return checkpoint.step_over(key, start) if checkpoint else start

    def continues(self, entry: wire.SectionEntry) -> bool:
        """Whether a section of a record without a good header can belong here.

        A section with old bytes of a recycled file cannot: it lies below the end of its shard.
        """
        start = self._start(ShardKey(entry.topic_id, entry.shard))
        return entry.base_offset == start or (entry.base_offset > start and bool(self.losses))

    def pass_checkpoint(self) -> None:
        """To be called after the last record that the checkpoint covers: advances every shard to its end in it."""
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is None:
            return
        for key, shard in checkpoint.shards.items():
            end, _ = self._ends.get(key, (max(shard.floor, self._spilled.get(key, 0)), 0))
            start = checkpoint.step_over(key, end)
            self._ends[key] = (start, shard.epoch)
            self.advance(key, shard.synced, shard.synced, shard.epoch)

    def is_declared(self, gap: DeclaredGap) -> bool:
        """Whether a gap note in the log covers the gap."""
        return any(
            declared.key == gap.key and declared.start <= gap.start and gap.end <= declared.end
            for declared in self._declared
        )

    # --- losses ---

    def lose_section(self, file: str, lsn: int, entry: wire.SectionEntry) -> Loss:
        """Adds the loss of a bad section in a record with a good header."""
        key = ShardKey(entry.topic_id, entry.shard)
        loss = Loss(file, entry.body_position, entry.body_bytes, lsn, lsn, is_noted=True)
        if entry.kind == SectionKind.MESSAGES:
            self.advance(key, entry.base_offset, entry.end_offset, entry.epoch)
            loss.gaps.append(DeclaredGap(key, entry.base_offset, entry.end_offset, entry.epoch, REASON, GapState.LOST))
        elif entry.kind == SectionKind.GAP and key in self._ends:
            self._unsure.add(key)  # the end of the gap is unknown
            # The note that said where the gap ends is lost, so no bound follows from the size of the lost bytes.
            self._skip = SKIP_MAX
        return self.lose(loss)

    def doubt_all(self, size: int, but: set[ShardKey] | None = None) -> None:
        """Marks the end of every shard except `but` as unknown: any may have had messages in `size` lost bytes.

        The bytes lie after everything that the checkpoint covers. The skip grows by the most messages that fit them: a
        block has at least its head, and at most BLOCK_ROWS_MAX rows.
        """
        self.pass_checkpoint()
        self._unsure |= self._ends.keys() - (but or set())
        self._skip += size // HEAD.size * limits.BLOCK_ROWS_MAX
        self.has_lost_end = True

    # --- the end ---

    def closing_sections(self, covered: int) -> list[wire.RecordSection]:
        """The notes for the last record of the log: skipped offsets, and gaps in records that the checkpoint covers.

        A start does not replay those records, so it would not see their gap notes.
        """
        unreplayed = [loss for loss in self.losses if loss.lsn_last <= covered or not loss.is_noted]
        gaps = [gap for loss in unreplayed for gap in loss.gaps]
        if self.last is not None:
            self.last.unknown = [self._skip_offsets(key) for key in sorted(self._unsure)]
            gaps += self.last.unknown
        reserved = sorted(self._ends) if self.has_lost_end else []
        return [*(notes.gap_section(gap) for gap in gaps), *(self._reserve_section(key) for key in reserved)]

    def _skip_offsets(self, key: ShardKey) -> DeclaredGap:
        """The gap by which an unknown end is skipped; the shard continues behind it."""
        start, epoch = self._ends[key]
        end = start + min(self._skip, SKIP_MAX)
        self._ends[key] = (end, epoch)
        return DeclaredGap(key, start, end, epoch, REASON, GapState.LOST)

    def _reserve_section(self, key: ShardKey) -> wire.RecordSection:
        """A new reservation: one may have been lost, and none reaches further than one block beyond its offset."""
        end, epoch = self._ends[key]
        return notes.reserve_section(key, epoch, end + limits.RESERVE_BLOCK_OFFSETS)
