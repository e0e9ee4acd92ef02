"""The ports of the children of a broker, looked at before anything is opened.

A port that another process has makes a start fail, whichever process of the node would use it: a child that cannot
listen would be started again for ever, while its clients talk to whatever has the port. The ports of the broker itself
are refused where it listens. Between this look and the child's own start another process can still take the port: then
the child says so, and the node is not ready (children.py).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from icestream import errors
from icestream.runtime.http_probe import probe
from icestream.runtime.listening import cannot_listen
from icestream.settings import Settings


async def check_child_ports(settings: Settings) -> None:
    """Raises ConfigurationError for the first one that cannot be used, ForeignBroker where another broker has it."""
    for key, port in child_ports(settings):
        await check_port(key, settings.node.bind_host, port)


def child_ports(settings: Settings) -> Iterator[tuple[str, int]]:
    """Setting and number of each fixed port that a child of this broker will listen on."""
    if settings.lake.managed and settings.ports.lake:
        yield "ports.lake", settings.ports.lake
    if settings.pipeline.managed and settings.storage.type != "memory" and settings.ports.pipeline_metrics:
        yield "ports.pipeline_metrics", settings.ports.pipeline_metrics


async def check_port(key: str, host: str, port: int) -> None:
    """Raises as `check_child_ports` does. Nothing listens there afterwards."""
    try:
        _listen(host, port)
    except OSError as error:
        refusal = cannot_listen(key, host, port, error)
        instance = await _instance_at(host, port) if error.errno == errno.EADDRINUSE else ""
        if not instance:
            raise refusal from None
        message = f"cannot listen on {host}:{port}: another broker listens there (instance {instance})"
        raise errors.ForeignBroker(message, hint=refusal.hint) from None


def _listen(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind((host, port))
        tried.listen(1)


async def _instance_at(host: str, port: int) -> str:
    """The instance of the broker that answers there; empty where none does."""
    try:
        return (await probe(host, port)).instance or ""
    except errors.ConnectionLost:
        return ""
