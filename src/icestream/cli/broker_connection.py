"""Connections from a command to its broker (broker.py chooses which): messages go over an address, calls over the local
socket or an address.

    the local socket    every call, for the account that runs the broker, on its machine; reports all ports
    an address          the public calls only

An unreachable broker raises ConnectionLost with the locations that were tried, what chose them, and the command that
starts a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from icestream import errors, limits
from icestream.admin_api.admin_call import AdminCall
from icestream.admin_api.node_api import PLACES, PORTS
from icestream.admin_api.topic_api import LIST_TOPICS, PAGE_TOPICS
from icestream.cli.broker_location import NO_BROKER_HINT, BrokerLocation, Target, host_and_port, native_address
from icestream.cli.login_profile import find_token
from icestream.cli.suggestions import suggest_topic
from icestream.rpc.client_tls import ClientTls, tls_of_variables
from icestream.rpc.handshake import HelloCredential
from icestream.rpc.link import Link, open_link

if TYPE_CHECKING:
    import ssl

    from icestream.client.client import Client

Document = dict[str, Any]
Result = TypeVar("Result")
CLIENT_NAME: Final = "icestream-cli"  # shown in the broker's logs


@dataclass(frozen=True, slots=True)
class BrokerEndpoints:
    """The identity and the addresses of a reachable broker. A part that listens on no port, or not yet, is None."""

    node: str
    instance: str
    address: str
    http: str | None
    lake: str | None
    pipeline: str | None
    danube: str | None
    ports: Document


class BrokerCalls:
    """Calls to a broker. `is_local`: over its local socket, which serves every call."""

    def __init__(
        self,
        send: Callable[[str, Document], Awaitable[Document]],
        location: BrokerLocation,
        host: str,
        *,
        is_local: bool,
    ) -> None:
        """`host` is the host that was dialled; empty for a local socket."""
        self._send = send
        self._host = host
        self.location = location
        self.is_local = is_local

    async def call(self, call: AdminCall[Any, Any] | str, **arguments: object) -> Document:
        """The result of one call: a declared one, or by its name one of the processes (pipeline, cluster, metadata).

        Raises the broker's error, and InvalidInput for a call over an address that only the local socket serves. The
        names of the arguments are those of the declared request; the broker validates their values.
        """
        if isinstance(call, AdminCall):
            method, is_public, arguments = call.name, call.is_public, msgspec.to_builtins(call.request(**arguments))
        else:
            method, is_public = call, False
        if not self.is_local and not is_public:
            raise errors.InvalidInput(
                f"this command needs the broker's local socket, but {self.location.chosen_by} selected the address "
                f"{self.location.address}",
                hint="run it on the broker's machine, as the broker's account: --broker DATA_DIR",
            )
        return await self._send(method, arguments)

    async def items(self, call: AdminCall[Any, Any], **arguments: object) -> list[Document]:
        """The items of all pages of a listing."""
        entries: list[Document] = []
        after: str | None = ""
        while after is not None:
            page = await self.call(call, **arguments, after=after, limit=limits.API_PAGE_MAX)
            entries += page["items"]
            after = page["next"]
        return entries

    async def topics(self, namespace: str | None = None) -> list[Document]:
        """All topics, or those of one namespace. Over an address only their names are known."""
        if self.is_local:
            return await self.items(PAGE_TOPICS, namespace=namespace or "")
        names: list[str] = []
        page: Document = {"next": ""}
        while (after := page.get("next")) is not None:
            page = await self.call(LIST_TOPICS, after=after)
            names += page["topics"]
        return [{"topic": name} for name in names if not namespace or name.startswith(f"/{namespace}/")]

    async def endpoints(self) -> BrokerEndpoints:
        """The addresses of every part of the node."""
        ports = await self.call(PLACES if self.is_local else PORTS)
        host = self._host or ports["host"]

        def url(name: str) -> str | None:
            listener = name.removesuffix("_port")
            is_tls = {"pipeline": "http"}.get(listener, listener) in ports.get("certificates", {})
            scheme = "https" if is_tls else "http"
            return f"{scheme}://{host_and_port(host, ports[name])}" if ports.get(name) else None

        return BrokerEndpoints(
            ports["node"],
            ports.get("instance", ""),
            native_address(host, ports["native_port"]),
            url("http_port"),
            url("lake_port"),
            url("pipeline_port"),
            url("danube_port"),
            {**{name: value for name, value in ports.items() if name != "certificates"}, "host": host},
        )


@contextlib.asynccontextmanager
async def open_client(
    target: Target, *, send_timeout: float = limits.CLIENT_SEND_SECONDS_DEFAULT
) -> AsyncIterator[Client]:
    """A client for publishing and consuming. Raises ConnectionLost if the broker is unreachable."""
    address, tls = await _find_native_port(target.location)
    async with contextlib.AsyncExitStack() as stack:
        yield await _connect(stack, target.location, address, send_timeout, tls=tls)


async def find_message_address(location: BrokerLocation) -> str:
    """The native address of a broker, read from its local socket if it has one. Raises ConnectionLost."""
    return (await _find_native_port(location))[0]


async def _find_native_port(location: BrokerLocation) -> tuple[str, ClientTls | None]:
    """The native address, and the TLS of a broker that was found by its local socket: its own certificate is trusted.
    The variables of rpc/client_tls.py come first. Raises ConnectionLost."""
    if location.socket is None:
        return location.address or "", None
    try:
        link = await _open_link(location, None)  # the call needs no right
    except errors.ConnectionLost as error:
        if location.address is None:
            raise _unreachable_error(location, error) from None
        return location.address, None
    try:
        ports = await link.call(PLACES.name, {})
    finally:
        link.close()
    chain = ports.get("certificates", {}).get("native")
    tls = OwnBrokerTls(chain) if chain is not None and tls_of_variables(os.environ) is None else None
    return native_address(ports["host"], ports["native_port"]), tls


class OwnBrokerTls(ClientTls):
    """TLS to a broker whose certificate, `ca` as PEM, was told by its local socket. It may be for other names."""

    def context(self) -> ssl.SSLContext:
        from icestream.runtime.listener_tls import own_client_context

        return own_client_context(str(self.ca).encode("latin-1"))


async def _connect(
    stack: contextlib.AsyncExitStack,
    location: BrokerLocation,
    address: str,
    send_timeout: float = limits.CLIENT_SEND_SECONDS_DEFAULT,
    *,
    is_anonymous: bool = False,
    tls: ClientTls | None = None,
) -> Client:
    """`tls`: None for that of the variables, else plain text."""
    from icestream.client.client import connect

    token = None if is_anonymous else find_token(location)
    try:
        return await stack.enter_async_context(
            connect(address, name=CLIENT_NAME, send_timeout=send_timeout, token=token, tls=tls)
        )
    except errors.Unauthenticated as error:
        raise _login_ended(error) from None
    except errors.ConnectionLost as error:
        raise _unreachable_error(location, error, address) from None


def _unreachable_error(
    location: BrokerLocation, error: errors.ConnectionLost, address: str = ""
) -> errors.ConnectionLost:
    """The error for an unreachable broker: every location that was tried, and what chose it."""
    socket = location.socket
    if socket is not None and address:
        message = f"no broker listens at {socket} or {address} ({location.chosen_by})"
    elif location.is_from_settings and socket is not None:
        message = f"no broker runs on data_dir {socket.parent}: nothing listens at {socket} ({location.chosen_by})"
    else:
        message = f"{error.message} ({location.chosen_by})"
    is_general = socket is not None or not error.hint or error.hint.startswith("start a broker")
    return errors.ConnectionLost(message, hint=NO_BROKER_HINT if is_general else error.hint)


@contextlib.asynccontextmanager
async def broker_calls(location: BrokerLocation, *, is_anonymous: bool = False) -> AsyncIterator[BrokerCalls]:
    """A connection for calls, over the local socket if possible, with the token of the login at this broker.

    `is_anonymous`: without it, for a command that needs no credential or brings its own. Raises ConnectionLost if the
    broker is unreachable, Unauthenticated if the login has ended.
    """
    async with contextlib.AsyncExitStack() as stack:
        if location.socket is not None:
            try:
                link = await _open_link(location, None if is_anonymous else find_token(location))
            except errors.ConnectionLost as error:
                if location.address is None:
                    raise _unreachable_error(location, error) from None
            else:
                stack.callback(link.close)
                yield BrokerCalls(link.call, location, "", is_local=True)
                return
        address = location.address or ""
        client = await _connect(stack, location, address, is_anonymous=is_anonymous)
        yield BrokerCalls(client.call, location, _host_of(address), is_local=False)


async def _open_link(location: BrokerLocation, token: str | None) -> Link:
    """Raises ConnectionLost, Unauthenticated."""
    assert location.socket is not None
    credential = None if token is None else HelloCredential(token=token)
    try:
        return await open_link(location.socket, CLIENT_NAME, credential)
    except errors.Unauthenticated as error:
        raise _login_ended(error) from None


def _login_ended(error: errors.Unauthenticated) -> errors.Unauthenticated:
    return errors.Unauthenticated(error.message, hint="log in again: icestream security login NAME")


def _host_of(address: str) -> str:
    from icestream.client.address import parse_address

    return parse_address(address).host


def require_local_socket(target: Target) -> Path:
    """The path of the broker's local socket. Raises InvalidInput if the broker was named by its address."""
    location = target.location
    if location.socket is None:
        raise errors.InvalidInput(
            f"this command needs the broker's local socket, but {location.chosen_by} selected the address "
            f"{location.address}",
            hint="run it on the broker's machine: --broker DATA_DIR",
        )
    return location.socket


def call_broker(
    target: Target, call: Callable[[BrokerCalls], Awaitable[Result]], *, is_anonymous: bool = False
) -> Result:
    """Connects to the command's broker, runs the call, disconnects, and returns the call's result."""
    return call_broker_at(target.location, call, is_anonymous=is_anonymous)


def call_broker_at(
    location: BrokerLocation, call: Callable[[BrokerCalls], Awaitable[Result]], *, is_anonymous: bool = False
) -> Result:
    """Like `call_broker`, for a location. An UnknownTopic error gets a suggestion."""

    async def run() -> Result:
        async with broker_calls(location, is_anonymous=is_anonymous) as broker:
            try:
                return await call(broker)
            except errors.UnknownTopic as error:
                raise await suggest_topic(error, lambda: broker.call(LIST_TOPICS)) from None

    return asyncio.run(run())


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def interruptible() -> Iterator[asyncio.Event]:
    """Makes SIGINT and SIGTERM set the event that it yields, so that the command can clean up before it ends.

    A second signal terminates the process at once: the handlers are removed after the first.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def request_stop() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, request_stop)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def run_until_stopped(
    work: Coroutine[Any, Any, Result], stop: asyncio.Event, seconds: float | None = None
) -> Result | None:
    """The result of the work; None if it was stopped or took longer than `seconds`, in which case it is cancelled."""
    task, stop_task = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stop_task}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stop_task.cancel()
        await asyncio.gather(task, stop_task, return_exceptions=True)
