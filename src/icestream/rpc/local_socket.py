"""Local (Unix domain) sockets: only the account that created one may use it (mode 0600).

The address of such a socket holds about a hundred bytes, the path of a data directory may be longer: then the directory
is opened, and the socket is addressed through it (`/proc/self/fd/<number>/<name>`).

A socket file of a dead process is replaced: nothing listens there. One with a live listener is left alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from icestream import errors, limits

MODE = 0o600


def bind(path: Path) -> socket.socket:
    """Returns a socket bound to `path`. Raises ConfigurationError if another process listens there or binding fails."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if is_listening(path):
            raise errors.ConfigurationError(
                f"another broker listens at {path}", hint="stop it, or give this one its own data_dir"
            )
        # Nothing listens there: the file was left behind by a process that crashed.
        path.unlink(missing_ok=True)
        os.fchmod(bound.fileno(), MODE)  # before the file exists, so that it is never open to others
        with _address(path) as address:
            bound.bind(address)
    except OSError as error:
        bound.close()
        raise errors.ConfigurationError(
            f"cannot listen at {path}: {error}", hint="check the permissions of data_dir"
        ) from None
    except BaseException:
        bound.close()
        raise
    return bound


def connect(path: Path) -> socket.socket:
    """Returns a connected, non-blocking socket. Raises ConnectionLost if no process listens there."""
    try:
        return _connected(path)
    except OSError as error:
        raise errors.ConnectionLost(f"no broker answers at {path}: {error}", hint="is it running?") from None


def _connected(path: Path) -> socket.socket:
    """Connects without waiting: locally it succeeds immediately, or the listener's queue is full (BlockingIOError)."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        with _address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def is_listening(path: Path) -> bool:
    """Whether a live process listens at `path`."""
    try:
        _connected(path).close()
    except BlockingIOError:
        return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The path itself, or a short path through an open descriptor of its directory."""
    if len(os.fsencode(path)) <= limits.SOCKET_PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
