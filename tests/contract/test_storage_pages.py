"""docs/foreign-catalogs.md and docs/object-stores.md, followed word for word: only the ports and directories are those
of the test."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from icestream.iceberg.identifier import Identifier
from icestream.processes.configured_catalog import open_catalog, open_objects
from icestream.settings import KEYS, Settings, load
from tests.contract.test_table_catalog import ASKED
from tests.support import postgres as postgresql
from tests.support.catalog_servers import new_name
from tests.support.command_line import CommandResult, icestream
from tests.support.glue_server import REGION
from tests.support.postgres import Postgres
from tests.support.seaweed import BUCKET, KEY, SECRET, TABLE_BUCKET, Seaweed
from tests.tidy.tree import read

PAGES = read("docs/foreign-catalogs.md") + read("docs/object-stores.md")
BLOCKS = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', PAGES, flags=re.DOTALL | re.MULTILINE))
WITHOUT_BROKER = (
    "ports.native=0",
    "ports.broker_http=0",
    "ports.lake=0",
    "lake.managed=false",
    "pipeline.managed=false",
    "danube.enable=false",
    "mqtt.enable=false",
)


def written(name: str, folder: Path, *replaced: tuple[str, str]) -> Path:
    text = BLOCKS[name]
    for old, new in replaced:
        assert old in text, f"{name} does not say {old}"
        text = text.replace(old, new)
    file = folder / name
    file.write_text(f"data_dir: {folder}/data\n{text}")
    file.chmod(0o600)  # it holds secrets
    return file


def doctor(file: Path) -> CommandResult:
    return icestream("doctor", "--config", str(file), *sets(*WITHOUT_BROKER), "--output", "json")


def sets(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def finding_of(ran: CommandResult, check: str) -> tuple[str, str]:
    (row,) = [line for line in ran.document if line["check"] == check]
    return row["state"], row["finding"]


def check_tables(settings: Settings, *more_levels: str) -> None:
    """The catalog of the page creates, keeps and drops tables."""

    async def work() -> None:
        catalog = open_catalog(settings)
        table = Identifier((new_name(), *more_levels), "orders")
        for depth in range(1, len(table.namespace) + 1):
            await catalog.create_namespace(table.namespace[:depth], {})
        await catalog.create(table, ASKED)
        assert await catalog.list_tables(table.namespace) == [table]
        await catalog.drop(table)
        await catalog.close()

    asyncio.run(work())


def seaweed_ports(server: Seaweed) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("localhost:8181", f"localhost:{server.catalog_port}"), ("localhost:8333", f"localhost:{server.s3_port}")


def test_rest(seaweed_server: Seaweed, tmp_path: Path) -> None:
    file = written("rest.yml", tmp_path, *seaweed_ports(seaweed_server))
    ran = doctor(file)
    assert finding_of(ran, "catalog")[0] == finding_of(ran, "object store")[0] == "ok", ran.out
    check_tables(load(file).settings, "eu")
    assert f"-tableBucket={TABLE_BUCKET} -bucket={BUCKET}" in PAGES
    assert f"AWS_ACCESS_KEY_ID={KEY} AWS_SECRET_ACCESS_KEY={SECRET}" in PAGES


def test_glue(glue: str, seaweed_server: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials from the environment, as the page says; only the two endpoints are not those of AWS."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    catalog, store = "storage.iceberg_config.catalog", "storage.iceberg_config.object_store"
    places = (f"{catalog}.uri={glue}", f"{store}.endpoint={seaweed_server.endpoint}", f"{store}.path_style=true")
    file = written("glue.yml", tmp_path)
    assert f"region: {REGION}" in BLOCKS["glue.yml"]
    ran = icestream("doctor", "--config", str(file), *sets(*WITHOUT_BROKER, *places), "--output", "json")
    assert finding_of(ran, "catalog") == ("problem", f"glue at {glue} is reachable, but has no database danube_iceberg")
    assert finding_of(ran, "object store")[0] == "ok"
    check_tables(load(file, flags=places).settings)


def test_sql(postgres_server: Postgres, tmp_path: Path) -> None:
    port = ("localhost:5432", f"127.0.0.1:{postgres_server.port}")
    file = written("sql.yml", tmp_path, port)
    assert finding_of(doctor(file), "catalog")[0] == "ok"
    check_tables(load(file).settings, "eu")
    program = BLOCKS["PyIceberg on PostgreSQL"].replace(*port)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("[(")
    assert f"user: {postgresql.USER}" in BLOCKS["sql.yml"]


def test_the_embedded_catalog_works_on_an_s3_store(seaweed_server: Seaweed, tmp_path: Path) -> None:
    # Nothing is asked of `bucket` where `warehouse` names another one.
    other_bucket = ("bucket: objects", "bucket: not-there")
    file = written("s3-compatible.yml", tmp_path, seaweed_ports(seaweed_server)[1], other_bucket)
    settings = load(file).settings
    assert settings.catalog_embedded
    assert finding_of(doctor(file), "object store") == ("ok", f"s3 bucket {BUCKET} is reachable")

    async def work() -> None:
        name = new_name()
        objects = open_objects(settings)
        await objects.put_new(name, b"x")
        assert await objects.get(name, 1) == b"x"

    asyncio.run(work())


@pytest.mark.parametrize(("name", "root"), [
    ("s3.yml", "s3://objects/tables/"),
    ("gcs.yml", "gs://objects/"),
    ("azure.yml", "abfss://objects@lake.dfs.core.windows.net/"),
])  # fmt: skip
def test_settings_for_stores_without_a_test_server_load(name: str, root: str, tmp_path: Path) -> None:
    settings = load(written(name, tmp_path)).settings
    assert settings.storage.iceberg_config.warehouse == root
    assert settings.catalog_embedded


def test_settings_with_shared_keys_load(tmp_path: Path) -> None:
    """The same settings with engines are tested in process/test_warehouse_on_s3.py."""
    assert load(written("share-keys.yml", tmp_path)).settings.lake.share_keys


def test_settings_with_a_role_for_tables_load(tmp_path: Path) -> None:
    """The same with a store and engines: hazards/test_hazard_111_table_credentials.py."""
    store = load(written("table-keys.yml", tmp_path)).settings.storage.iceberg_config.object_store
    assert store.table_role_arn == "arn:aws:iam::123456789012:role/icestream-tables"


def test_every_block_of_the_pages_is_followed_and_every_variable_exists() -> None:
    followed = {"rest.yml", "glue.yml", "sql.yml", "PyIceberg on PostgreSQL", "s3-compatible.yml", "s3.yml"}
    assert set(BLOCKS) == followed | {"gcs.yml", "azure.yml", "share-keys.yml", "table-keys.yml"}
    for variable in re.findall(r"ICESTREAM_[A-Z_]+", PAGES):
        assert variable in KEYS.by_env, variable


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("credential: icestream", "credential: nobody"), "refuses a token for the credential"),
        (("localhost:8181", "localhost:1"), "cannot be reached"),
        (("localhost:8181", "localhost:8333"), ": status"),
    ],
)
def test_doctor_reports_problems_of_a_rest_catalog(
    change: tuple[str, str], words: str, seaweed_server: Seaweed, tmp_path: Path
) -> None:
    changed = (change[0], change[1].replace("8333", str(seaweed_server.s3_port)))
    rest = [port for port in seaweed_ports(seaweed_server) if port[0] != change[0]]
    ran = doctor(written("rest.yml", tmp_path, changed, *rest))
    state, text = finding_of(ran, "catalog")
    assert (ran.code, state) == (1, "problem")
    assert words in text
    assert SECRET not in ran.out + ran.err


def test_doctor_reports_problems_of_a_store_and_a_database(
    seaweed_server: Seaweed, postgres_server: Postgres, tmp_path: Path
) -> None:
    port = seaweed_ports(seaweed_server)[1]
    denied = doctor(written("s3-compatible.yml", tmp_path, port, ("key_id: icestream", "key_id: nobody")))
    assert finding_of(denied, "object store") == ("problem", "s3 objects/ refuses access: find icestream-doctor")
    place = ("localhost:5432", f"127.0.0.1:{postgres_server.port}")
    wrong = doctor(written("sql.yml", tmp_path, place, (postgresql.PASSWORD, "not-it")))
    assert "authentication failed" in finding_of(wrong, "catalog")[1]
    missing = doctor(written("sql.yml", tmp_path, place, ("/catalog", "/nothing")))
    assert "does not exist" in finding_of(missing, "catalog")[1]
    away = doctor(written("sql.yml", tmp_path, ("localhost:5432", "127.0.0.1:1")))
    assert finding_of(away, "catalog")[0] == "problem"


def test_config_show_and_check_never_show_a_secret(tmp_path: Path) -> None:
    file = written("rest.yml", tmp_path)
    for command in (("config", "show", "--config", str(file)), ("config", "check", str(file))):
        for output in ("table", "json"):
            ran = icestream(*command, "--output", output)
            assert ran.code == 0
            assert SECRET not in ran.out + ran.err
    broken = written("rest.yml", tmp_path, ("uri: http", "uri: ftp"))
    ran = icestream("config", "check", str(broken))
    assert ran.code != 0
    assert SECRET not in ran.out + ran.err
    assert "uri" in ran.out + ran.err
    assert not [name for name in os.environ if name.startswith("ICESTREAM_STORAGE")]
