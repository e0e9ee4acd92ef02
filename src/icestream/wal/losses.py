"""What a damaged log has lost of each shard: follows their offsets through the records, so that what is missing shows.

exact      a shard goes on at an offset, or a checkpoint knows it: what lies between is lost, and nothing else
unknown    a shard does not go on behind the last loss. More offsets are skipped than can have been lost, so that
           none is given out twice (hazard 0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from icestream import limits
from icestream.model.block import HEAD
from icestream.model.shard import Gap, GapState, ShardKey
from icestream.wal import format as wire
from icestream.wal import notes
from icestream.wal.format import RECORDS_START, SectionKind
from icestream.wal.state import LogState

REASON: Final = "lost to damage of the log"
# Never more than this at once, whatever was lost: offsets must last for many repairs.
SKIP_MAX: Final = 2**50


@dataclass(slots=True)
class Loss:
    """Bytes of one file that cannot be read, the records they held, and which messages that costs.

    `unknown` are offsets that are given up because nothing says whether they were used. `lsn_first` is 0 when no
    record is lost, only a header that can be made anew. `is_noted`: a record in the place of the loss says what is
    gone.
    """

    file: str
    position: int
    size: int
    lsn_first: int
    lsn_last: int
    is_noted: bool = False
    gaps: list[Gap] = field(default_factory=list)
    unknown: list[Gap] = field(default_factory=list)


class LossLedger:
    """Where each shard stands at the record that is being looked at."""

    def __init__(self, checkpoint: LogState | None, spilled: Mapping[ShardKey, int] | None = None) -> None:
        """`spilled`: offsets below these are in the spill log, from their floors on."""
        self.losses: list[Loss] = []
        self.last: Loss | None = None  # what turns out to be missing was lost here at the latest
        self.has_lost_end = False
        self._checkpoint = checkpoint
        self._spilled = spilled or {}
        self._ends: dict[ShardKey, tuple[int, int]] = {}  # offset and epoch
        self._unsure: set[ShardKey] = set()  # may have had more messages than were found
        self._declared: list[Gap] = []
        self._skip = 0

    @property
    def topic_ids(self) -> set[int]:
        return {key.topic_id for key in self._ends}

    def lose(self, loss: Loss) -> Loss:
        self.losses.append(loss)
        self.last = loss
        return loss

    # --- what is there ---

    def follow(self, data: bytes, entry: wire.SectionEntry) -> None:
        """A good section of a file whose records are `data`."""
        key = ShardKey(entry.topic_id, entry.shard)
        match entry.kind:
            case SectionKind.MESSAGES:
                self.arrive(key, entry.base_offset, entry.end_offset, entry.epoch)
            case SectionKind.GAP:
                start = entry.body_position - RECORDS_START
                gap = notes.decode_gap(entry, data[start : start + entry.body_bytes])
                self._declared.append(gap)
                if gap.end > self._start(key):
                    self.arrive(key, max(gap.start, self._start(key)), gap.end, gap.epoch)

    def arrive(self, key: ShardKey, base: int, end: int, epoch: int) -> None:
        """A shard goes on at `base`: when it had not come so far, the last loss held what lies between."""
        start = self._start(key)
        if self.last and base > start:
            self.last.gaps.append(Gap(key, start, base, epoch, REASON, GapState.LOST))
        self._ends[key] = (end, epoch)
        self._unsure.discard(key)

    def _start(self, key: ShardKey) -> int:
        """Where the shard stands; one that was not seen yet, at what the checkpoint says is durable elsewhere."""
        known = self._checkpoint
        if key in self._ends:
            start, _ = self._ends[key]
        else:
            start = max(known.shards[key].floor if known and key in known.shards else 0, self._spilled.get(key, 0))
        return known.step_over(key, start) if known else start

    def continues(self, entry: wire.SectionEntry) -> bool:
        """Whether a section of a record without a header can belong here, and is not the past of a recycled file:
        that lies below the end of its shard."""
        start = self._start(ShardKey(entry.topic_id, entry.shard))
        return entry.base_offset == start or (entry.base_offset > start and bool(self.losses))

    def pass_checkpoint(self) -> None:
        """Between the last record that the checkpoint covers and the next one: it knows where each shard stands."""
        known, self._checkpoint = self._checkpoint, None
        if known is None:
            return
        for key, shard in known.shards.items():
            found, _ = self._ends.get(key, (max(shard.floor, self._spilled.get(key, 0)), 0))
            start = known.step_over(key, found)
            self._ends[key] = (start, shard.epoch)
            self.arrive(key, shard.synced, shard.synced, shard.epoch)

    def is_declared(self, gap: Gap) -> bool:
        return any(one.key == gap.key and one.start <= gap.start and gap.end <= one.end for one in self._declared)

    # --- what is not ---

    def lose_section(self, file: str, lsn: int, entry: wire.SectionEntry) -> Loss:
        """A bad section of a record whose header is good."""
        key = ShardKey(entry.topic_id, entry.shard)
        loss = Loss(file, entry.body_position, entry.body_bytes, lsn, lsn, is_noted=True)
        if entry.kind == SectionKind.MESSAGES:
            self.arrive(key, entry.base_offset, entry.end_offset, entry.epoch)
            loss.gaps.append(Gap(key, entry.base_offset, entry.end_offset, entry.epoch, REASON, GapState.LOST))
        elif entry.kind == SectionKind.GAP and key in self._ends:
            self._unsure.add(key)  # how far the gap went is not known
            self._skip = SKIP_MAX
        return self.lose(loss)

    def doubt_all(self, size: int, but: set[ShardKey] | None = None) -> None:
        """Any shard may have had messages in these bytes, which lie behind all that the checkpoint covers. A block has
        at least its head, and at most so many rows."""
        self.pass_checkpoint()
        self._unsure |= self._ends.keys() - (but or set())
        self._skip += size // HEAD.size * limits.BLOCK_ROWS_MAX
        self.has_lost_end = True

    # --- the end ---

    def closing_sections(self, covered: int) -> list[wire.RecordSection]:
        """What the last record of the log must say: the ends that are not known, and the gaps below the checkpoint,
        which a start would not see elsewhere."""
        unseen = [loss for loss in self.losses if loss.lsn_last <= covered or not loss.is_noted]
        gaps = [gap for loss in unseen for gap in loss.gaps]
        if self.last is not None:
            self.last.unknown = [self._skipped(key) for key in sorted(self._unsure)]
            gaps += self.last.unknown
        promises = sorted(self._ends) if self.has_lost_end else []
        return [*(notes.gap_section(gap) for gap in gaps), *(self._promise(key) for key in promises)]

    def _skipped(self, key: ShardKey) -> Gap:
        start, epoch = self._ends[key]
        end = start + min(self._skip, SKIP_MAX)
        self._ends[key] = (end, epoch)
        return Gap(key, start, end, epoch, REASON, GapState.LOST)

    def _promise(self, key: ShardKey) -> wire.RecordSection:
        """A promise may be among what was lost: none goes further than one block beyond the offset it was made at."""
        end, epoch = self._ends[key]
        return notes.reserve_section(key, epoch, end + limits.RESERVE_BLOCK_OFFSETS)
