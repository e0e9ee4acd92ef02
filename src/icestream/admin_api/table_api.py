"""The tables of topics: requests and answers of the HTTP API only (lake/routes), because the lake process serves them.

Levels of table names may contain any character, so tables are named in queries and bodies, never in a path.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from icestream import limits
from icestream.admin_api.admin_call import Answer
from icestream.model.field_metadata import ID_TEXT, Doc, Length
from icestream.model.topic_policies import Count

Level = Annotated[str, Length(1, limits.CATALOG_NAME_BYTES_MAX)]
Levels = Annotated[list[Level], Length(1, limits.CATALOG_LEVELS_MAX)]
TopicText = Annotated[str, Length(1, 2 * limits.TOPIC_NAME_BYTES_MAX)]
ConsentWord = Literal["accept-gap", "accept-duplicates"]
Accepted = Annotated[list[ConsentWord], Length(0, 2), Doc("Accepted consequences.")]
DryRun = Annotated[bool, Doc("Only return the consequences.")]
SnapshotId = Annotated[int, ID_TEXT]

# --- requests ---------------------------------------------------------------------------------------------------------


class TableRequest(msgspec.Struct, kw_only=True):
    namespace: Annotated[Levels, Doc("Levels of the namespace.")]
    table: Level


class TableOperationRequest(TableRequest, kw_only=True):
    accept: Accepted = []
    dry_run: DryRun = False


class BindRequest(TableOperationRequest, kw_only=True):
    topic: TopicText


class AdoptRequest(TableOperationRequest, kw_only=True):
    topic: TopicText
    positions: Annotated[
        Annotated[dict[str, Count], Length(0, limits.SHARDS_PER_TOPIC_MAX)] | None,
        Doc("First offset of each shard that is not in the table; null: according to its snapshots."),
    ] = None
    metadata_file: Annotated[
        str | None, Doc("Metadata file of a dropped table: it is registered from it, if no table has its name.")
    ] = None


class RewindRequest(TableOperationRequest, kw_only=True):
    snapshot: Annotated[SnapshotId | None, Doc("Snapshot that main is set to; null: the current one.")] = None


class RecreateRequest(msgspec.Struct, kw_only=True):
    accept: Accepted = []
    dry_run: DryRun = False
    topic: TopicText
    namespace: Annotated[Levels | None, Doc("Namespace of the table; null: the former one.")] = None
    table: Level | None = None


class DropRequest(TableRequest, kw_only=True):
    purge: Annotated[bool, Doc("Also delete its files, an hour later.")] = False
    force: Annotated[bool, Doc("Also drop the table of a topic.")] = False


# --- answers ----------------------------------------------------------------------------------------------------------


class ShardOutcome(Answer):
    shard: int
    held: Annotated[int, Doc("The table has every offset below, except for known removals.")]
    goes_on_at: Annotated[int, Doc("Offset at which the pipeline resumes.")]
    committed: Annotated[int | None, Doc("Committed offset before; null if unknown.")]
    end: Annotated[int, Doc("End of the log.")]
    missing: Annotated[tuple[int, int] | None, Doc("Offsets in neither table nor log: a declared gap.")]
    written_again: tuple[int, int] | None


class OperationOutcome(Answer):
    operation: str
    topic: str
    namespace: list[str]
    table: str
    dry_run: bool
    needs: Annotated[list[ConsentWord], Doc("Consequences that have to be accepted.")]
    shards: list[ShardOutcome]
    words: Annotated[list[str], Doc("The consequences as text.")]


class TableName(Answer):
    namespace: list[str]
    table: str


class ShardRun(Answer):
    shard: int
    epoch: int
    start: int
    next: int
    is_closed: bool


class RowRemoval(Answer):
    operation: str
    snapshot_id: Annotated[
        SnapshotId, Doc("Snapshot that removed the rows; the last one of several recorded together.")
    ]
    first_snapshot_id: Annotated[
        SnapshotId | None, Doc("First of several snapshots recorded together; null if there is only one.")
    ]
    time_ms: int
    is_exact: Annotated[bool, Doc("Whether all of these offsets are missing, not only some.")]
    rows: Annotated[int | None, Doc("Maximum number of removed rows; null if unknown.")]
    ranges: dict[str, tuple[int, int]]


class TableDetails(TableName):
    uuid: str
    metadata_file: str
    version: int
    topic: Annotated[str | None, Doc("null: it belongs to no topic.")]
    topic_id: int | None
    is_topic_deleted: Annotated[bool, Doc("Whether the topic is deleted; the table will be detached.")]
    pipeline_epoch: int | None
    runs: list[ShardRun]
    removals: Annotated[list[RowRemoval], Doc("Committed rows that are missing from main.")]


class TopicTableView(Answer):
    topic: str
    topic_id: int
    table: TableName | None
    parted: Annotated[TableName | None, Doc("The table that was detached from it; null if it has a table.")]
    committed: Annotated[dict[str, int], Doc("Committed offset by shard, in its table or in the detached one.")]


class TableFile(Answer):
    path: str
    content: Literal["data", "position-deletes", "equality-deletes"]
    format: str
    records: int
    bytes: int
    sequence: int | None
    snapshot_id: Annotated[SnapshotId | None, Doc("Snapshot that added it.")]
    first_offset: Annotated[int | None, Doc("From the bounds of column `offset`; null without bounds.")]
    last_offset: int | None


class DroppedTable(Answer):
    uuid: str
    metadata_file: str
    due_ms: int
    is_begun: bool


class BoundTopicView(Answer):
    topic: str
    topic_id: int
    problem: Annotated[str | None, Doc("Why its record cannot be read; null if it can.")]


class DetachedTopicView(Answer):
    topic: str
    topic_id: int
    table: Annotated[str, Doc("The detached table.")]
    committed: Annotated[dict[str, int], Doc("Committed offset by shard when it was detached.")]
    problem: Annotated[str | None, Doc("Why its record cannot be read; null if it can.")]


class VerifyFinding(Answer):
    check: Literal["files", "property", "bounds", "dense", "unique", "log", "readers"]
    weight: Annotated[
        Literal["wrong", "known", "bounds-only"],
        Doc("`wrong`: an error. `known`: offsets without a row for a known reason. `bounds-only`: not checked."),
    ]
    text: str
    shard: int | None
    start: Annotated[int, Doc("First offset of the range [start, end), if it concerns offsets.")]
    end: int


class VerifyResult(Answer):
    topic: str
    table: str
    snapshot_id: SnapshotId | None
    is_deep: bool
    is_good: Annotated[bool, Doc("No finding is `wrong`.")]
    is_complete: Annotated[bool, Doc("No finding is `bounds-only`: everything was checked.")]
    files: int
    findings: Annotated[list[VerifyFinding], Doc("The first 1,000 findings; /verify/lines returns all.")]
    finding_count: int
