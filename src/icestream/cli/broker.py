"""Which broker a command means: one rule for all commands, the first that applies.

    --broker WHERE               an address, a local socket, a data_dir, or the name of a context
    --config, --set              of a key that says where a node is: its data_dir, node.bind_host or ports
    ICESTREAM_BROKER=WHERE       as --broker
    the context in use           `icestream context use NAME`
    the settings                 of the environment, else the defaults

A place of the settings is the local socket in data_dir, which tells every port of the node; where no broker answers
there, the address that the settings name. A data_dir that --set, --config or the environment names without an address
means that node alone: the default ports may be those of another broker. Nothing here asks a broker: connection.py does.

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

VARIABLE: Final = "ICESTREAM_BROKER"
SOCKET_NAME: Final = "broker.sock"
# What the settings say where neither a file nor a variable nor an option says anything; a test compares.
DEFAULT_ADDRESS: Final = "icestream://127.0.0.1:6651"
DEFAULT_SOCKET: Final = Path("icestream-data") / SOCKET_NAME
VARIABLES: Final = ("ICESTREAM_", "DANUBE_")  # how those begin that may be settings
EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where one listens, and where one connects
HINT: Final = (
    f"start a broker with `icestream serve`, or name one: --broker, {VARIABLE} or `icestream context use`; "
    "`icestream context show` says which one is asked"
)
_KEYS_OF_A_PLACE: Final = ("data_dir=", "node.bind_host=", "ports.")
_KEYS_OF_AN_ADDRESS: Final = ("node.bind_host", "ports.native")
_KEYS_OF_A_LAKE: Final = ("node.bind_host", "ports.lake")


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
class Place:
    """Where a broker is. `rule` names what chose it, for messages. With `socket` and `address`, the address counts
    where no broker answers at the socket. `token_file`: holds the token of its API and catalog."""

    rule: str
    socket: Path | None = None
    address: str | None = None
    token_file: Path | None = None
    is_of_settings: bool = False

    def __str__(self) -> str:
        return " or ".join(str(where) for where in (self.socket, self.address) if where is not None)


def place_at(text: str, rule: str, contexts: Contexts) -> Place:
    """What WHERE means. Raises InvalidInput for a text that means nothing."""
    if text.startswith("unix://"):
        return Place(rule, socket=Path(parse_address(text).path))
    if text.startswith("icestream://"):
        return Place(rule, address=str(parse_address(text)))
    if "/" in text or text.startswith((".", "~")):
        return Place(rule, socket=socket_at(Path(text)))
    if text in contexts.entries:
        return place_of_context(contexts.entries[text], f"{rule}, context {text}")
    if ":" in text:
        return Place(rule, address=str(parse_address(text)))
    try:
        is_there = Path(text).exists()
    except (OSError, ValueError):
        is_there = False
    if text and is_there:
        return Place(rule, socket=socket_at(Path(text)))
    names = ", ".join(sorted(contexts.entries)) or "none"
    raise errors.InvalidInput(
        f"{rule}: {text!r} is no address, no path that exists, and no context",
        hint=f"an address has a port, such as 127.0.0.1:6651; a path may begin with ./; contexts: {names}",
    )


def place_of_context(context: Context, rule: str) -> Place:
    found = place_at(context.broker, rule, Contexts())
    token_file = Path(context.token_file) if context.token_file is not None else None
    return Place(rule, found.socket, found.address, token_file)


def socket_at(path: Path) -> Path:
    """The socket in a data_dir; a path that is no directory is the socket itself."""
    path = path.expanduser()
    return path / SOCKET_NAME if path.is_dir() else path


def address_of(settings: Settings) -> str:
    """Where clients of this machine reach a broker with these settings. Raises InvalidInput."""
    if not settings.ports.native:
        raise errors.InvalidInput(
            "ports.native is 0: the broker takes any free port", hint="name its data_dir, or its address: --broker"
        )
    return native_address(settings.node.bind_host, settings.ports.native)


def native_address(host: str, port: int) -> str:
    return f"icestream://{host_and_port(host, port)}"


def host_and_port(host: str, port: int) -> str:
    """As somebody on the same machine reaches a server that binds to `host`."""
    host = EVERYWHERE.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Target:
    """The options of a command that say which broker it means. Its place is found once."""

    broker: str | None = None
    config: Path | None = None
    sets: list[str] | None = None

    def settings(self) -> Settings:
        return load_settings(self.config, self.sets).settings

    @property
    def leaves_lake_open(self) -> bool:
        """Whether the settings name a data_dir and not where its lake process listens: the default port may then be
        that of another broker."""
        return _names_data_alone(load_settings(self.config, self.sets), _KEYS_OF_A_LAKE)

    @property
    def is_silent(self) -> bool:
        """Neither options nor variables say anything about settings: the defaults are known without loading them."""
        return not (self.config or self.sets or any(is_of_a_setting(name) for name in os.environ))

    @cached_property
    def place(self) -> Place:
        """Raises InvalidInput, and ConfigurationError for contexts or settings that cannot be read."""
        return self.chosen(os.environ)

    def chosen(self, environment: Mapping[str, str]) -> Place:
        if self.broker is not None:
            return place_at(self.broker, "--broker", read_contexts())
        if self.config is not None or any(flag.startswith(_KEYS_OF_A_PLACE) for flag in self.sets or ()):
            return self._of_settings("--config" if self.config is not None else "--set")
        if text := environment.get(VARIABLE):
            return place_at(text, VARIABLE, read_contexts())
        contexts = read_contexts()
        if contexts.current is not None:
            return place_of_context(contexts.get(contexts.current), f"context {contexts.current}")
        return self._of_settings("default settings" if self.is_silent else "settings of the environment")

    def _of_settings(self, rule: str) -> Place:
        if self.is_silent:
            return Place(rule, DEFAULT_SOCKET, DEFAULT_ADDRESS, is_of_settings=True)
        loaded = load_settings(self.config, self.sets)
        settings = loaded.settings
        is_alone = _names_data_alone(loaded, _KEYS_OF_AN_ADDRESS)
        address = address_of(settings) if settings.ports.native and not is_alone else None
        return Place(rule, settings.local_socket, address, is_of_settings=True)


def _names_data_alone(loaded: Loaded, keys: Sequence[str]) -> bool:
    """Whether somebody set the data_dir and none of these keys."""
    origins = loaded.origins
    return origins["data_dir"].kind != "default" and all(origins[key].kind == "default" for key in keys)


def is_of_a_setting(name: str) -> bool:
    return name.startswith(VARIABLES) and name != VARIABLE
