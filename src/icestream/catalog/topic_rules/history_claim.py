"""`assert-icestream-job` of the kind `history`: snapshots that are kept name other files without erased rows (ADR 128).

    {"type": "assert-icestream-job", "kind": "history", "topic-id": 12, "round-id": "<UUID>", "pipeline-epoch": 3,
     "snapshots": [{"snapshot-id": …, "manifest-list": "<the new one>", "summary": {…}, …}],
     "files": [{"replaced": "file:/…/a.parquet", "added": "file:/…/c.parquet",
                "replaced-rows": "1:21:<digest>", "erased-rows": "1:1:<digest>", "added-rows": "1:20:<digest>"}],
     "offsets": "file:/…/metadata/erased-….bin", "offsets-sha256": "<64 digits>", "offsets-count": 12, "ranges": 5,
     "cut": {"0": 1200}, "swept-to": 17, "lease": "<id of a node>"}

snapshots  as they are after the commit. Each is in the table; its manifest list is another one, totals in its summary
           may differ, and nothing else does
files      data files of these snapshots, and what takes the place of each: one with its rows without the erased ones,
           under the epoch of the commit; none (empty) if no row stays. The new file has the data sequence number of the
           former one in each snapshot, so that the same deletes apply
offsets …  as of an erasure (erase_claim.py). Rows of history may be in no current file: their offsets count, too
swept-to   the table's last sequence number: manifests up to it have no entry of a file that could not be searched

Main and the heads of branches keep all their rows: an engine may be about to commit on top of them, with the manifests
that it has read. They may lose entries of removed files alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.claim import not_negative, read_lease, read_round_id
from icestream.catalog.topic_rules.claim_check import range_refused
from icestream.catalog.topic_rules.erased_record import ErasedRecord, StatedErasure, grown_record, read_stated
from icestream.catalog.topic_rules.rewrite import JOB_TYPE
from icestream.catalog.topic_rules.rewritten_rows import DataFile, FileChanges
from icestream.iceberg import snapshots, values
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.model.pipeline_file_name import PipelineFileKind, parse_pipeline_file
from icestream.model.row_digest import RowDigest, parse_digest
from icestream.runtime.checksum import crc32

HISTORY_KIND: Final = "history"
_TOTALS: Final = "total-"  # how counts of a whole snapshot begin in its summary


class ExchangedFile(NamedTuple):
    """A data file of history, and the one that takes its place."""

    replaced: str
    added: str  # empty: no row stays
    replaced_rows: RowDigest
    erased_rows: RowDigest
    added_rows: RowDigest


class HistoryClaim(NamedTuple):
    """Snapshots that get other manifest lists."""

    round_id: bytes
    topic_id: int
    pipeline_epoch: int
    snapshots: Sequence[Object]
    files: Sequence[ExchangedFile]
    erased: StatedErasure
    swept_to: int
    lease: str = ""

    @property
    def sum(self) -> int:
        """A checksum over topic and lists, which tells a repeat from another commit with the same id."""
        lists = sorted((snapshot["snapshot-id"], snapshot["manifest-list"]) for snapshot in self.snapshots)
        return crc32(repr((self.topic_id, HISTORY_KIND, lists, self.erased.sha256)).encode())


def read_history(requirement: Object) -> HistoryClaim:
    """Raises InvalidInput for a requirement that could not hold for any table."""
    listed = values.objects(requirement, "snapshots")
    for snapshot in listed:
        snapshots.check_snapshot(snapshot)
        values.text(snapshot, "manifest-list")
    ids = {snapshot["snapshot-id"] for snapshot in listed}
    if not 0 < len(listed) <= limits.ERASURE_STEP_SNAPSHOTS or len(ids) < len(listed):
        raise errors.InvalidInput(
            f"a rewrite of history has {len(listed)} snapshots", hint=f"1 to {limits.ERASURE_STEP_SNAPSHOTS}, each once"
        )
    files = [_read_file(entry) for entry in values.objects(requirement, "files")]
    if len({file.replaced for file in files}) < len(files) or len(files) > limits.CATALOG_REWRITE_FILES_MAX:
        raise errors.InvalidInput(
            f"a rewrite of history names {len(files)} files",
            hint=f"each once, at most {limits.CATALOG_REWRITE_FILES_MAX}",
        )
    return HistoryClaim(
        read_round_id(values.text(requirement, "round-id")),
        values.long(requirement, "topic-id"),
        not_negative(requirement, "pipeline-epoch"),
        listed,
        files,
        read_stated(requirement),
        not_negative(requirement, "swept-to"),
        read_lease(requirement),
    )


def _read_file(entry: Object) -> ExchangedFile:
    return ExchangedFile(
        values.text(entry, "replaced"),
        values.text(entry, "added"),
        parse_digest(values.text(entry, "replaced-rows")),
        parse_digest(values.text(entry, "erased-rows")),
        parse_digest(values.text(entry, "added-rows")),
    )


def check_history(
    claim: HistoryClaim,
    table: TableMetadata,
    changes: Mapping[int, FileChanges],
    binding: Binding,
    before: ErasedRecord | None,
    now_ms: int,
) -> ErasedRecord:
    """The erased offsets of the topic after a rewrite of history. `changes`: by snapshot, what its new manifest list
    changes. `before`: the erased offsets before it.

    Raises RangeRefused for one that does not fit the table any more, to be planned again, and Contradiction for one
    that would change what a snapshot has beyond the erased rows.
    """
    files = {file.replaced: file for file in claim.files}
    for file in claim.files:
        _check_file(file, claim.pipeline_epoch)
    heads = {reference["snapshot-id"] for reference in table.references.values() if reference["type"] == "branch"}
    for after in claim.snapshots:
        snapshot_id = after["snapshot-id"]
        former = table.snapshots.find(snapshot_id)
        if former is None:
            raise range_refused(binding, "not_live", f"snapshot {snapshot_id} is not in the table any more")
        if _comparable(former) != _comparable(after):
            raise _contradiction(f"a rewrite of history changes more of snapshot {snapshot_id} than its files")
        change = changes[snapshot_id]
        if snapshot_id in heads and change.removed:
            raise _contradiction(f"a rewrite of history changes rows of snapshot {snapshot_id}, the head of a branch")
        _check_exchange(snapshot_id, change, files)
    erased_rows = sum(file.erased_rows.rows for file in claim.files)
    record = grown_record(claim.erased, binding, before, range(erased_rows + 1), now_ms)
    return record.swept(claim.swept_to)


def _comparable(snapshot: Object) -> Object:
    """A snapshot without what a rewrite may change."""
    summary = {name: text for name, text in (snapshot.get("summary") or {}).items() if not name.startswith(_TOTALS)}
    return {**snapshot, "manifest-list": "", "summary": summary}


def _check_file(file: ExchangedFile, epoch: int) -> None:
    if file.replaced_rows.minus(file.erased_rows) != file.added_rows:
        raise _contradiction(
            f"a rewrite of {file.replaced} changes rows: their digest was {file.replaced_rows.text}, less "
            f"{file.erased_rows.text}, and is {file.added_rows.text}"
        )
    if bool(file.added) != bool(file.added_rows.rows):
        raise _contradiction(f"{file.added_rows.rows} rows of {file.replaced} stay, in the file {file.added!r}")
    if file.added:
        name = parse_pipeline_file(file.added)
        if name is None or name.kind is not PipelineFileKind.DATA or name.epoch != epoch:
            raise _contradiction(f"a rewrite under pipeline epoch {epoch} adds {file.added}, whose name says otherwise")


def _check_exchange(snapshot_id: int, change: FileChanges, files: Mapping[str, ExchangedFile]) -> None:
    """Raises Contradiction unless the files of a snapshot are exchanged one by one, as the claim says."""
    if change.removed_deletes:
        raise _contradiction(f"a rewrite of history removes delete files of snapshot {snapshot_id}")
    added = {file.location: file for file in change.added}
    for former in change.removed:
        exchange = files.get(former.location)
        if exchange is None:
            raise _contradiction(f"snapshot {snapshot_id} loses {former.location}, which the rewrite does not name")
        if exchange.replaced_rows.rows != former.rows:
            raise _contradiction(f"{former.location} has {former.rows} rows, its digest is of another number")
        if not exchange.added:
            continue
        latter = added.pop(exchange.added, None)
        if latter is None:
            raise _contradiction(f"snapshot {snapshot_id} loses {former.location}, and has not {exchange.added}")
        if latter.rows != exchange.added_rows.rows or latter.sequence_number != former.sequence_number:
            raise _contradiction(f"{latter.location} has other rows, or another sequence number, than it must have")
        _check_bounds(former, latter)
    if added:
        raise _contradiction(f"snapshot {snapshot_id} gets {min(added)}, which takes no place of another file")


def _check_bounds(former: DataFile, latter: DataFile) -> None:
    for outer, inner in ((former.shards, latter.shards), (former.offsets, latter.offsets)):
        if outer is not None and (inner is None or inner.low < outer.low or inner.high > outer.high):
            raise _contradiction(f"{latter.location} has rows beyond the bounds of {former.location}")


def _contradiction(problem: str) -> errors.Contradiction:
    return errors.Contradiction(problem, hint="this is a bug of the erasure; the table is unchanged")


def history_requirement(claim: HistoryClaim, round_id: str) -> Object:
    """The requirement of a claim. `round_id`: its id as text."""
    return {
        "type": JOB_TYPE,
        "kind": HISTORY_KIND,
        "topic-id": claim.topic_id,
        "round-id": round_id,
        "pipeline-epoch": claim.pipeline_epoch,
        "snapshots": [*claim.snapshots],
        "files": [
            {
                "replaced": file.replaced,
                "added": file.added,
                "replaced-rows": file.replaced_rows.text,
                "erased-rows": file.erased_rows.text,
                "added-rows": file.added_rows.text,
            }
            for file in claim.files
        ],
        **claim.erased.requirement(),
        "swept-to": claim.swept_to,
        **({"lease": claim.lease} if claim.lease else {}),
    }
