"""From settings to catalogs and files: the one place that knows every kind.

What is heavy is imported when it is asked for. Nothing is connected here: a catalog that is away is no error yet.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pydantic import SecretStr

from icestream import errors, limits
from icestream.catalogs.bucket import Objects, open_bucket
from icestream.catalogs.object_files import ObjectFiles, SchemeFiles
from icestream.catalogs.storage_caller import CallTimeouts, StorageCaller
from icestream.catalogs.store_options import StoreKind, StoreOptions, revealed
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg.file_io import LocalFiles, TableFiles, open_local
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.randomness import Randomness, SystemRandomness
from icestream.runtime.tasks import Offload, ThreadOffload
from icestream.settings import Settings
from icestream.settings.text import split_database_uri

if TYPE_CHECKING:
    from icestream.catalogs.pointer_catalog import PointerStore

# What each kind needs beyond the core: the module, and the extra that brings it.
_EXTRAS = {"glue": ("boto3", "glue"), "sql": ("psycopg", "sql")}


def open_catalog(
    settings: Settings,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    waits: CallTimeouts | None = None,
    instance: Callable[[], str] | None = None,
    files: TableFiles | None = None,
) -> TableCatalog:
    """The catalog of `storage.iceberg_config.catalog`. `waits`: how long a call may take, where that is not what the
    settings say. `instance`: of the broker whose own catalog it is; it must be that one which answers. `files`: where
    metadata files are written, by a catalog that knows only pointers; its own where that is None."""
    clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
    check_installed(settings.catalog.type)
    caller = StorageCaller("catalog", clock, randomness, waits or patience(settings.catalog.request_timeout_ms))
    match settings.catalog.type:
        case "embedded" | "rest":
            return _rest(settings, caller, clock, randomness, instance)
        case "glue":
            return _glue(settings, caller, clock, randomness, files)
        case "sql":
            return _sql(settings, caller, clock, randomness, files)


def check_installed(kind: str) -> None:
    module, extra = _EXTRAS.get(kind, ("", ""))
    if module and find_spec(module) is None:
        raise errors.MissingPart(
            f"a `{kind}` catalog needs {module}, which is not installed", hint=f"pip install 'icestream[{extra}]'"
        )


def patience(request_timeout_ms: int) -> CallTimeouts:
    return CallTimeouts(request_seconds=request_timeout_ms / 1000)


# --- files ------------------------------------------------------------------------------------------------------------


def open_files(
    options: StoreOptions,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    disk: Offload | None = None,
    local: LocalFiles | None = None,
) -> SchemeFiles:
    """The files of tables, wherever their locations are. One breaker for each bucket: they fail one by one."""
    clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
    waits = CallTimeouts(request_seconds=options.request_seconds)

    def objects(kind: StoreKind, bucket: str) -> Objects:
        return open_bucket(options, kind, bucket, StorageCaller(f"object store {bucket}", clock, randomness, waits))

    local = local or LocalFiles(open_local, disk or ThreadOffload("warehouse", limits.CATALOG_WRITES_AT_ONCE))
    return SchemeFiles(local, ObjectFiles(objects))


def open_objects(
    settings: Settings,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    waits: CallTimeouts | None = None,
) -> Objects:
    """The bucket of `object_store`, for objects that do not belong to a table."""
    clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
    options = StoreOptions.of(settings.storage.iceberg_config.object_store)
    if options.kind == "local":
        raise errors.ConfigurationError(
            "a `local` object store has no bucket", hint="set storage.iceberg_config.object_store.type and bucket"
        )
    caller = StorageCaller(
        "object store", clock, randomness, waits or CallTimeouts(request_seconds=options.request_seconds)
    )
    return open_bucket(options, options.kind, options.bucket or "memory", caller)


# --- catalogs ---------------------------------------------------------------------------------------------------------


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
        token=revealed(catalog.token),
        credential=revealed(catalog.credential),
        token_uri=catalog.token_uri,
        scope=catalog.scope,
        headers=_headers(settings),
        request_seconds=catalog.request_timeout_ms / 1000,
    )
    return RestCatalog(
        RestClient(options, clock, instance), caller, randomness, options.warehouse, is_own=settings.catalog_embedded
    )


def _headers(settings: Settings) -> dict[str, str]:
    """Our own catalog is on this machine as a rule: to compress its answers would cost more than it brings."""
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
        access_key_id=revealed(catalog.access_key_id),
        secret_access_key=revealed(catalog.secret_access_key),
        session_token=revealed(catalog.session_token),
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
        password=revealed(catalog.password),
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
    files = files or open_files(StoreOptions.of(iceberg.object_store), clock, randomness)
    return PointerCatalog(pointers, files, caller, randomness, iceberg.warehouse)
