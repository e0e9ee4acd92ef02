"""How a command reaches its broker (which one: broker.py): messages over an address, questions over the local socket or
an address.

    the local socket    answers everything, for the account that runs the broker, on its machine; it tells all ports
    an address          the public calls only

A broker that does not answer: ConnectionLost, with the places that were tried, what named them, and the command that
starts a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from icestream import errors, limits
from icestream.cli.broker import HINT, Place, Target, host_and_port, native_address
from icestream.cli.nearest import with_suggestion
from icestream.rpc.link import open_link

if TYPE_CHECKING:
    from icestream.client.client import Client

Document = dict[str, Any]
Answer = TypeVar("Answer")
NAME: Final = "icestream-cli"  # in the broker's logs
PORTS: Final = "ports"  # the public call that tells them


@dataclass(frozen=True, slots=True)
class Reached:
    """A broker that answered, and where its parts listen. A part that has no port, or none yet, is None."""

    node: str
    instance: str
    address: str
    http: str | None
    lake: str | None
    pipeline: str | None
    danube: str | None
    ports: Document


class BrokerCalls:
    """Questions to a broker. `is_local`: over its local socket, which answers everything."""

    def __init__(
        self, ask: Callable[[str, Document], Awaitable[Document]], place: Place, host: str, *, is_local: bool
    ) -> None:
        self._ask = ask
        self._public = frozenset[str]() if is_local else _public_calls()
        self._host = host  # that was reached; empty for a local socket
        self.place = place
        self.is_local = is_local

    async def call(self, method: str, **arguments: object) -> Document:
        if not self.is_local and method not in self._public:
            raise errors.InvalidInput(
                f"this is answered over the local socket only, and {self.place.rule} led to an address, "
                f"{self.place.address}",
                hint="use it on the broker's machine, by its account: --broker DATA_DIR",
            )
        return await self._ask(method, arguments)

    async def items(self, method: str, **arguments: object) -> list[Document]:
        """All pages of a listing."""
        entries: list[Document] = []
        after: str | None = ""
        while after is not None:
            page = await self.call(method, **arguments, after=after, limit=limits.API_PAGE_MAX)
            entries += page["items"]
            after = page["next"]
        return entries

    async def reached(self) -> Reached:
        """Where every part of the node listens."""
        ports = await self.call("places" if self.is_local else PORTS)
        host = self._host or ports["host"]

        def url(name: str) -> str | None:
            return f"http://{host_and_port(host, ports[name])}" if ports.get(name) else None

        return Reached(
            ports["node"],
            ports.get("instance", ""),
            native_address(host, ports["native_port"]),
            url("http_port"),
            url("lake_port"),
            url("pipeline_port"),
            url("danube_port"),
            {**ports, "host": host},
        )


def _public_calls() -> frozenset[str]:
    from icestream.frontends.native.public_calls import (
        CALLS,  # the whole broker: only where it is needed, and before the call
    )

    return frozenset((*CALLS, PORTS))


@contextlib.asynccontextmanager
async def client_of(
    target: Target, *, send_timeout: float = limits.CLIENT_SEND_SECONDS_DEFAULT
) -> AsyncIterator[Client]:
    """For messages. Raises ConnectionLost where no broker answers."""
    address = await message_address(target.place)
    async with contextlib.AsyncExitStack() as stack:
        yield await _connected(stack, target.place, address, send_timeout)


async def message_address(place: Place) -> str:
    """The native address of a place: a local socket tells it. Raises ConnectionLost."""
    if place.socket is None:
        return place.address or ""
    try:
        link = await open_link(place.socket, NAME)
    except errors.ConnectionLost as error:
        if place.address is None:
            raise _silent(place, error) from None
        return place.address
    try:
        ports = await link.call("places", {})
    finally:
        link.close()
    return native_address(ports["host"], ports["native_port"])


async def _connected(
    stack: contextlib.AsyncExitStack,
    place: Place,
    address: str,
    send_timeout: float = limits.CLIENT_SEND_SECONDS_DEFAULT,
) -> Client:
    from icestream.client.client import connect

    try:
        return await stack.enter_async_context(connect(address, name=NAME, send_timeout=send_timeout))
    except errors.ConnectionLost as error:
        raise _silent(place, error, address) from None


def _silent(place: Place, error: errors.ConnectionLost, address: str = "") -> errors.ConnectionLost:
    """The failure to reach a place, with every place that was tried and what named it."""
    if place.socket is not None and address:
        message = f"no broker answers at {place.socket}, nor at {address} ({place.rule})"
    elif place.is_of_settings and place.socket is not None:
        message = f"no broker runs on data_dir {place.socket.parent}: none answers at {place.socket} ({place.rule})"
    else:
        message = f"{error.message} ({place.rule})"
    is_general = place.socket is not None or not error.hint or error.hint.startswith("start a broker")
    return errors.ConnectionLost(message, hint=HINT if is_general else error.hint)


@contextlib.asynccontextmanager
async def broker_calls(place: Place) -> AsyncIterator[BrokerCalls]:
    """Raises ConnectionLost where no broker answers."""
    async with contextlib.AsyncExitStack() as stack:
        if place.socket is not None:
            try:
                link = await open_link(place.socket, NAME)
            except errors.ConnectionLost as error:
                if place.address is None:
                    raise _silent(place, error) from None
            else:
                stack.callback(link.close)
                yield BrokerCalls(link.call, place, "", is_local=True)
                return
        address = place.address or ""
        client = await _connected(stack, place, address)
        yield BrokerCalls(client.call, place, _host_of(address), is_local=False)


def _host_of(address: str) -> str:
    from icestream.client.address import parse_address

    return parse_address(address).host


def local_socket_of(target: Target) -> Path:
    """For a process that needs the local socket of its broker. Raises InvalidInput for an address."""
    if target.place.socket is None:
        raise errors.InvalidInput(
            f"this needs the broker's local socket, and {target.place.rule} names the address {target.place.address}",
            hint="run it on the broker's machine: --broker DATA_DIR",
        )
    return target.place.socket


def ask(target: Target, question: Callable[[BrokerCalls], Awaitable[Answer]]) -> Answer:
    """Connects, asks, leaves: most commands are this."""
    return ask_at(target.place, question)


def ask_at(place: Place, question: Callable[[BrokerCalls], Awaitable[Answer]]) -> Answer:

    async def asked() -> Answer:
        async with broker_calls(place) as broker:
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
