"""Opens ports; errors for those that cannot be opened, with the reason and what an operator can do."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Final, NamedTuple

from icestream import errors

_REASONS: Final = {
    errno.EADDRINUSE: (
        "another process listens there",
        "stop it, or take another port: `--set {key}=0` means any that is free; `icestream doctor` looks at all ports",
    ),
    errno.EADDRNOTAVAIL: ("this machine has no such address", "set node.bind_host to one of its own"),
    errno.EACCES: ("this account may not", "set {key} to a port from 1024 on"),
}


# Connections that the kernel completes before they are accepted.
BACKLOG: Final = 1024


def listening_socket(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on TCP. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class RefusedPort(NamedTuple):
    """A port that cannot be opened.

    `key`: the setting that names it. `instance`: of the broker that has it, if that is known.
    """

    key: str
    host: str
    port: int
    error: OSError
    instance: str = ""

    @property
    def reason(self) -> str:
        if self.instance:
            return f"another broker listens there (instance {self.instance})"
        return _reason_and_hint(self.error)[0]

    @property
    def hint(self) -> str:
        return _reason_and_hint(self.error)[1].format(key=self.key)


def cannot_listen(key: str, host: str, port: int, error: OSError) -> errors.ConfigurationError:
    """The error for one port. `key`: the setting that names it."""
    return cannot_listen_on([RefusedPort(key, host, port, error)])


def cannot_listen_on(refused: Sequence[RefusedPort]) -> errors.ConfigurationError:
    """One error for all ports, so that an operator can fix them at once; ForeignBroker if another broker has one.

    `refused`: at least one.
    """
    kind = errors.ForeignBroker if any(port.instance for port in refused) else errors.ConfigurationError
    if len(refused) == 1:
        entry = refused[0]
        return kind(f"cannot listen on {entry.host}:{entry.port}: {entry.reason}", hint=entry.hint)
    places = "; ".join(f"{entry.host}:{entry.port} ({entry.key}): {entry.reason}" for entry in refused)
    return kind(f"cannot listen on {len(refused)} ports: {places}", hint=_hint_for_all(refused))


def _hint_for_all(refused: Sequence[RefusedPort]) -> str:
    in_use = [entry for entry in refused if entry.error.errno == errno.EADDRINUSE]
    hints = [entry.hint for entry in refused if entry.error.errno != errno.EADDRINUSE]
    if in_use:
        flags = " ".join(f"--set {entry.key}=0" for entry in in_use)
        hints.insert(
            0,
            f"stop what listens there, or take other ports: `{flags}` means any that are free; "
            "`icestream doctor` looks at all ports",
        )
    return "; ".join(dict.fromkeys(hints))


def _reason_and_hint(error: OSError) -> tuple[str, str]:
    return _REASONS.get(error.errno or 0, (error.strerror or str(error), "check node.bind_host and {key}"))
