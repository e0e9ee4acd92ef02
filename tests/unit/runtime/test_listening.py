"""Why nobody can listen somewhere, in words."""

from __future__ import annotations

import errno
import os

import pytest

from icestream import errors
from icestream.runtime.listening import cannot_listen


@pytest.mark.parametrize(
    ("number", "reason", "hint"),
    [
        (errno.EADDRINUSE, "another process listens there", "--set ports.lake=0"),
        (errno.EADDRNOTAVAIL, "this machine has no such address", "node.bind_host"),
        (errno.EACCES, "this account may not", "set ports.lake to a port from 1024 on"),
        (errno.ENOBUFS, os.strerror(errno.ENOBUFS), "ports.lake"),
    ],
)
def test_the_reason_and_what_helps(number: int, reason: str, hint: str) -> None:
    found = cannot_listen("ports.lake", "127.0.0.1", 80, OSError(number, os.strerror(number)))
    assert isinstance(found, errors.ConfigurationError)
    assert found.message == f"cannot listen on 127.0.0.1:80: {reason}"
    assert hint in found.hint


def test_an_error_without_a_number_is_said_as_it_is() -> None:
    assert cannot_listen("ports.lake", "nowhere", 80, OSError("who?")).message == "cannot listen on nowhere:80: who?"
