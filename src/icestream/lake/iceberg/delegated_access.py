"""Access to the files of one table, for clients of a broker with accounts (hazard 111).

    X-Iceberg-Access-Delegation    the response
    vended-credentials             keys for the table's places, for 15 minutes (catalogs/table_role.py), where the
                                   settings name a role for them. Those for a topic's table only read: a key that writes
                                   could replace the files that consumers are served from
    remote-signing                 where the catalog signs single requests (remote_signing.py); also for writers of a
                                   topic's table
    both                           keys, if they open what the caller may do; else signing
    neither                        nothing: the client has keys of its own

Both need `table-read`; `table-write` decides what they open besides. A table whose places meet those of another gets
neither, and so does one with files outside of S3. `/credentials` answers with keys alone.

A table that is staged has no record yet. Its creator gets keys for its places; requests are signed for a name without a
table if they write (or ask for a size) below a location that the catalog would choose for it, in which no table lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

import orjson

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.operations.table_places import ChosenPlace, own_places
from icestream.catalog.plans import relation_plans
from icestream.catalogs import store_options
from icestream.catalogs.aws_signature import AwsKeys
from icestream.catalogs.session_policy import S3Place, s3_bucket, s3_places, session_policy
from icestream.catalogs.store_keys import StoreKeys
from icestream.catalogs.store_options import StoreOptions
from icestream.catalogs.table_role import TableRole
from icestream.iceberg.identifier import SEPARATOR, Identifier
from icestream.iceberg.location import is_unique, location_name, normalize
from icestream.iceberg.table_metadata import TableMetadata
from icestream.lake.catalog_rights import CatalogRights, name_resource, relation_resources
from icestream.lake.iceberg.access import NO_TABLE_ACCESS, VENDED_CREDENTIALS, TableAccess
from icestream.lake.iceberg.remote_signing import (
    S3Operation,
    SignableRequest,
    no_object,
    object_location,
    signed_headers,
)
from icestream.runtime.clock import Clock
from icestream.security.action import Action

REMOTE_SIGNING: Final = "remote-signing"


class AccessScope(NamedTuple):
    """What a caller may do with the files of a table."""

    identifier: Identifier
    principal: str
    locations: Sequence[str]  # of its places, in canonical form
    is_writer: bool
    is_topic: bool

    @property
    def places(self) -> list[S3Place]:
        return s3_places(self.locations)

    def covers(self, file: str) -> bool:
        """Whether an object is in one of the places. `file`: its location, in canonical form."""
        return any(file.startswith(f"s3://{place.bucket}/{place.prefix}/") for place in self.places)


class SignableFile(NamedTuple):
    """A request to the store, and the scope that it is in."""

    request: SignableRequest
    scope: AccessScope


class DelegatedAccess:
    """Keys and signatures of one store."""

    def __init__(
        self, store: StoreOptions, roots: Sequence[str], keys: StoreKeys, role: TableRole | None, clock: Clock
    ) -> None:
        """`roots`: locations of tables. `role`: assumed for keys of tables; None: requests are signed."""
        self._store = store
        self._buckets = sorted({bucket for root in roots if (bucket := s3_bucket(root)) is not None})
        self._keys = keys
        self._role = role
        self._clock = clock

    async def grant(self, scope: AccessScope, mechanisms: Sequence[str]) -> TableAccess:
        """Returns the access of a client that asks for one of these mechanisms."""
        if not scope.places:
            return NO_TABLE_ACCESS
        is_signing = REMOTE_SIGNING in mechanisms
        if VENDED_CREDENTIALS in mechanisms and not (is_signing and scope.is_writer and scope.is_topic):
            access = await self.vend(scope)
            if access != NO_TABLE_ACCESS:
                return access
        return TableAccess(orjson.dumps(self._signing_config(scope.identifier))) if is_signing else NO_TABLE_ACCESS

    async def vend(self, scope: AccessScope) -> TableAccess:
        """Returns keys for the table; no access if the settings name no role for them."""
        if self._role is None:
            return NO_TABLE_ACCESS
        is_writer = scope.is_writer and not scope.is_topic
        policy = session_policy(scope.places, self._role.partition, is_writer=is_writer)
        if policy is None:
            return NO_TABLE_ACCESS
        config = self._keys_config(await self._role.assume(policy, scope.principal), scope.identifier)
        # One entry: Java's client accepts no more. All of the table's places have the same keys.
        prefix = f"{scope.locations[0]}/" if len(scope.locations) == 1 else "s3://"
        return TableAccess(orjson.dumps(config), orjson.dumps([{"prefix": prefix, "config": config}]))

    def _keys_config(self, keys: AwsKeys, identifier: Identifier) -> dict[str, str]:
        return {
            **store_options.public_file_io(self._store),
            "s3.access-key-id": keys.access_key_id,
            "s3.secret-access-key": keys.secret_access_key,
            "s3.session-token": keys.session_token or "",
            "s3.session-token-expires-at-ms": str(keys.expires_ms),
            "client.refresh-credentials-endpoint": f"{table_path(identifier)}/credentials",
        }

    def _signing_config(self, identifier: Identifier) -> dict[str, str]:
        # Without `s3.signer.uri`: clients then ask where they reach the catalog, also through a proxy.
        endpoint = f"{table_path(identifier)}/sign"
        return {
            **store_options.public_file_io(self._store),
            "s3.remote-signing-enabled": "true",
            "s3.signer.endpoint": endpoint,
            "signer.endpoint": endpoint,
            "s3.signer": "S3V4RestSigner",
            "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",  # PyIceberg's other one signs by itself only
        }

    def file_of(self, request: SignableRequest) -> str:
        """Returns the location of the object that a request names. Raises PermissionDenied."""
        return object_location(request, self._store, self._buckets)

    async def sign(self, request: SignableRequest, scope: AccessScope) -> dict[str, str]:
        """Returns the headers that a client must add to its request. Raises PermissionDenied."""
        if not scope.covers(self.file_of(request)) or (request.is_write and not scope.is_writer):
            raise no_object(request)
        if scope.is_topic and request.operation is S3Operation.DELETE:
            raise errors.PermissionDenied(
                f"files of {scope.identifier} are not deleted: it is the table of a topic",
                hint="expire its snapshots; the pipeline deletes the files",
            )
        return signed_headers(request, self._store, await self._keys.current(), self._clock.wall_us())


def table_path(identifier: Identifier) -> str:
    """Returns the path of a table's routes, relative to the address of the catalog."""
    namespace = quote(SEPARATOR.join(identifier.namespace), safe="")
    return f"v1/namespaces/{namespace}/tables/{quote(identifier.name, safe='')}"


# --- what a caller may do ---------------------------------------------------------------------------------------------


async def access_scope(
    catalog: Catalog, rights: CatalogRights, identifier: Identifier, table: TableMetadata
) -> AccessScope | None:
    """Returns what a caller may do with the files of a table; None: nothing, or its files are not its own."""
    _, record = relation_plans.table_of(identifier, await catalog.relations.entry(identifier))
    resources = relation_resources(identifier, record)
    allowed = await rights.caller.allows(
        [(action, resource) for action in (Action.TABLE_READ, Action.TABLE_WRITE) for resource in resources]
    )
    may_read, may_write = all(allowed[: len(resources)]), all(allowed[len(resources) :])
    if not may_read or record.uuid != table.uuid:
        return None
    locations = own_places(table.location, dict(table.properties))
    if not await catalog.places.are_alone(record.uuid, locations):
        return None
    return AccessScope(
        identifier, str(rights.caller.principal), locations, may_write, is_topic=record.binding is not None
    )


async def staged_scope(
    catalog: Catalog, rights: CatalogRights, identifier: Identifier, locations: Sequence[str]
) -> AccessScope | None:
    """Returns what the creator of a table may do with the files of one that is staged in these places; None if another
    table lies there."""
    chosen = [ChosenPlace(identifier, normalize(location)) for location in locations]
    try:
        await catalog.places.guard(chosen)()
    except errors.InvalidInput:
        return None
    return AccessScope(identifier, str(rights.caller.principal), [place.location for place in chosen], True, False)


async def signing_scope(
    catalog: Catalog,
    rights: CatalogRights,
    delegated: DelegatedAccess,
    identifier: Identifier,
    request: SignableRequest,
) -> AccessScope:
    """Returns what a caller may do with the table whose file a request names. `identifier`: the table of the route.

    PyIceberg sends all requests of a process to the route of the table that it has loaded last. So a file of another
    table is signed for, too, if the caller has the right to that one; a caller without a right to the table of the
    route learns nothing. Raises UnknownTable, PermissionDenied, Unauthenticated.
    """
    action = Action.TABLE_WRITE if request.is_write else Action.TABLE_READ
    try:
        await rights.require_relation(identifier, action)
    except errors.UnknownTable:
        # Absent, or not visible: a staged table may have the name.
        may_create = (await rights.caller.allows([(Action.CREATE, name_resource(identifier))]))[0]
        if not may_create or not request.fits_staged_table:
            raise
        file = delegated.file_of(request)
        location = staged_location(file, identifier, normalize(await catalog.tables.base(identifier.namespace)))
        scope = None if location is None else await staged_scope(catalog, rights, identifier, [location])
    else:
        file = delegated.file_of(request)
        scope = await access_scope(catalog, rights, identifier, (await catalog.commits.load(identifier)).state.table)
    if scope is None or not scope.covers(file):
        scope = await _owner_scope(catalog, rights, action, file)
    if scope is None or not scope.covers(file):
        raise no_object(request)
    return scope


async def _owner_scope(catalog: Catalog, rights: CatalogRights, action: Action, file: str) -> AccessScope | None:
    """Returns what a caller may do with the table in whose place a file lies; None: nothing."""
    owner = await catalog.places.owner_of(file)
    entry = None if owner is None else await catalog.relations.entry(owner)
    if owner is None or entry is None:
        return None
    record = catalog_records.decode_relation(catalog_keys.relation_key(owner), entry)
    decisions = await rights.caller.decide([(action, resource) for resource in relation_resources(owner, record)])
    if not all(decision.is_allowed for decision in decisions) or not isinstance(record, TableRecord):
        return None
    return await access_scope(catalog, rights, owner, (await catalog.commits.load(owner)).state.table)


def staged_location(file: str, identifier: Identifier, base: str) -> str | None:
    """Returns the location of a staged table in which a file lies; None if the catalog would not have chosen it below
    `base`, the place of its namespace."""
    places = s3_places([base])
    root = f"s3://{places[0].bucket}/{places[0].prefix}/" if places else ""
    first, separator, _ = file.removeprefix(root).partition("/")
    if not root or not file.startswith(root) or not separator:
        return None
    location = f"{base}/{first}"
    return location if first.startswith(f"{location_name(identifier.name)}-") and is_unique(location, base) else None


def no_signatures() -> errors.InvalidInput:
    return errors.InvalidInput(
        "this node signs no requests to an object store",
        hint="that needs accounts (`icestream security init`) and a warehouse in S3",
    )
