"""The network checks of `icestream doctor`: the ports of a node, and the health of the broker and the lake process.

A port may be free, or in use by the node that runs here; any other process on it keeps `icestream serve` from starting.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

from icestream import errors, limits
from icestream.cli.broker_connection import CLIENT_NAME, call_broker
from icestream.cli.broker_http import http_get, listener_context
from icestream.cli.broker_location import LOOPBACK_OF_WILDCARD, Target
from icestream.cli.broker_settings import broker_settings
from icestream.cli.doctor_rules import CheckResult, CheckState
from icestream.cli.lake_http import read_catalog_token
from icestream.cli.login_profile import find_token
from icestream.client.client import connect
from icestream.observability.words import counted
from icestream.runtime.listener_tls import tls_files
from icestream.settings import Settings
from icestream.wal.log_file import LOCK_NAME

# The start of an HTTP/2 connection: the preface and an empty SETTINGS frame. A server responds with a SETTINGS frame.
HTTP2_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# CONNECT of a version that does not exist, which every server of MQTT refuses; and the first byte of CONNACK.
MQTT_QUESTION: Final = b"\x10\x0c\0\4MQTT\xfe\x02\0\0\0\0"
MQTT_ANSWER: Final = b"\x20"
# To a request that is not for a WebSocket: upgrade required.
WEBSOCKET_ANSWER: Final = b"HTTP/1.1 426"
HTTP2_FRAME_HEADER_BYTES: Final = 9
HTTP2_SETTINGS: Final = 4


def check_network(settings: Settings, token: str | None = None) -> Iterator[CheckResult]:
    """The checks of a node on this machine. `token`: of a login at it."""
    host, ports = settings.node.bind_host, settings.ports
    native_port = _native_port(settings, ports.native)
    http_port = _http_port("ports.broker_http", settings, "http", ports.broker_http)
    is_native_up, is_http_up = (_is_in_use_by_us(result) for result in (native_port, http_port))
    is_up = is_native_up or is_http_up
    if is_up and not _may_run(settings):
        text = f"the running broker uses another data_dir: no broker has run on {settings.data_dir}"
        fix = "name its data_dir with --broker; a second broker on this machine needs other ports"
        yield CheckResult("data_dir", CheckState.WARNING, text, fix)
    yield native_port
    yield http_port
    if settings.danube.enable:
        yield _danube_port("ports.danube", settings, ports.danube, is_up=is_up)
        yield _danube_port("ports.danube_admin", settings, ports.danube_admin, is_up=is_up)
    if settings.mqtt.enable:
        yield _mqtt_port("ports.mqtt", settings, ports.mqtt, MQTT_QUESTION, MQTT_ANSWER, is_up=is_up)
        question = f"GET {settings.mqtt.websocket_path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        yield _mqtt_port("ports.mqtt_ws", settings, ports.mqtt_ws, question, WEBSOCKET_ANSWER, is_up=is_up)
    if settings.lake.managed:
        yield _lake_port(settings, ports.lake, is_up=is_up)
    if ports.broker_http and not _is_free(host, ports.broker_http):
        yield from _broker(host, ports.broker_http, listener_context(settings, "http"), token)
    elif is_native_up:
        fix = "wait until it has started, or check its log messages"
        yield CheckResult("broker", CheckState.PROBLEM, "its native port responds, its HTTP port does not", fix)
    else:
        yield CheckResult("broker", CheckState.WARNING, "not running", "icestream serve")
    if is_up and settings.lake.managed and ports.lake:
        yield _lake(settings)


def _may_run(settings: Settings) -> bool:
    """Whether a broker can be running on this data_dir: every broker leaves a lock file there."""
    return settings.storage.type == "memory" or (settings.meta_store.data_dir / LOCK_NAME).exists()


def check_remote_broker(target: Target) -> Iterator[CheckResult]:
    """The checks of a broker at an address: its native port, its health, its lake process."""
    try:
        endpoints = call_broker(target, lambda broker: broker.endpoints())
    except errors.IcestreamError as error:
        yield CheckResult("broker", CheckState.PROBLEM, error.message, error.hint)
        return
    text = f"{endpoints.address} in use by an Icestream broker, node {endpoints.node}"
    yield CheckResult("ports.native", CheckState.OK, text)
    if endpoints.http is not None:
        yield from _broker(endpoints.ports["host"], endpoints.ports["http_port"], token=find_token(target.location))
    if endpoints.lake is not None:
        yield _lake(broker_settings(target))


# --- ports ------------------------------------------------------------------------------------------------------------


_IN_USE: Final = "in use by an Icestream broker"


def _in_use(check: str, port: int) -> CheckResult:
    return CheckResult(check, CheckState.OK, f"{port} {_IN_USE}")


def _is_in_use_by_us(result: CheckResult) -> bool:
    return result.text.endswith(_IN_USE)


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _check_free(check: str, host: str, port: int) -> CheckResult | None:
    """The result for a free port; None if the port is in use."""
    if not port or _is_free(host, port):
        return CheckResult(check, CheckState.OK, f"{port} is free" if port else "any free port")
    return None


def _native_port(settings: Settings, port: int) -> CheckResult:
    host = settings.node.bind_host

    async def shake_hands() -> None:
        address = LOOPBACK_OF_WILDCARD.get(host, host)
        async with connect(f"[{address}]:{port}" if ":" in address else f"{address}:{port}", name=CLIENT_NAME):
            pass

    if (free := _check_free("ports.native", host, port)) is not None:
        return free
    if (context := listener_context(settings, "native")) is not None:
        # No more than the handshake of TLS: a client may need a certificate for the rest.
        try:
            with socket.create_connection(
                (LOOPBACK_OF_WILDCARD.get(host, host), port), limits.CLIENT_CONNECT_SECONDS_DEFAULT
            ) as plain:
                context.wrap_socket(plain).close()
        except OSError as error:
            return _foreign_process("ports.native", port, str(error))
        return _in_use("ports.native", port)
    try:
        asyncio.run(shake_hands())
    except errors.IcestreamError as error:
        return _foreign_process("ports.native", port, error.message)
    return _in_use("ports.native", port)


def _http_port(check: str, settings: Settings, listener: str, port: int) -> CheckResult:
    host = settings.node.bind_host
    if (free := _check_free(check, host, port)) is not None:
        return free
    try:
        http_get(host, port, "/livez", context=listener_context(settings, listener))
    except errors.ConnectionLost as error:
        return _foreign_process(check, port, error.message)
    return _in_use(check, port)


def _lake_port(settings: Settings, port: int, *, is_up: bool) -> CheckResult:
    result = _http_port("ports.lake", settings, "lake", port)
    if _is_in_use_by_us(result) and not is_up:
        return _foreign_process("ports.lake", port, "no broker is running here that it could belong to")
    return result


def _danube_port(check: str, settings: Settings, port: int, *, is_up: bool) -> CheckResult:
    host = settings.node.bind_host
    if (free := _check_free(check, host, port)) is not None:
        return free
    # Danube's own broker speaks the same protocol: without a broker of ours here, the port is in use by another one.
    if not is_up:
        return _foreign_process(check, port, "no broker is running here that it could belong to")
    is_tls = tls_files(settings, "danube") is not None
    try:
        is_grpc = _speaks_http2(LOOPBACK_OF_WILDCARD.get(host, host), port, is_tls=is_tls)
    except OSError as error:
        return _foreign_process(check, port, f"it does not speak gRPC: {error}")
    return _in_use(check, port) if is_grpc else _foreign_process(check, port, "it does not speak gRPC")


def _mqtt_port(
    check: str, settings: Settings, port: int, question: bytes, answer: bytes, *, is_up: bool
) -> CheckResult:
    host = settings.node.bind_host
    if (free := _check_free(check, host, port)) is not None:
        return free
    if not is_up:  # mosquitto speaks the same protocol
        return _foreign_process(check, port, "no broker is running here that it could belong to")
    is_tls = tls_files(settings, "mqtt") is not None
    try:
        is_mqtt = _answers(LOOPBACK_OF_WILDCARD.get(host, host), port, question, answer, is_tls=is_tls)
    except OSError as error:
        return _foreign_process(check, port, f"it does not speak MQTT: {error}")
    return _in_use(check, port) if is_mqtt else _foreign_process(check, port, "it does not speak MQTT")


def _answers(host: str, port: int, question: bytes, answer: bytes, *, is_tls: bool) -> bool:
    """Whether the server's answer begins as expected; of TLS only the handshake is asked for. Raises OSError."""
    with socket.create_connection((host, port), limits.CLIENT_CONNECT_SECONDS_DEFAULT) as plain:
        if is_tls:
            _unverified_context().wrap_socket(plain).close()
            return True
        plain.sendall(question)
        received = b""
        while len(received) < len(answer) and (more := plain.recv(len(answer) - len(received))):
            received += more
    return received == answer


def _speaks_http2(host: str, port: int, *, is_tls: bool) -> bool:
    """Whether the server at this port speaks HTTP/2. Raises OSError."""
    with socket.create_connection((host, port), limits.CLIENT_CONNECT_SECONDS_DEFAULT) as plain:
        if is_tls:
            return _negotiates_http2(plain)
        plain.sendall(HTTP2_HELLO)
        header = b""
        while len(header) < HTTP2_FRAME_HEADER_BYTES and (more := plain.recv(HTTP2_FRAME_HEADER_BYTES - len(header))):
            header += more
    return len(header) == HTTP2_FRAME_HEADER_BYTES and header[3] == HTTP2_SETTINGS


def _negotiates_http2(plain: socket.socket) -> bool:
    """Whether the TLS server agrees on HTTP/2."""
    context = _unverified_context()
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(plain) as secured:
        return secured.selected_alpn_protocol() == "h2"


def _unverified_context() -> ssl.SSLContext:
    """The certificate is not checked: no data is exchanged."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _foreign_process(check: str, port: int, reason: str) -> CheckResult:
    fix = f"stop the other process, or set {check} to a free port"
    return CheckResult(check, CheckState.PROBLEM, f"{port} is in use by another process: {reason}", fix)


# --- health -----------------------------------------------------------------------------------------------------------


def _broker(
    host: str, port: int, context: ssl.SSLContext | None = None, token: str | None = None
) -> Iterator[CheckResult]:
    """The readiness checks of the running broker that fail, and whether it is ready."""
    try:
        status, body = http_get(host, port, "/readyz?verbose", "application/json", token, context)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            yield _readiness(http_get(host, port, "/readyz", context=context)[0])
            return
        document = json.loads(body)
        checks = [(entry["name"], entry["ok"], entry["reason"], entry["is_needed"]) for entry in document["checks"]]
    except (errors.ConnectionLost, ValueError, KeyError, TypeError) as error:
        fix = "set ports.broker_http to a free port"
        text = f"the process at port {port} is not an Icestream broker: {error!r}"
        yield CheckResult("broker", CheckState.PROBLEM, text, fix)
        return
    for name, is_ok, reason, is_needed in checks:
        if not is_ok:
            state = CheckState.PROBLEM if is_needed else CheckState.WARNING
            yield CheckResult(f"broker {name}", state, reason, "check the broker's log messages")
    is_ready = bool(document["ready"])
    text = f"ready, {counted(len(checks), 'part')}" if is_ready else "not ready"
    yield CheckResult("broker", CheckState.OK if is_ready else CheckState.PROBLEM, text)


def _readiness(status: int) -> CheckResult:
    """What a broker with accounts tells without a login."""
    is_ready = status == HTTPStatus.OK
    text = f"{'ready' if is_ready else 'not ready'}; its checks are shown after `icestream security login`"
    fix = "" if is_ready else "log in as a principal with the role monitor, or check the broker's log messages"
    return CheckResult("broker", CheckState.OK if is_ready else CheckState.PROBLEM, text, fix)


def _lake(settings: Settings) -> CheckResult:
    """The check of the lake process. The broker works without it, but neither API nor embedded catalog do."""
    host, port = settings.node.bind_host, settings.ports.lake
    paths = ("/readyz", "/v1/config") if settings.catalog_embedded else ("/readyz",)
    served = "API and catalog" if settings.catalog_embedded else "the API"
    fix = "wait until it has started, or check the broker's log messages"
    context = listener_context(settings, "lake")
    for path in paths:
        try:
            status, body = http_get(host, port, path, token=read_catalog_token(settings), context=context)
        except errors.ConnectionLost as error:
            return CheckResult("lake", CheckState.PROBLEM, f"{served} not available: {error.message}", fix)
        if status != 200:
            text = f"{path} returned status {status}: {body.decode(errors='replace').strip()}"
            return CheckResult("lake", CheckState.PROBLEM, text, fix)
    return CheckResult("lake", CheckState.OK, f"port {port} serves {served}")
