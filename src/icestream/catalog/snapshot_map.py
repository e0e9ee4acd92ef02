"""The durable map of snapshot, time and offsets of each topic: what snapshots held that are in its table no more.

    /snapshots/{topic id}/open       the block that marks are added to (snapshot_block.py)
    /snapshots/{topic id}/{slot}     block `number` that is full, at slot number % SNAPSHOT_BLOCKS_MAX: the oldest goes

A snapshot that is in the table says by itself what it holds. So a mark is written when one goes, in the transaction of
the commit that lets it go: there is no moment at which neither knows. In another catalog anybody may expire snapshots
and we hear nothing of it: there marks are written with the note of each commit (pipeline/tables/foreign_ledger.py).

A transaction compares the open block. Ours is remembered from the last one, so that a commit asks for nothing; it is
forgotten when it is used, and remembered again when the transaction is known to be done: who comes second reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from icestream import errors, limits
from icestream.catalog import catalog_keys, snapshot_block
from icestream.catalog.plans import snapshot_mark_plans as plan
from icestream.catalog.plans.snapshot_mark_plans import MarkWrites, OpenBlock
from icestream.catalog.snapshot_block import MarkBlock
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger

_log = get_logger("catalog.snapshots")


class SnapshotMap:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._open: OrderedDict[int, OpenBlock] = OrderedDict()  # by topic id

    # --- writing ---

    async def adding(self, topic_id: int, marks: Sequence[SnapshotMark]) -> MarkWrites:
        """For a transaction of the caller's, who says `done` when it is."""
        known = self._open.pop(topic_id, None) or await self._read(catalog_keys.open_marks_key(topic_id))
        return plan.plan_marks(topic_id, known, marks)

    def done(self, topic_id: int, added: MarkWrites, revision: int) -> None:
        self._open[topic_id] = OpenBlock(added.open_block, revision)
        while len(self._open) > limits.CATALOG_REMEMBERED_MAX:
            self._open.popitem(last=False)

    async def _read(self, key: str) -> OpenBlock:
        entry = await self._store.get(key)
        if entry is None:
            return OpenBlock(MarkBlock(), 0)
        return OpenBlock(_decoded(key, entry) or MarkBlock(), entry.mod_revision)

    # --- asking ---

    async def find(self, topic_id: int, snapshot_id: int) -> SnapshotMark | None:
        """Only blocks that may hold it are decoded: a topic asks once for each of its shards."""
        entries = await self._store.list_all(catalog_keys.marks_prefix(topic_id))
        blocks = [_decoded(*one) for one in entries if snapshot_block.may_hold(one[1].value, snapshot_id)]
        marks = (mark for block in blocks if block is not None for mark in block.marks())
        return next((one for one in marks if one.snapshot_id == snapshot_id), None)

    async def marks(self, topic_id: int) -> list[SnapshotMark]:
        """All that are known, the oldest first."""
        found = [_decoded(*one) for one in await self._store.list_all(catalog_keys.marks_prefix(topic_id))]
        blocks = sorted((one for one in found if one is not None), key=lambda one: one.number)
        return [mark for block in blocks for mark in block.marks()]


def _decoded(key: str, entry: Entry) -> MarkBlock | None:
    """A map with a hole is better than a commit that fails, or a reader that finds nothing."""
    try:
        return snapshot_block.decode(key, entry.value)
    except errors.MetadataDamaged as error:
        _log.warning("marks of snapshots are lost", error=str(error))
        return None
