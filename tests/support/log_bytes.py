"""Records of a log in memory, made section by section, and what the rows of them must be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from icestream.model import envelope
from icestream.model.block import Block, iter_blocks
from icestream.model.envelope import COLUMNS, EnvelopeColumn
from icestream.wal.format import RECORDS_START, RecordKind, RecordSection, SectionKind, encode_record

TABLE_COLUMNS = [column for column in COLUMNS if column.in_table]


@dataclass
class LogBytes:
    generation: int = 7
    first_lsn: int = 1
    start: int = RECORDS_START
    data: bytearray = field(default_factory=bytearray)
    marks: list[tuple[int, int]] = field(default_factory=list)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # by topic, in the order of the log

    def append(self, *bodies: tuple[int, int, bytes], time_us: int = 1_700_000_000_000_000, epoch: int = 1) -> None:
        """One record; bodies as topic, shard, blocks."""
        sections = []
        for topic, shard, body in bodies:
            base = self.ends.get((topic, shard), 0)
            rows = [row for block in iter_blocks(body) for row in rows_of(block)]
            for number, row in enumerate(rows):
                row |= {"shard": shard, "offset": base + number, "append_time": time_us}
            self.rows.setdefault(topic, []).extend(rows)
            self.ends[topic, shard] = base + len(rows)
            sections.append(
                RecordSection(topic, shard, SectionKind.MESSAGES, 0, epoch, base, time_us, len(rows), 0, body)
            )
        self.add(sections)

    def add(self, sections: list[RecordSection]) -> None:
        lsn = self.first_lsn + len(self.marks)
        self.marks.append((self.end, lsn))
        self.data += encode_record(RecordKind.DATA, lsn, self.generation, lsn - 1, 0, self.end, 8, sections)

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def expected(self, topic: int) -> list[dict[str, Any]]:
        return sorted(self.rows.get(topic, []), key=lambda row: (row["shard"], row["offset"]))


def rows_of(block: Block) -> list[dict[str, Any]]:
    """The non-null values of each row; the producer of a row comes from the column, else from the header."""
    rows: list[dict[str, Any]] = [{} for _ in range(block.rows)]
    if block.numbering is not None:
        for number, row in enumerate(rows):
            row["producer_id"] = block.numbering.producer_id
            row["sequence"] = block.numbering.first_sequence + number
    for column in TABLE_COLUMNS:
        for row, value in zip(rows, block.values(column), strict=True):
            if value is not None:
                row[column.name] = value
    return rows


def plain(name: str, value: Any) -> Any:
    """A value of Arrow as one of a block."""
    if name == "headers":
        return dict(value)
    return value


NUMBER_COLUMNS: tuple[EnvelopeColumn, ...] = (envelope.PRODUCER_ID, envelope.SEQUENCE)
