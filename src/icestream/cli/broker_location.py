"""Which broker a command talks to. The first source that applies decides, for all commands alike:

    --broker WHERE               an address, a local socket, a data_dir, or the name of a context
    --config, --set              if they set where a node is: data_dir, node.bind_host or a port
    ICESTREAM_BROKER=WHERE       same values as --broker
    the context in use           `icestream context use NAME`
    the settings                 of the environment, else the defaults

Settings lead to the local socket in data_dir, which reports every port of the node; if no broker listens there, to the
address in the settings. If --set, --config or the environment name a data_dir without an address, only that node is
meant: the default ports may belong to another broker. This module connects to nothing: broker_connection.py does.

    10.0.0.1:6651, icestream://host:6651, [::1]:6651     an address: public calls, messages, tables
    icestream-data, /srv/data/broker.sock, unix:///…     the local socket: everything, for the account of the broker
    production                                           a context of this name
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from icestream import errors
from icestream.cli.contexts import Context, Contexts, read_contexts
from icestream.cli.options import load_settings
from icestream.client.address import parse_address

if TYPE_CHECKING:
    from icestream.settings import Loaded, Settings

BROKER_VARIABLE: Final = "ICESTREAM_BROKER"
SOCKET_NAME: Final = "broker.sock"
# The defaults of the settings, repeated here to save loading them (0.1 s); a test compares both.
DEFAULT_ADDRESS: Final = "icestream://127.0.0.1:6651"
DEFAULT_SOCKET: Final = Path("icestream-data") / SOCKET_NAME
SETTING_VARIABLE_PREFIXES: Final = ("ICESTREAM_", "DANUBE_")
LOOPBACK_OF_WILDCARD: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # bind address -> address to connect to
NO_BROKER_HINT: Final = (
    f"start a broker with `icestream serve`, or name one: --broker, {BROKER_VARIABLE} or `icestream context use`; "
    "`icestream context show` reports which broker commands use"
)
_LOCATION_FLAGS: Final = ("data_dir=", "node.bind_host=", "ports.")
_NATIVE_ADDRESS_KEYS: Final = ("node.bind_host", "ports.native")
_LAKE_ADDRESS_KEYS: Final = ("node.bind_host", "ports.lake")


def _context_names() -> list[str]:
    try:
        return sorted(read_contexts().entries)
    except errors.ConfigurationError:
        return []


BrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="WHERE",
        help="HOST:PORT, a local socket, a data_dir, or the name of a context.",
        autocompletion=_context_names,
    ),
]


@dataclass(frozen=True, slots=True)
class BrokerLocation:
    """Where a broker is. With both `socket` and `address`, the address is used if no broker listens at the socket.

    `chosen_by` names the source of the choice, for messages. `token_file` holds the token of the broker's API and
    catalog.
    """

    chosen_by: str
    socket: Path | None = None
    address: str | None = None
    token_file: Path | None = None
    is_from_settings: bool = False

    def __str__(self) -> str:
        return " or ".join(str(endpoint) for endpoint in (self.socket, self.address) if endpoint is not None)


def parse_location(text: str, chosen_by: str, contexts: Contexts) -> BrokerLocation:
    """The location that WHERE means. Raises InvalidInput if it is no address, existing path or context."""
    if text.startswith("unix://"):
        return BrokerLocation(chosen_by, socket=Path(parse_address(text).path))
    if text.startswith("icestream://"):
        return BrokerLocation(chosen_by, address=str(parse_address(text)))
    if "/" in text or text.startswith((".", "~")):
        return BrokerLocation(chosen_by, socket=socket_path(Path(text)))
    if text in contexts.entries:
        return context_location(contexts.entries[text], f"{chosen_by}, context {text}")
    if ":" in text:
        return BrokerLocation(chosen_by, address=str(parse_address(text)))
    try:
        is_path = Path(text).exists()
    except (OSError, ValueError):
        is_path = False
    if text and is_path:
        return BrokerLocation(chosen_by, socket=socket_path(Path(text)))
    names = ", ".join(sorted(contexts.entries)) or "none"
    raise errors.InvalidInput(
        f"{chosen_by}: {text!r} is neither an address, an existing path nor a context",
        hint=f"an address has a port, such as 127.0.0.1:6651; write a path as ./NAME; contexts: {names}",
    )


def context_location(context: Context, chosen_by: str) -> BrokerLocation:
    # No contexts are passed on: the broker of a context is an address or a path, never another context.
    location = parse_location(context.broker, chosen_by, Contexts())
    token_file = Path(context.token_file) if context.token_file is not None else None
    return BrokerLocation(chosen_by, location.socket, location.address, token_file)


def socket_path(path: Path) -> Path:
    """The socket in a data_dir; any other path is taken for the socket itself."""
    path = path.expanduser()
    return path / SOCKET_NAME if path.is_dir() else path


def settings_address(settings: Settings) -> str:
    """The address at which clients on this machine reach a broker with these settings. Raises InvalidInput."""
    if not settings.ports.native:
        raise errors.InvalidInput(
            "ports.native is 0: the broker listens on any free port",
            hint="name the broker's data_dir or address with --broker",
        )
    return native_address(settings.node.bind_host, settings.ports.native)


def native_address(host: str, port: int) -> str:
    return f"icestream://{host_and_port(host, port)}"


def host_and_port(host: str, port: int) -> str:
    """HOST:PORT by which a client on the same machine reaches a server that binds to `host`."""
    host = LOOPBACK_OF_WILDCARD.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Target:
    """The options of a command that choose its broker. Its location is determined once."""

    broker: str | None = None
    config: Path | None = None
    sets: list[str] | None = None

    def settings(self) -> Settings:
        return load_settings(self.config, self.sets).settings

    @property
    def is_lake_address_unset(self) -> bool:
        """Whether the settings name a data_dir but not the address of its lake process: the default lake port may then
        belong to another broker."""
        return _sets_data_dir_only(load_settings(self.config, self.sets), _LAKE_ADDRESS_KEYS)

    @property
    def has_no_settings(self) -> bool:
        """Whether neither options nor variables set anything: then the defaults apply and need not be loaded."""
        return not (self.config or self.sets or any(is_setting_variable(name) for name in os.environ))

    @cached_property
    def location(self) -> BrokerLocation:
        """Raises InvalidInput, and ConfigurationError for contexts or settings that cannot be read."""
        return self.choose(os.environ)

    def choose(self, environment: Mapping[str, str]) -> BrokerLocation:
        if self.broker is not None:
            return parse_location(self.broker, "--broker", read_contexts())
        if self.config is not None or any(flag.startswith(_LOCATION_FLAGS) for flag in self.sets or ()):
            return self._settings_location("--config" if self.config is not None else "--set")
        if text := environment.get(BROKER_VARIABLE):
            return parse_location(text, BROKER_VARIABLE, read_contexts())
        contexts = read_contexts()
        if contexts.current is not None:
            return context_location(contexts.get(contexts.current), f"context {contexts.current}")
        return self._settings_location("default settings" if self.has_no_settings else "settings of the environment")

    def _settings_location(self, chosen_by: str) -> BrokerLocation:
        if self.has_no_settings:
            return BrokerLocation(chosen_by, DEFAULT_SOCKET, DEFAULT_ADDRESS, is_from_settings=True)
        loaded = load_settings(self.config, self.sets)
        settings = loaded.settings
        is_socket_only = _sets_data_dir_only(loaded, _NATIVE_ADDRESS_KEYS)
        address = settings_address(settings) if settings.ports.native and not is_socket_only else None
        return BrokerLocation(chosen_by, settings.local_socket, address, is_from_settings=True)


def _sets_data_dir_only(loaded: Loaded, keys: Sequence[str]) -> bool:
    """Whether data_dir is set and each of these keys has its default."""
    origins = loaded.origins
    return origins["data_dir"].kind != "default" and all(origins[key].kind == "default" for key in keys)


def is_setting_variable(name: str) -> bool:
    return name.startswith(SETTING_VARIABLE_PREFIXES) and name != BROKER_VARIABLE
