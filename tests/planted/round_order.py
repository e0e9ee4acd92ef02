"""What must have happened on the disk before what in rounds of the pipeline, read from the calls of a whole run
(hazards 4, 11). It knows nothing of the pipeline but what rounds.py says and what the tables' own files name.

    pointer    before a table's pointer names a metadata file: that file, and every manifest and data file that it leads
               to, is written, synced, and has its name synced in its folder, and each new folder in the one above
    advance    before the broker takes offsets for committed: the pointer of their table has moved to a metadata file
               that says so
    recycling  before a log file loses its name: everything in it was told to be committed (and two checkpoints
               cover it: order.py)
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyiceberg.table import StaticTable

from icestream.wal.format import decode_entries, decode_header
from tests.planted.order import number_in, records_in
from tests.support.syscall_recorder import Call, Event
from tests.support.table_check import named_files

_DATA = 1
Key = tuple[int, int]  # topic and shard


def round_violations(events: Sequence[Event], root: Path) -> list[str]:
    """`root`: below it everything happened; names of events are whole paths."""
    rounds = _Rounds(events, root)
    return [*rounds.pointers(), *rounds.floors(), *rounds.recycling()]


class _Rounds:
    def __init__(self, events: Sequence[Event], root: Path) -> None:
        self.root = str(root)
        self.announcements = [(event, event.data.decode().split()) for event in events if event.call is Call.SAY]
        self.created: dict[str, Event] = {}
        self.writes: dict[str, list[Event]] = defaultdict(list)
        self.syncs: dict[str, list[Event]] = defaultdict(list)
        self.freed: list[Event] = []
        for event in events:
            if event.call is Call.CREATE:
                self.created.setdefault(event.name, event)
            elif event.call is Call.WRITE:
                self.writes[event.name].append(event)
            elif event.call is Call.SYNC and event.done:
                self.syncs[event.name].append(event)
            elif event.call in (Call.UNLINK, Call.RENAME) and number_in(Path(event.name).name):
                self.freed.append(event)

    def _is_synced(self, path: str, since: int, before: int) -> bool:
        return any(since < sync.begin and sync.end < before for sync in self.syncs[path])

    # --- pointers ---

    def pointers(self) -> Iterator[str]:
        looked = set[str]()
        for event, words in self.announcements:
            if words[0] == "pointer":
                table = StaticTable.from_metadata(words[1])
                for path in sorted({words[1], *named_files(table)} - looked):
                    yield from self._not_durable(path.removeprefix("file:"), event)
                    looked.add(path)

    def _not_durable(self, path: str, pointer: Event) -> Iterator[str]:
        created, writes = self.created.get(path), self.writes[path]
        if created is None or not writes:
            yield f"{path} is named at {pointer}, and no recorded call wrote it"
            return
        if not self._is_synced(path, max(write.end for write in writes), pointer.begin):
            yield f"{path} is named at {pointer} and was not synced before that"
        folder = Path(path).parent
        if not self._is_synced(str(folder), created.end, pointer.begin):
            yield f"{path} is named at {pointer}, but its folder was not synced behind its creation"
        while str(folder) != self.root:
            folder = folder.parent
            if not self._is_synced(str(folder), -1, pointer.begin):
                yield f"{path} is named at {pointer}, but {folder} was never synced: a new folder in it may go"

    # --- floors ---

    def floors(self) -> Iterator[str]:
        for event, words in self.announcements:
            if words[0] == "advance":
                topic, shard, offset = map(int, words[1:])
                if not any(end >= offset for end in self._committed(topic, shard, event.begin)):
                    yield f"topic {topic} shard {shard} goes to {offset} at {event}, and no table says so before"

    def _committed(self, topic: int, shard: int, before: int) -> Iterator[int]:
        for event, words in self.announcements:
            if words[0] == "moved" and event.end < before and f"/t{topic}-" in words[1]:
                properties = json.loads(Path(words[1].removeprefix("file:")).read_bytes())["properties"]
                yield json.loads(properties.get("icestream.committed", "{}")).get(str(shard), 0)

    # --- recycling ---

    def recycling(self) -> Iterator[str]:
        for event in self.freed:
            for (topic, shard), end in sorted(self._section_ends(event).items()):
                committed = [
                    int(words[3])
                    for announcement, words in self.announcements
                    if announcement.end < event.begin and words[:3] == ["advance", str(topic), str(shard)]
                ]
                if max(committed, default=0) < end:
                    yield (
                        f"{event.name} was freed at {event} with offsets up to {end} of topic {topic} shard {shard}, "
                        f"and {max(committed, default=0)} was committed"
                    )

    def _section_ends(self, freed: Event) -> dict[Key, int]:
        """The end offsets of each shard's sections in a freed log file."""
        ends: dict[Key, int] = {}
        for write in self.writes[freed.name]:
            if write.inode == freed.inode and write.begin < freed.begin:
                for record in records_in(write):
                    for key, end in _sections(write.data, record.position - write.position, record.position):
                        ends[key] = max(ends.get(key, 0), end)
        return ends


def _sections(data: bytes, at: int, position: int) -> Iterator[tuple[Key, int]]:
    """Of the record at that place."""
    for entry in decode_entries(data, at, decode_header(data, at, position)):
        if entry.kind == _DATA:
            yield (entry.topic_id, entry.shard), entry.end_offset
