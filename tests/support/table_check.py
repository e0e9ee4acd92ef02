"""What must hold of a topic's table after every fault of the pipeline, in this process or among real ones:

rows      every message that was published is a row, once, unless it was deleted from the table
verify    `icestream verify --deep` finds nothing wrong, and names exactly what was taken out
paths     every file that any manifest of any snapshot names is there
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from pyiceberg.table import StaticTable, Table

from icestream.readers.verify.verify_report import Finding, VerifyReport, Weight

Messages = Mapping[int, Mapping[int, bytes]]  # payloads, by shard and offset
Gone = Mapping[int, AbstractSet[int]]  # offsets, by shard
_NAMED: dict[str, set[str]] = {}  # what each manifest and each list of them names


def check_table(location: str, published: Messages, report: VerifyReport | None, gone: Gone | None = None) -> None:
    """`location`: of its metadata. No report: its catalog knows nothing of topics, and `verify` nothing of it."""
    table = StaticTable.from_metadata(location)
    rows, gone = rows_of(table), gone or {}
    for shard, messages in published.items():
        missing = gone.get(shard, set())
        expected = sorted((at, payload) for at, payload in messages.items() if at not in missing)
        assert rows.get(shard, []) == expected, f"{location}: shard {shard}"
    assert rows.keys() <= published.keys(), f"{location}: rows of shards without published messages"
    for path in named_files(table):
        assert Path(path.removeprefix("file:")).is_file(), f"{path} is in a manifest and not there"
    if report is not None:
        assert report.is_good, report.findings
        assert missing_offsets(report.findings) == {
            shard: set(missing) for shard, missing in gone.items() if missing
        }, report.findings


def rows_of(table: Table) -> dict[int, list[tuple[int, bytes]]]:
    """The rows in main as another reader sees them: offset and payload, by shard."""
    rows_by_shard: dict[int, list[tuple[int, bytes]]] = {}
    for row in table.scan(selected_fields=("shard", "offset", "payload")).to_arrow().to_pylist():
        rows_by_shard.setdefault(row["shard"], []).append((row["offset"], row["payload"]))
    return {shard: sorted(rows) for shard, rows in rows_by_shard.items()}


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
