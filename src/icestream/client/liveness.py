"""When a silent connection is asked for a sign of life, doubted, replaced and given up. Pure; in seconds.

    silent for `ask`            a PING is sent
    no answer in `doubt`        another connection to the same broker is tried beside it, again and again (`Backoff`)
    that one opens, and the     the new connection takes its place: the broker lives, the old connection does not
    old one is silent for
    `grace` more
    silent for `give_up`        the connection is lost, also when no other one opens

Why a second connection: TCP repeats lost packets ever more seldom, after an outage of 20 s up to 25 s later, and so
long the old connection stays silent although the network is repaired. A new connection does not wait. And a broker that
is only slow answers neither, so that a busy broker does not lose its clients at the moment at which it needs rest.

A broker may also leave a connection unread on purpose (a disk that stalls, a full log). It answers new connections
then, and a client that came back with all it has sent would add to the load. So after each replacement the client is
twice as patient, until a connection has lasted for CLIENT_STEADY_SECONDS.
"""

from __future__ import annotations

from typing import NamedTuple

from icestream import limits


class Liveness(NamedTuple):
    ask: float
    doubt: float
    grace: float
    give_up: float

    @property
    def recovery_seconds(self) -> float:
        """The longest time from the repair of a network to a connection that works, without the round trips.

        After an outage that lasted until the connection was doubted: the wait for the next try, and the grace. After a
        shorter one either TCP repeats what was lost, which takes it no longer than the outage took, or the connection
        is replaced, which takes the rest of `ask` and `doubt`, and the grace. The sooner counts.
        """
        return max(limits.CLIENT_RECONNECT_SECONDS_MAX + self.grace, (self.ask + self.doubt + self.grace) / 2)


def liveness(heartbeat_seconds: float, replacements: int = 0) -> Liveness:
    """`replacements`: silent connections that were replaced one after the other."""
    heartbeat = heartbeat_seconds * min(2**replacements, limits.CLIENT_PATIENCE_MAX)
    give_up = max(heartbeat_seconds * limits.CLIENT_SILENT_HEARTBEATS_MAX, 2 * heartbeat)
    return Liveness(heartbeat, heartbeat / 2, heartbeat / 4, give_up)
