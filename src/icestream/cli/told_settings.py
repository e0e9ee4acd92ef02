"""The settings by which a broker reaches its tables, as it tells them.

    file and environment of the command  <  what the broker says  <  --set

Over its local socket it says all that matters here. Over an address it says its ports only, and so it does where the
command names a settings file: then that file says the rest. Where no broker answers at a place of the settings, these
alone count for a catalog elsewhere, which needs no broker to be looked at, and for a lake process whose port or host
they name. A data_dir alone names a broker that does not run: the default lake port may be that of another one.

The broker never tells a secret: what another catalog or store wants comes from file, environment or --set. The token of
its own catalog is in a file, which the account that may use the socket can read, or which a context names. Paths are
relative to where the broker runs; ports are those that it listens on, also where the settings leave them open. The
instance of the broker goes with every request to its own catalog: another broker at that port is recognised.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from icestream import errors
from icestream.cli.broker import Target
from icestream.cli.connection import BrokerCalls, Document, ask_at
from icestream.cli.options import load_settings
from icestream.runtime.instance import HEADER

if TYPE_CHECKING:
    from icestream.settings import Settings

_ICEBERG: Final = "storage.iceberg_config"
_CATALOG: Final = f"{_ICEBERG}.catalog"
TOLD: Final = (
    "data_dir", "node.", "ports.", "danube.", "lake.", "storage.type", "meta_store.data_dir", f"{_ICEBERG}.warehouse",
    f"{_CATALOG}.", f"{_ICEBERG}.object_store.", f"{_ICEBERG}.wal.",
)  # fmt: skip
PATHS: Final = (
    "data_dir", "lake.token_file", "meta_store.data_dir", "danube.tls_certificate", "danube.tls_key",
    "danube.tls_client_ca", f"{_ICEBERG}.object_store.path", f"{_ICEBERG}.wal.base_path",
)  # fmt: skip
PORTS: Final = {
    "ports.native": "native_port",
    "ports.danube": "danube_port",
    "ports.danube_admin": "danube_admin_port",
    "ports.broker_http": "http_port",
    "ports.lake": "lake_port",
}


def told_settings(target: Target, *, needs_lake: bool = True, needs_node: bool = False) -> Settings:
    """Raises ConnectionLost where no broker answers at a place that was named, NotReady where the lake process has no
    port yet and it `needs_lake`. `needs_node`: the lake process is asked whichever catalog has the tables."""
    place = target.place
    try:
        told, places = ask_at(replace(place, address=None) if place.is_of_settings else place, _told)
    except errors.ConnectionLost:
        if not place.is_of_settings:
            raise
        settings = target.settings()
        asks_lake = needs_node or (needs_lake and settings.catalog_embedded)
        if asks_lake and target.leaves_lake_open:
            raise
        return settings
    said = _with_places(told if target.config is None else {}, places)
    if place.token_file is not None:
        said["lake.token_file"] = str(place.token_file)
    flags = [*map(_flag, said, said.values()), *(target.sets or ())]
    settings = load_settings(target.config, flags).settings
    if settings.catalog_embedded and (instance := places.get("instance")):
        headers = [header.get_secret_value() for header in settings.catalog.headers]
        flags.append(_flag(f"{_CATALOG}.headers", [*headers, f"{HEADER}: {instance}"]))
        settings = load_settings(target.config, flags).settings
    if needs_lake and not settings.ports.lake:
        raise errors.NotReady(
            "this broker does not know of a lake process that listens",
            hint="ask again in a moment: one that was just started says its port then; of one that is started by "
            "`icestream lake serve`, say it: --set ports.lake=PORT",
        )
    return settings


def instance_of(settings: Settings) -> str:
    """The instance of the broker that told these settings, which its lake process must be of, too. Empty where no
    broker did, and where the tables are in a catalog elsewhere."""
    prefix = f"{HEADER}: "
    texts = (header.get_secret_value() for header in settings.catalog.headers)
    return next((text.removeprefix(prefix) for text in texts if text.startswith(prefix)), "")


def _with_places(told: dict[str, Any], places: Document) -> dict[str, Any]:
    said = {path: value for path, value in told.items() if path.startswith(TOLD)}
    directory = places.get("directory")
    said |= {path: str(Path(directory, said[path])) for path in PATHS if directory and said.get(path) is not None}
    if not said:
        said |= {"node.bind_host": places["host"], "node.allow_insecure_bind": True}  # where it is, not where to bind
    said |= {key: places[name] for key, name in PORTS.items() if places.get(name)}
    if said.get(f"{_CATALOG}.type") == "embedded":
        del said[f"{_CATALOG}.uri"]  # it follows from the port
    return said


async def _told(broker: BrokerCalls) -> tuple[dict[str, Any], Document]:
    """All settings but secrets, which are masked; over an address none; and the ports."""
    places = (await broker.reached()).ports
    if not broker.is_local:
        return {}, places
    from icestream.settings import KEYS

    items = (await broker.call("list_settings"))["items"]
    return {one["key"]: one["value"] for one in items if one["key"] in KEYS and not KEYS[one["key"]].secret}, places


def _flag(path: str, value: object) -> str:
    """As `--set` reads it back."""
    return f"{path}={value if isinstance(value, str) else json.dumps(value)}"
