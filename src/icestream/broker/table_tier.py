"""The tier below the log: rows of the topic's table, asked for at the lake process's desk.

What comes is in order and without a hole: sections, and gaps with their reasons. Where the log has declared a gap
itself, its word counts. An answer with gaps between its sections is handed on piece by piece, each with its gaps in
front, as reads of the log are; what is left of it waits for whoever goes on there (near_answers.py, too).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from icestream import limits
from icestream.broker.scan_requests import ScanRequests
from icestream.broker.storage import ShardRead
from icestream.broker.table_prefetch import Piece, TablePrefetch
from icestream.model.scan import Missing, Question, Scanned
from icestream.model.shard import Gap, GapState, ShardKey
from icestream.observability import metrics
from icestream.wal.tail import SectionRead

CACHE, TABLE = "cache", "table"


class TableTier:
    def __init__(
        self, desk: ScanRequests, near: TablePrefetch, topic: str, key: ShardKey, declared: Callable[[], Sequence[Gap]]
    ) -> None:
        self._desk = desk
        self._near = near
        self._topic = topic
        self._key = key
        self._declared = declared
        self._ends: deque[int] = deque(maxlen=limits.SCANS_NEAR_MAX)  # of the last answers: their readers go on there

    async def read(self, offset: int, bytes_max: int) -> tuple[ShardRead, str] | None:
        """And which tier it came from. None: the table has nothing there, or there is none. Raises LakeAway,
        TableUnreadable."""
        pieces = self._near.take_left(self._key, offset)
        if pieces is not None:
            return self._front(offset, pieces), CACHE
        rest = self._near.rest(self._key, offset)
        if rest is not None:
            return rest, CACHE
        scanned = await self._answer(offset, bytes_max)
        if scanned.end is None or offset >= scanned.end:
            return None
        return self._front(offset, self._pieces(scanned)), CACHE if scanned.is_cached else TABLE

    async def _answer(self, offset: int, bytes_max: int) -> Scanned:
        """Whoever goes on where the last answer ended goes on behind this one, too."""
        near, key, at, bytes_max = self._near, self._key, offset, max(bytes_max, limits.SCAN_READ_BYTES)
        begun = near.take(key, at, bytes_max)
        scanned = await (begun if begun is not None else self._ask(Question.READ, at, bytes_max))
        if (
            self._is_reading_on(at, scanned.next_offset)
            and scanned.end is not None
            and scanned.next_offset < scanned.end
        ):
            behind = scanned.next_offset
            near.begin(key, behind, bytes_max, self._ask(Question.READ, behind, bytes_max))
        return scanned

    def _is_reading_on(self, offset: int, end: int) -> bool:
        """Whether this answer, which ends there, begins where one ended that was told."""
        found = offset in self._ends
        if found:
            self._ends.remove(offset)
        if end not in self._ends:
            self._ends.append(end)
        return found

    async def first(self) -> int | None:
        return (await self._ask(Question.EARLIEST)).offset

    async def at_time(self, time_us: int) -> int | None:
        return (await self._ask(Question.TIME, time_us)).offset

    async def behind_snapshot(self, snapshot_id: int) -> int | None:
        return (await self._ask(Question.SNAPSHOT, snapshot_id)).offset

    async def _ask(self, question: Question, value: int = 0, bytes_max: int = 0) -> Scanned:
        return await self._desk.ask(question, self._topic, self._key, value, bytes_max)

    # --- pieces ---

    def _pieces(self, scanned: Scanned) -> list[Piece]:
        sections = [
            SectionRead(one.base_offset, one.rows, one.append_time_us, one.epoch, one.body) for one in scanned.sections
        ]
        gaps = [gap for one in scanned.missing for gap in self._gaps(one)]
        return sorted((*gaps, *sections), key=_start)

    def _gaps(self, missing: Missing) -> list[Gap]:
        """Cut where the log has declared one."""
        found: list[Gap] = []
        at = missing.start
        declared = sorted((one for one in self._declared() if one.end > at), key=lambda one: one.start)
        for one in declared:
            if one.start >= missing.end:
                break
            if at < one.start:
                found.append(self._gap(at, one.start, missing))
            end = min(one.end, missing.end)
            found.append(Gap(self._key, max(at, one.start), end, one.epoch, one.reason, one.state))
            at = end
        return [*found, self._gap(at, missing.end, missing)] if at < missing.end else found

    def _gap(self, start: int, end: int, missing: Missing) -> Gap:
        return Gap(self._key, start, end, 0, missing.reason, GapState(missing.state))

    def _front(self, offset: int, pieces: list[Piece]) -> ShardRead:
        gaps: list[Gap] = []
        sections: list[SectionRead] = []
        for piece in pieces:
            if isinstance(piece, SectionRead):
                sections.append(piece)
            elif not sections:
                gaps.append(piece)
            else:
                break
        taken = len(gaps) + len(sections)
        next_offset = _end(pieces[taken - 1])
        if taken < len(pieces):
            self._near.leave(self._key, next_offset, pieces[taken:])
        metrics.READ_GAPS.value += len(gaps)
        metrics.READ_GAP_OFFSETS.value += sum(gap.end - gap.start for gap in gaps)
        found = ShardRead(sections, gaps, next_offset)
        self._near.keep(self._key, offset, found)
        return found


def _start(piece: Piece) -> int:
    return piece.base_offset if isinstance(piece, SectionRead) else piece.start


def _end(piece: Piece) -> int:
    return piece.base_offset + piece.rows if isinstance(piece, SectionRead) else piece.end
