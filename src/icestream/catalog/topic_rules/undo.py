"""Undoes the newest round of a topic's table: main and the committed offsets go back to where they were. Pure.

For a round whose files were removed around its commit: another engine took them for orphans while the commit that names
them was in flight. Its offsets are still in the log and are written again (docs/adr/0042). Only possible while the
round is main: what other engines did since is not undone. Its snapshot is removed, too, because it cannot be read.
"""

from __future__ import annotations

from icestream import errors
from icestream.catalog.topic_rules import rebinding
from icestream.catalog.topic_rules.commit_rules import TableState
from icestream.catalog.topic_rules.operation_preview import OperationPreview, TopicLog, shard_previews
from icestream.catalog.topic_rules.rebinding import Rebinding
from icestream.catalog.topic_rules.rewind import rewind
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_commit import apply_updates
from icestream.iceberg.values import Object


def undo_round(state: TableState, log: TopicLog, snapshot_id: int, now_ms: int) -> Rebinding:
    """Decides to undo the round that made `snapshot_id`. Raises CommitConflict when main is another snapshot, and
    TopicTableConflict when the log lacks some of its offsets, or nothing says what was there before it."""
    binding, snapshot = state.binding, state.table.snapshots.find(snapshot_id)
    if binding is None or binding.topic_id != log.topic_id:
        raise errors.TopicTableConflict(f"the table does not belong to topic {log.topic} any more")
    if snapshot is None or state.table.current_snapshot_id != snapshot_id:
        raise errors.CommitConflict(f"main is no longer at snapshot {snapshot_id}")
    remove_snapshot: Object = {"action": "remove-snapshots", "snapshot-ids": [snapshot_id]}
    if (parent := snapshot.get("parent-snapshot-id")) is not None:
        decision, preview = rewind(state, log, (), now_ms, parent)
        return Rebinding(
            decision._replace(table=apply_updates(decision.table, None, [remove_snapshot], now_ms)), preview
        )
    first_offsets = {shard: runs[0].start for shard, runs in binding.runs.items()}
    preview = OperationPreview("undo", log.topic, shard_previews(first_offsets, log, binding.committed()))
    preview.check(())
    after = rebinding.resume_binding(preview, log, binding.runs, binding.pipeline_epoch, binding.base)
    remove_main: Object = {"action": "remove-snapshot-ref", "ref-name": MAIN}
    return Rebinding(
        rebinding.rebinding_decision(state, after, state.removals, now_ms, [remove_main, remove_snapshot]), preview
    )
