"""Locations and files that a client names while security is on (hazards 109, 110)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg.identifier import Identifier
from tests.support.asgi import AsgiResponse
from tests.support.avro_files import appended, manifest_list
from tests.support.iceberg import commit_of
from tests.support.secured_lake import ORDERS, PLAIN, SECRET, SecuredLake, secured_lake
from tests.support.tables import SCHEMA
from tests.unit.lake.test_iceberg_rights import NEW_VIEW

pytestmark = pytest.mark.asyncio
RULES = {"writer": ["all on table:/ns/**", "all on namespace:/ns"], "root": ["admin on cluster"]}
UUID = "0190a0b1-0000-4000-8000-000000000001"


async def location_of(lake: SecuredLake, table: Identifier) -> str:
    return (await lake.catalog.tables.load(table)).table.location


async def created(lake: SecuredLake, name: str, location: str, caller: str = "writer") -> AsgiResponse:
    body = {"name": name, "schema": SCHEMA, "location": location}
    return await lake.as_(caller, "POST", "/v1/namespaces/ns/tables", body)


async def committed(lake: SecuredLake, *updates: Any, caller: str = "writer") -> AsgiResponse:
    return await lake.as_(caller, "POST", "/v1/namespaces/ns/tables/t", commit_of([*updates]))


@pytest.mark.parametrize(
    ("location", "status", "administrator"),
    [
        (f"file:/warehouse/ns/new-{UUID}", 200, 200),
        (f"file:/warehouse/ns/new-{UUID.replace('-', '')}", 200, 200),
        ("file:/warehouse/ns/new", 403, 200),
        (f"file:/warehouse/shop/new-{UUID}", 403, 200),
        (f"file:/warehouse/ns/a/new-{UUID}", 403, 200),
        ("file:/warehouse", 403, 400),
        ("file:/warehouse/ns", 403, 400),
        ("file:/warehouse/ns/%2e%2e/x", 400, 400),
        ("file:/etc", 403, 400),
        ("{secret}", 403, 400),
        ("{secret}/data", 403, 400),
        ("{own}", 400, 400),
    ],
)
async def test_hazard_110_a_table_is_not_placed_where_another_one_is(
    tmp_path: Path, location: str, status: int, administrator: int
) -> None:
    async with secured_lake(tmp_path, RULES) as lake:
        place = location.replace("{secret}", await location_of(lake, SECRET))
        place = place.replace("{own}", await location_of(lake, PLAIN))
        assert (await created(lake, "new", place)).status == status
        assert (await created(lake, "new2", place, "root")).status == (400 if status == 200 else administrator)


async def test_hazard_110_a_table_is_not_moved_to_the_place_of_another(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, RULES) as lake:
        for place in (await location_of(lake, SECRET), "file:/warehouse/ns", f"file:/warehouse/shop/x-{UUID}"):
            assert (await committed(lake, {"action": "set-location", "location": place})).status in (400, 403)
        own = await location_of(lake, PLAIN)
        assert (await committed(lake, {"action": "set-location", "location": own})).status == 200


@pytest.mark.parametrize("name", ["write.metadata.path", "write.data.path", "write.object-storage.path"])
async def test_hazard_109_properties_keep_files_inside_of_the_table(tmp_path: Path, name: str) -> None:
    async with secured_lake(tmp_path, RULES) as lake:
        own, other = await location_of(lake, PLAIN), await location_of(lake, SECRET)
        for path, status in ((f"{own}/inside", 200), (other, 403), (f"{own}x", 403), ("file:/warehouse", 403)):
            update = {"action": "set-properties", "updates": {name: path}}
            assert (await committed(lake, update)).status == status, path
        body = {"name": "new", "schema": SCHEMA, "properties": {name: other}}
        assert (await lake.as_("writer", "POST", "/v1/namespaces/ns/tables", body)).status == 403
        assert (await lake.as_("root", "POST", "/v1/namespaces/ns/tables", body)).status == 400


@pytest.mark.parametrize("path", ["{secret}/metadata/l.avro", "file:/etc/passwd", "s3://other/l.avro", "{own}x/l.avro"])
async def test_hazard_109_a_commit_names_files_of_its_own_table_only(tmp_path: Path, path: str) -> None:
    async with secured_lake(tmp_path, RULES) as lake:
        place = path.replace("{secret}", await location_of(lake, SECRET))
        place = place.replace("{own}", await location_of(lake, PLAIN))
        snapshot = {
            "snapshot-id": 1,
            "sequence-number": 1,
            "timestamp-ms": 1,
            "manifest-list": place,
            "summary": {"operation": "append"},
            "schema-id": 0,
        }
        statistics = {"snapshot-id": 1, "statistics-path": place, "file-size-in-bytes": 1}
        statistics |= {"file-footer-size-in-bytes": 1, "blob-metadata": []}
        for update in (
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-statistics", "statistics": statistics},
        ):
            refused = await committed(lake, update)
            assert refused.status == 403, refused
            assert "outside of the table's location" in refused.json["error"]["message"]


async def test_hazard_109_only_an_administrator_registers_files_of_no_table(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, RULES) as lake:
        file = (await lake.catalog.tables.load(PLAIN)).location
        await lake.catalog.tables.drop(PLAIN)
        body = {"name": "again", "metadata-location": file}
        assert (await lake.as_("writer", "POST", "/v1/namespaces/ns/register", body)).status == 403
        assert (await lake.as_("root", "POST", "/v1/namespaces/ns/register", body)).status == 200
        own = {"name": "again", "metadata-location": file, "overwrite": True}
        assert (await lake.as_("writer", "POST", "/v1/namespaces/ns/register", own)).status == 200
        secret = {**own, "metadata-location": (await lake.catalog.tables.load(SECRET)).location}
        assert (await lake.as_("writer", "POST", "/v1/namespaces/ns/register", secret)).status == 403


async def test_hazard_110_only_an_administrator_chooses_the_place_of_a_namespace(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, RULES) as lake:
        body = {"updates": {"location": "file:/warehouse/shop"}}
        assert (await lake.as_("writer", "POST", "/v1/namespaces/ns/properties", body)).status == 403
        assert (await lake.as_("root", "POST", "/v1/namespaces/ns/properties", body)).status == 200


async def test_hazard_110_a_view_is_not_moved_to_the_place_of_a_table(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, RULES) as lake:
        await lake.catalog.views.create(Identifier(("ns",), "v"), {**NEW_VIEW, "name": "v"})
        for place, status in ((await location_of(lake, SECRET), 403), (await location_of(lake, PLAIN), 400)):
            body = commit_of([{"action": "set-location", "location": place}])
            assert (await lake.as_("writer", "POST", "/v1/namespaces/ns/views/v", body)).status == status


async def test_hazard_110_a_namespace_is_not_placed_inside_of_a_table(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, RULES) as lake:
        assert (await created(lake, "new", "file:/warehouse/raw", "root")).status == 200
        refused = await lake.as_("root", "POST", "/v1/namespaces", {"namespace": ["raw"]})
        assert (refused.status, "place of another table" in refused.json["error"]["message"]) == (400, True)
        body = {"updates": {"location": await location_of(lake, SECRET)}}
        assert (await lake.as_("root", "POST", "/v1/namespaces/ns/properties", body)).status == 400


async def test_hazard_109_files_of_another_table_are_refused_in_that_of_a_topic(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, RULES) as lake:
        secret = f"{await location_of(lake, SECRET)}/data/f.parquet"
        for table, path, status in ((ORDERS, "shop/tables/orders", 403), (PLAIN, "ns/tables/t", 200)):
            updates = appended(lake, await location_of(lake, table), 1, secret)
            answer = await lake.as_("root", "POST", f"/v1/namespaces/{path}", commit_of(updates))
            assert answer.status == status, answer


@pytest.mark.parametrize("is_secured", [True, False])
async def test_hazard_109_a_list_of_files_reads_no_manifest_of_another_table(tmp_path: Path, is_secured: bool) -> None:
    async with secured_lake(tmp_path, RULES if is_secured else None) as lake:
        locations = {table: await location_of(lake, table) for table in (PLAIN, SECRET)}
        for table, location in locations.items():
            if table == PLAIN:
                await lake.catalog.commits.commit(table, CommitRequest([], appended(lake, location, 1)))
            else:
                appended(lake, location, 1)
        files = "/api/v1/lake/files?namespace=ns&table=t"
        caller = "writer" if is_secured else "anonymous"
        assert len((await lake.as_(caller, "GET", files)).json["items"]) == 2
        # The manifest list of the writer's own table is replaced by one that names a manifest of the other.
        replaced = f"{locations[PLAIN]}/metadata/snap-1.avro".removeprefix("file:")
        lake.disk.remove(replaced)
        lake.write(f"file:{replaced}", manifest_list(f"{locations[SECRET]}/metadata/manifest-1.avro"))
        answer = await lake.as_(caller, "GET", files)
        assert (b"rows-1-1" in answer.body) != is_secured
        assert (answer.status == 200) != is_secured
