"""The settings by which a broker reaches its tables, as the running broker reports them.

    file and environment of the command  <  settings reported by the broker  <  --set

Over its local socket the broker reports every setting that matters here. Over an address it reports its ports only; if
the command names a settings file, only the ports are used as well, and the file provides the rest. If no broker listens
at the location that the settings name, the settings alone apply: to another catalog, which needs no broker, and to a
lake process whose port or host they name. A data_dir alone names a broker that is not running: the default lake port
may belong to another one.

The broker never reports a secret: credentials of another catalog or store come from file, environment or --set. The
token of the lake process is in a file that the account with access to the socket can read, or that a context names;
without one it is that of the login at this broker (login_profile.py).
Paths are relative to the broker's working directory; ports are the actual ones, also if the settings say 0. The id
of the broker's instance is sent with every request to the embedded catalog, so that another broker at that
port is recognised.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from icestream import errors
from icestream.admin_api.node_api import LIST_SETTINGS
from icestream.cli.broker_connection import BrokerCalls, Document, call_broker_at
from icestream.cli.broker_location import BrokerLocation, Target
from icestream.cli.login_profile import find_token, find_token_file
from icestream.cli.options import load_settings
from icestream.runtime.instance import HEADER

if TYPE_CHECKING:
    from icestream.settings import Settings

_ICEBERG: Final = "storage.iceberg_config"
_CATALOG: Final = f"{_ICEBERG}.catalog"
KEYS_FROM_BROKER: Final = (
    "data_dir", "node.", "ports.", "danube.", "lake.", "tls.", "storage.type", "meta_store.data_dir",
    f"{_ICEBERG}.warehouse", f"{_CATALOG}.", f"{_ICEBERG}.object_store.", f"{_ICEBERG}.wal.",
)  # fmt: skip
PATH_KEYS: Final = (
    "data_dir", "lake.token_file", "meta_store.data_dir", "danube.tls_certificate", "danube.tls_key",
    "danube.tls_client_ca", f"{_ICEBERG}.object_store.path", f"{_ICEBERG}.wal.base_path",
    *(
        f"tls.{listener}{name}"
        for listener in ("", "native.", "danube.", "mqtt.", "http.", "lake.")
        for name in ("certificate", "key", "client_ca")
    ),
)  # fmt: skip
PORT_KEYS: Final = {
    "ports.native": "native_port",
    "ports.danube": "danube_port",
    "ports.danube_admin": "danube_admin_port",
    "ports.mqtt": "mqtt_port",
    "ports.mqtt_ws": "mqtt_ws_port",
    "ports.broker_http": "http_port",
    "ports.lake": "lake_port",
}


def broker_settings(target: Target, *, needs_lake: bool = True, needs_node: bool = False) -> Settings:
    """The settings for reaching the tables of the command's broker.

    `needs_node`: the lake process is called whichever catalog holds the tables. Raises ConnectionLost if the named
    broker is unreachable, NotReady if the command `needs_lake` and the lake process listens on no port yet.
    """
    location = target.location
    try:
        # The address in the settings may be that of another broker: only the socket in data_dir identifies this one.
        probe = replace(location, address=None) if location.is_from_settings else location
        reported, ports = call_broker_at(probe, _read_broker_settings)
    except errors.ConnectionLost:
        if not location.is_from_settings:
            raise
        settings = target.settings()
        uses_lake = needs_node or (needs_lake and settings.catalog_embedded)
        if uses_lake and target.is_lake_address_unset:
            raise
        return settings
    values = _merge_endpoints(reported if target.config is None else {}, ports)
    if location.token_file is not None:
        values["lake.token_file"] = str(location.token_file)
    flags = [*map(_flag, values, values.values()), *(target.sets or ())]
    settings = load_settings(target.config, flags).settings
    if settings.catalog_embedded and (instance := ports.get("instance")):
        headers = [header.get_secret_value() for header in settings.catalog.headers]
        flags.append(_flag(f"{_CATALOG}.headers", [*headers, f"{HEADER}: {instance}"]))
        settings = load_settings(target.config, flags, are_typed=False).settings
    if needs_lake and not settings.ports.lake:
        raise errors.NotReady(
            "the broker has not reported a port of its lake process yet",
            hint="retry in a moment; for a lake process started by `icestream lake serve`, pass --set ports.lake=PORT",
        )
    return _with_login(settings, location, str(values["node.bind_host"]))


def _with_login(settings: Settings, location: BrokerLocation, reported_host: str) -> Settings:
    """The settings with the token file of the login at this broker, unless they name a token or another host.

    The lake process has the login's token only by TLS or on this machine, as the HTTP port (broker_http.py). Raises
    ConfigurationError for a login that cannot be read.
    """
    from icestream.runtime.listener_tls import tls_files
    from icestream.settings.derive import lake_uri
    from icestream.settings.text import is_loopback

    is_tls = tls_files(settings, "lake") is not None
    uri = lake_uri(settings.node.bind_host, settings.ports.lake, is_tls=is_tls)
    is_private = is_tls or is_loopback(urlsplit(uri).hostname or "")
    is_of_broker = settings.node.bind_host == reported_host
    if settings.lake.token_file is not None or not (is_of_broker and is_private) or find_token(location) is None:
        return settings
    lake = settings.lake.model_copy(update={"token_file": find_token_file(location)})
    return settings.model_copy(update={"lake": lake})


def broker_instance(settings: Settings) -> str:
    """The instance id of the broker that reported these settings; its lake process has the same.

    Empty if no broker reported them, and if the tables are in another catalog.
    """
    prefix = f"{HEADER}: "
    texts = (header.get_secret_value() for header in settings.catalog.headers)
    return next((text.removeprefix(prefix) for text in texts if text.startswith(prefix)), "")


def _merge_endpoints(reported: dict[str, Any], ports: Document) -> dict[str, Any]:
    """Setting values by key: what the broker reported, with absolute paths and its actual ports."""
    values = {path: value for path, value in reported.items() if path.startswith(KEYS_FROM_BROKER)}
    directory = ports.get("directory")
    values |= {
        path: str(Path(directory, values[path])) for path in PATH_KEYS if directory and values.get(path) is not None
    }
    if not values:
        # bind_host is used for connecting here, not for binding: the check of insecure binds must not reject it.
        values |= {"node.bind_host": ports["host"], "node.allow_insecure_bind": True}
    values |= {key: ports[name] for key, name in PORT_KEYS.items() if ports.get(name)}
    if values.get(f"{_CATALOG}.type") == "embedded":
        del values[f"{_CATALOG}.uri"]  # derived from the actual port instead
    return values


async def _read_broker_settings(broker: BrokerCalls) -> tuple[dict[str, Any], Document]:
    """All settings except secrets, which the broker masks (over an address: none), and the ports."""
    ports = (await broker.endpoints()).ports
    if not broker.is_local:
        return {}, ports
    from icestream.settings import KEYS

    items = (await broker.call(LIST_SETTINGS))["items"]
    values = {item["key"]: item["value"] for item in items if item["key"] in KEYS and not KEYS[item["key"]].secret}
    return values, ports


def _flag(path: str, value: object) -> str:
    """The setting as `--set` reads it back."""
    return f"{path}={value if isinstance(value, str) else json.dumps(value)}"
