"""Binding a table to a topic, and parting them again. Pure: the rules; where they are stored is planned elsewhere.

begin     a table without rows becomes the table of a topic that has none. It gets what the log holds; what the log
          no longer has is a declared gap, which needs consent. A table with rows is adopted (adopt.py)
bind      the same with positions that the caller knows to be true: the pipeline makes tables with it
widen     a topic has more shards than when its table was bound: the table gets those too
detach    the table is like any other afterwards. Its rows stay, and so does what its snapshots say: adopted again,
          it goes on where it was. Until the topic has a table, its messages stay in the log and count for its quota
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
    """`shards`: the epoch of each, and the offset from which the table gets its messages."""
    rebinding.check_free(state, "`icestream lake detach` parts them")
    rebinding.check_fits(state)
    return rebinding.rebinding_decision(state, new_binding(topic, topic_id, shards), (), now_ms)


def begin(
    state: TableState, log: TopicLog, former: FormerTable, consents: Collection[Consent], now_ms: int
) -> Rebinding:
    """`former`: what the topic had before."""
    rebinding.check_free(state, "`icestream lake detach` parts them")
    rebinding.check_fits(state)
    if state.table.current_snapshot_id is not None:
        raise errors.TopicTableConflict(
            "the table has rows", hint="`icestream lake adopt` takes over a table with rows, and finds out which"
        )
    told = OperationPreview("bind", log.topic, shard_previews({}, log, former.committed))
    told.check(consents)
    binding = rebinding.resume_binding(told, log, {}, former.pipeline_epoch, is_fresh=not state.table.snapshots)
    return Rebinding(rebinding.rebinding_decision(state, binding, told.gaps(None, now_ms), now_ms), told)


def widen(state: TableState, topic_id: int, shards: Mapping[int, tuple[int, int]], now_ms: int) -> CommitDecision:
    """`shards`: of the topic, as in `bind`. Those that the table knows stay as they are."""
    binding = state.binding
    if binding is None or binding.topic_id != topic_id:
        raise errors.TopicTableConflict(
            "the table does not belong to the topic", hint="`icestream lake describe` shows whose it is"
        )
    new = {
        shard: (OffsetRun(epoch, start, start),)
        for shard, (epoch, start) in shards.items()
        if shard not in binding.runs
    }
    wider = msgspec.structs.replace(binding, runs=binding.runs | new)
    return rebinding.rebinding_decision(state, wider, state.removals, now_ms)


def detach(state: TableState, now_ms: int) -> CommitDecision:
    """The table as any other. A table that is not bound stays as it is."""
    written = topic_properties.set_written(state.table.properties, None)
    return CommitDecision(table_commit.apply_updates(state.table, state.location, written, now_ms), None, ())
