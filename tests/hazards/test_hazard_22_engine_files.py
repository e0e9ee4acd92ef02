"""Hazard 22: files of other engines hold the same messages with other columns, types, codecs and formats, and with rows
deleted in other ways. Each kind stands beside one of ours here, with every second offset, so that both are read
together."""

from __future__ import annotations

import contextlib
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pyroaring
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg.manifests import EQUALITY_DELETES_CONTENT, ManifestEntry
from icestream.model import envelope
from icestream.model.block import iter_blocks
from icestream.model.scan_messages import ScanKind
from icestream.readers import deletion_vector
from icestream.readers.data_files import Partition, ScanDataFile, ScanDeleteFile, files_of
from icestream.readers.sections import TYPES
from icestream.readers.verify.verify_report import VerifyReport, Weight
from tests.support.topic_lake import TABLE, Row, TopicLake, damage, row, rows

COUNT = 60
Save = Callable[[Any, Path], object]
Change = Callable[[Any], Any]


def message(offset: int) -> Row:
    return row(
        offset,
        key=b"k%d" % (offset % 3),
        headers={"b": str(offset), "a": "x"} if offset % 4 else None,
        producer_name="p" if offset % 2 else None,
        publish_time=5_000 * offset,
        schema_version=offset,
        retain=bool(offset % 5),
    )


def arrow_of(messages: Iterable[Row], names: Iterable[str] = TYPES) -> Any:
    """With columns that no message has a value in, as engines write them: all of the table's."""
    rows = list(messages)
    return pa.table({name: pa.array([_value(row.get(name)) for row in rows], TYPES[name]) for name in names})


def _value(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, dict) else value


def with_ids(table: Any, ids: dict[str, int], key: bytes = b"PARQUET:field_id") -> Any:
    fields = [field.with_metadata({key: b"%d" % ids[field.name]}) for field in table.schema]
    return pa.table(table.columns, pa.schema(fields))


def parquet(**options: Any) -> Save:
    return lambda table, path: pq.write_table(table, path, **options)


def cast(**kinds: Any) -> Change:
    def change(table: Any) -> Any:
        for name, kind in kinds.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, pa.field(name, kind), table[name].cast(kind, safe=False))
        return table

    return change


def not_null(table: Any) -> Any:
    names = ("shard", "offset", "append_time", "payload")
    return pa.table(table.columns, pa.schema([field.with_nullable(field.name not in names) for field in table.schema]))


def dictionaries(table: Any) -> Any:
    for name in ("payload", "key", "producer_name"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].dictionary_encode())
    return table


LARGE = cast(
    payload=pa.large_binary(),
    key=pa.large_binary(),
    producer_name=pa.large_string(),
    headers=pa.map_(pa.large_string(), pa.large_string()),
)
SHAPES: dict[str, tuple[Change, Save]] = {
    "all columns": (lambda table: table, parquet()),
    "another order": (lambda table: table.select(sorted(table.column_names, reverse=True)), parquet()),
    "more columns": (
        lambda table: table.append_column("customer", pa.array(["c"] * len(table))),
        parquet(),
    ),
    "large types": (LARGE, parquet()),
    "views": (cast(payload=pa.binary_view(), producer_name=pa.string_view()), parquet()),
    "texts for bytes": (cast(key=pa.utf8()), parquet()),
    "bytes for texts": (cast(producer_name=pa.large_binary()), parquet()),
    "narrow numbers": (cast(offset=pa.int32(), schema_version=pa.int16()), parquet()),
    "nanoseconds": (cast(append_time=pa.timestamp("ns", "UTC"), publish_time=pa.timestamp("ns", "UTC")), parquet()),
    "no time zone": (cast(append_time=pa.timestamp("us"), publish_time=pa.timestamp("ms")), parquet()),
    "dictionaries": (dictionaries, parquet()),
    "not null": (not_null, parquet()),
    **{
        codec: (lambda table: table, parquet(compression=codec))
        for codec in ("none", "snappy", "gzip", "lz4", "zstd", "brotli")
    },
    "row groups": (lambda table: table, parquet(row_group_size=7, data_page_version="2.0")),
    "no statistics": (LARGE, parquet(row_group_size=7, write_statistics=False)),
}


async def beside_ours(folder: Path, add: Callable[[TopicLake, list[Row]], Any]) -> TopicLake:
    """Even offsets in a file of ours, odd ones in another engine's."""
    lake = TopicLake(folder)
    await lake.bind()
    messages = [message(offset) for offset in range(COUNT)]
    ours = await lake.write(messages)
    await lake.round((0, 0, COUNT), entries=[ours])
    await lake.replace([await lake.write(messages[::2]), await add(lake, messages[1::2])])
    return lake


async def delivered(lake: TopicLake) -> dict[int, dict[str, Any]]:
    """By offset, every value of every message that a reader gets."""
    rows_by_offset: dict[int, dict[str, Any]] = {}
    position = 0
    while position < COUNT:
        scanned = await lake.ask(ScanKind.READ, position, bytes_max=2_000)
        for section in scanned.sections:
            at = section.base_offset
            for block in iter_blocks(section.body):
                columns = {column.name: block.values(column) for column in envelope.COLUMNS if column.in_table}
                for number in range(block.rows):
                    rows_by_offset[at] = {name: values[number] for name, values in columns.items() if values}
                    rows_by_offset[at]["append_time"] = section.append_time_us
                    at += 1
        assert scanned.next_offset > position
        position = scanned.next_offset
    return rows_by_offset


async def verified(lake: TopicLake) -> VerifyReport:
    view = await lake.tables.fresh(lake.topic_id)
    assert view is not None
    return lake.scans.verifier(view, {}).verify(deep=True)


def check(delivery: dict[int, dict[str, Any]], offsets: Iterable[int]) -> None:
    assert list(delivery) == list(offsets)
    for offset, values in delivery.items():
        sent = message(offset)
        for name, value in sent.items():
            if name not in ("shard", "offset"):
                assert values.get(name) == value, (offset, name)


@pytest.mark.asyncio
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("group_bytes", [limits.SCAN_GROUP_BYTES_MAX, 1])
async def test_hazard_22_a_file_with_another_schema_is_read_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, group_bytes: int
) -> None:
    monkeypatch.setattr(limits, "SCAN_GROUP_BYTES_MAX", group_bytes)
    change, save = SHAPES[shape]

    async def add(lake: TopicLake, messages: list[Row]) -> Any:
        random.Random(3).shuffle(messages)
        table = change(arrow_of(messages))
        return await lake.write_table(with_ids(table, {"customer": 900, **await lake.field_ids()}), save)

    lake = await beside_ours(tmp_path, add)
    check(await delivered(lake), range(COUNT))
    assert (await verified(lake)).is_good


@pytest.mark.asyncio
@pytest.mark.parametrize("file_format", ["orc", "avro", "parquet"])
@pytest.mark.parametrize("has_deletes", [False, True])
async def test_hazard_22_a_file_without_append_times_is_read(
    tmp_path: Path, file_format: str, has_deletes: bool
) -> None:
    """Without the column, rows have no append time, and a start at a time skips them."""
    lake = TopicLake(tmp_path)
    await lake.bind()
    messages = [message(offset) for offset in range(COUNT)]
    await lake.round((0, 0, COUNT), entries=[await lake.write(messages)])
    half = COUNT // 2
    bare = arrow_of(messages[:half], ["shard", "offset", "payload"])
    entry = await add_table(lake, bare, file_format)
    await lake.replace([entry, await lake.write(messages[half:])])
    if has_deletes:
        deletes = await lake.write_deletes(entry, [0])
        await lake.replace([*lake.live, deletes], "delete", added_position_deletes="1")
    delivery = await delivered(lake)
    assert list(delivery) == list(range(int(has_deletes), COUNT))
    assert {delivery[offset]["append_time"] for offset in delivery if offset < half} == {0}
    assert [delivery[offset]["payload"] for offset in delivery] == [messages[offset]["payload"] for offset in delivery]
    assert (await lake.ask(ScanKind.TIME, 1)).offset == half
    assert (await verified(lake)).is_good


@pytest.mark.asyncio
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
async def test_hazard_22_a_start_by_time_works_in_files_of_every_time_unit(tmp_path: Path, unit: str) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind()
    messages = [{**message(offset), "append_time": 1_000_000 * (offset + 1)} for offset in range(COUNT)]
    await lake.round((0, 0, COUNT), entries=[await lake.write(messages)])
    change = cast(append_time=pa.timestamp(unit, "UTC"))
    table = with_ids(change(arrow_of(messages)), await lake.field_ids())
    await lake.replace([await lake.write_table(table, parquet(row_group_size=7), bounds=False)])
    assert (await lake.ask(ScanKind.TIME, 30_000_000)).offset == 29


@pytest.mark.asyncio
@pytest.mark.parametrize("file_format", ["orc", "avro", "parquet"])
@pytest.mark.parametrize("is_mapped", [False, True])
async def test_hazard_22_a_file_without_ids_is_read_by_the_names_of_its_columns(
    tmp_path: Path, file_format: str, is_mapped: bool
) -> None:
    """If the table has a name mapping, its names count too."""

    async def add(lake: TopicLake, messages: list[Row]) -> Any:
        table = arrow_of(messages)
        if is_mapped:
            mapping = [{"field-id": id_, "names": [f"old_{name}"]} for name, id_ in (await lake.field_ids()).items()]
            names = {"schema.name-mapping.default": json.dumps(mapping)}
            await lake.catalog.commits.commit(
                TABLE, CommitRequest([], [{"action": "set-properties", "updates": names}])
            )
            table = table.rename_columns([f"old_{name}" for name in table.column_names])
        return await lake.write_table(table, SAVES[file_format], file_format=file_format.upper(), bounds=False)

    check(await delivered(await beside_ours(tmp_path, add)), range(COUNT))


# --- other formats ----------------------------------------------------------------------------------------------------


def save_orc(table: Any, path: Path) -> None:
    orc.write_table(table, path, compression="zstd")


def save_avro(table: Any, path: Path) -> None:
    ids = {field.name: (field.metadata or {}).get(b"field-id") for field in table.schema}
    kinds = {
        pa.int32(): "int", pa.int64(): "long", pa.bool_(): "boolean", pa.binary(): "bytes", pa.utf8(): "string",
        pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
        TYPES["headers"]: {"type": "map", "values": ["null", "string"]},
    }  # fmt: skip
    fields = [
        {"name": field.name, "type": ["null", kinds[field.type]], "default": None}
        | ({"field-id": int(ids[field.name])} if ids[field.name] else {})
        for field in table.schema
    ]
    records = table.to_pylist(maps_as_pydicts="strict")
    with path.open("wb") as file:
        schema = {"type": "record", "name": "table", "fields": fields}
        fastavro.writer(file, schema, records, codec="deflate", sync_interval=500)


SAVES: dict[str, Save] = {"orc": save_orc, "avro": save_avro, "parquet": parquet()}
ID_KEYS = {"orc": b"iceberg.id", "avro": b"field-id", "parquet": b"PARQUET:field_id"}


async def add_format(lake: TopicLake, messages: list[Row], file_format: str, bounds: bool = True) -> Any:
    return await add_table(lake, arrow_of(messages), file_format, bounds)


async def add_table(lake: TopicLake, table: Any, file_format: str, bounds: bool = True) -> Any:
    table = with_ids(table, await lake.field_ids(), ID_KEYS[file_format])
    return await lake.write_table(table, SAVES[file_format], file_format=file_format.upper(), bounds=bounds)


@pytest.mark.asyncio
@pytest.mark.parametrize("file_format", ["orc", "avro"])
@pytest.mark.parametrize("batch_bytes", [limits.SCAN_BATCH_BYTES, 1])
@pytest.mark.parametrize("bounds", [True, False])
async def test_hazard_22_orc_and_avro_files_are_read_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str, batch_bytes: int, bounds: bool
) -> None:
    """The files have one group or many; in Avro a group is a run of blocks."""
    monkeypatch.setattr(limits, "SCAN_BATCH_BYTES", batch_bytes)
    lake = await beside_ours(tmp_path, lambda lake, messages: add_format(lake, messages, file_format, bounds))
    check(await delivered(lake), range(COUNT))
    report = await verified(lake)
    assert (report.is_good, report.is_complete) == (True, True)
    answer = await lake.ask(ScanKind.TIME, message(COUNT - 9)["append_time"])
    assert answer.offset == (COUNT - 9) // 10 * 10


def spoil(path: Path, noise: random.Random | None) -> None:
    """Other bytes in some places, or an end that is too early. Without `noise`: half of the file is gone."""
    whole = path.with_suffix(".whole")
    if not whole.exists():
        whole.write_bytes(path.read_bytes())
    data = bytearray(whole.read_bytes())
    end = len(data) // 2
    if noise is not None:
        for _ in range(noise.randrange(1, 40)):
            data[noise.randrange(len(data))] = noise.randrange(256)
        end = noise.randrange(len(data)) if noise.random() < 0.3 else len(data)
    path.write_bytes(data[:end])


@pytest.mark.asyncio
@pytest.mark.parametrize("file_format", ["orc", "avro"])
@pytest.mark.wrong_tables("its file is damaged")
async def test_hazard_22_damaged_orc_and_avro_files_are_damage(tmp_path: Path, file_format: str) -> None:
    lake = await beside_ours(tmp_path, lambda lake, messages: add_format(lake, messages, file_format))
    path = Path(lake.live[1]["data_file"]["file_path"].removeprefix("file:"))
    for number in range(60):
        spoil(path, random.Random(number))
        with contextlib.suppress(errors.TableUnreadable):  # some damage hits nothing that is read
            await delivered(TopicLake(tmp_path, lake.store, lake.clock))
    spoil(path, None)
    with pytest.raises(errors.TableDamaged, match=path.name):
        await delivered(TopicLake(tmp_path, lake.store, lake.clock))


# --- deletes ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("file_format", ["orc", "avro", "parquet"])
@pytest.mark.parametrize("delete_format", ["orc", "avro", "parquet"])
async def test_hazard_22_position_deletes_of_every_format_apply_to_files_of_every_format(
    tmp_path: Path, file_format: str, delete_format: str
) -> None:
    lake = await beside_ours(tmp_path, lambda lake, messages: add_format(lake, messages, file_format))
    file = lake.live[1]
    places = pa.table({"file_path": [file["data_file"]["file_path"]] * 3, "pos": [0, 5, 29]})
    deletes = await lake.write_table(
        places, SAVES[delete_format], content=1, file_format=delete_format.upper(), bounds=False
    )
    await lake.replace([*lake.live, deletes], "delete", added_position_deletes="3")
    gone = {1, 11, 59}
    check(await delivered(lake), [at for at in range(COUNT) if at not in gone])
    assert (await verified(lake)).is_good


def vector(places: Iterable[int]) -> bytes:
    bitmap = pyroaring.BitMap64(places)
    bitmap.run_optimize()
    body = deletion_vector.MAGIC + bitmap.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.asyncio
@pytest.mark.parametrize("file_format", ["orc", "parquet"])
async def test_hazard_22_deletion_vectors_remove_rows(tmp_path: Path, file_format: str) -> None:
    lake = await beside_ours(tmp_path, lambda lake, messages: add_format(lake, messages, file_format))
    file = lake.live[1]["data_file"]["file_path"]
    blob = vector([0, 1, 2, 29])
    deletes = await lake.write_table(
        pa.table({"pos": [0, 1, 2, 29]}),
        lambda _, path: path.write_bytes(b"PFA1" + blob + b"footer"),
        content=1,
        file_format="PUFFIN",
        referenced_data_file=file,
        content_offset=4,
        content_size_in_bytes=len(blob),
    )
    await lake.replace([*lake.live, deletes], "delete", added_position_deletes="4")
    check(await delivered(lake), [at for at in range(COUNT) if at not in (1, 3, 5, 59)])
    assert (await verified(lake)).is_good


@given(
    st.sets(st.integers(0, 400_000), max_size=50),
    st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 80_000)), max_size=3),
    st.sampled_from([0, 1 << 32, 5 << 32]),
)
def test_deletion_vectors_decode_as_encoded(places: set[int], runs: list[tuple[int, int]], base: int) -> None:
    every = {base + place for place in places}.union(*(range(start, start + count) for start, count in runs))
    assert deletion_vector.decode(vector(every), 1 << 40) == sorted(every)


@given(st.binary(max_size=300), st.data())
def test_invalid_deletion_vectors_are_refused(noise: bytes, data: st.DataObject) -> None:
    body = deletion_vector.MAGIC + pyroaring.BitMap64([3, 70_000, 70_001]).serialize()
    cut = data.draw(st.integers(0, len(body)))
    for some in (noise, body[:cut], body[:cut] + noise, deletion_vector.MAGIC + noise):
        blob = struct.pack(">I", len(some)) + some + struct.pack(">I", zlib.crc32(some))
        try:
            places = deletion_vector.decode(blob, 100_000)
        except ValueError:
            continue
        assert places == sorted(set(places))
        assert all(place < 100_000 for place in places)
    with pytest.raises(ValueError, match="CRC"):
        deletion_vector.decode(vector([1, 2])[:-1] + b"\0", 10)


@pytest.mark.asyncio
@pytest.mark.parametrize("file_format", ["orc", "avro", "parquet"])
async def test_hazard_22_equality_deletes_remove_rows(tmp_path: Path, file_format: str) -> None:
    """From older files only; a null equals a null."""
    lake = await beside_ours(tmp_path, lambda lake, messages: add_format(lake, messages, file_format))
    ids = await lake.field_ids()
    names = ["key", "producer_name"]
    values = arrow_of([{"key": b"k1", "producer_name": None}, {"key": b"k2", "producer_name": "p"}], names)
    deletes = await lake.write_table(
        with_ids(values, ids, ID_KEYS[file_format]),
        SAVES[file_format],
        content=EQUALITY_DELETES_CONTENT,
        file_format=file_format.upper(),
        equality_ids=[ids[name] for name in names],
    )
    await lake.replace([*lake.live, deletes], "delete", added_equality_deletes="2")
    gone = [at for at in range(COUNT) if (at % 3 == 1 and at % 2 == 0) or (at % 3 == 2 and at % 2)]
    check(await delivered(lake), [at for at in range(COUNT) if at not in gone])
    assert (await verified(lake)).is_good
    again = await lake.write([message(gone[0])])
    await lake.replace([*lake.live, again], "append")
    assert gone[0] in await delivered(lake)


def test_equality_deletes_apply_within_their_partition_and_to_older_files() -> None:
    file = ScanDataFile("f", "parquet", 1, 1, 5, partition=Partition(1, (b"a",)))

    def applies(sequence: int, partition: Partition) -> bool:
        deletes = ScanDeleteFile("d", "parquet", EQUALITY_DELETES_CONTENT, 1, 1, sequence, partition=partition)
        return deletes.applies_to(file)

    assert applies(6, file.partition)
    assert applies(6, Partition())
    assert not applies(5, file.partition)
    assert not applies(6, Partition(1, (b"b",)))
    assert not applies(6, Partition(2, (b"a",)))
    entry = {
        "status": 1,
        "data_file": {"content": 2, "file_path": "d", "partition": {"key": b"a"}, "equality_ids": [4]},
    }
    (deletes,) = files_of([ManifestEntry(entry)], 6, {}, 1)
    assert isinstance(deletes, ScanDeleteFile)
    assert (deletes.applies_to(file), deletes.equality_ids) == (True, (4,))


@pytest.mark.asyncio
@pytest.mark.wrong_tables("consumers cannot read it")
async def test_hazard_22_too_many_equality_deletes_stop_the_reader_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many files they are in."""
    monkeypatch.setattr(limits, "SCAN_VALUE_DELETE_ROWS_MAX", 3)
    lake = await beside_ours(tmp_path, lambda lake, messages: add_format(lake, messages, "parquet"))
    ids = await lake.field_ids()
    for offsets in ([1, 2], [3, 4]):
        values = with_ids(arrow_of([{"offset": offset} for offset in offsets], ["offset"]), ids)
        deletes = await lake.write_table(
            values, parquet(), content=EQUALITY_DELETES_CONTENT, equality_ids=[ids["offset"]]
        )
        await lake.replace([*lake.live, deletes], "delete", added_equality_deletes="2")
    with pytest.raises(errors.TableUnreadable, match="has 4 equality deletes, readers apply at most 3"):
        await delivered(lake)


# --- rows that are not the topic's ------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.wrong_tables("that is what others left")
async def test_hazard_22_of_two_rows_with_one_offset_the_first_committed_one_is_delivered(tmp_path: Path) -> None:
    lake = await beside_ours(tmp_path, lambda lake, messages: add_format(lake, messages, "parquet"))
    again = [{**message(offset), "payload": b"again"} for offset in (6, 7)]
    table = with_ids(LARGE(arrow_of(again)), await lake.field_ids())
    await lake.replace([await lake.write_table(table, parquet()), *lake.live], "append")
    check(await delivered(lake), range(COUNT))


@pytest.mark.asyncio
@pytest.mark.wrong_tables("that is what others left")
async def test_hazard_22_a_row_inserted_at_a_future_offset_does_not_replace_the_message(
    tmp_path: Path,
) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind(shards=2)
    messages = [message(offset) for offset in range(COUNT)]
    await lake.round((0, 0, 10), entries=[await lake.write(messages[:10])])
    inserted = with_ids(arrow_of([{**message(12), "payload": b"inserted"}]), await lake.field_ids())
    await lake.replace([*lake.live, await lake.write_table(inserted, parquet())], "append")
    assert [finding.check for finding in (await verified(lake)).findings if finding.weight is Weight.WRONG] == [
        "bounds"
    ]
    await lake.round((0, 10, COUNT), entries=[await lake.write(messages[10:])])
    check(await delivered(lake), range(COUNT))


@pytest.mark.asyncio
@pytest.mark.wrong_tables("that is what others left")
@pytest.mark.parametrize("column", ["shard", "offset"])
@pytest.mark.parametrize("is_null", [False, True])
async def test_hazard_22_rows_without_shard_or_offset_are_ignored(tmp_path: Path, column: str, is_null: bool) -> None:
    """A null, or a file without the column."""
    lake = await beside_ours(tmp_path, lambda lake, messages: add_format(lake, messages, "parquet"))
    stray = arrow_of([{**message(9), column: None}, message(9)] if is_null else [message(9)])
    table = with_ids(stray if is_null else stray.drop_columns([column]), await lake.field_ids())
    await lake.replace([*lake.live, await lake.write_table(table, parquet(), bounds=False)], "append")
    check(await delivered(lake), range(COUNT))


# --- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.wrong_tables("one of its files is damaged")
@pytest.mark.parametrize("column", ["payload", "key", "headers.key_value.value", "schema_version"])
async def test_hazard_38_a_damaged_page_of_any_column_is_reported(tmp_path: Path, column: str) -> None:
    lake = TopicLake(tmp_path)
    await lake.bind(shards=2)
    messages = [message(offset) for offset in range(COUNT)]
    entries = [await lake.write(messages[:30]), await lake.write([*messages[30:], *rows(0, 5, 1)], groups=7)]
    await lake.round((0, 0, COUNT), (1, 0, 5), entries=entries)
    assert (await verified(lake)).is_good
    path = damage(lake.live[1], column)
    report = await verified(lake)
    wrong = [finding for finding in report.findings if finding.weight is Weight.WRONG]
    assert [finding.check for finding in wrong] == ["files"]
    assert path in wrong[0].text
