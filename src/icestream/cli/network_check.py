"""What `icestream doctor` finds at the ports of a node, and what the broker and the lake process there say.

A port may be free, or taken by the node that runs here; whoever else has it keeps `icestream serve` from starting.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Iterator
from typing import Final

from icestream import errors, limits
from icestream.cli.broker import EVERYWHERE, Target
from icestream.cli.broker_http import http_get
from icestream.cli.connection import NAME, ask
from icestream.cli.findings import Finding, State
from icestream.cli.lake_http import own_token
from icestream.cli.told_settings import told_settings
from icestream.client.client import connect
from icestream.observability.words import counted
from icestream.settings import Settings
from icestream.wal.log_file import LOCK_NAME

# How a client of HTTP/2 begins: the preface, and SETTINGS without any. A server answers with SETTINGS of its own.
HTTP2_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
HTTP2_FRAME_HEADER_BYTES: Final = 9
HTTP2_SETTINGS: Final = 4


def network(settings: Settings) -> Iterator[Finding]:
    host, ports = settings.node.bind_host, settings.ports
    native_port = _native_port(host, ports.native)
    http_port = _http_port("ports.broker_http", host, ports.broker_http, "/livez")
    is_native_here, is_http_here = (one.text.endswith("answers") for one in (native_port, http_port))
    is_here = is_native_here or is_http_here
    if is_here and not _may_run(settings):
        text = f"the broker that answers runs on other data: none has run on {settings.data_dir}"
        fix = "name its data_dir with --broker; a second broker on this machine needs ports of its own"
        yield Finding("data_dir", State.WARNING, text, fix)
    yield native_port
    yield http_port
    if settings.danube.enable:
        yield _danube_port("ports.danube", settings, ports.danube, is_here=is_here)
        yield _danube_port("ports.danube_admin", settings, ports.danube_admin, is_here=is_here)
    if settings.lake.managed:
        yield _lake_port(host, ports.lake, is_here=is_here)
    if ports.broker_http and not _is_free(host, ports.broker_http):
        yield from _broker(host, ports.broker_http)
    elif is_native_here:
        fix = "wait for its start, or look at its log messages"
        yield Finding("broker", State.PROBLEM, "it answers, but its HTTP does not", fix)
    else:
        yield Finding("broker", State.WARNING, "none is running here", "icestream serve")
    if is_here and settings.lake.managed and ports.lake:
        yield _lake(settings)


def _may_run(settings: Settings) -> bool:
    """Whether a broker can be running on the data of these settings: one that ever did has left a lock there."""
    return settings.storage.type == "memory" or (settings.meta_store.data_dir / LOCK_NAME).exists()


def elsewhere(target: Target) -> Iterator[Finding]:
    """Of a broker at an address: whether it answers, and what its HTTP and its lake process say."""
    try:
        reached = ask(target, lambda broker: broker.reached())
    except errors.IcestreamError as error:
        yield Finding("broker", State.PROBLEM, error.message, error.hint)
        return
    yield Finding("ports.native", State.OK, f"{reached.address}: an Icestream answers, node {reached.node}")
    if reached.http is not None:
        yield from _broker(reached.ports["host"], reached.ports["http_port"])
    if reached.lake is not None:
        yield _lake(told_settings(target))


# --- ports ------------------------------------------------------------------------------------------------------------


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, port))
        except OSError:
            return False
    return True


def _free(check: str, host: str, port: int) -> Finding | None:
    """None where somebody listens."""
    if not port or _is_free(host, port):
        return Finding(check, State.OK, f"{port} is free" if port else "any free port")
    return None


def _native_port(host: str, port: int) -> Finding:
    async def shake_hands() -> None:
        address = EVERYWHERE.get(host, host)
        async with connect(f"[{address}]:{port}" if ":" in address else f"{address}:{port}", name=NAME):
            pass

    if (free := _free("ports.native", host, port)) is not None:
        return free
    try:
        asyncio.run(shake_hands())
    except errors.IcestreamError as error:
        return _taken("ports.native", port, error.message)
    return Finding("ports.native", State.OK, f"{port}: an Icestream answers")


def _http_port(check: str, host: str, port: int, path: str) -> Finding:
    if (free := _free(check, host, port)) is not None:
        return free
    try:
        http_get(host, port, path)
    except errors.ConnectionLost as error:
        return _taken(check, port, error.message)
    return Finding(check, State.OK, f"{port} answers")


def _lake_port(host: str, port: int, *, is_here: bool) -> Finding:
    found = _http_port("ports.lake", host, port, "/livez")
    if found.text.endswith("answers") and not is_here:
        return _taken("ports.lake", port, "no broker runs here that it could belong to")
    return found


def _danube_port(check: str, settings: Settings, port: int, *, is_here: bool) -> Finding:
    """Danube itself answers as we do: without a broker here it is another one."""
    host = settings.node.bind_host
    if (free := _free(check, host, port)) is not None:
        return free
    if not is_here:
        return _taken(check, port, "no broker runs here that it could belong to")
    try:
        speaks = _speaks_http2(EVERYWHERE.get(host, host), port, is_tls=settings.danube.tls_certificate is not None)
    except OSError as error:
        return _taken(check, port, f"no gRPC there: {error}")
    return Finding(check, State.OK, f"{port} answers") if speaks else _taken(check, port, "no gRPC there")


def _speaks_http2(host: str, port: int, *, is_tls: bool) -> bool:
    """Raises OSError."""
    with socket.create_connection((host, port), limits.CLIENT_CONNECT_SECONDS_DEFAULT) as plain:
        if is_tls:
            return _agrees_on_http2(plain)
        plain.sendall(HTTP2_HELLO)
        header = b""
        while len(header) < HTTP2_FRAME_HEADER_BYTES and (more := plain.recv(HTTP2_FRAME_HEADER_BYTES - len(header))):
            header += more
    return len(header) == HTTP2_FRAME_HEADER_BYTES and header[3] == HTTP2_SETTINGS


def _agrees_on_http2(plain: socket.socket) -> bool:
    """Nothing is said that would need the right certificate: that is for its clients to judge."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(plain) as secured:
        return secured.selected_alpn_protocol() == "h2"


def _taken(check: str, port: int, reason: str) -> Finding:
    fix = f"stop the other one, or set {check} to a free port"
    return Finding(check, State.PROBLEM, f"{port} is taken, and not by an Icestream: {reason}", fix)


# --- who runs here ----------------------------------------------------------------------------------------------------


def _broker(host: str, port: int) -> Iterator[Finding]:
    """What the running broker says of itself."""
    try:
        _, body = http_get(host, port, "/readyz?verbose", "application/json")
        document = json.loads(body)
        checks = [(one["name"], one["ok"], one["reason"], one["is_needed"]) for one in document["checks"]]
    except (errors.ConnectionLost, ValueError, KeyError, TypeError) as error:
        fix = "set ports.broker_http to a free port"
        yield Finding("broker", State.PROBLEM, f"what answers at port {port} is no Icestream: {error!r}", fix)
        return
    for name, is_ok, reason, is_needed in checks:
        if not is_ok:
            state = State.PROBLEM if is_needed else State.WARNING
            yield Finding(f"broker {name}", state, reason, "look at the broker's own log messages")
    is_ready = bool(document["ready"])
    text = f"ready, {counted(len(checks), 'part')}" if is_ready else "not ready"
    yield Finding("broker", State.OK if is_ready else State.PROBLEM, text)


def _lake(settings: Settings) -> Finding:
    """The broker serves without it, but without it there is neither API nor catalog."""
    host, port = settings.node.bind_host, settings.ports.lake
    paths = ("/readyz", "/v1/config") if settings.catalog_embedded else ("/readyz",)
    served = "API and catalog" if settings.catalog_embedded else "the API"
    fix = "wait for its start, or look at the broker's own log messages"
    for path in paths:
        try:
            status, body = http_get(host, port, path, token=own_token(settings))
        except errors.ConnectionLost as error:
            return Finding("lake", State.PROBLEM, f"nobody serves {served}: {error.message}", fix)
        if status != 200:
            said = body.decode(errors="replace").strip()
            return Finding("lake", State.PROBLEM, f"{path} answers with status {status}: {said}", fix)
    return Finding("lake", State.OK, f"port {port} serves {served}")
