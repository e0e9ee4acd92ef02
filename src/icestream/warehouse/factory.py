"""From settings to catalogs: the one place that knows every kind. What is heavy is imported when it is asked for."""

from __future__ import annotations

from pydantic import SecretStr

from icestream import errors
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.randomness import Randomness, SystemRandomness
from icestream.settings import Settings
from icestream.warehouse.caller import Caller, Patience
from icestream.warehouse.catalog import TableCatalog


def open_catalog(settings: Settings, clock: Clock | None = None, randomness: Randomness | None = None) -> TableCatalog:
    """By `storage.iceberg_config.catalog`. Nothing is asked yet: a catalog that is away is no error here."""
    clock, randomness = clock or SystemClock(), randomness or SystemRandomness()
    caller = Caller("catalog", clock, randomness, patience(settings.catalog.request_timeout_ms))
    match settings.catalog.type:
        case "embedded" | "rest":
            return _rest(settings, caller, clock, randomness)
        case kind:
            raise errors.ConfigurationError(
                f"storage.iceberg_config.catalog.type = {kind} cannot be used yet", hint="use `embedded` or `rest`"
            )


def patience(request_timeout_ms: int) -> Patience:
    return Patience(request_seconds=request_timeout_ms / 1000)


def _rest(settings: Settings, caller: Caller, clock: Clock, randomness: Randomness) -> TableCatalog:
    from icestream.warehouse.rest import RestCatalog
    from icestream.warehouse.rest_client import RestClient, RestOptions

    catalog = settings.catalog
    options = RestOptions(
        uri=catalog.uri or "",
        warehouse=None if settings.catalog_embedded else catalog.warehouse,
        token=shown(catalog.token),
        credential=shown(catalog.credential),
        token_uri=catalog.token_uri,
        scope=catalog.scope,
        headers=dict(_header(one) for one in catalog.headers),
        request_seconds=catalog.request_timeout_ms / 1000,
    )
    return RestCatalog(
        RestClient(options, clock), caller, randomness, options.warehouse, is_own=settings.catalog_embedded
    )


def _header(line: SecretStr) -> tuple[str, str]:
    name, _, value = line.get_secret_value().partition(":")
    return name, value.strip()


def shown(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
