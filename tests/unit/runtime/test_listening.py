"""Error texts for ports on which a process cannot listen."""

from __future__ import annotations

import errno
import os

import pytest

from icestream import errors
from icestream.runtime.listening import RefusedPort, cannot_listen, cannot_listen_on


@pytest.mark.parametrize(
    ("number", "reason", "hint"),
    [
        (errno.EADDRINUSE, "another process listens there", "--set ports.lake=0"),
        (errno.EADDRNOTAVAIL, "this machine has no such address", "node.bind_host"),
        (errno.EACCES, "this account may not", "set ports.lake to a port from 1024 on"),
        (errno.ENOBUFS, os.strerror(errno.ENOBUFS), "ports.lake"),
    ],
)
def test_listen_errors_have_a_reason_and_a_hint(number: int, reason: str, hint: str) -> None:
    error = cannot_listen("ports.lake", "127.0.0.1", 80, OSError(number, os.strerror(number)))
    assert isinstance(error, errors.ConfigurationError)
    assert error.message == f"cannot listen on 127.0.0.1:80: {reason}"
    assert hint in error.hint


def test_an_error_without_a_number_is_shown_unchanged() -> None:
    assert cannot_listen("ports.lake", "nowhere", 80, OSError("who?")).message == "cannot listen on nowhere:80: who?"


def test_all_ports_are_named_in_one_error() -> None:
    in_use = OSError(errno.EADDRINUSE, "in use")
    error = cannot_listen_on(
        [
            RefusedPort("ports.native", "127.0.0.1", 6651, in_use),
            RefusedPort("ports.danube", "127.0.0.1", 80, OSError(errno.EACCES, "denied")),
            RefusedPort("ports.lake", "127.0.0.1", 8181, in_use, "abc"),
        ]
    )
    assert isinstance(error, errors.ForeignBroker)
    assert error.message == (
        "cannot listen on 3 ports: 127.0.0.1:6651 (ports.native): another process listens there; "
        "127.0.0.1:80 (ports.danube): this account may not; "
        "127.0.0.1:8181 (ports.lake): another broker listens there (instance abc)"
    )
    assert "--set ports.native=0 --set ports.lake=0" in error.hint
    assert "set ports.danube to a port from 1024 on" in error.hint
