"""How a command reaches its broker: messages over an address, questions over the local socket or an address.

    --address given                      that address; it offers the public calls only
    else --socket, or data_dir's socket  everything, for the account that runs the broker, on its machine
    nobody answers at the socket         the address of the settings (node.bind_host, ports.native), public calls only

Where nobody says anything, by option or variable, the defaults are known without loading the settings. Nobody answers
at all: ConnectionLost, with the places that were tried and the command that starts a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from icestream import errors, limits
from icestream.cli.nearest import with_suggestion
from icestream.cli.options import load_settings
from icestream.runtime.link import open_link

if TYPE_CHECKING:
    from icestream.client.client import Client
    from icestream.settings import Settings

Document = dict[str, Any]
Answer = TypeVar("Answer")
NAME: Final = "icestream-cli"  # in the broker's logs
# What the settings say where nobody says anything; a test compares.
DEFAULT_ADDRESS: Final = "icestream://127.0.0.1:6651"
DEFAULT_SOCKET: Final = Path("icestream-data/broker.sock")
VARIABLES: Final = ("ICESTREAM_", "DANUBE_")  # how those begin that may be settings
EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where one listens, and where one connects
HINT: Final = "start a broker with `icestream serve`, or say where one is: --address, --socket or --config"

AddressOption = Annotated[
    str | None,
    typer.Option("--address", metavar="ADDRESS", help="The broker, such as 127.0.0.1:6651; else that of the settings."),
]
SocketOption = Annotated[
    Path | None,
    typer.Option("--socket", metavar="FILE", help="The broker's local socket; else broker.sock in data_dir."),
]


@dataclass(frozen=True, slots=True)
class Target:
    """Where the broker of a command is, as far as somebody said so."""

    address: str | None = None
    socket: Path | None = None
    config: Path | None = None
    sets: list[str] | None = None

    def settings(self) -> Settings:
        return load_settings(self.config, self.sets).settings

    @property
    def says_nothing(self) -> bool:
        return not (self.config or self.sets or any(name.startswith(VARIABLES) for name in os.environ))

    def public_address(self) -> str:
        return self.address or (DEFAULT_ADDRESS if self.says_nothing else address_of(self.settings()))

    def local_socket(self) -> Path:
        return self.socket or (DEFAULT_SOCKET if self.says_nothing else self.settings().local_socket)


def address_of(settings: Settings) -> str:
    """Where clients of this machine reach a broker with these settings."""
    if not settings.ports.native:
        raise errors.InvalidInput(
            "ports.native is 0: the broker takes any free port", hint="name its address: --address 127.0.0.1:PORT"
        )
    host = EVERYWHERE.get(settings.node.bind_host, settings.node.bind_host)
    return (
        f"icestream://[{host}]:{settings.ports.native}"
        if ":" in host
        else f"icestream://{host}:{settings.ports.native}"
    )


def client_of(target: Target, *, send_timeout: float = limits.CLIENT_SEND_SECONDS_DEFAULT) -> Client:
    """For messages. It connects by `async with`; one that cannot raises ConnectionLost."""
    from icestream.client.connect import connect

    return connect(target.public_address(), name=NAME, send_timeout=send_timeout)


class BrokerCalls:
    """Questions to a broker. `is_local`: over its local socket, which answers everything."""

    def __init__(self, ask: Callable[[str, Document], Awaitable[Document]], *, is_local: bool) -> None:
        self._ask = ask
        self._public = frozenset[str]() if is_local else _public_calls()
        self.is_local = is_local

    async def call(self, method: str, **arguments: object) -> Document:
        if not self.is_local and method not in self._public:
            raise errors.InvalidInput(
                "this is answered over the local socket only, and none was reached",
                hint="use it on the broker's machine: --socket DATA_DIR/broker.sock, or --config as for `serve`",
            )
        return await self._ask(method, arguments)

    async def items(self, method: str, **arguments: object) -> list[Document]:
        """All pages of a listing."""
        found: list[Document] = []
        after: str | None = ""
        while after is not None:
            page = await self.call(method, **arguments, after=after, limit=limits.API_PAGE_MAX)
            found += page["items"]
            after = page["next"]
        return found


def _public_calls() -> frozenset[str]:
    from icestream.frontends.native.calls import (
        CALLS,  # the whole broker: only for those who need it, and before they ask
    )

    return frozenset(CALLS)


@contextlib.asynccontextmanager
async def broker_calls(target: Target) -> AsyncIterator[BrokerCalls]:
    if target.address is not None:
        async with client_of(target) as client:
            yield BrokerCalls(client.call, is_local=False)
        return
    async with contextlib.AsyncExitStack() as stack:
        yield await _nearest(target, stack)


async def _nearest(target: Target, stack: contextlib.AsyncExitStack) -> BrokerCalls:
    path = target.local_socket()
    try:
        link = await open_link(path, NAME)
    except errors.ConnectionLost as error:
        if target.socket is not None:
            raise errors.ConnectionLost(error.message, hint=HINT) from None
        return BrokerCalls((await _client_instead(target, path, stack)).call, is_local=False)
    stack.callback(link.close)
    return BrokerCalls(link.call, is_local=True)


async def _client_instead(target: Target, path: Path, stack: contextlib.AsyncExitStack) -> Client:
    from icestream.client.connect import connect

    try:
        address = target.public_address()
    except errors.InvalidInput as error:
        raise errors.ConnectionLost(f"no broker answers at {path}, and {error.message}", hint=HINT) from None
    try:
        return await stack.enter_async_context(connect(address, name=NAME))
    except errors.ConnectionLost:
        raise errors.ConnectionLost(f"no broker answers at {path}, nor at {address}", hint=HINT) from None


def ask(target: Target, question: Callable[[BrokerCalls], Awaitable[Answer]]) -> Answer:
    """Connects, asks, leaves: most commands are this."""

    async def asked() -> Answer:
        async with broker_calls(target) as broker:
            try:
                return await question(broker)
            except errors.UnknownTopic as error:
                raise await with_suggestion(error, lambda method, given: broker.call(method, **given)) from None

    return asyncio.run(asked())


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def interruptible() -> Iterator[asyncio.Event]:
    """SIGINT and SIGTERM set the event instead of ending the process: the command finishes in order.

    A second signal ends it at once.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def asked_to_stop() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, asked_to_stop)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def unless_stopped(
    work: Coroutine[Any, Any, Answer], stop: asyncio.Event, seconds: float | None = None
) -> Answer | None:
    """Its result; None when it was stopped, or took longer. Work that is given up is cancelled."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, stopped):
            one.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
