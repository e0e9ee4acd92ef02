"""What must hold of a topic's table after every fault of the pipeline, in this process or among real ones:

rows      every message that was published is a row, once, unless it was deleted from the table; in every reader that
          a test asks for
verify    `icestream verify --deep` finds nothing wrong, and names exactly what was taken out
paths     every file that any manifest of any snapshot names is there
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from pyiceberg.manifest import DataFileContent
from pyiceberg.table import StaticTable, Table

from icestream.readers.verify.verify_report import Finding, VerifyReport, Weight
from tests.support.lakehouse import duckdb_with_iceberg
from tests.support.spark import Spark

Messages = Mapping[int, Mapping[int, bytes]]  # payloads, by shard and offset
Gone = Mapping[int, AbstractSet[int]]  # offsets, by shard
Rows = dict[int, list[tuple[int, bytes]]]  # offset and payload in rising order, by shard
RowReader = Callable[[str], Rows]  # of the table whose metadata is there
_NAMED: dict[str, set[str]] = {}  # what each manifest and each list of them names


def check_table(
    location: str,
    published: Messages,
    report: VerifyReport | None,
    gone: Gone | None = None,
    readers: Sequence[RowReader] = (),
) -> None:
    """`location`: of its metadata. No report: its catalog knows nothing of topics, and `verify` nothing of it.
    `readers`: other engines, which have to find the same rows as PyIceberg. They may be alone where rows are deleted
    by value, which PyIceberg cannot read."""
    table = StaticTable.from_metadata(location)
    gone = gone or {}
    of_readers = [rows_of(table)] if not readers or not has_deletes_by_value(table) else []
    of_readers += [read(location) for read in readers]
    for number, rows in enumerate(of_readers):
        for shard, messages in published.items():
            missing = gone.get(shard, set())
            expected = sorted((at, payload) for at, payload in messages.items() if at not in missing)
            assert rows.get(shard, []) == expected, f"{location}: shard {shard}, reader {number} of {len(of_readers)}"
        assert rows.keys() <= published.keys(), f"{location}: rows of shards without published messages"
    for path in named_files(table):
        assert Path(path.removeprefix("file:")).is_file(), f"{path} is in a manifest and not there"
    if report is not None:
        assert report.is_good, report.findings
        assert missing_offsets(report.findings) == {
            shard: set(missing) for shard, missing in gone.items() if missing
        }, report.findings


def rows_of(table: Table) -> Rows:
    """The rows in main as PyIceberg sees them."""
    rows = table.scan(selected_fields=("shard", "offset", "payload")).to_arrow().to_pylist()
    return _by_shard([(row["shard"], row["offset"], row["payload"]) for row in rows])


def rows_by_duckdb(location: str) -> Rows:
    """The rows in main as DuckDB sees them."""
    with duckdb_with_iceberg() as connection:
        statement = 'SELECT shard, "offset", payload FROM iceberg_scan($location)'
        return _by_shard(connection.execute(statement, {"location": location.removeprefix("file:")}).fetchall())


def rows_by_spark(spark: Spark, location: str) -> Rows:
    """The rows in main as Spark sees them."""
    return _by_shard(spark.read(location, "shard", "offset", "payload"))


def _by_shard(rows: Sequence[tuple[Any, ...]]) -> Rows:
    rows_by_shard: Rows = {}
    for shard, offset, payload in rows:
        rows_by_shard.setdefault(shard, []).append((offset, bytes(payload)))
    return {shard: sorted(of_shard) for shard, of_shard in rows_by_shard.items()}


def has_deletes_by_value(table: Table) -> bool:
    snapshot = table.current_snapshot()
    return snapshot is not None and any(
        entry.data_file.content is DataFileContent.EQUALITY_DELETES
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    )


def named_files(table: Table) -> set[str]:
    """By the manifests of all its snapshots. What a manifest says never changes, so it is read once."""
    names: set[str] = set()
    for snapshot in table.snapshots():
        if snapshot.manifest_list not in _NAMED:
            manifests = snapshot.manifests(table.io)
            for manifest in manifests:
                if manifest.manifest_path not in _NAMED:
                    entries = manifest.fetch_manifest_entry(table.io)
                    _NAMED[manifest.manifest_path] = {entry.data_file.file_path for entry in entries}
            _NAMED[snapshot.manifest_list] = {manifest.manifest_path for manifest in manifests}
        manifests_named = _NAMED[snapshot.manifest_list]
        names |= {snapshot.manifest_list, *manifests_named}.union(*(_NAMED[manifest] for manifest in manifests_named))
    return names


def missing_offsets(findings: Sequence[Finding]) -> dict[int, set[int]]:
    """The missing offsets of each shard that `verify --deep` knows of; any other finding fails."""
    offsets: dict[int, set[int]] = {}
    for finding in findings:
        assert finding.weight is Weight.KNOWN, finding
        offsets.setdefault(finding.shard or 0, set()).update(range(finding.start, finding.end))
    return offsets
