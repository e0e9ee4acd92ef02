"""Hazards 13, 14 and 47 with catalogs that are not ours: whatever becomes of a commit's answer, the outcome is true,
nothing is committed twice, and nothing that was committed is reported as failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from icestream import errors
from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, CommitRefused, CommitUnknown, TableCatalog
from icestream.iceberg.identifier import Identifier
from icestream.processes.configured_catalog import open_catalog
from tests.contract.test_table_catalog import ASKED, appending, snapshots
from tests.support.catalog_servers import (
    CATALOG,
    glue_flags,
    new_name,
    own_catalog,
    s3_flags,
    seaweed_flags,
    settings_of,
    sql_flags,
)
from tests.support.fault_proxy import FaultProxy, fault_proxy

pytestmark = pytest.mark.asyncio

KINDS = ["embedded-http", "rest", "glue", "sql"]
NETWORK = ["cut-before", "cut-after", "cut-in-answer", "late", "hold"]
HTTP = ["500", "502", "503", "504", "429", "500-after", "503-after", "twice"]
OURS = 11
# Long enough for a busy machine: nothing waits for it but the tests of silence.
REQUEST_MS = 10_000


class ProxiedCatalog(NamedTuple):
    """A catalog behind a proxy, and the same one without it."""

    catalog: TableCatalog
    plain: TableCatalog
    proxy: FaultProxy


@asynccontextmanager
async def under(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, request_ms: int = REQUEST_MS
) -> AsyncIterator[ProxiedCatalog]:
    if kind == "embedded-http":
        async with own_catalog(tmp_path) as uri, fault_proxy(uri, rb"^POST /v1/namespaces/[^/]+/tables/\S") as proxy:
            yield _under([f"{CATALOG}.uri={uri}"], uri, proxy, request_ms)
        return
    if kind == "rest":
        server = request.getfixturevalue("seaweed_server")
        async with fault_proxy(server.uri, rb"^POST /v1/\w+/namespaces/[^/]+/tables/\S") as proxy:
            yield _under(seaweed_flags(server), server.uri, proxy, request_ms)
    if kind == "glue":
        uri = request.getfixturevalue("glue")
        flags = [*glue_flags(uri), *s3_flags(request.getfixturevalue("seaweed_server"))]
        async with fault_proxy(uri, rb"X-Amz-Target: AWSGlue\.UpdateTable") as proxy:
            yield _under(flags, uri, proxy, request_ms)
    if kind == "sql":
        uri = request.getfixturevalue("postgres_server").uri
        async with fault_proxy(uri, rb"UPDATE iceberg_tables SET metadata_location") as proxy:
            yield _under(
                [*sql_flags(uri), f"data_dir={tmp_path}", f"{CATALOG}.name={new_name()}"], uri, proxy, request_ms
            )


def _under(flags: list[str], uri: str, proxy: FaultProxy, request_ms: int) -> ProxiedCatalog:
    port = uri.partition("://")[2].partition(":")[2].partition("/")[0]
    behind = uri.replace(f":{port}", f":{proxy.port}")
    hasty = [flag for flag in flags if not flag.startswith(f"{CATALOG}.uri")]
    waits = f"{CATALOG}.request_timeout_ms={request_ms}"
    return ProxiedCatalog(
        open_catalog(settings_of(*hasty, f"{CATALOG}.uri={behind}", waits)), open_catalog(settings_of(*flags)), proxy
    )


@asynccontextmanager
async def with_table(proxied: ProxiedCatalog) -> AsyncIterator[Identifier]:
    namespace = (new_name(),)
    await proxied.plain.create_namespace(namespace, {})
    identifier = Identifier(namespace, "orders")
    await proxied.plain.create(identifier, ASKED)
    await warm(proxied.catalog, identifier)
    try:
        yield identifier
    finally:
        await proxied.catalog.close()
        await proxied.plain.close()


async def warm(catalog: TableCatalog, identifier: Identifier) -> None:
    """Tokens, connections and clients are there, however long a busy machine takes for the first of them."""
    while True:
        try:
            await catalog.load(identifier)
        except errors.StorageUnavailable:
            await asyncio.sleep(0.1)
        else:
            return


async def outcome_of(
    proxied: ProxiedCatalog, identifier: Identifier, *faults: str
) -> CommitOutcome | errors.IcestreamError:
    change = appending(await proxied.plain.load(identifier), OURS)
    proxied.proxy.plan(*faults)
    try:
        return await proxied.catalog.commit(identifier, change)
    except errors.StorageUnavailable as error:
        return error


async def check_truth(
    proxied: ProxiedCatalog, identifier: Identifier, outcome: CommitOutcome | errors.IcestreamError
) -> None:
    """The reported outcome is that of the catalog, also after all delayed requests have arrived."""
    await proxied.proxy.release()
    there = snapshots(await proxied.plain.load(identifier))
    assert there.count(OURS) <= 1
    if isinstance(outcome, CommitDone):
        assert OURS in there
    elif not isinstance(outcome, CommitUnknown):
        assert OURS not in there, outcome


def faults_of(kind: str, are_all: bool) -> list[str]:
    """PostgreSQL speaks no HTTP; moto is slow, and its few are enough for `make test`."""
    http = {"sql": [], "glue": HTTP if are_all else ["500", "503-after"]}.get(kind, HTTP)
    return [*NETWORK, *http]


@pytest.mark.parametrize(("kind", "fault"), [(kind, fault) for kind in KINDS for fault in faults_of(kind, False)])
async def test_one_bad_answer_and_the_commit_is_done_once(
    kind: str, fault: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with under(kind, request, tmp_path) as proxied, with_table(proxied) as identifier:
        outcome = await outcome_of(proxied, identifier, fault)
        assert proxied.proxy.seen >= 1
        assert isinstance(outcome, CommitDone), outcome
        await check_truth(proxied, identifier, outcome)


@pytest.mark.parametrize("kind", ["embedded-http", "rest"])
async def test_a_conflict_from_a_gateway_is_verified_by_reading(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with under(kind, request, tmp_path) as proxied, with_table(proxied) as identifier:
        assert isinstance(await outcome_of(proxied, identifier, "409-after"), CommitDone)
        change = appending(await proxied.plain.load(identifier), OURS + 1)
        proxied.proxy.plan("409")
        outcome = await proxied.catalog.commit(identifier, change)
        assert isinstance(outcome, CommitRefused)
        assert snapshots(await proxied.plain.load(identifier)) == [OURS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["cut-before", "late", "hold", "cut-after"])
async def test_a_concurrent_commit_during_a_lost_reply_is_resolved(
    kind: str, fault: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Another engine commits between our request and its repeat."""
    async with under(kind, request, tmp_path) as proxied, with_table(proxied) as identifier:
        before = await proxied.plain.load(identifier)
        proxied.proxy.plan(fault, *["hold"] * 3)
        trying = asyncio.create_task(proxied.catalog.commit(identifier, appending(before, OURS)))
        await proxied.proxy.until_seen()
        theirs = await proxied.plain.commit(identifier, appending(await proxied.plain.load(identifier), 99))
        outcome = await trying
        assert isinstance(outcome, CommitDone | CommitRefused), outcome
        await check_truth(proxied, identifier, outcome)
        if isinstance(theirs, CommitDone):
            assert 99 in snapshots(await proxied.plain.load(identifier))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_commit_that_may_still_arrive_is_reported_as_unknown(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """All copies are held for ever: one may still come, and it does."""
    async with under(kind, request, tmp_path, request_ms=500) as proxied, with_table(proxied) as identifier:
        outcome = await outcome_of(proxied, identifier, *["hold"] * 99)
        assert isinstance(outcome, CommitUnknown), outcome
        await check_truth(proxied, identifier, outcome)
        assert snapshots(await proxied.plain.load(identifier)) == [OURS]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unresponsive_catalog_is_abandoned(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async with under(kind, request, tmp_path, request_ms=1000) as proxied, with_table(proxied) as identifier:
        outcome = await outcome_of(proxied, identifier, "silence")
        assert isinstance(outcome, CommitDone | CommitUnknown), outcome
        await check_truth(proxied, identifier, outcome)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [(kind, first, two) for kind in KINDS for first in faults_of(kind, True) for two in faults_of(kind, True)],
)
async def test_two_bad_answers(
    kind: str, first: str, second: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with under(kind, request, tmp_path) as proxied, with_table(proxied) as identifier:
        outcome = await outcome_of(proxied, identifier, first, second)
        await check_truth(proxied, identifier, outcome)
