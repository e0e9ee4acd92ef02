"""The front end of a consumer in tests: accepts messages and records everything."""

from __future__ import annotations

from icestream.model import envelope
from icestream.model.block import iter_blocks
from icestream.model.shard import DeclaredGap
from icestream.wal.tail import SectionRead


class RecordingConsumer:
    """A ConsumerSink that accepts messages up to its `capacity` and records them with gaps and events."""

    def __init__(self) -> None:
        self.peer = "test"
        self.is_full = False
        self.received: list[tuple[int, bytes, int]] = []  # offset, payload, attempt
        self.positions: list[tuple[int, int, int]] = []  # shard, generation, offset: of each message
        self.gaps: list[DeclaredGap] = []
        self.events: list[str] = []
        self.event_details: list[tuple[str, dict[str, object]]] = []
        self.capacity: int | None = None  # messages after which it is full; None: never

    def deliver(
        self, shard: int, generation: int, attempt: int, section: SectionRead, first_row: int, rows: int
    ) -> None:
        payloads = [value for block in iter_blocks(section.body) for value in block.values(envelope.PAYLOAD)]
        for row in range(first_row, first_row + rows):
            payload = payloads[row]
            assert isinstance(payload, bytes)
            self.received.append((section.base_offset + row, payload, attempt))
            self.positions.append((shard, generation, section.base_offset + row))
        if self.capacity is not None and len(self.received) >= self.capacity:
            self.is_full = True

    def pick(
        self, shard: int, generation: int, attempt: int, picked: SectionRead, ranges: list[tuple[int, int]]
    ) -> None:
        offsets = [offset for start, end in ranges for offset in range(start, end)]
        payloads = [value for block in iter_blocks(picked.body) for value in block.values(envelope.PAYLOAD)]
        assert offsets == sorted(set(offsets))
        for offset, payload in zip(offsets, payloads, strict=True):
            assert isinstance(payload, bytes)
            self.received.append((offset, payload, attempt))
            self.positions.append((shard, generation, offset))
        if self.capacity is not None and len(self.received) >= self.capacity:
            self.is_full = True

    def gap(self, shard: int, generation: int, gap: DeclaredGap) -> None:
        self.gaps.append(gap)

    def event(self, event: str, details: dict[str, object]) -> None:
        self.events.append(event)
        self.event_details.append((event, details))

    @property
    def offsets(self) -> list[int]:
        return [offset for offset, _, _ in self.received]

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload, _ in self.received]
