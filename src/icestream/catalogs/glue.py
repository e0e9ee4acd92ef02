"""Pointers in AWS Glue. boto3 blocks, so its calls run in threads; its retries are off (storage_caller.py retries).

A response of Glue is definite; a request without a complete response may have been applied.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from icestream import errors, limits
from icestream.catalogs import glue_table
from icestream.catalogs.glue_table import database_of
from icestream.catalogs.pointer_catalog import TablePointer
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.runtime.tasks import Offload

_DENIED: Final = (
    "AccessDeniedException",
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "MissingAuthenticationTokenException",
)
_RETRY_LATER: Final = ("ThrottlingException", "ResourceNumberLimitExceededException", "ResourceNotReadyException")
_session_lock: Final = threading.Lock()
_VERSION_CONFLICTS: Final = (
    "ConcurrentModificationException",
    "ConditionCheckFailureException",
    "VersionMismatchException",
)


@dataclass(frozen=True)
class GlueOptions:
    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    request_seconds: float = limits.STORAGE_REQUEST_TIMEOUT_MS_DEFAULT / 1000


class GluePointers:
    """A `PointerStore` in AWS Glue: databases are namespaces, table entries have the pointers."""

    def __init__(self, options: GlueOptions, offload: Offload) -> None:
        self._options = options
        self._offload = offload

    # --- namespaces: databases ---

    async def list_namespaces(self, parent: Namespace) -> list[Namespace]:
        if parent:
            await self.load_namespace(parent)
            return []
        return [(database["Name"],) for database in await self._pages("get_databases", "DatabaseList", {})]

    async def load_namespace(self, namespace: Namespace) -> dict[str, str]:
        try:
            name = database_of(namespace)
        except errors.InvalidInput:
            raise _no_database(namespace) from None
        database = (await self._call("get_database", {"Name": name}, _no_database(namespace)))["Database"]
        location = {"location": database["LocationUri"]} if database.get("LocationUri") else {}
        return {**(database.get("Parameters") or {}), **location}

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        parameters = {name: value for name, value in properties.items() if name != "location"}
        database_input: Object = {"Name": database_of(namespace), "Parameters": parameters}
        if "location" in properties:
            database_input["LocationUri"] = properties["location"]
        await self._call("create_database", {"DatabaseInput": database_input}, _no_database(namespace))

    async def drop_namespace(self, namespace: Namespace) -> None:
        """Raises NotEmpty. Glue would drop the tables, too, so they are listed first; Glue cannot do both
        atomically."""
        if await self._pages("get_tables", "TableList", {"DatabaseName": database_of(namespace)}, namespace):
            raise errors.NotEmpty(f"Namespace is not empty: {'.'.join(namespace)}")
        await self._call("delete_database", {"Name": database_of(namespace)}, _no_database(namespace))

    # --- tables ---

    async def list_tables(self, namespace: Namespace) -> list[Identifier]:
        tables = await self._pages("get_tables", "TableList", {"DatabaseName": database_of(namespace)}, namespace)
        return [Identifier(namespace, table["Name"]) for table in tables if glue_table.is_iceberg(table)]

    async def find(self, identifier: Identifier) -> TablePointer:
        return glue_table.pointer_of(identifier, await self._table(identifier))

    async def _table(self, identifier: Identifier) -> Object:
        names = {"DatabaseName": database_of(identifier.namespace), "Name": identifier.name}
        table: Object = (await self._call("get_table", names, _no_table(identifier)))["Table"]
        return table

    async def insert(self, identifier: Identifier, location: str, table: TableMetadata) -> None:
        table_input = glue_table.table_input(identifier, location, table, None)
        database = database_of(identifier.namespace)
        await self._call(
            "create_table", {"DatabaseName": database, "TableInput": table_input}, _no_database(identifier.namespace)
        )

    async def swap(self, identifier: Identifier, expected: TablePointer, location: str, table: TableMetadata) -> bool:
        # The current entry is read first: UpdateTable replaces it whole, and parameters of other tools must survive.
        try:
            before = await self._table(identifier)
        except errors.StorageUnavailable as error:  # not ambiguous: nothing was changed yet
            raise errors.StorageUnavailable(error.message, hint=error.hint) from None
        if glue_table.pointer_of(identifier, before) != expected:
            return False
        request = {
            "DatabaseName": database_of(identifier.namespace),
            "TableInput": glue_table.table_input(identifier, location, table, before),
            # Glue would otherwise keep a version of the entry for each commit, and their number is limited.
            "SkipArchive": True,
            "VersionId": expected.version,
        }
        try:
            await self._call("update_table", request, _no_table(identifier))
        except errors.CommitConflict:
            return False
        return True

    async def remove(self, identifier: Identifier) -> None:
        names = {"DatabaseName": database_of(identifier.namespace), "Name": identifier.name}
        await self._call("delete_table", names, _no_table(identifier))

    async def rename(self, source: Identifier, target: Identifier) -> None:
        """Glue has no rename: the new name is created first, so that the table always has one."""
        table = await self._table(source)
        table_input = glue_table.renamed_input(target.name, table)
        try:
            await self._call(
                "create_table",
                {"DatabaseName": database_of(target.namespace), "TableInput": table_input},
                _no_database(target.namespace),
            )
        except errors.AlreadyExists:
            if await self.find(target) != glue_table.pointer_of(source, table):  # not the result of a lost reply
                raise
        await self.remove(source)

    async def close(self) -> None:
        self._offload.close()

    # --- requests ---

    async def _pages(
        self, method: str, items: str, arguments: Object, namespace: Namespace = ()
    ) -> list[Mapping[str, Any]]:
        """Returns the items of all pages of a listing."""
        entries: list[Mapping[str, Any]] = []
        next_page: Object = {}
        while True:
            page = await self._call(method, {**arguments, **next_page}, _no_database(namespace))
            entries += page.get(items) or []
            if not page.get("NextToken"):
                return entries
            next_page = {"NextToken": page["NextToken"]}

    async def _call(self, method: str, arguments: Object, missing: errors.IcestreamError) -> Any:
        """Calls a method of boto3 in a thread. Errors become those of our tree; `missing` is raised if the entity does
        not exist."""

        def run() -> Any:
            call: Callable[..., Any] = getattr(_client(self._options), method)
            return call(**arguments)

        from botocore import exceptions

        try:
            return await self._offload.run(run)
        except exceptions.ClientError as error:
            raise _refusal(method, error.response, missing) from None
        except (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError) as error:
            raise errors.StorageUnavailable(
                f"Glue cannot be reached: {error}", hint="check `region` and `uri` of the catalog"
            ) from None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
            raise errors.AccessDenied(
                f"no credentials for Glue: {error}",
                hint="set `access_key_id` and `secret_access_key`, a `profile`, or give the machine a role",
            ) from None
        except exceptions.NoRegionError:
            raise errors.ConfigurationError(
                "a `glue` catalog needs a region", hint="set storage.iceberg_config.catalog.region"
            ) from None
        except exceptions.ParamValidationError as error:
            raise errors.InvalidInput(f"Glue request is invalid: {error}") from None
        except (exceptions.BotoCoreError, exceptions.HTTPClientError) as error:
            raise errors.StorageUnavailable(f"Glue: incomplete response: {error}", is_ambiguous=True) from None


@functools.lru_cache(maxsize=32)
def _client(options: GlueOptions) -> Any:
    """Cached: creating a client reads some megabytes of service descriptions. Called in a thread."""
    from botocore.config import Config

    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=options.request_seconds,
        read_timeout=options.request_seconds,
    )
    with _session_lock:  # sessions are not thread-safe, clients are
        return _session(options.profile).client(
            "glue",
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key,
            aws_session_token=options.session_token,
            region_name=options.region,
            endpoint_url=options.endpoint,
            config=config,
        )


@functools.lru_cache(maxsize=8)
def _session(profile: str | None) -> Any:
    import boto3

    return boto3.Session(profile_name=profile)


def _no_database(namespace: Namespace) -> errors.UnknownNamespace:
    return errors.UnknownNamespace(f"Namespace does not exist: {'.'.join(namespace)}")


def _no_table(identifier: Identifier) -> errors.UnknownTable:
    return errors.UnknownTable(f"Table does not exist: {identifier}")


def _refusal(method: str, response: Mapping[str, Any], missing: errors.IcestreamError) -> errors.IcestreamError:
    """Returns the error of our tree for an error response of Glue."""
    error = response.get("Error") or {}
    code, words = str(error.get("Code", "")), str(error.get("Message", ""))[:300]
    status = int((response.get("ResponseMetadata") or {}).get("HTTPStatusCode") or 0)
    message = f"Glue refuses {method}: {words or code}"
    if code == "EntityNotFoundException":
        return missing
    if code == "AlreadyExistsException":
        return errors.AlreadyExists(message)
    if code in _VERSION_CONFLICTS:
        return errors.CommitConflict(message)
    if code in _DENIED or status == 403:
        hint = "check the credentials of storage.iceberg_config.catalog and their permissions"
        return errors.AccessDenied(message, hint=hint)
    if code in _RETRY_LATER or status == 429:
        return errors.StorageUnavailable(message)
    if status >= 500 or code in ("InternalServiceException", "OperationTimeoutException"):
        return errors.StorageUnavailable(message, is_ambiguous=True)
    return errors.InvalidInput(message)
