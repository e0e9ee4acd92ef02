"""The settings by which a broker reaches its tables, as it tells them over its local socket.

    file and environment of the command  <  what the broker says  <  --set

The broker never tells a secret: what another catalog or store wants comes from file, environment or --set. The token of
its own catalog is in a file, which the account that may use the socket can read. Paths are relative to where the broker
runs; the port of its lake process is the one that it listens on, also where the settings leave it open.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from icestream import errors
from icestream.cli.connection import BrokerCalls, Document, Target, ask
from icestream.cli.options import load_settings

if TYPE_CHECKING:
    from icestream.settings import Settings

_ICEBERG: Final = "storage.iceberg_config"
_CATALOG: Final = f"{_ICEBERG}.catalog"
TOLD: Final = (
    "data_dir", "node.bind_host", "ports.lake", "lake.", f"{_ICEBERG}.warehouse", f"{_CATALOG}.",
    f"{_ICEBERG}.object_store.",
)  # fmt: skip
PATHS: Final = ("data_dir", "lake.token_file", f"{_ICEBERG}.object_store.path")


def told_settings(target: Target) -> Settings:
    """Raises ConnectionLost where nobody answers, NotReady where the lake process has no port yet."""
    told, places = ask(target, _told)
    said = {path: value for path, value in told.items() if path.startswith(TOLD)}
    said |= {path: str(Path(places["directory"], said[path])) for path in PATHS if said[path] is not None}
    said["ports.lake"] = places["lake_port"]
    if said[f"{_CATALOG}.type"] == "embedded":
        del said[f"{_CATALOG}.uri"]  # it follows from the port
    settings = load_settings(target.config, [*map(_flag, said, said.values()), *(target.sets or ())]).settings
    if not settings.ports.lake:
        raise errors.NotReady(
            "this broker does not know of a lake process that listens",
            hint="ask again in a moment: one that was just started says its port then; of one that somebody else "
            "runs, say it: --set ports.lake=PORT",
        )
    return settings


async def _told(broker: BrokerCalls) -> tuple[dict[str, Any], Document]:
    """All but secrets, which are masked."""
    from icestream.settings import KEYS

    items = (await broker.call("list_settings"))["items"]
    return {one["key"]: one["value"] for one in items if not KEYS[one["key"]].secret}, await broker.call("places")


def _flag(path: str, value: object) -> str:
    """As `--set` reads it back."""
    return f"{path}={value if isinstance(value, str) else json.dumps(value)}"
