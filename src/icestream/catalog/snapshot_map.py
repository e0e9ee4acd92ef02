"""The durable map of snapshot, time and committed offsets of each topic, for snapshots that its table no longer has.

    /snapshots/{topic id}/open       the block that marks are added to (snapshot_block.py)
    /snapshots/{topic id}/{slot}     a full block, at slot number % SNAPSHOT_BLOCKS_MAX: the oldest is overwritten

The summary of a snapshot in the table says which offsets it holds. A mark is written when a snapshot is removed, in the
transaction of that commit, so at every moment one of the two exists. In another catalog any client may expire snapshots
without our knowledge: there marks are written after each commit (pipeline/tables/foreign_ledger.py).

A transaction compares the open block. The one that our last transaction wrote is cached, so that a commit needs no
read; it is dropped from the cache when it is used and cached again once the transaction is known to be applied.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from icestream import errors, limits
from icestream.catalog import catalog_keys, snapshot_block
from icestream.catalog.plans.snapshot_mark_plans import MarkWrites, OpenBlock, plan_marks
from icestream.catalog.snapshot_block import MarkBlock
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger

_log = get_logger("catalog.snapshots")


class SnapshotMap:
    """Plans and finds snapshot marks. Keeps the open blocks that this process wrote last."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._open_blocks: OrderedDict[int, OpenBlock] = OrderedDict()  # by topic id

    # --- writing ---

    async def plan(self, topic_id: int, marks: Sequence[SnapshotMark]) -> MarkWrites:
        """Plans marks as part of a transaction of the caller, which calls `remember` when it is applied."""
        # Taken out of the cache: if the caller's transaction fails, the next plan reads the store.
        open_block = self._open_blocks.pop(topic_id, None) or await self._read(catalog_keys.open_marks_key(topic_id))
        return plan_marks(topic_id, open_block, marks)

    def remember(self, topic_id: int, writes: MarkWrites, revision: int) -> None:
        """Caches the open block that a transaction wrote at `revision`."""
        self._open_blocks[topic_id] = OpenBlock(writes.open_block, revision)
        while len(self._open_blocks) > limits.CATALOG_REMEMBERED_MAX:
            self._open_blocks.popitem(last=False)

    async def _read(self, key: str) -> OpenBlock:
        entry = await self._store.get(key)
        if entry is None:
            return OpenBlock(MarkBlock(), 0)
        return OpenBlock(_decode_or_none(key, entry) or MarkBlock(), entry.mod_revision)

    # --- reading ---

    async def find(self, topic_id: int, snapshot_id: int) -> SnapshotMark | None:
        """Returns the mark of a snapshot; None if it has none. Decodes only blocks that may hold it, because a topic
        looks it up once for each shard."""
        entries = await self._store.list_all(catalog_keys.marks_prefix(topic_id))
        blocks = [
            _decode_or_none(key, entry) for key, entry in entries if snapshot_block.may_hold(entry.value, snapshot_id)
        ]
        marks = (mark for block in blocks if block is not None for mark in block.marks())
        return next((mark for mark in marks if mark.snapshot_id == snapshot_id), None)

    async def marks(self, topic_id: int) -> list[SnapshotMark]:
        """Returns all marks of a topic, the oldest first."""
        entries = await self._store.list_all(catalog_keys.marks_prefix(topic_id))
        # Slots are reused in a ring, so the order of keys says nothing about age: the numbers in the blocks do.
        blocks = [block for key, entry in entries if (block := _decode_or_none(key, entry)) is not None]
        return [mark for block in sorted(blocks, key=lambda block: block.number) for mark in block.marks()]


def _decode_or_none(key: str, entry: Entry) -> MarkBlock | None:
    """None for a damaged block, with a warning: a map with a hole is better than a commit or a reader that fails."""
    try:
        return snapshot_block.decode(key, entry.value)
    except errors.MetadataDamaged as error:
        _log.warning("damaged block of snapshot marks ignored", key=key, error=str(error))
        return None
