"""Checks the fixed ports of a broker and its children before anything is opened.

A port that another process has makes a start fail, whichever process of the node would use it: a child that cannot
listen would be restarted for ever, while its clients talk to the other process. All ports are checked together, and one
error names every port that cannot be used. Another process can still take a port between this check and the start of a
listener: then the broker fails where it listens, and a child reports it and the node is not ready (child_processes.py).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from icestream import errors
from icestream.processes.node.front_ends import FRONT_ENDS
from icestream.runtime.http_probe import probe
from icestream.runtime.listening import RefusedPort, cannot_listen_on
from icestream.settings import Settings


async def check_ports(settings: Settings, join: str = "") -> None:
    """Raises ConfigurationError that names every port that cannot be used; ForeignBroker where another broker has one
    of a child. `join`: a node of the cluster to enter. Nothing listens on any of them afterwards."""
    refused = []
    for key, port in (*own_ports(settings, join), *child_ports(settings)):
        if (entry := _port_refusal(key, settings.node.bind_host, port)) is not None:
            refused.append(entry)
    children = {key for key, _ in child_ports(settings)}
    refused = [await _with_instance(entry) if entry.key in children else entry for entry in refused]
    if refused:
        raise cannot_listen_on(refused)


def own_ports(settings: Settings, join: str = "") -> Iterator[tuple[str, int]]:
    """Setting and number of each fixed port that the broker itself will listen on."""
    ports = [entry for front_end in FRONT_ENDS for entry in front_end.configured_ports(settings)]
    if settings.meta_store.seed_nodes or join:
        ports.append(("ports.raft", settings.ports.raft))
    yield from ((setting, port) for setting, port in ports if port)


def child_ports(settings: Settings) -> Iterator[tuple[str, int]]:
    """Setting and number of each fixed port that a child of this broker will listen on."""
    if settings.lake.managed and settings.ports.lake:
        yield "ports.lake", settings.ports.lake
    if settings.pipeline.managed and settings.storage.type != "memory" and settings.ports.pipeline_metrics:
        yield "ports.pipeline_metrics", settings.ports.pipeline_metrics


def _port_refusal(key: str, host: str, port: int) -> RefusedPort | None:
    try:
        _try_listen(host, port)
    except OSError as error:
        return RefusedPort(key, host, port, error)
    return None


async def _with_instance(refused: RefusedPort) -> RefusedPort:
    if refused.error.errno != errno.EADDRINUSE:
        return refused
    return refused._replace(instance=await _instance_at(refused.host, refused.port))


def _try_listen(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe_socket:
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe_socket.bind((host, port))
        probe_socket.listen(1)


async def _instance_at(host: str, port: int) -> str:
    """The instance of the broker that answers at the port; empty without one."""
    try:
        return (await probe(host, port)).instance or ""
    except errors.ConnectionLost:
        return ""
