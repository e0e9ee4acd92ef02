"""The open files that the system allows this process: connections and the files of the log share them.

A listener with a bound above the system's limit would take the last descriptor, and the log could not open its next
file. So the process raises its limit at the start, and each listener gets a share of it.
"""

from __future__ import annotations

import resource
from typing import Final

# Files of the log, the metadata store and libraries, beside the connections.
OWN: Final = 256
# However little is allowed, a listener has places for some clients.
CONNECTIONS_MIN: Final = 16


def raise_open_files(requested: int) -> None:
    """Raises the soft limit to `requested`, as far as the hard limit allows. Never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= requested:
        return
    target = requested if hard == resource.RLIM_INFINITY else min(requested, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, target), hard))


def connections_allowed(requested: int, share: float) -> int:
    """The bound of a listener: `requested` connections, but at most `share` of the descriptors."""
    return connections_within(resource.getrlimit(resource.RLIMIT_NOFILE)[0], requested, share)


def connections_within(allowed: int, requested: int, share: float) -> int:
    """Like `connections_allowed`, for a process that may open `allowed` files (below 0: any number). Pure."""
    if allowed == resource.RLIM_INFINITY or allowed < 0:
        return requested
    return max(CONNECTIONS_MIN, min(requested, int((allowed - OWN) * share)))
