"""Models of the API for tables (lake/routes/lake.py). Levels of table names may contain any character, so tables are
named in queries and bodies, never in a path."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from icestream import limits
from icestream.lake.models import IdNumber, IdText, Number, RequestModel, ResponseModel

Level = Annotated[str, Field(min_length=1, max_length=limits.CATALOG_NAME_BYTES_MAX)]
Levels = Annotated[list[Level], Field(min_length=1, max_length=limits.CATALOG_LEVELS_MAX)]
TopicText = Annotated[str, Field(min_length=1, max_length=2 * limits.TOPIC_NAME_BYTES_MAX)]
ConsentWord = Literal["accept-gap", "accept-duplicates"]


class TableRequest(RequestModel):
    namespace: Levels = Field(description="Levels of the namespace.")
    table: Level


class OperationRequest(RequestModel):
    accept: list[ConsentWord] = Field(default=[], max_length=2, description="Accepted consequences.")
    dry_run: bool = Field(default=False, description="Only return the consequences.")


class BindRequest(TableRequest, OperationRequest):
    topic: TopicText


class AdoptRequest(TableRequest, OperationRequest):
    topic: TopicText
    positions: dict[str, Number] | None = Field(
        default=None,
        max_length=limits.SHARDS_PER_TOPIC_MAX,
        description="First offset of each shard that is not in the table; null: according to its snapshots.",
    )


class RewindRequest(TableRequest, OperationRequest):
    snapshot: IdNumber | None = Field(default=None, description="Snapshot that main is set to; null: the current one.")


class RecreateRequest(OperationRequest):
    topic: TopicText
    namespace: Levels | None = Field(default=None, description="Namespace of the table; null: the former one.")
    table: Level | None = None


class DropRequest(TableRequest):
    purge: bool = Field(default=False, description="Also delete its files, an hour later.")
    force: bool = Field(default=False, description="Also drop the table of a topic.")


class ShardOutcome(ResponseModel):
    shard: int
    held: int = Field(description="The table has every offset below, except for known removals.")
    goes_on_at: int = Field(description="Offset at which the pipeline resumes.")
    committed: int | None = Field(description="Committed offset before; null if unknown.")
    end: int = Field(description="End of the log.")
    missing: tuple[int, int] | None = Field(description="Offsets in neither table nor log: a declared gap.")
    written_again: tuple[int, int] | None


class OperationResult(ResponseModel):
    operation: str
    topic: str
    namespace: list[str]
    table: str
    dry_run: bool
    needs: list[ConsentWord] = Field(description="Consequences that have to be accepted.")
    shards: list[ShardOutcome]
    words: list[str] = Field(description="The consequences as text.")


class TableName(ResponseModel):
    namespace: list[str]
    table: str


class ShardRun(ResponseModel):
    shard: int
    epoch: int
    start: int
    next: int
    is_closed: bool


class RowRemoval(ResponseModel):
    operation: str
    snapshot_id: IdText = Field(
        description="Snapshot that removed the rows; the last one of several recorded together."
    )
    first_snapshot_id: IdText | None = Field(
        description="First of several snapshots recorded together; null if there is only one."
    )
    time_ms: int
    is_exact: bool = Field(description="Whether all of these offsets are missing, not only some.")
    rows: int | None = Field(description="Maximum number of removed rows; null if unknown.")
    ranges: dict[str, tuple[int, int]]


class TableDetails(TableName):
    uuid: str
    metadata_file: str
    version: int
    topic: str | None = Field(description="null: it belongs to no topic.")
    topic_id: int | None
    is_topic_deleted: bool = Field(description="Whether the topic is deleted; the table will be detached.")
    pipeline_epoch: int | None
    runs: list[ShardRun]
    removals: list[RowRemoval] = Field(description="Committed rows that are missing from main.")


class TopicTableView(ResponseModel):
    topic: str
    topic_id: int
    table: TableName | None
    parted: TableName | None = Field(description="The table that was detached from it; null if it has a table.")
    committed: dict[str, int] = Field(description="Committed offset by shard, in its table or in the detached one.")


class DataFile(ResponseModel):
    path: str
    content: Literal["data", "position-deletes", "equality-deletes"]
    format: str
    records: int
    bytes: int
    sequence: int | None
    snapshot_id: IdText | None = Field(description="Snapshot that added it.")
    first_offset: int | None = Field(description="From the bounds of column `offset`; null without bounds.")
    last_offset: int | None


class PendingPurge(ResponseModel):
    uuid: str
    metadata_file: str
    due_ms: int
    is_begun: bool


class BoundTopic(ResponseModel):
    topic: str
    topic_id: int
    problem: str | None = Field(description="Why its record cannot be read; null if it can.")


class DetachedTopic(ResponseModel):
    topic: str
    topic_id: int
    table: str = Field(description="The detached table.")
    committed: dict[str, int] = Field(description="Committed offset by shard when it was detached.")
    problem: str | None = Field(description="Why its record cannot be read; null if it can.")


class VerifyFinding(ResponseModel):
    check: Literal["files", "property", "bounds", "dense", "unique", "log", "readers"]
    weight: Literal["wrong", "known", "bounds-only"] = Field(
        description="`wrong`: an error. `known`: offsets without a row for a known reason. `bounds-only`: not checked."
    )
    text: str
    shard: int | None
    start: int = Field(description="First offset of the range [start, end), if it concerns offsets.")
    end: int


class VerifyReport(ResponseModel):
    topic: str
    table: str
    snapshot_id: IdText | None
    is_deep: bool
    is_good: bool = Field(description="No finding is `wrong`.")
    is_complete: bool = Field(description="No finding is `bounds-only`: everything was checked.")
    files: int
    findings: list[VerifyFinding] = Field(description="The first 1,000 findings; /verify/lines returns all.")
    finding_count: int
