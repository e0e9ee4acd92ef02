"""Every route of /api/v1: by anonymous, without rights, with exactly the right, and with the right on everything else.

The lake's application before a whole node, over its local socket; the routes are those of its own description. A route
without an entry fails. The routes of Iceberg's protocol: unit/lake/test_iceberg_rights.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from icestream.backup.backup_target import DirectoryTarget
from icestream.catalog.catalog import Catalog
from icestream.catalog.tokens import Tokens
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.lake.dispatch import build_lake_app
from icestream.lake.request_caller import BrokerCallers
from icestream.processes.target_reports import TargetReports
from icestream.readers.embedded_table_views import EmbeddedTableViews
from icestream.readers.lazy_scanner import LazyScanner
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.rpc.handshake import HelloCredential
from icestream.runtime.clock import SystemClock
from icestream.runtime.tasks import InlineOffload
from icestream.security.principal import local_user
from tests.support.access_world import ORDERS, AccessWorld, access_world
from tests.support.asgi import AsgiClient, AsgiResponse
from tests.support.backup_world import LocalSource
from tests.support.local_broker import kept_link
from tests.support.topic_tables import ENVELOPE
from tests.support.warehouse import CatalogWorld, files_on
from tests.unit.lake.test_api_rights import api_operations

pytestmark = pytest.mark.asyncio
API, ROOT, NOBODY = "/api/v1", str(local_user("root")), "service:local:nobody"
SHOP = f"{API}/namespaces/shop"
TOPIC, SUBSCRIPTION = f"{SHOP}/topics/orders", f"{SHOP}/topics/orders/subscriptions/old"
ADMIN, PLAIN, BOUND = ("admin on cluster",), "table:/ns/t", {"namespace": ["shop"], "table": "orders"}
FREE = {"namespace": ["ns"], "table": "t"}


class Route(NamedTuple):
    """How a route is tried.

    rules, neighbours   that allow exactly it, and the same elsewhere; no rules: it needs none
    status              for a caller that has them
    names               what the answer has for a caller with the right, and for no other: a listing
    is_hidden           without the right the answer is that of something which does not exist, 404
    """

    path: str
    body: Any = None
    rules: tuple[str, ...] = ()
    status: int = 200
    names: str = ""
    is_hidden: bool = False
    neighbours: tuple[str, ...] | None = None


def of_topic(action: str, path: str = TOPIC, body: Any = None, status: int = 200) -> Route:
    return Route(path, body, (f"{action} on /shop/orders",), status)


def of_subscription(action: str, path: str = SUBSCRIPTION, body: Any = None, status: int = 200) -> Route:
    return Route(path, body, (f"{action} on subscription:/shop/orders/old",), status)


def of_cluster(action: str, path: str, body: Any = None, status: int = 200) -> Route:
    return Route(f"{API}/{path}", body, (f"{action} on cluster",), status)


def security(path: str, body: Any = None, status: int = 200) -> Route:
    return Route(f"{API}/security/{path}", body, ADMIN, status)


def of_table(path: str, body: Any, *rules: str, neighbours: tuple[str, ...] | None = None, status: int = 200) -> Route:
    return Route(f"{API}/lake/{path}", body, rules, status, is_hidden=True, neighbours=neighbours)


NS, TS, SUBS = "{namespace}", "{namespace}/topics/{topic}", "{namespace}/topics/{topic}/subscriptions/{subscription}"
ONLINE = "storage.iceberg_config.writer_batch_size"
ROUTES: dict[tuple[str, str], Route] = {
    ("GET", "namespaces"): Route(f"{API}/namespaces", None, ("describe on namespace:/shop",), names="shop"),
    ("POST", "namespaces"): Route(f"{API}/namespaces", {"namespace": "new"}, ("create on namespace:/new",), 201),
    ("GET", f"namespaces/{NS}"): Route(SHOP, None, ("describe on namespace:/shop",)),
    ("DELETE", f"namespaces/{NS}"): Route(f"{API}/namespaces/spare", None, ("delete on namespace:/spare",), 204),
    ("PUT", f"namespaces/{NS}/policies"): Route(f"{SHOP}/policies", {}, ("alter on namespace:/shop",)),
    ("GET", f"namespaces/{NS}/topics"): Route(
        f"{SHOP}/topics", None, ("describe on /shop/orders",), names="orders", is_hidden=True
    ),
    ("POST", f"namespaces/{NS}/topics"): Route(f"{SHOP}/topics", {"name": "new"}, ("create on /shop/new",), 201),
    ("GET", f"namespaces/{TS}"): of_topic("describe"),
    ("DELETE", f"namespaces/{TS}"): of_topic("delete"),
    ("POST", f"namespaces/{TS}/undelete"): Route(f"{TOPIC}/undelete", None, ADMIN, 404),
    ("PUT", f"namespaces/{TS}/policies"): of_topic("alter", f"{TOPIC}/policies", {}),
    ("GET", f"namespaces/{TS}/producers"): of_topic("describe", f"{TOPIC}/producers"),
    ("DELETE", f"namespaces/{TS}/producers/{{producer}}"): of_topic("alter", f"{TOPIC}/producers/p", status=404),
    ("GET", f"namespaces/{TS}/shards/{{shard}}/gaps"): of_topic("describe", f"{TOPIC}/shards/0/gaps"),
    ("GET", f"namespaces/{TS}/subscriptions"): of_topic("describe", f"{TOPIC}/subscriptions"),
    ("POST", f"namespaces/{TS}/subscriptions"): Route(
        f"{TOPIC}/subscriptions", {"subscription": "s"}, ("alter on subscription:/shop/orders/s",), 201
    ),
    ("GET", f"namespaces/{SUBS}"): of_subscription("describe"),
    ("PATCH", f"namespaces/{SUBS}"): of_subscription("alter", body={"max_dispatch_rate": 5}),
    ("DELETE", f"namespaces/{SUBS}"): of_subscription("alter", status=204),
    ("GET", f"namespaces/{SUBS}/consumers"): of_subscription("describe", f"{SUBSCRIPTION}/consumers"),
    ("DELETE", f"namespaces/{SUBS}/consumers/{{consumer}}"): of_subscription(
        "alter", f"{SUBSCRIPTION}/consumers/c", status=404
    ),
    ("POST", f"namespaces/{SUBS}/seek"): of_subscription("alter", f"{SUBSCRIPTION}/seek", {"start": "earliest"}),
    ("GET", "deleted-topics"): of_cluster("admin", "deleted-topics"),
    ("GET", "topics"): Route(f"{API}/topics", None, ("describe on /shop/orders",), names="orders"),
    ("GET", "wal"): of_cluster("describe", "wal"),
    ("GET", "wal/files"): of_cluster("describe", "wal/files"),
    ("GET", "config"): of_cluster("describe", "config"),
    ("GET", "config/{key}"): of_cluster("describe", "config/log.level"),
    ("PUT", "config/{key}"): of_cluster("admin", f"config/{ONLINE}", {"value": 64}),
    ("DELETE", "config/{key}"): of_cluster("admin", f"config/{ONLINE}"),
    ("GET", "health"): of_cluster("describe", "health"),
    # --- backups
    ("GET", "backups"): of_cluster("backup", "backups"),
    ("GET", "backups/{backup}"): of_cluster("backup", "backups/latest", status=404),
    ("GET", "backups/{backup}/verify"): of_cluster("backup", "backups/latest/verify", status=404),
    ("GET", "archives"): of_cluster("backup", "archives"),
    ("GET", "drills"): of_cluster("backup", "drills"),
    ("GET", "restores"): of_cluster("restore", "restores"),
    # --- tables: that of /shop/orders is the topic's resource, ns.t is of no topic
    ("GET", "lake/tables"): of_table("tables?namespace=shop&table=orders", None, "table-read on /shop/orders"),
    ("GET", "lake/files"): of_table("files?namespace=shop&table=orders", None, "table-read on /shop/orders"),
    ("GET", "lake/topics"): of_table("topics?topic=/shop/orders", None, "describe on /shop/orders"),
    ("GET", "lake/bound"): Route(f"{API}/lake/bound", None, ("describe on /shop/orders",), names="/shop/orders"),
    ("GET", "lake/parted"): Route(f"{API}/lake/parted", None, ("describe on /shop/orders",), names="/shop/orders"),
    ("GET", "lake/purges"): of_cluster("maintain", "lake/purges"),
    ("GET", "lake/verify"): of_table("verify?topic=/shop/orders", None, "table-read on /shop/orders"),
    ("GET", "lake/verify/lines"): of_table("verify/lines?topic=/shop/orders", None, "table-read on /shop/orders"),
    ("POST", "lake/bind"): of_table(
        "bind", {**FREE, "topic": "/shop/other"}, "alter on /shop/other", f"table-read,table-write on {PLAIN}",
        neighbours=("alter on /shop/orders", "describe on /shop/other", f"table-read,table-write on {PLAIN}"),
    ),
    ("POST", "lake/adopt"): of_table(
        "adopt", {**FREE, "topic": "/shop/other", "positions": {"0": 0}},
        "alter on /shop/other", f"table-read,table-write on {PLAIN}",
        neighbours=("all on /shop/*", f"describe,table-read on {PLAIN}"), status=403,  # it has no rows
    ),
    ("POST", "lake/rewind"): of_table("rewind", BOUND, "alter,table-write on /shop/orders"),
    ("POST", "lake/detach"): of_table("detach", BOUND, "alter,table-write on /shop/orders"),
    ("POST", "lake/drop"): of_table("drop", {**BOUND, "force": True}, "delete on /shop/orders"),
    ("POST", "lake/recreate"): of_table(
        "recreate", {"topic": "/shop/orders"}, "alter,table-write on /shop/orders", status=409
    ),
    # --- MQTT
    ("GET", "mqtt/sessions"): of_cluster("describe", "mqtt/sessions"),
    ("GET", "mqtt/session"): of_cluster("describe", "mqtt/session?client_id=absent", status=404),
    ("POST", "mqtt/kick"): of_cluster("alter", "mqtt/kick", {"client_id": "absent"}, 404),
    ("GET", "mqtt/subscriptions"): of_cluster("describe", "mqtt/subscriptions"),
    ("GET", "mqtt/topics"): Route(f"{API}/mqtt/topics", None, ("describe on mqtt:orders/#",), names="orders/1"),
    ("GET", "mqtt/retained"): Route(f"{API}/mqtt/retained", None, ("describe on mqtt:orders/#",), names="orders/1"),
    ("POST", "mqtt/retained/clear"): Route(
        f"{API}/mqtt/retained/clear", {"filter": "orders/#"}, ("produce on mqtt:orders/#",), names='"cleared":1'
    ),
    ("GET", "mqtt/routes"): Route(
        f"{API}/mqtt/routes", None, ("describe on /mqtt/messages",), names="/mqtt/messages",
        neighbours=("all on /shop/*",),
    ),
    # --- security
    ("GET", "security/whoami"): Route(f"{API}/security/whoami"),
    ("POST", "security/login"): Route(f"{API}/security/login", {"name": "root", "password": "wrong"}, status=401),
    ("POST", "security/explain"): security(
        "explain", {"principal": ROOT, "action": "consume", "resource": "/a/b"}
    ),
    ("GET", "security/accounts"): security("accounts"),
    ("POST", "security/accounts"): security("accounts", {"name": "made", "kind": "service"}, 201),
    ("PATCH", "security/accounts/{principal}"): security(f"accounts/{NOBODY}", {"is_disabled": True}),
    ("DELETE", "security/accounts/{principal}"): security(f"accounts/{NOBODY}"),
    ("DELETE", "security/accounts/{principal}/tokens"): security(f"accounts/{ROOT}/tokens"),
    ("GET", "security/tokens"): security("tokens"),
    ("POST", "security/tokens"): security("tokens", {"principal": NOBODY}, 201),
    ("DELETE", "security/tokens/{token_id}"): security("tokens/absent", status=404),
    ("GET", "security/keys"): security("keys"),
    ("POST", "security/keys"): security("keys"),
    ("DELETE", "security/keys/{key_id}"): security("keys/absent", status=400),
    ("GET", "security/roles"): security("roles"),
    ("PUT", "security/roles/{role}"): security("roles/made", {"rules": [{"actions": ["read"], "resource": "/a/b"}]}),
    ("DELETE", "security/roles/{role}"): security("roles/absent", status=404),
    ("GET", "security/grants"): security("grants"),
    ("POST", "security/grants"): security(
        "grants", {"principal": NOBODY, "actions": ["read"], "resource": "/a/b"}, 201
    ),
    ("DELETE", "security/grants/{grant_id}"): security("grants/absent", status=404),
    ("POST", "security/grants/{grant_id}/unpark"): security("grants/absent/unpark", status=404),
}  # fmt: skip


async def test_every_route_has_an_entry() -> None:
    assert {(method, path.removeprefix(f"{API}/")) for method, path in api_operations()} == ROUTES.keys()


class ApiWorld(NamedTuple):
    world: AccessWorld
    ask: AsgiClient

    async def attempt(self, caller: str, method: str, route: Route) -> AsgiResponse:
        token = self.world.token(caller)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return await self.ask(method, route.path, route.body, headers)


@contextlib.asynccontextmanager
async def api_world(path: Path, route: Route) -> AsyncIterator[ApiWorld]:
    sections = {"mqtt": {"enable": True}} if "/mqtt/" in route.path else {}
    async with access_world(path, route.rules, route.neighbours, **sections) as world:
        node, disk = world.node, CatalogWorld(world.node.store)
        files = files_on(disk.disk)
        manifests, catalog = ManifestReader(files, InlineOffload()), disk.catalog
        await fill(catalog, node.broker.topic(ORDERS).record.id)
        if route.path.endswith("/parted"):
            await catalog.topics.detach(Identifier(("shop",), "orders"))
        scans = LazyScanner(
            lambda: EmbeddedTableViews(catalog, manifests, disk.clock), files, RowGroupCacheOptions()
        )  # fmt: skip
        credential = HelloCredential(role="lake", secret=node.services.role_secrets.role_secret("lake"))
        failures: list[BaseException] = []
        async with kept_link(node.settings.local_socket, credential) as keeper:
            callers = BrokerCallers(keeper, SystemClock(), failures.append)
            target = DirectoryTarget(path / "backups", InlineOffload())
            reports = TargetReports(lambda: target, LocalSource().chunks, InlineOffload(), path)
            app = build_lake_app(
                keeper, "127.0.0.1", catalog, Tokens(), manifests, scans=scans, callers=callers, backup_reports=reports
            )  # fmt: skip
            try:
                yield ApiWorld(world, AsgiClient(app))
            finally:
                await callers.stop()
                scans.close()
        assert failures == []


async def fill(catalog: Catalog, topic_id: int) -> None:
    """The table of /shop/orders, and ns.t, which is of no topic and has the columns of one."""
    for namespace, name in (("shop", "orders"), ("ns", "t")):
        await catalog.namespaces.create((namespace,), {})
        await catalog.tables.create(Identifier((namespace,), name), {"schema": ENVELOPE})
    await catalog.topics.bind(Identifier(("shop",), "orders"), "/shop/orders", topic_id, {0: (1, 0)})


@pytest.mark.parametrize(("method", "template"), ROUTES, ids=str)
async def test_a_route_needs_exactly_its_right(tmp_path: Path, method: str, template: str) -> None:
    route = ROUTES[method, template]
    async with api_world(tmp_path, route) as api:
        before = await api.world.records()
        for caller in [*api.world.strangers, "exact"]:
            answer = await api.attempt(caller, method, route)
            if not route.rules:
                assert answer.status == route.status, (caller, answer)
            elif caller == "exact":
                assert answer.status == route.status, answer
                assert route.names.encode() in answer.body
                assert b"permission_denied" not in answer.body
            elif route.names and answer.status == 200:
                assert route.names.encode() not in answer.body, (caller, answer)
            elif caller == "anonymous":
                assert answer.status in ((401, 404) if route.is_hidden else (401,)), answer
            else:
                assert answer.status in ((403, 404) if route.is_hidden else (403,)), (caller, answer)
            if caller != "exact":
                assert await api.world.records() == before, f"{caller} has changed something"


@pytest.mark.parametrize("listing", ["bound", "parted"])
async def test_a_listing_without_a_credential_needs_a_grant_and_shows_what_it_allows(
    tmp_path: Path, listing: str
) -> None:
    route = Route(f"{API}/lake/{listing}", None, ADMIN)
    async with api_world(tmp_path, route) as api:
        refused = await api.attempt("anonymous", "GET", route)
        assert refused.status == 401, "an empty listing would read as a lake without tables"
        grant = {"principal": "anonymous", "actions": ["describe"], "resource": "/shop/orders"}
        granted = await api.attempt("exact", "POST", Route(f"{API}/security/grants", grant))
        assert granted.status == 201, granted
        shown = await api.attempt("anonymous", "GET", route)
        assert [item["topic"] for item in shown.json["items"]] == ["/shop/orders"], shown
