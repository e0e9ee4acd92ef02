"""What the API takes and says about tables (lake/routes/lake.py). Tables are named by their levels, which may hold any
character: in queries and bodies, never in a path."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from icestream import limits
from icestream.lake.models import Given, IdGiven, IdShown, Number, Shown

Level = Annotated[str, Field(min_length=1, max_length=limits.CATALOG_NAME_BYTES_MAX)]
Levels = Annotated[list[Level], Field(min_length=1, max_length=limits.CATALOG_LEVELS_MAX)]
TopicText = Annotated[str, Field(min_length=1, max_length=2 * limits.TOPIC_NAME_BYTES_MAX)]
ConsentWord = Literal["accept-gap", "accept-duplicates"]


class TableGiven(Given):
    namespace: Levels = Field(description="Its levels.")
    table: Level


class Consented(Given):
    accept: list[ConsentWord] = Field(default=[], max_length=2, description="Consequences that are agreed to.")
    dry_run: bool = Field(default=False, description="Only say what it would come to.")


class BindGiven(TableGiven, Consented):
    topic: TopicText


class AdoptGiven(TableGiven, Consented):
    topic: TopicText
    positions: dict[str, Number] | None = Field(
        default=None,
        max_length=limits.SHARDS_PER_TOPIC_MAX,
        description="Per shard the first offset that the table does not have; null: as its snapshots say.",
    )


class RewindGiven(TableGiven, Consented):
    snapshot: IdGiven | None = Field(default=None, description="Where to; null: where main stands.")


class RecreateGiven(Consented):
    topic: TopicText
    namespace: Levels | None = Field(default=None, description="Of the table; null: as it was called.")
    table: Level | None = None


class DropGiven(TableGiven):
    purge: bool = Field(default=False, description="Its files go as well, an hour later.")
    force: bool = Field(default=False, description="Also the table of a topic: they are parted.")


class ShardFate(Shown):
    shard: int
    held: int = Field(description="The table has what lies below, apart from known removals.")
    goes_on_at: int = Field(description="Where the pipeline goes on.")
    committed: int | None = Field(description="Before; null: not known.")
    end: int = Field(description="Of the log.")
    missing: tuple[int, int] | None = Field(description="In neither table nor log: a declared gap.")
    written_again: tuple[int, int] | None


class Operation(Shown):
    operation: str
    topic: str
    namespace: list[str]
    table: str
    dry_run: bool
    needs: list[ConsentWord] = Field(description="Consequences that must be agreed to.")
    shards: list[ShardFate]
    words: list[str] = Field(description="The same for people.")


class TableName(Shown):
    namespace: list[str]
    table: str


class RunShown(Shown):
    shard: int
    epoch: int
    start: int
    next: int
    is_closed: bool


class RemovalShown(Shown):
    operation: str
    snapshot_id: IdShown = Field(description="That removed them; of several that are known together, the last one.")
    first_snapshot_id: IdShown | None = Field(description="The first of several; null: it was one.")
    time_ms: int
    is_exact: bool = Field(description="All of these offsets, not some.")
    rows: int | None = Field(description="Not more than so many rows; null: nobody counted.")
    ranges: dict[str, tuple[int, int]]


class TableDetails(TableName):
    uuid: str
    metadata_file: str
    version: int
    topic: str | None = Field(description="null: it belongs to none.")
    topic_id: int | None
    is_topic_deleted: bool = Field(description="They are parted in a moment.")
    pipeline_epoch: int | None
    runs: list[RunShown]
    removals: list[RemovalShown] = Field(description="Committed rows that main lacks.")


class TopicTable(Shown):
    topic: str
    topic_id: int
    table: TableName | None
    parted: TableName | None = Field(description="The table that it had, while it has none.")
    committed: dict[str, int] = Field(description="Per shard, in the table that it has or had.")


class DataFile(Shown):
    path: str
    content: Literal["data", "position-deletes", "equality-deletes"]
    format: str
    records: int
    bytes: int
    sequence: int | None
    snapshot_id: IdShown | None = Field(description="That added it.")
    first_offset: int | None = Field(description="By the bounds of column `offset`, where there are any.")
    last_offset: int | None


class PurgeShown(Shown):
    uuid: str
    metadata_file: str
    due_ms: int
    is_begun: bool


class BoundTopic(Shown):
    topic: str
    topic_id: int
    problem: str | None = Field(description="Why what is noted of it cannot be read; null: it can.")


class PartedTopic(Shown):
    topic: str
    topic_id: int
    table: str = Field(description="The table that it had.")
    committed: dict[str, int] = Field(description="Per shard, when they were parted.")
    problem: str | None = Field(description="Why what is noted of it cannot be read; null: it can.")


class VerifyFinding(Shown):
    check: Literal["files", "property", "bounds", "dense", "unique", "log", "readers"]
    weight: Literal["wrong", "known", "bounds-only"] = Field(
        description="`known`: offsets without a row, and the reason is known. `bounds-only`: not looked at."
    )
    text: str
    shard: int | None
    start: int = Field(description="Offsets [start, end), where it is about some.")
    end: int


class VerifyReport(Shown):
    topic: str
    table: str
    snapshot_id: IdShown | None
    is_deep: bool
    is_good: bool = Field(description="Nothing is `wrong`.")
    is_complete: bool = Field(description="Nothing is `bounds-only`: everything was looked at.")
    files: int
    findings: list[VerifyFinding] = Field(description="The first 1,000 of them; /verify/lines tells all.")
    finding_count: int
