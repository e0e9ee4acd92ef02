"""Bounds for silent connections: when to send a PING, when to try a second connection, when to give up. Pure.

    silent for `ping_seconds`      a PING is sent
    no answer in `doubt_seconds`   another connection to the same broker is tried beside it, with backoff
    the other one opens, and the   the new connection takes its place: the broker is alive, the old connection is dead
    old one stays silent for
    `grace_seconds`
    silent for `timeout_seconds`   the connection is lost, also when no other one opens

Why a second connection: TCP retransmits ever less often; after an outage of 20 s the next retransmission may come 25 s
later, so the old connection stays silent although the network is repaired. A new connection does not wait. And a broker
that is only slow answers on neither, so an overloaded broker does not lose its clients when it can least afford it.

A broker may also stop reading a connection on purpose (a stalled disk, a full log). It answers new connections then,
and a client that resends everything on a new connection would add to the load. So each replacement doubles the client's
patience, until a connection has lasted for CLIENT_STEADY_SECONDS.
"""

from __future__ import annotations

from typing import NamedTuple

from icestream import limits


class Liveness(NamedTuple):
    """The bounds of one connection; the table above says what each of them means."""

    ping_seconds: float
    doubt_seconds: float
    grace_seconds: float
    timeout_seconds: float

    @property
    def recovery_seconds(self) -> float:
        """The longest time from the repair of a network to a working connection, without the round trips.

        If the outage lasted until the connection was doubted: the wait for the next attempt, and the grace. After a
        shorter outage either TCP retransmits, which takes no longer than the outage took, or the connection is
        replaced, which takes the rest of ping and doubt, and the grace; the sooner of both counts.
        """
        silence = self.ping_seconds + self.doubt_seconds + self.grace_seconds
        return max(limits.CLIENT_RECONNECT_SECONDS_MAX + self.grace_seconds, silence / 2)


def liveness(heartbeat_seconds: float, replacements: int = 0) -> Liveness:
    """Returns the bounds. `replacements`: silent connections that were replaced one after the other."""
    heartbeat = heartbeat_seconds * min(2**replacements, limits.CLIENT_PATIENCE_MAX)
    timeout_seconds = max(heartbeat_seconds * limits.CLIENT_SILENT_HEARTBEATS_MAX, 2 * heartbeat)
    return Liveness(heartbeat, heartbeat / 2, heartbeat / 4, timeout_seconds)
