"""Names: of namespaces, tables and their keys, of pages, of places and of metadata files."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.iceberg import location, metadata_file
from icestream.iceberg.identifier import Identifier, check_namespace, identifier

# The characters that keys are made of come often.
LEVEL = st.text(st.sampled_from("a.:/%é\x1e\U0001f9ca ") | st.characters(codec="utf-8"), min_size=1, max_size=6).filter(
    lambda text: not set(text) & {"\x1f", "\x00"}
)
LEVELS = st.lists(LEVEL, min_size=1, max_size=4)


@given(LEVELS, LEVELS)
def test_different_namespaces_never_share_a_key(levels: list[str], other: list[str]) -> None:
    first, second = check_namespace(levels), check_namespace(other)
    assert (catalog_keys.namespace_key(first) == catalog_keys.namespace_key(second)) == (first == second)
    assert catalog_keys.namespace_key(first).startswith(catalog_keys.namespaces_in(second)) == (first[:-1] == second)
    table = Identifier(first[:-1], first[-1])
    assert catalog_keys.relation_key(table).startswith(catalog_keys.relations_in(second)) == (first[:-1] == second)


@given(LEVELS)
def test_a_name_is_restored_from_its_key(levels: list[str]) -> None:
    prefix = catalog_keys.namespaces_in(tuple(levels[:-1]))
    assert catalog_keys.last_name(prefix, catalog_keys.namespace_key(tuple(levels))) == levels[-1]
    assert catalog_keys.key_after(prefix, catalog_keys.page_token(levels[-1])) == catalog_keys.namespace_key(
        tuple(levels)
    )


@pytest.mark.parametrize("name", ["", "a\x1fb", "\x00", "\ud800", "x" * (limits.CATALOG_NAME_BYTES_MAX + 1), "é" * 257])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(errors.InvalidInput):
        check_namespace([name])
    with pytest.raises(errors.InvalidInput):
        identifier(("ns",), name)


def test_a_namespace_has_some_levels_and_a_key_is_not_endless() -> None:
    for levels in ([], ["x"] * (limits.CATALOG_LEVELS_MAX + 1)):
        with pytest.raises(errors.InvalidInput, match="levels"):
            check_namespace(levels)
    long = check_namespace(["x" * 500] * 5)
    with pytest.raises(errors.InvalidInput, match="too long"):
        catalog_keys.namespace_key(long)
    with pytest.raises(errors.InvalidInput, match="too long"):
        catalog_keys.relation_key(Identifier(long, "t"))
    assert str(identifier(("a", "b.c"), "t")) == "a.b.c.t"


@pytest.mark.parametrize("token", ["?", "a", "_w", "ä", "===="])
def test_a_foreign_page_token_is_refused(token: str) -> None:
    with pytest.raises(errors.InvalidInput, match="page token"):
        catalog_keys.key_after("/x:", token)
    assert catalog_keys.key_after("/x:", "") == ""


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file:/data/t", "file:/data/t"),
        ("file:///data/t/", "file:/data/t"),
        ("FILE:/data/t", "file:/data/t"),
        ("/data/t", "file:/data/t"),
        ("file:/", "file:/"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket/"),
        ("file:/data/a b%20c", "file:/data/a b%20c"),
    ],
)
def test_a_location_has_one_normal_form(text: str, expected: str) -> None:
    assert location.normalize(text) == expected
    assert location.normalize(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "data/t", "file:data/t", "file://host/data", "file:/data/../etc", "file:/data/./t", "file:/data//t", "/..",
        "s3:/bucket/t", "s3:///t", "s3://../t", "s3://bucket/../t", "file:/data\x00", "file:/data?x", "file:/a\nb",
        "file:/" + "x" * limits.CATALOG_LOCATION_BYTES_MAX,
    ],
)  # fmt: skip
def test_tricky_locations_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput, match="Invalid location"):
        location.normalize(text)


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("file:/data/w/t", True),
        ("/data/w", True),
        ("file:/data/wider", False),
        ("file:/data", False),
        ("file:/other/x", True),
        ("s3://bucket/t", False),
    ],
)
def test_only_locations_in_the_warehouse_are_allowed(text: str, is_allowed: bool) -> None:
    roots = ["file:/data/w", "file:/other"]
    if is_allowed:
        assert location.check_inside(text, roots) == location.normalize(text)
    else:
        with pytest.raises(errors.InvalidInput, match="outside of the warehouse"):
            location.check_inside(text, roots)


@given(LEVELS, LEVEL)
def test_a_new_table_gets_a_portable_location(levels: list[str], name: str) -> None:
    place = location.new_location(location.namespace_location("file:/w", levels), name, "token")
    assert location.check_inside(place, ["file:/w"]) == place
    assert place.endswith("-token")
    assert all(len(part) < 255 for part in place.split("/"))


# --- metadata files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("00012-abc.metadata.json", 12),
        ("00000-abc.gz.metadata.json", 0),
        ("v7.metadata.json", 7),
        ("123456-abc.metadata.json.gz", 123456),
        ("whatever.json", 0),
        ("00012-abc.metadata.json.txt", 0),
    ],
)
def test_a_metadata_file_name_contains_its_version(name: str, version: int) -> None:
    assert metadata_file.version_of(f"file:/w/t/metadata/{name}") == version


def test_a_metadata_file_is_named_after_number_and_chance() -> None:
    assert metadata_file.new_name(7, "u", {}) == "00007-u.metadata.json"
    assert metadata_file.new_name(7, "u", {metadata_file.CODEC: "GZIP"}) == "00007-u.gz.metadata.json"
    with pytest.raises(errors.InvalidInput, match="Invalid codec name"):
        metadata_file.new_name(7, "u", {metadata_file.CODEC: "zip"})
    assert metadata_file.directory("file:/t", {}) == "file:/t/metadata"
    assert metadata_file.directory("file:/t", {metadata_file.PATH: "file:/m"}) == "file:/m"


def test_a_compressed_file_is_restored() -> None:
    pieces = [b'{"a":', b"1}"]
    for name in ("file:/0.gz.metadata.json", "file:/0.metadata.json", "file:/0.metadata.json.gz"):
        packed = b"".join(metadata_file.compress(name, pieces))
        assert metadata_file.decompress(name, packed) == b'{"a":1}'
        assert (packed == b'{"a":1}') == (".gz" not in name)


def test_small_pieces_are_written_together() -> None:
    large = b"x" * 100_000
    assert metadata_file.compress("a", [b"1", b"2", large, b"3", large, large, b"4"]) == [
        b"12",
        large,
        b"3",
        large,
        large,
        b"4",
    ]


@pytest.mark.parametrize(
    "data",
    [b"", b"plain", gzip.compress(b"x" * 1000)[:-4], gzip.compress(bytes(2_000_000))],
    ids=["empty", "plain", "cut", "bomb"],  # packed bytes hold the time: no name that two processes agree on
)
def test_a_packed_file_that_is_broken_or_a_bomb_is_refused(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CATALOG_DOCUMENT_BYTES_MAX", 1_000_000)
    with pytest.raises(errors.MetadataFileDamaged):
        metadata_file.decompress("file:/0.gz.metadata.json", data)


def test_a_document_that_grew_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CATALOG_DOCUMENT_BYTES_MAX", 5)
    pieces: list[Any] = [b"123", b"456"]
    with pytest.raises(errors.InvalidInput, match="expire snapshots"):
        metadata_file.compress("file:/0.metadata.json", pieces)
