"""Objects that are written once, and the files of tables as objects: in memory, in the S3 of SeaweedFS, in Azurite
where that is installed, and by the protocol of GCS."""

from __future__ import annotations

import asyncio
import io
import time
import urllib.request

import pytest

from icestream import errors, limits
from icestream.catalogs.bucket import Objects
from icestream.catalogs.object_files import open_files, parse_object_location
from icestream.catalogs.storage_caller import CallTimeouts, StorageCaller
from icestream.catalogs.store_options import StoreOptions
from icestream.processes.component_options import store_options
from icestream.processes.configured_catalog import open_objects
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.catalog_servers import STORE, azure_flags, new_name, s3_flags, settings_of
from tests.support.fault_proxy import fault_proxy
from tests.support.seaweed import BUCKET

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=["memory", "s3", "azure", "gcs"])
def objects(request: pytest.FixtureRequest) -> Objects:
    if request.param == "memory":
        return open_objects(settings_of(f"{STORE}.type=memory"))
    if request.param == "gcs":
        return open_objects(settings_of(*request.getfixturevalue("gcs_flags")))
    if request.param == "azure":
        return open_objects(settings_of(*azure_flags(request.getfixturevalue("azure_endpoint"))))
    return open_objects(settings_of(*s3_flags(request.getfixturevalue("seaweed_server"))))


async def test_an_object_is_written_once_and_read_back(objects: Objects) -> None:
    name = f"{new_name()}/a b+c%20ä.json"
    assert await objects.get(name, 100) is None
    assert not await objects.exists(name)
    assert await objects.size(name) is None
    await objects.put_new(name, b"first")
    assert await objects.get(name, 100) == b"first"
    assert await objects.exists(name)
    assert await objects.size(name) == 5
    with pytest.raises(errors.AlreadyExists):
        await objects.put_new(name, b"second")
    assert await objects.get(name, 100) == b"first"
    await objects.remove(name)
    assert await objects.get(name, 100) is None
    await objects.remove(name)


async def test_names_are_listed_in_order(objects: Objects) -> None:
    folder = new_name()
    for name in ("b", "a/x", "c"):
        await objects.put_new(f"{folder}/{name}", b"")
    assert await objects.names_below(folder) == [f"{folder}/a/x", f"{folder}/b", f"{folder}/c"]
    assert await objects.names_below(new_name()) == []


async def test_an_object_is_a_file_for_libraries(objects: Objects) -> None:
    """Readers of Parquet jump about in it, in threads of their own."""
    name = new_name()
    await objects.put_new(name, bytes(range(100)))

    def read() -> list[bytes]:
        with objects.reader(name) as file:
            assert (file.size_bytes, file.readable(), file.seekable()) == (100, True, True)
            file.seek(-4, io.SEEK_END)
            parts = [file.read(2), file.read(), file.read()]
            file.seek(1)
            file.seek(1, io.SEEK_CUR)
            return [*parts, file.read(3), bytes([file.tell()])]

    assert await asyncio.to_thread(read) == [b"\x60\x61", b"\x62\x63", b"", b"\x02\x03\x04", b"\x05"]
    with pytest.raises(FileNotFoundError):
        await asyncio.to_thread(objects.reader, new_name())


async def test_objects_larger_than_expected_are_not_read(objects: Objects) -> None:
    name = new_name()
    await objects.put_new(name, b"12345")
    with pytest.raises(errors.UnexpectedAnswer, match="5 bytes, the limit is 4"):
        await objects.get(name, 4)


async def test_invalid_object_names_are_refused(objects: Objects) -> None:
    with pytest.raises(errors.InvalidInput):
        await objects.get("a//b", 10)


async def test_a_missing_bucket_is_reported_without_retries(azure_endpoint: str) -> None:
    """At once: nothing is gained by asking again. (SeaweedFS makes it instead.)"""
    absent = open_objects(settings_of(*azure_flags(azure_endpoint), f"{STORE}.bucket=not-there"))
    with pytest.raises(errors.UnexpectedAnswer, match="bucket does not exist") as caught:
        await absent.put_new("x", b"1")
    assert "not-there" in str(caught.value)


async def test_azure_tables_are_located_by_container_and_account(azure_endpoint: str) -> None:
    """Engines name the container before the @ and the account behind it."""
    files = open_files(store_options(settings_of(*azure_flags(azure_endpoint))))
    location = f"abfss://objects@devstoreaccount1.dfs.core.windows.net/{new_name()}/metadata/00000-a.metadata.json"
    await files.create(location, [b"{", b"}"])
    assert await files.read(location) == b"{}"
    ((name, _),) = await files.names(location.rpartition("/")[0])
    assert name == "00000-a.metadata.json"
    await files.remove(location)
    assert not await files.exists(location)


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut-before", "cut-after", "500", "503-after", "twice", "cut-in-answer"])
async def test_a_write_whose_reply_is_lost_is_applied_once(fault: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("seaweed_server")
    async with fault_proxy(server.endpoint, rb"^PUT /") as proxy:
        subject = open_objects(settings_of(*s3_flags(server, f"http://127.0.0.1:{proxy.port}")))
        name = new_name()
        proxy.plan(fault)
        await subject.put_new(name, b"ours")
        assert await subject.get(name, 10) == b"ours"


async def test_an_object_written_by_another_client_is_not_mistaken_for_ours(request: pytest.FixtureRequest) -> None:
    """The answer is lost, and meanwhile another writer takes the name."""
    server = request.getfixturevalue("seaweed_server")
    plain = open_objects(settings_of(*s3_flags(server)))
    async with fault_proxy(server.endpoint, rb"^PUT /") as proxy:
        subject = open_objects(settings_of(*s3_flags(server, f"http://127.0.0.1:{proxy.port}")))
        name = new_name()
        await plain.put_new(name, b"others")
        proxy.plan("cut-before")
        with pytest.raises(errors.AlreadyExists):
            await subject.put_new(name, b"ours")
        assert await plain.get(name, 10) == b"others"


async def test_rejected_credentials_and_an_unavailable_store_are_distinguished(request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("seaweed_server")
    denied = open_objects(settings_of(*s3_flags(server), f"{STORE}.secret_access_key=hunter2"))
    with pytest.raises(errors.AccessDenied, match="refuses access") as caught:
        await denied.get("x", 10)
    assert "hunter2" not in str(caught.value)
    away = open_objects(settings_of(*s3_flags(server, "http://127.0.0.1:1"), f"{STORE}.request_timeout_ms=100"))
    with pytest.raises(errors.StorageUnavailable):
        await away.get("x", 10)


# --- the files of tables ----------------------------------------------------------------------------------------------


async def test_table_files_are_objects_or_local_files_by_location(
    request: pytest.FixtureRequest, tmp_path: object
) -> None:
    settings = settings_of(*s3_flags(request.getfixturevalue("seaweed_server")))
    files = open_files(store_options(settings))
    for root in (f"s3://{BUCKET}", f"s3a://{BUCKET}", "memory://m", f"file:{tmp_path}"):
        location = f"{root}/{new_name()}/metadata/00000-a.metadata.json"
        with pytest.raises(errors.MetadataFileMissing):
            await files.read(location)
        assert not await files.exists(location)
        await files.create(location, [b"{", b"}"])
        assert await files.read(location) == b"{}"
        assert await files.exists(location)
        assert await files.size(location) == 2
        folder, _, name = location.rpartition("/")
        ((listed_name, written_ms),) = await files.names(folder)
        assert (listed_name, abs(written_ms / 1000 - time.time()) < 600) == (name, True)
        assert await files.names(f"{folder}/nothing") == []
        await files.make_durable([location])
        await files.remove_empty(folder)
        await files.remove(location)
        assert not await files.exists(location)
        assert await files.size(location) == 0
        await files.remove(location)
    with pytest.raises(errors.InvalidInput, match="unsupported location"):
        await files.read("ftp://host/x")


async def test_an_oversized_metadata_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    files = open_files(StoreOptions())
    await files.create("memory://m/x", [b"12345"])
    monkeypatch.setattr(limits, "CATALOG_DOCUMENT_BYTES_MAX", 4)
    with pytest.raises(errors.MetadataFileDamaged):
        await files.read("memory://m/x")


async def test_a_store_that_keeps_failing_opens_the_circuit_breaker(request: pytest.FixtureRequest) -> None:
    from icestream.catalogs.bucket import open_bucket

    caller = StorageCaller(
        "test store", SystemClock(), SystemRandomness(), CallTimeouts(request_seconds=0.2, attempts_max=1)
    )
    away = open_bucket(StoreOptions(kind="s3", endpoint="http://127.0.0.1:1", path_style=True), "s3", "b", caller)
    for _ in range(limits.BREAKER_FAILURES_MAX):
        with pytest.raises(errors.StorageUnavailable):
            await away.exists("x")
    with pytest.raises(errors.CircuitOpen):
        await away.exists("x")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://bucket/a/b", ("s3", "bucket", "a/b")),
        ("s3a://bucket/a", ("s3", "bucket", "a")),
        ("gs://bucket/a", ("gcs", "bucket", "a")),
        ("abfss://box@account.dfs.core.windows.net/a/b", ("azure", "box", "a/b")),
        ("memory:///warehouse/a", None),
        ("file:/a", None),
        ("hdfs://host/a", None),
    ],
)
async def test_a_location_is_parsed_into_bucket_and_name(location: str, expected: tuple[str, str, str] | None) -> None:
    if expected is None:
        with pytest.raises(errors.InvalidInput):
            parse_object_location(location)
    else:
        assert tuple(parse_object_location(location)) == expected


async def test_a_role_is_assumed_for_the_store(glue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto is S3 and the service for roles; the headers of a request tell which key signed it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", glue)
    async with fault_proxy(glue, rb"(?i)authorization: [^\r]*Credential=(?!own-key)ASIA") as proxy:
        flags = [
            f"{STORE}.type=s3",
            f"{STORE}.bucket={new_name('b').replace('_', '-')}",
            f"{STORE}.region=eu-central-1",
            f"{STORE}.endpoint=http://127.0.0.1:{proxy.port}",
            f"{STORE}.path_style=true",
            f"{STORE}.access_key_id=own-key",
            f"{STORE}.secret_access_key=own-secret",
            f"{STORE}.role_arn=arn:aws:iam::123456789012:role/lake",
        ]
        settings = settings_of(*flags)
        bucket = settings.storage.iceberg_config.object_store.bucket
        urllib.request.urlopen(urllib.request.Request(f"{glue}/{bucket}", b"", method="PUT"), timeout=10).close()  # noqa: ASYNC210
        subject = open_objects(settings)
        assert not await subject.exists("a")
        await subject.put_new("a", b"x")
        assert await subject.get("a", 1) == b"x"
        assert proxy.seen == 3
