"""The catalog and the object store that the settings name: the one place that knows every kind.

A function imports the libraries of its kind when it is called, because they are slow to import. Nothing is connected
here: an unreachable catalog becomes an error with its first call.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pydantic import SecretStr

from icestream import errors, limits
from icestream.catalogs.bucket import Objects, open_bucket
from icestream.catalogs.object_files import open_files, parse_object_location
from icestream.catalogs.storage_caller import CallTimeouts, StorageCaller
from icestream.catalogs.store_options import SCHEMES, StoreKind, StoreOptions
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg.file_io import TableFiles
from icestream.metadata.store import MetadataStore
from icestream.processes.component_options import reveal, store_options, table_roots
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.randomness import Randomness, SystemRandomness
from icestream.runtime.tasks import Offload, ThreadOffload
from icestream.settings import Settings
from icestream.settings.text import split_database_uri

if TYPE_CHECKING:
    from icestream.catalog.catalog import Catalog
    from icestream.catalogs.pointer_catalog import PointerStore
    from icestream.catalogs.store_keys import StoreKeys
    from icestream.catalogs.table_role import TableRole

# Kinds that need a library beyond the core: its module, and the extra that installs it.
_EXTRAS = {"glue": ("boto3", "glue"), "sql": ("psycopg", "sql")}


def open_catalog(
    settings: Settings,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    timeouts: CallTimeouts | None = None,
    instance: Callable[[], str] | None = None,
    files: TableFiles | None = None,
) -> TableCatalog:
    """Returns the catalog of `storage.iceberg_config.catalog`. Raises MissingPart if its library is not installed.

    `timeouts`: instead of those of the settings. `instance`: the instance id of the broker whose embedded catalog it
    is; responses of another broker are refused. `files`: where a pointer catalog writes metadata files; None: opened
    here.
    """
    clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
    check_installed(settings.catalog.type)
    caller = StorageCaller("catalog", clock, randomness, timeouts or call_timeouts(settings.catalog.request_timeout_ms))
    match settings.catalog.type:
        case "embedded" | "rest":
            return _rest(settings, caller, clock, randomness, instance)
        case "glue":
            return _glue(settings, caller, clock, randomness, files)
        case "sql":
            return _sql(settings, caller, clock, randomness, files)


def open_embedded_catalog(
    settings: Settings, store: MetadataStore, files: TableFiles, manifest_thread: Offload
) -> Catalog:
    """The embedded catalog itself, over the broker's metadata store. `manifest_thread` decodes manifests beside the
    loop. Raises ConfigurationError for a warehouse that is not a location."""
    from icestream.catalog.catalog import Catalog

    warehouse, *other_roots = table_roots(settings)
    try:
        return Catalog(store, files, SystemClock(), SystemRandomness(), warehouse, other_roots, offload=manifest_thread)
    except errors.InvalidInput as error:
        raise errors.ConfigurationError(
            f"the catalog cannot use its warehouse: {error.message}", hint=error.hint
        ) from None


def open_table_role(store: StoreOptions, keys: StoreKeys, clock: Clock) -> TableRole | None:
    """The role that is assumed for single tables, with `keys`; None if the settings name none. It is closed by the
    caller."""
    from icestream.catalogs.table_role import TableRole

    if store.table_role_arn is None:
        return None
    timeouts = CallTimeouts(request_seconds=store.request_seconds)
    return TableRole(store, keys, StorageCaller("token service", clock, SystemRandomness(), timeouts))


def check_installed(kind: str) -> None:
    module, extra = _EXTRAS.get(kind, ("", ""))
    if module and find_spec(module) is None:
        raise errors.MissingPart(
            f"a `{kind}` catalog needs {module}, which is not installed", hint=f"pip install 'icestream[{extra}]'"
        )


def call_timeouts(request_timeout_ms: int) -> CallTimeouts:
    return CallTimeouts(request_seconds=request_timeout_ms / 1000)


def open_objects(
    settings: Settings,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    timeouts: CallTimeouts | None = None,
) -> Objects:
    """The bucket of `warehouse_bucket`. Raises ConfigurationError if the warehouse is a directory."""
    clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
    options = store_options(settings)
    bucket = warehouse_bucket(settings)
    if bucket is None:
        raise errors.ConfigurationError(
            "a `local` object store has no bucket", hint="set storage.iceberg_config.object_store.type and bucket"
        )
    caller = StorageCaller(
        "object store", clock, randomness, timeouts or CallTimeouts(request_seconds=options.request_seconds)
    )
    return open_bucket(options, *bucket, caller)


def warehouse_bucket(settings: Settings) -> tuple[StoreKind, str] | None:
    """The kind and name of the bucket in which the warehouse lies; None if it is a directory.

    Of a `rest` catalog, whose server decides where tables lie, the bucket of `object_store`.
    """
    iceberg = settings.storage.iceberg_config
    scheme, separator, _ = iceberg.warehouse.partition("://")
    kind = SCHEMES.get(scheme) if separator else None
    if settings.catalog.type != "rest" and kind not in (None, "local"):
        location = parse_object_location(iceberg.warehouse)
        return location.kind, location.bucket
    store = iceberg.object_store
    return None if store.type == "local" else (store.type, store.bucket or "memory")


def _rest(
    settings: Settings,
    caller: StorageCaller,
    clock: Clock,
    randomness: Randomness,
    instance: Callable[[], str] | None = None,
) -> TableCatalog:
    from icestream.catalogs.rest import RestCatalog
    from icestream.catalogs.rest_client import RestClient, RestOptions

    catalog = settings.catalog
    options = RestOptions(
        uri=catalog.uri or "",
        warehouse=None if settings.catalog_embedded else catalog.warehouse,
        token=reveal(catalog.token),
        credential=reveal(catalog.credential),
        token_uri=catalog.token_uri,
        scope=catalog.scope,
        headers=_headers(settings),
        request_seconds=catalog.request_timeout_ms / 1000,
    )
    return RestCatalog(
        RestClient(options, clock, instance), caller, randomness, options.warehouse, is_own=settings.catalog_embedded
    )


def _headers(settings: Settings) -> dict[str, str]:
    # Our own catalog is usually on this machine, where compressing responses costs more than it saves.
    plain = {"Accept-Encoding": "identity"} if settings.catalog_embedded else {}
    return plain | dict(_header(line) for line in settings.catalog.headers)


def _header(line: SecretStr) -> tuple[str, str]:
    name, _, value = line.get_secret_value().partition(":")
    return name, value.strip()


def _glue(
    settings: Settings, caller: StorageCaller, clock: Clock, randomness: Randomness, files: TableFiles | None
) -> TableCatalog:
    from icestream.catalogs.glue import GlueOptions, GluePointers

    catalog = settings.catalog
    options = GlueOptions(
        region=catalog.region,
        endpoint=catalog.uri,
        profile=catalog.profile,
        access_key_id=reveal(catalog.access_key_id),
        secret_access_key=reveal(catalog.secret_access_key),
        session_token=reveal(catalog.session_token),
        request_seconds=catalog.request_timeout_ms / 1000,
    )
    pointers = GluePointers(options, ThreadOffload("glue", limits.CATALOG_WRITES_AT_ONCE))
    return _over_pointers(settings, pointers, caller, clock, randomness, files)


def _sql(
    settings: Settings, caller: StorageCaller, clock: Clock, randomness: Randomness, files: TableFiles | None
) -> TableCatalog:
    from icestream.catalogs.sql import SqlOptions, SqlPointers

    catalog = settings.catalog
    address = split_database_uri(catalog.uri or "")
    assert address is not None  # a rule of the settings
    host, port, database = address
    options = SqlOptions(
        host=host,
        port=port,
        database=database,
        catalog=catalog.name,
        user=catalog.user,
        password=reveal(catalog.password),
        request_seconds=catalog.request_timeout_ms / 1000,
    )
    return _over_pointers(settings, SqlPointers(options), caller, clock, randomness, files)


def _over_pointers(
    settings: Settings,
    pointers: PointerStore,
    caller: StorageCaller,
    clock: Clock,
    randomness: Randomness,
    files: TableFiles | None,
) -> TableCatalog:
    from icestream.catalogs.pointer_catalog import PointerCatalog

    iceberg = settings.storage.iceberg_config
    files = files or open_files(store_options(settings), clock, randomness)
    return PointerCatalog(pointers, files, caller, randomness, iceberg.warehouse)
