"""Catalogs of every kind, each with the server that it needs: started once in a session, on first use."""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import uvicorn

from icestream.catalog.catalog import Catalog
from icestream.catalog.tokens import read_tokens
from icestream.catalogs.embedded import EmbeddedCatalog
from icestream.catalogs.object_files import open_files
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.lake.http import bind_listener
from icestream.lake.iceberg.app import IcebergApp
from icestream.lake.request_metrics import RequestMetrics
from icestream.metadata.store import MemoryStore
from icestream.processes.component_options import store_options
from icestream.processes.configured_catalog import open_catalog
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import ThreadOffload
from icestream.settings import Settings, load
from tests.support import azurite, gcs_server
from tests.support import postgres as postgresql
from tests.support import seaweed as seaweedfs
from tests.support.glue_server import REGION, glue_server
from tests.support.postgres import Postgres
from tests.support.seaweed import Seaweed
from tests.support.warehouse import CatalogWorld

REQUIRED_PEERS = "REQUIRED_TEST_PEERS"  # an environment variable: servers without which their tests fail
CATALOG, STORE = "storage.iceberg_config.catalog", "storage.iceberg_config.object_store"


# --- servers ----------------------------------------------------------------------------------------------------------


@contextmanager
def own_folder(name: str) -> Iterator[Path]:
    """Reachable for other accounts too: PostgreSQL runs as one."""
    with tempfile.TemporaryDirectory(prefix=f"icestream-{name}-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def seaweed_server() -> Iterator[Seaweed]:
    with own_folder("seaweed") as folder, seaweedfs.seaweed(folder) as server:
        yield server


@pytest.fixture(scope="session")
def locked_bucket(seaweed_server: Seaweed) -> str:
    """The location of a bucket with object lock."""
    seaweedfs.create_locked_bucket(seaweed_server)
    return f"s3://{seaweedfs.LOCKED_BUCKET}"


@pytest.fixture(scope="session")
def azure_endpoint() -> Iterator[str]:
    if reason := azurite.missing():
        pytest.skip(reason)
    with own_folder("azurite") as folder, azurite.azurite(folder) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def gcs_flags() -> Iterator[list[str]]:
    """The settings of a GCS store whose account needs no token."""
    with own_folder("gcs") as folder, gcs_server.gcs_server() as endpoint:
        account = folder / "account.json"
        account.write_text('{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}')
        yield [
            f"{STORE}.type=gcs",
            f"{STORE}.bucket={gcs_server.BUCKET}",
            f"{STORE}.endpoint={endpoint}",
            f"{STORE}.credentials_file={account}",
        ]


@pytest.fixture(scope="session")
def glue() -> Iterator[str]:
    with glue_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    if reason := postgresql.missing():
        # No file of this project can install it. Continuous integration must not pass by leaving its tests out.
        (pytest.fail if "postgresql" in os.environ.get(REQUIRED_PEERS, "").split() else pytest.skip)(reason)
    with own_folder("postgres") as folder, postgresql.postgres(folder) as server:
        yield server


# --- settings ---------------------------------------------------------------------------------------------------------


def settings_of(*flags: str) -> Settings:
    return load(flags=flags).settings


def secret(value: str) -> str:
    """A reference to a secret, which a command line may have."""
    return f"command:echo {value}"


def seaweed_flags(server: Seaweed, uri: str | None = None) -> list[str]:
    return [
        f"{CATALOG}.type=rest",
        f"{CATALOG}.uri={uri or server.uri}",
        f"{CATALOG}.warehouse=s3://{seaweedfs.TABLE_BUCKET}/",
        f"{CATALOG}.credential={secret(f'{seaweedfs.KEY}:{seaweedfs.SECRET}')}",
        f"{CATALOG}.request_timeout_ms=5000",
    ]


def s3_flags(server: Seaweed, endpoint: str | None = None) -> list[str]:
    return [
        f"{STORE}.type=s3",
        f"{STORE}.bucket={seaweedfs.BUCKET}",
        f"{STORE}.endpoint={endpoint or server.endpoint}",
        f"{STORE}.path_style=true",
        f"{STORE}.access_key_id={secret(seaweedfs.KEY)}",
        f"{STORE}.secret_access_key={secret(seaweedfs.SECRET)}",
        f"{STORE}.request_timeout_ms=5000",
    ]


def azure_flags(endpoint: str) -> list[str]:
    return [
        f"{STORE}.type=azure",
        f"{STORE}.bucket={azurite.CONTAINER}",
        f"{STORE}.endpoint={endpoint}",
        f"{STORE}.account_name={azurite.ACCOUNT}",
        f"{STORE}.account_key={azurite.KEY}",
    ]


def glue_flags(uri: str) -> list[str]:
    return [
        f"{CATALOG}.type=glue",
        f"{CATALOG}.database=default",
        f"{CATALOG}.uri={uri}",
        f"{CATALOG}.region={REGION}",
        f"{CATALOG}.access_key_id={secret('key')}",
        f"{CATALOG}.secret_access_key={secret('secret')}",
        f"{CATALOG}.request_timeout_ms=5000",
    ]


def sql_flags(uri: str) -> list[str]:
    return [
        f"{CATALOG}.type=sql",
        f"{CATALOG}.uri={uri}",
        f"{CATALOG}.user={postgresql.USER}",
        f"{CATALOG}.password={secret(postgresql.PASSWORD)}",
        f"{CATALOG}.request_timeout_ms=5000",
    ]


# --- our own catalog over HTTP ----------------------------------------------------------------------------------------


@asynccontextmanager
async def own_catalog(folder: Path) -> AsyncIterator[str]:
    """The address of a catalog of ours in this loop, on real files, with its metadata in memory."""
    clock, disk = SystemClock(), ThreadOffload("warehouse", 4)
    catalog = Catalog(MemoryStore(clock), LocalFiles(open_local, disk), clock, SystemRandomness(), f"file:{folder}")
    try:
        async with served(catalog) as uri:
            yield uri
    finally:
        disk.close()


@asynccontextmanager
async def served(catalog: Catalog) -> AsyncIterator[str]:
    """The address of this one."""
    face = IcebergApp(catalog, read_tokens(None), RequestMetrics(), "127.0.0.1")
    listening = bind_listener("127.0.0.1", 0)
    config = uvicorn.Config(face, log_config=None, log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server.serve([listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await serving


def own_on_s3(server: Seaweed, endpoint: str | None = None) -> Catalog:
    """A catalog of ours with its files in a bucket."""
    clock = SystemClock()
    files = open_files(store_options(settings_of(*s3_flags(server, endpoint))))
    warehouse = f"s3://{seaweedfs.BUCKET}/{new_name()}"
    return Catalog(MemoryStore(clock), files, clock, SystemRandomness(), warehouse)


# --- catalogs ---------------------------------------------------------------------------------------------------------

KINDS = ["embedded", "embedded-s3", "embedded-http", "rest", "glue", "sql"]


@asynccontextmanager
async def catalog_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TableCatalog]:
    if kind == "embedded":
        yield EmbeddedCatalog(CatalogWorld().catalog)
        return
    if kind == "embedded-s3":
        yield EmbeddedCatalog(own_on_s3(request.getfixturevalue("seaweed_server")))
        return
    if kind == "embedded-http":
        async with own_catalog(tmp_path) as uri:
            port = uri.rpartition(":")[2]
            catalog = open_catalog(settings_of(f"{CATALOG}.uri={uri}", f"ports.lake={port}"))
            yield catalog
            await catalog.close()
        return
    flags: list[str] = []
    if kind == "rest":
        flags = seaweed_flags(request.getfixturevalue("seaweed_server"))
    if kind == "glue":
        flags = [*glue_flags(request.getfixturevalue("glue")), *s3_flags(request.getfixturevalue("seaweed_server"))]
    if kind == "sql":
        name = f"{CATALOG}.name=c{uuid.uuid4().hex}"
        flags = [*sql_flags(request.getfixturevalue("postgres_server").uri), f"data_dir={tmp_path}", name]
    catalog = open_catalog(settings_of(*flags))
    yield catalog
    await catalog.close()


def new_name(prefix: str = "n") -> str:
    return f"{prefix}{os.getpid()}_{uuid.uuid4().hex[:12]}"
