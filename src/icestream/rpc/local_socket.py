"""Sockets of this machine, by the name of a file: only the account that made one may use it (0600).

The address of such a socket has room for about a hundred bytes, the path of a data directory may be longer: then the
directory is opened, and the socket is named through that (`/proc/self/fd/<number>/<name>`).

A file that a dead process left behind is replaced: nobody answers there. One that somebody answers is left alone.
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
    """A socket that can listen there. Raises ConfigurationError when another process does, or it cannot be made."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if is_listening(path):
            raise errors.ConfigurationError(
                f"another broker listens at {path}", hint="stop it, or give this one its own data_dir"
            )
        path.unlink(missing_ok=True)
        os.fchmod(found.fileno(), MODE)  # before there is a file: nobody comes in between
        with _address(path) as address:
            found.bind(address)
    except OSError as error:
        found.close()
        raise errors.ConfigurationError(
            f"cannot listen at {path}: {error}", hint="check the permissions of data_dir"
        ) from None
    except BaseException:
        found.close()
        raise
    return found


def connect(path: Path) -> socket.socket:
    """A connected socket that does not block. Raises ConnectionLost when nobody listens there."""
    try:
        return _connected(path)
    except OSError as error:
        raise errors.ConnectionLost(f"no broker answers at {path}: {error}", hint="is it running?") from None


def _connected(path: Path) -> socket.socket:
    """On one machine it is there at once, or the queue of the listener is full (BlockingIOError)."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.setblocking(False)
    try:
        with _address(path) as address:
            found.connect(address)
    except BaseException:
        found.close()
        raise
    return found


def is_listening(path: Path) -> bool:
    """Whether a live process listens there."""
    try:
        _connected(path).close()
    except BlockingIOError:
        return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    if len(os.fsencode(path)) <= limits.SOCKET_PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
