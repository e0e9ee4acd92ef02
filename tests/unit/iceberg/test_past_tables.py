"""Tables as they were: by time and by tag, from documents with any history."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icestream.iceberg.past_tables import ExpiredHistory, table_at, table_of_reference
from icestream.iceberg.table_metadata import TableMetadata, decode
from tests.support.tables import NOW_MS, add, append, commit_to, ids, log_ids, point, snapshot, table, with_snapshots

VIEW = "at:view"


def past(metadata: TableMetadata, second: int) -> TableMetadata:
    """The table at a second behind its creation; it must be a document that reads back as itself."""
    result = table_at(metadata, NOW_MS + 1_000 * second, VIEW)
    assert isinstance(result, TableMetadata), result
    assert decode(result.encode()).as_json() == result.as_json()
    return result


def test_a_time_has_the_snapshot_that_was_current_then() -> None:
    metadata = with_snapshots(3)
    middle = past(metadata, 2)
    assert (middle.current_snapshot_id, ids(middle), log_ids(middle)) == (2, [1, 2], [1, 2])
    assert middle.references == {"main": {"snapshot-id": 2, "type": "branch"}}
    assert middle.fields["last-sequence-number"] == 2
    assert past(metadata, 99).current_snapshot_id == 3
    assert table_at(metadata, NOW_MS + 1_999, VIEW) == middle or past(metadata, 1).current_snapshot_id == 1


def test_a_table_has_another_uuid_in_each_view() -> None:
    metadata = with_snapshots(1)
    uuids = {metadata.uuid, *(getattr(table_at(metadata, NOW_MS + 1_000, view), "uuid", "") for view in ("at:1", "a"))}
    assert len(uuids) == 3


def test_a_table_without_snapshots_is_empty_and_one_before_its_creation_absent() -> None:
    metadata = with_snapshots(1)
    empty = past(table(), 5)
    assert (empty.current_snapshot_id, ids(empty), empty.references) == (None, [], {})
    assert table_at(table(), NOW_MS - 1, VIEW) is None
    assert table_at(metadata, NOW_MS - 1, VIEW) is None


def test_a_time_before_the_oldest_snapshot_names_that_snapshots_time() -> None:
    metadata = commit_to(with_snapshots(4), {"action": "remove-snapshots", "snapshot-ids": [1, 2]})
    assert table_at(metadata, NOW_MS + 2_000, VIEW) == ExpiredHistory(NOW_MS + 3_000)
    assert past(metadata, 3).current_snapshot_id == 3
    assert ids(past(metadata, 4)) == [3, 4]


def test_the_schema_and_statistics_are_those_of_the_snapshot() -> None:
    wider: Any = {"type": "struct", "fields": [*table().current_schema["fields"]]}
    wider["fields"].append({"id": 4, "name": "more", "type": "string", "required": False})
    metadata = commit_to(
        with_snapshots(1),
        {"action": "add-schema", "schema": wider, "last-column-id": 4},
        {"action": "set-current-schema", "schema-id": -1},
    )
    metadata = append(metadata, 2, **{"schema-id": metadata.fields["current-schema-id"]})
    for number in (1, 2):
        statistics = {"snapshot-id": number, "statistics-path": f"{metadata.location}/s{number}.puffin"}
        sizes = {"file-size-in-bytes": 9, "file-footer-size-in-bytes": 9, "blob-metadata": []}
        update = {"action": "set-statistics", "snapshot-id": number, "statistics": {**statistics, **sizes}}
        metadata = commit_to(metadata, update)
    first, second = past(metadata, 1), past(metadata, 2)
    assert [len(metadata.current_schema["fields"]) for metadata in (first, second)] == [3, 4]
    assert [item["snapshot-id"] for item in first.fields["statistics"]] == [1]
    assert [item["snapshot-id"] for item in second.fields["statistics"]] == [1, 2]


def test_a_tag_has_its_snapshot_and_no_later_one() -> None:
    metadata = commit_to(with_snapshots(3), point("release", 2, "tag"))
    tagged = table_of_reference(metadata, "release", VIEW)
    assert tagged is not None
    assert decode(tagged.encode()).as_json() == tagged.as_json()
    assert (tagged.current_snapshot_id, ids(tagged), log_ids(tagged)) == (2, [1, 2], [1, 2])
    assert list(tagged.references) == ["main"]
    assert table_of_reference(metadata, "none", VIEW) is None


def test_a_branch_that_was_never_current_is_read_at_its_head() -> None:
    metadata = with_snapshots(2)
    metadata = commit_to(metadata, add(snapshot(3, 1)), point("audit", 3))
    branch = table_of_reference(metadata, "audit", VIEW)
    assert branch is not None
    assert decode(branch.encode()).as_json() == branch.as_json()
    assert (branch.current_snapshot_id, ids(branch), log_ids(branch)) == (3, [1, 3], [1, 3])


@given(
    version=st.sampled_from((1, 2, 3)),
    steps=st.lists(st.sampled_from(("append", "rollback", "expire")), max_size=8),
    second=st.integers(0, 12),
)
def test_any_history_gives_the_snapshot_of_a_time_or_reports_it_expired(
    version: int, steps: list[str], second: int
) -> None:
    metadata, number = table(version), 0
    currents: list[tuple[int, int]] = []
    for now, step in enumerate(steps, 1):
        time = NOW_MS + 1_000 * now
        if step == "append" or metadata.current_snapshot_id is None:
            number += 1
            lineage = {"first-row-id": number - 1, "added-rows": 1} if version == 3 else {}
            sequence = {"sequence-number": 0} if version == 1 else {"sequence-number": number}
            added = snapshot(number, metadata.current_snapshot_id, **{"timestamp-ms": time}, **sequence, **lineage)
            metadata = commit_to(metadata, add(added), point("main", number), now_ms=time)
        elif step == "rollback":
            metadata = commit_to(metadata, point("main", ids(metadata)[0]), now_ms=time)
        else:
            removed = [one for one in ids(metadata) if one != metadata.current_snapshot_id]
            metadata = commit_to(metadata, {"action": "remove-snapshots", "snapshot-ids": removed}, now_ms=time)
        assert metadata.current_snapshot_id is not None
        currents.append((time, metadata.current_snapshot_id))
    moment = NOW_MS + 1_000 * second
    expected = next((current for time, current in reversed(currents) if time <= moment), None)
    result = table_at(metadata, moment, VIEW)
    if isinstance(result, ExpiredHistory):
        assert "expire" in steps
        assert result.oldest_ms > moment
        return
    assert result is not None
    assert decode(result.encode()).as_json() == result.as_json()
    if result.current_snapshot_id != expected:
        # The log of a table loses entries with their snapshots: a rollback to a kept one looks as if it came earlier.
        assert "expire" in steps
        assert "rollback" in steps
    assert set(ids(result)) <= set(ids(metadata))
