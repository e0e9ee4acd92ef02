"""The pure rules of a commit: what is merged, what expires, what fits, what an answer means."""

from __future__ import annotations

import io
import struct
from typing import Any

import fastavro
import pytest

from icestream import errors, limits
from icestream.catalogs.table_catalog import CommitDone, CommitRefused, CommitUnknown
from icestream.iceberg import avro
from icestream.iceberg.manifests import ManifestFile, PartitionField
from icestream.iceberg.table_metadata import TableMetadata
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.commit import manifest_merge, schema_compat, snapshot_expiry
from icestream.pipeline.commit.partition_check import check_partition
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.commit.verdict import OutcomeVerdict, verdict
from icestream.pipeline.tables import table_policy
from tests.support.tables import NOW_MS, commit_to, point, table, with_snapshots
from tests.support.topic_tables import ENVELOPE, bound

MINUTE = 60_000
HOUR = 60 * MINUTE


# --- Avro -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, -1, 63, 64, -64, -65, 1023, 1024, 2**31, -(2**31), 2**63 - 1, -(2**63)])
def test_longs_match_avro(value: int) -> None:
    assert fastavro.schemaless_reader(io.BytesIO(avro.encode_long(value)), "long") == value


def test_an_empty_avro_file_is_valid() -> None:
    header = avro.encode_header({"avro.schema": b'"long"'})
    assert list(fastavro.reader(io.BytesIO(b"".join(avro.encode_file(header, [], bytes(16)))))) == []


# --- merging ----------------------------------------------------------------------------------------------------------


def manifest(files: int, name: str = "icestream-x", spec_id: int = 0, content: int = 0) -> ManifestFile:
    return ManifestFile(f"file:/t/metadata/{name}.avro", 1, spec_id, content, 1, 1, files, files)


def sizes(*files: int) -> list[ManifestFile]:
    return [manifest(file) for file in files]


def test_eight_manifests_of_a_size_are_merged_into_the_next() -> None:
    assert manifest_merge.select_merged(sizes(1, 1, 1, 1, 1, 1), 0, 1) == []
    assert len(manifest_merge.select_merged(sizes(1, 1, 1, 1, 1, 1, 1), 0, 1)) == 7
    assert len(manifest_merge.select_merged(sizes(*[1] * 7, *[8] * 6), 0, 1)) == 7
    assert len(manifest_merge.select_merged(sizes(*[1] * 7, *[8] * 7, 64), 0, 1)) == 14


def test_foreign_manifests_are_kept() -> None:
    others = [manifest(1, "spark-1"), manifest(1, spec_id=1), manifest(1, content=1)]
    assert manifest_merge.select_merged([*others, *sizes(*[1] * 6)], 0, 1) == []
    assert manifest_merge.select_merged([*others, *sizes(*[1] * 7)], 0, 1) == sizes(*[1] * 7)


def test_a_manifest_has_a_largest_size() -> None:
    large = limits.MANIFEST_FILES_MAX // 4
    assert manifest_merge.select_merged(sizes(*[large] * 20), 0, large) == []


def test_hazard_24_a_table_never_has_many_manifests_and_each_file_is_copied_seldom() -> None:
    manifests: list[ManifestFile] = []
    copied = most = 0
    for _ in range(5_000):
        gone = manifest_merge.select_merged(manifests, 0, 1)
        copied += sum(entry.live_files for entry in gone)
        manifests = [manifest(1 + sum(entry.live_files for entry in gone)), *manifests[len(gone) :]]
        most = max(most, len(manifests))
    assert sum(entry.live_files for entry in manifests) == 5_000
    assert most <= 35
    assert copied <= 5 * 5_000


# --- expiry -----------------------------------------------------------------------------------------------------------


def aged(*ages_ms: int, now_ms: int) -> TableMetadata:
    """A history with snapshots of these ages, the oldest first; they are 1, 2, …"""
    metadata = with_snapshots(len(ages_ms))
    for snapshot, age in zip(metadata.snapshots, ages_ms, strict=True):
        snapshot["timestamp-ms"] = now_ms - age
    return metadata


NOW = NOW_MS + 100 * HOUR


def test_old_snapshots_expire_and_the_last_stays() -> None:
    assert snapshot_expiry.expired(aged(HOUR, 40 * MINUTE, 31 * MINUTE, 29 * MINUTE, 0, now_ms=NOW), NOW) == [1, 2]
    assert snapshot_expiry.expired(aged(9 * HOUR, now_ms=NOW), NOW) == []


def test_hazard_23_a_snapshot_that_was_main_until_now_is_young() -> None:
    """On an idle table running queries and rewrites began with that snapshot, and run for minutes."""
    assert snapshot_expiry.expired(aged(40 * MINUTE, 5_000, now_ms=NOW), NOW) == []
    assert snapshot_expiry.expired(aged(9 * HOUR, 29 * MINUTE, 28 * MINUTE, now_ms=NOW), NOW) == []
    assert snapshot_expiry.expired(aged(9 * HOUR, 31 * MINUTE, 28 * MINUTE, now_ms=NOW), NOW) == [1]
    many = [20 * MINUTE] * limits.SNAPSHOTS_MAX
    assert snapshot_expiry.expired(aged(*many, 9 * MINUTE, 9 * MINUTE, now_ms=NOW), NOW) == [1, 2, 3]
    assert snapshot_expiry.expired(aged(20 * MINUTE, *[9 * MINUTE] * len(many), now_ms=NOW), NOW) == []


def test_many_young_snapshots_expire_only_after_ten_minutes() -> None:
    count = limits.SNAPSHOTS_MAX + 3
    assert snapshot_expiry.expired(aged(*[20 * MINUTE] * count, now_ms=NOW), NOW) == [1, 2, 3, 4]
    assert snapshot_expiry.expired(aged(*[9 * MINUTE] * count, now_ms=NOW), NOW) == []


def test_snapshots_of_branches_and_tags_are_kept() -> None:
    metadata = commit_to(aged(HOUR, HOUR, HOUR, 0, now_ms=NOW), point("kept", 1, "tag"), now_ms=NOW)
    assert snapshot_expiry.expired(metadata, NOW) == [2]


def test_table_properties_take_precedence() -> None:
    age = {snapshot_expiry.MAX_AGE: str(55 * MINUTE)}
    min_kept = {snapshot_expiry.MIN_KEPT: "5"}
    base = aged(2 * HOUR, HOUR, 50 * MINUTE, 0, now_ms=NOW)
    assert snapshot_expiry.expired(commit_to(base, {"action": "set-properties", "updates": age}, now_ms=NOW), NOW) == [
        1
    ]
    all_kept = commit_to(base, {"action": "set-properties", "updates": min_kept}, point("t", 1, "tag"), now_ms=NOW)
    assert snapshot_expiry.expired(all_kept, NOW) == []
    assert snapshot_expiry.expired(all_kept, NOW, ["t"]) == [], "also one that loses its tag"


def test_the_last_snapshot_of_an_hour_and_of_a_day_gets_a_tag() -> None:
    midnight = NOW - NOW % (24 * HOUR)
    metadata = aged(2_000, now_ms=midnight)
    names = {
        update["ref-name"]: update["snapshot-id"]
        for update in snapshot_expiry.tag_updates(metadata, TagRetention(), midnight + 1)
    }
    assert [*names.values()] == [1, 1]
    assert sorted(name.rpartition("-")[0] for name in names) == ["icestream-day-2023-11", "icestream-hour-2023-11"]
    assert snapshot_expiry.tag_updates(metadata, TagRetention(), midnight - 1_000) == []
    assert snapshot_expiry.tag_updates(metadata, TagRetention(0, 0), midnight + 1) == []
    tagged = commit_to(
        metadata, *snapshot_expiry.tag_updates(metadata, TagRetention(), midnight + 1), now_ms=midnight + 1
    )
    assert snapshot_expiry.tag_updates(tagged, TagRetention(), midnight + 2) == []


def test_a_tag_expires_after_its_retention() -> None:
    metadata = aged(2 * HOUR, now_ms=NOW)
    name = snapshot_expiry.tag_name(snapshot_expiry.HOUR_TAG, NOW - 2 * HOUR)
    tagged = commit_to(metadata, point(name, 1, "tag"), now_ms=NOW)
    gone = {"action": "remove-snapshot-ref", "ref-name": name}
    assert gone in snapshot_expiry.tag_updates(tagged, TagRetention(HOUR, 0), NOW)
    assert gone not in snapshot_expiry.tag_updates(tagged, TagRetention(3 * HOUR, 0), NOW)


# --- partitions -------------------------------------------------------------------------------------------------------


def written(partition: list[object], lower: bytes | None, upper: bytes | None, nulls: int = 0) -> WrittenFile:
    low = {} if lower is None else {4: lower}
    high = {} if upper is None else {4: upper}
    return WrittenFile(1, "file:/t/a.parquet", 1, 10, [], 0, 0, partition, {}, {}, {4: nulls}, low, high, [])


def of(transform: str, kind: str = "int") -> tuple[PartitionField, ...]:
    return (PartitionField("p", 4, transform, kind),)


def us(value: int) -> bytes:
    return struct.pack("<q", value)


HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("transform", "value", "lower", "upper", "is_right"),
    [
        ("hour", 5, 5 * HOUR_US, 6 * HOUR_US - 1, True),
        ("hour", 5, 5 * HOUR_US, 6 * HOUR_US, False),
        ("hour", -1, -1, -1, True),
        ("day", 0, 0, 24 * HOUR_US - 1, True),
        ("day", 0, -1, 1, False),
        ("month", 1, 31 * 24 * HOUR_US, 59 * 24 * HOUR_US - 1, True),
        ("month", 1, 31 * 24 * HOUR_US - 1, 31 * 24 * HOUR_US, False),
        ("month", -1, -1, -1, True),
    ],
)
def test_hazard_12_times_are_of_one_partition(
    transform: str, value: int, lower: int, upper: int, is_right: bool
) -> None:
    file = written([value], us(lower), us(upper))
    if is_right:
        check_partition(file, of(transform))
    else:
        with pytest.raises(errors.Contradiction, match="another partition"):
            check_partition(file, of(transform))


def test_hazard_12_keys_are_of_one_partition() -> None:
    identity = of("identity", "binary")
    check_partition(written([b"key"], b"key", b"key"), identity)
    check_partition(written([b"a" * 20], b"a" * 16, b"a" * 15 + b"b"), identity)
    check_partition(written([None], None, None, nulls=10), identity)
    for wrong in (
        written([b"key"], b"kex", b"key"),
        written([b"key"], b"key", b"kez1"),
        written([b"key"], b"key", b"key", nulls=1),
        written([b"key"], None, None, nulls=10),
        written([None], None, None, nulls=0),
        written([], None, None),
    ):
        with pytest.raises(errors.Contradiction):
            check_partition(wrong, identity)


# --- files and a table that changed -----------------------------------------------------------------------------------


def file_of(schema_id: int = 0, spec_id: int = 0) -> WrittenFile:
    return WrittenFile(1, "file:/t/a.parquet", 1, 10, [], schema_id, spec_id, [], {}, {}, {}, {}, {}, [])


def with_schema(fields: list[dict[str, Any]]) -> TableMetadata:
    base = table(schema=ENVELOPE)
    schema = {**base.current_schema, "fields": fields}
    schema.pop("schema-id")
    added = {"action": "add-schema", "schema": schema}
    return commit_to(base, added, {"action": "set-current-schema", "schema-id": -1})


def test_hazard_30_files_fit_a_table_changed_harmlessly_by_others() -> None:
    fields = bound().table.current_schema["fields"]
    more = {"id": 100, "name": "extra", "type": "string", "required": False}
    assert schema_compat.incompatibility(with_schema([*fields, more]), [file_of()]) == ""
    wider = [{**field, "type": "long"} if field["type"] == "int" else field for field in fields]
    assert schema_compat.incompatibility(with_schema(wider), [file_of()]) == ""


def test_hazard_30_files_that_a_reader_would_stumble_over_do_not() -> None:
    metadata = bound().table
    fields = metadata.current_schema["fields"]
    assert "spec 7" in schema_compat.incompatibility(metadata, [file_of(spec_id=7)])
    assert "schema 7" in schema_compat.incompatibility(metadata, [file_of(schema_id=7)])
    required = {"id": 100, "name": "extra", "type": "string", "required": True, "initial-default": None}
    unreadable = TableMetadata(
        {
            **metadata.fields,
            "current-schema-id": 1,
            "schemas": [
                *metadata.fields["schemas"],
                {**metadata.current_schema, "schema-id": 1, "fields": [*fields, required]},
            ],
        },
        metadata.snapshots,
        metadata.snapshot_log,
        metadata.metadata_log,
    )
    assert "extra is required" in schema_compat.incompatibility(unreadable, [file_of()])


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "meaning"),
    [
        (CommitDone(None), OutcomeVerdict.DONE),
        (CommitDone(None, repeated=7), OutcomeVerdict.DONE),
        (CommitUnknown("?"), OutcomeVerdict.OPEN),
        (CommitRefused("main moved"), OutcomeVerdict.ALONE),
        (CommitRefused("other", is_bystander=True), OutcomeVerdict.TOGETHER),
        (CommitRefused("x", details={"reason": "not_next"}), OutcomeVerdict.TAKEN),
        (CommitRefused("x", details={"reason": "not_bound"}), OutcomeVerdict.TAKEN),
        (CommitRefused("x", details={"reason": "stale_pipeline"}), OutcomeVerdict.LEASE_LOST),
    ],
)
def test_commit_outcomes_are_classified(
    outcome: CommitDone | CommitRefused | CommitUnknown, meaning: OutcomeVerdict
) -> None:
    assert verdict(outcome) is meaning


# --- layout -----------------------------------------------------------------------------------------------------------


def test_a_table_of_an_earlier_release_gets_the_columns_that_are_new() -> None:
    fields = [field for field in bound().table.current_schema["fields"] if field["name"] not in ("headers", "wire")]
    old = with_schema(fields)
    ids = {field["name"]: field["id"] for field in old.current_schema["fields"]}
    evolved = commit_to(old, *table_policy.evolution(old, {}))
    new_ids = {field["name"]: field["id"] for field in evolved.current_schema["fields"]}
    assert {name: new_ids[name] for name in ids} == ids
    assert new_ids["wire"] > max(ids.values())
    assert not any(
        field["required"] for field in evolved.current_schema["fields"] if field["name"] in ("headers", "wire")
    )
    assert table_policy.evolution(evolved, {}) == []


def test_partitions_can_be_changed_later() -> None:
    metadata = table(schema=ENVELOPE)
    for name in ("hour", "key", "bucket[16]", "none", "month", "day"):
        metadata = commit_to(metadata, *table_policy.evolution(metadata, {"partitioning": name}))
        assert table_policy.evolution(metadata, {"partitioning": name}) == []
    assert table_policy.evolution(metadata, {}) == []
    with pytest.raises(errors.InvalidInput, match="is not a partitioning"):
        table_policy.evolution(metadata, {"partitioning": "week"})


def test_topic_policies_override_table_properties() -> None:
    properties = {table_policy.CODEC: "zstd", table_policy.LEVEL: "3", table_policy.TARGET: "1000"}
    metadata = commit_to(table(schema=ENVELOPE), {"action": "set-properties", "updates": properties})
    plain = table_policy.target_of(metadata, {}, {})
    assert (plain.codec, plain.codec_level, plain.target_bytes) == ("zstd", 3, 1000)
    policy = {"compression": "snappy", "target_file_bytes": "5"}
    own = table_policy.target_of(metadata, policy, {})
    assert (own.codec, own.codec_level, own.target_bytes) == ("snappy", None, 5)
    followed = commit_to(metadata, *table_policy.evolution(metadata, policy))
    overrides = {table_policy.CODEC: "snappy", table_policy.TARGET: "5"}
    assert {name: value for name, value in followed.properties.items() if name in properties} == overrides
    assert table_policy.evolution(followed, policy) == []
    again = commit_to(followed, *table_policy.evolution(followed, {"compression": "gzip:6"}))
    assert {name: again.properties[name] for name in properties} == {
        table_policy.CODEC: "gzip", table_policy.LEVEL: "6", table_policy.TARGET: "5",
    }  # fmt: skip
    assert table_policy.evolution(again, {}) == [], "what is taken back stays as it was"
