"""What must hold of a topic's table after every fault of the pipeline, in this process or among real ones:

rows      every message that was published is a row, once, unless somebody took it out of the table
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
    found, gone = rows_of(table), gone or {}
    for shard, messages in published.items():
        taken = gone.get(shard, set())
        expected = sorted((at, payload) for at, payload in messages.items() if at not in taken)
        assert found.get(shard, []) == expected, f"{location}: shard {shard}"
    assert found.keys() <= published.keys(), f"{location}: rows of shards that nobody published to"
    for path in named_files(table):
        assert Path(path.removeprefix("file:")).is_file(), f"{path} is in a manifest and not there"
    if report is not None:
        assert report.is_good, report.findings
        assert told(report.findings) == {shard: set(taken) for shard, taken in gone.items() if taken}, report.findings


def rows_of(table: Table) -> dict[int, list[tuple[int, bytes]]]:
    """As another reader finds them in main: per shard, offset and payload."""
    found: dict[int, list[tuple[int, bytes]]] = {}
    for row in table.scan(selected_fields=("shard", "offset", "payload")).to_arrow().to_pylist():
        found.setdefault(row["shard"], []).append((row["offset"], row["payload"]))
    return {shard: sorted(rows) for shard, rows in found.items()}


def named_files(table: Table) -> set[str]:
    """By the manifests of all its snapshots. What a manifest says never changes, so it is read once."""
    found: set[str] = set()
    for snapshot in table.snapshots():
        if snapshot.manifest_list not in _NAMED:
            manifests = snapshot.manifests(table.io)
            for one in manifests:
                if one.manifest_path not in _NAMED:
                    entries = one.fetch_manifest_entry(table.io)
                    _NAMED[one.manifest_path] = {entry.data_file.file_path for entry in entries}
            _NAMED[snapshot.manifest_list] = {one.manifest_path for one in manifests}
        manifests_named = _NAMED[snapshot.manifest_list]
        found |= {snapshot.manifest_list, *manifests_named}.union(*(_NAMED[one] for one in manifests_named))
    return found


def told(findings: Sequence[Finding]) -> dict[int, set[int]]:
    """The absences that `verify` knows of; what it could not see does not happen with `--deep`."""
    found: dict[int, set[int]] = {}
    for one in findings:
        assert one.weight is Weight.KNOWN, one
        found.setdefault(one.shard or 0, set()).update(range(one.start, one.end))
    return found
