"""Why nobody can listen somewhere, and what a person can do about it."""

from __future__ import annotations

import errno
from typing import Final

from icestream import errors

_REASONS: Final = {
    errno.EADDRINUSE: (
        "another process listens there",
        "stop it, or take another port: `--set {key}=0` means any that is free; `icestream doctor` looks at all ports",
    ),
    errno.EADDRNOTAVAIL: ("this machine has no such address", "set node.bind_host to one of its own"),
    errno.EACCES: ("this account may not", "set {key} to a port from 1024 on"),
}


def cannot_listen(key: str, host: str, port: int, error: OSError) -> errors.ConfigurationError:
    """`key`: the setting that names the port."""
    said = error.strerror or str(error)
    reason, hint = _REASONS.get(error.errno or 0, (said, "check node.bind_host and {key}"))
    return errors.ConfigurationError(f"cannot listen on {host}:{port}: {reason}", hint=hint.format(key=key))
