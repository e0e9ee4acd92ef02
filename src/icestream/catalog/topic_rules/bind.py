"""Binds a table to a topic, and detaches it again. Pure: plans/ stores the result.

begin     a table without rows becomes the table of a topic that has none. The messages of the log are written to it;
          offsets that the log no longer has are a declared gap, which needs consent. A table with rows is adopted
          (adopt.py)
bind      the same with positions that the caller knows to be right
widen     adds the shards that a topic got since its table was bound
detach    makes it an ordinary table. Its rows and the summaries of its snapshots stay: adopted again, it resumes where
          it was. Until the topic has a table, its messages stay in the log and count towards its quota
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from icestream import errors
from icestream.catalog.topic_rules import rebinding, topic_properties
from icestream.catalog.topic_rules.binding import new_binding
from icestream.catalog.topic_rules.commit_rules import CommitDecision, TableState
from icestream.catalog.topic_rules.offset_run import OffsetRun
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, TopicLog, shard_previews
from icestream.catalog.topic_rules.rebinding import FormerTable, Rebinding
from icestream.iceberg import table_commit


def bind(
    state: TableState, topic: str, topic_id: int, shards: Mapping[int, tuple[int, int]], now_ms: int
) -> CommitDecision:
    """Decides to bind the table. `shards`: the epoch of each, and the first offset that the table gets."""
    rebinding.check_free(state, "detach it first: `icestream lake detach`")
    rebinding.check_fits(state)
    return rebinding.rebinding_decision(state, new_binding(topic, topic_id, shards), (), now_ms)


def begin(
    state: TableState, log: TopicLog, former: FormerTable, consents: Collection[Consent], now_ms: int
) -> Rebinding:
    """Decides to bind a table without rows. `former`: the former table of the topic."""
    rebinding.check_free(state, "detach it first: `icestream lake detach`")
    rebinding.check_fits(state)
    if state.table.current_snapshot_id is not None:
        raise errors.TopicTableConflict(
            "the table has rows",
            hint="`icestream lake adopt` adopts a table with rows: it reads from its snapshots which offsets it has",
        )
    preview = OperationPreview("bind", log.topic, shard_previews({}, log, former.committed))
    preview.check(consents)
    binding = rebinding.resume_binding(preview, log, {}, former.pipeline_epoch, is_fresh=not state.table.snapshots)
    return Rebinding(rebinding.rebinding_decision(state, binding, preview.gaps(None, now_ms), now_ms), preview)


def widen(state: TableState, topic_id: int, shards: Mapping[int, tuple[int, int]], now_ms: int) -> CommitDecision:
    """Decides to add shards. `shards`: all of the topic, as in `bind`; those that are bound stay as they are."""
    binding = state.binding
    if binding is None or binding.topic_id != topic_id:
        raise errors.TopicTableConflict(
            "the table does not belong to the topic", hint="`icestream lake describe` names its topic"
        )
    new = {
        shard: (OffsetRun(epoch, start, start),)
        for shard, (epoch, start) in shards.items()
        if shard not in binding.runs
    }
    wider = msgspec.structs.replace(binding, runs=binding.runs | new)
    return rebinding.rebinding_decision(state, wider, state.removals, now_ms)


def detach(state: TableState, now_ms: int) -> CommitDecision:
    """Decides to detach the table. One that is not bound stays as it is."""
    written = topic_properties.set_written(state.table.properties, None)
    return CommitDecision(table_commit.apply_updates(state.table, state.location, written, now_ms), None, ())
