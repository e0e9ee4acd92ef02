"""`icestream.*`: reserved properties of a topic's table, which only the server writes (hazard 14). Pure.

    in the properties of the table      topic, topic-id, pipeline-epoch, round, committed
    in the summary of each snapshot that a round made      topic-id, round, committed, added, removed
    in the summary of each snapshot that a rewrite made    topic-id, round, committed, removed
    in the summary of each snapshot of a retention         the same, and first: its first kept offsets
    in the summary of each snapshot of an erasure          the same, and erased: the number of rows

`committed` is JSON: per shard the first offset that is not in the table. `added`: per shard the offsets [start, end)
that the round added. The summary tells what is missing if main is moved to the snapshot, and which rows are restored if
it is cherry-picked (snapshot_progress.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Final

from icestream import errors
from icestream.catalog.topic_rules import removal
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.erase_claim import ERASED, EraseClaim
from icestream.catalog.topic_rules.job_claim import JobClaim
from icestream.catalog.topic_rules.removal import Ranges, Removals
from icestream.catalog.topic_rules.retention_claim import FIRST, RetentionClaim
from icestream.iceberg import updates as update
from icestream.iceberg import values
from icestream.iceberg.values import Object

PREFIX: Final = "icestream."
ROUND: Final = PREFIX + "round"


def written(binding: Binding) -> dict[str, str]:
    """The properties of a table with this binding."""
    properties = {
        PREFIX + "topic": binding.topic,
        PREFIX + "pipeline-epoch": str(binding.pipeline_epoch),
        **removal.as_summary(binding.topic_id, binding.committed(), ()),
    }
    return properties | _round(binding) if binding.rounds else properties


def summary(binding: Binding, added: Ranges, removals: Removals) -> dict[str, str]:
    """The reserved part of the summary of a round that added these offsets and led to this binding."""
    progress = removal.as_summary(binding.topic_id, binding.committed(), removals)
    return progress | removal.added_summary(added) | _round(binding)


def job_summary(binding: Binding, removals: Removals, claim: JobClaim) -> dict[str, str]:
    """The reserved part of the summary of the last job of this binding. It repeats the progress of the table: the
    rounds before it may expire, and then nothing else in the table's history would say which offsets it holds."""
    progress = removal.as_summary(binding.topic_id, binding.committed(), removals)
    own: dict[str, str] = {}
    if isinstance(claim, RetentionClaim):
        own = {FIRST: removal.as_text(dict(claim.first))}
    elif isinstance(claim, EraseClaim):
        own = {ERASED: str(claim.rewrite.erased_rows.rows)}
    return progress | own | {ROUND: str(uuid.UUID(bytes=binding.rewrites[-1].id))}


def _round(binding: Binding) -> dict[str, str]:
    return {ROUND: str(uuid.UUID(bytes=binding.rounds[-1].id))}


def set_written(properties: Mapping[str, str], binding: Binding | None) -> list[Object]:
    """The updates that set the reserved properties of a table by its binding; without a binding they are removed."""
    reserved = written(binding) if binding else {}
    # A property that the binding no longer has, such as the round after a rewind, must go: tools read them.
    obsolete = [name for name in properties if name.startswith(PREFIX) and name not in reserved]
    updates: list[Object] = [{"action": "remove-properties", "removals": obsolete}] if obsolete else []
    if reserved:
        updates.append({"action": "set-properties", "updates": reserved})
    return updates


def check_untouched(updates: Iterable[Object], properties: Mapping[str, str], is_bound: bool) -> None:
    """Raises TopicTableConflict when an update sets a reserved property, or removes one of a topic table. The value
    that is there already may be set again: tools copy properties."""
    for table_update in updates:
        match update.action(table_update):
            case "set-properties":
                new_properties = values.text_map(table_update, values.present_name(table_update, "updates", "updated"))
                touched = [
                    name for name in new_properties if _is_ours(name) and properties.get(name) != new_properties[name]
                ]
            case "remove-properties":
                removed = values.texts(table_update, values.present_name(table_update, "removals", "removed"))
                touched = [name for name in removed if is_bound and _is_ours(name) and name in properties]
            case "add-snapshot":
                snapshot = values.as_object(values.required(table_update, "snapshot"), "snapshot")
                touched = [
                    name for name in values.optional_text_map(snapshot, "summary") if is_bound and _is_ours(name)
                ]
            case _:
                continue
        if touched:
            raise errors.TopicTableConflict(
                f"{touched[0]} is written by Icestream alone", hint="leave the properties icestream.* as they are"
            )


def check_new(properties: Mapping[str, str]) -> None:
    """Raises TopicTableConflict if a new table has reserved properties."""
    check_untouched([{"action": "set-properties", "updates": dict(properties)}], {}, is_bound=False)


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX)
