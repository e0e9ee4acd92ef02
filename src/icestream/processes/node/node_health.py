"""The health checks of a node, as `/readyz`, `icestream doctor` and `GET /api/v1/health` show them.

PROBES lists them in display order. A probe is a function of the node that returns Check rows from what the components
know already: it does no I/O and does not wait, because it runs on the event loop for every request. To add a check,
write the function beside its component or below, return no row where there is nothing to report, and list it.

A check is required (`Check.is_needed`: without it the node answers 503) only if a client fails at this node and would
succeed at another node, or would get wrong data. What affects every node of the cluster, or a single topic or
subscription, or will become a problem later, is informational and does not take the node out of a load balancer: that
would turn a partial failure into a total one. docs/operate.md has the table.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from icestream import limits
from icestream.metadata.node_store import NodeStore
from icestream.observability.health import Check, connections_check
from icestream.observability.log import get_logger
from icestream.observability.words import size_text

if TYPE_CHECKING:
    from icestream.processes.broker_process import BrokerNode
    from icestream.settings import Settings
    from icestream.wal.write_ahead_log import WriteAheadLog

OPENING: Final = "opening"
Probe = Callable[["BrokerNode"], Iterable[Check]]
_log = get_logger("server")


class DiskState(NamedTuple):
    """Space used by the log, its quota, and the free space of its file system."""

    used_bytes: int  # by the log, without reclaimable files
    quota_bytes: int  # of the log
    slow_bytes: int  # producers are slowed down above it
    is_quota_set: bool  # in the settings; else it is derived from the free space at the start
    free_bytes: int  # on the file system
    total_bytes: int
    file_bytes: int  # of a log file
    is_ballast_in_use: bool = False
    prepare_error: str = ""  # why the next log file could not be created


def checks(node: BrokerNode | None, *, is_starting: bool = False) -> list[Check]:
    """The rows of all probes; `node` is None while it starts. A probe that raises becomes a failed check.

    `is_starting`: only START_PROBES run, because the policy that decides about the others is not loaded yet.
    """
    if node is None:
        return [Check(name, False, OPENING) for name in ("metadata", "log", "broker")]
    rows = [check for probe in PROBES if not is_starting or probe in START_PROBES for check in _rows(probe, node)]
    return [*rows, Check("broker", False, OPENING)] if is_starting else rows


def _rows(probe: Probe, node: BrokerNode) -> list[Check]:
    try:
        return list(probe(node))
    except Exception as error:  # noqa: BLE001 (a bug in one check must not hide the others)
        _log.exception("a health check failed", check=probe.__name__)
        return [Check(probe.__name__, False, f"the check itself failed: {error!r}", is_needed=False)]


def metadata(node: BrokerNode) -> Iterator[Check]:
    store = node.store
    if not isinstance(store, NodeStore):
        yield Check("metadata", True, "in memory")
    elif store.stopped is not None:
        yield Check("metadata", False, str(store.stopped))
    else:
        yield Check("metadata", store.is_ready, "" if store.is_ready else "still reading its log")


def consensus(node: BrokerNode) -> Iterator[Check]:
    """Required: without a leader a node can neither write metadata nor read it consistently, while another node may be
    on the side of the majority."""
    if node.cluster is not None and isinstance(node.store, NodeStore) and node.store.stopped is None:
        raft = node.store.node
        silent_seconds = (node.clock.monotonic_ns() - raft.heard_ns) / 1e9
        yield leader_check(raft.leader, raft.leads or raft.leader == raft.id, silent_seconds, len(raft.members.voters))


def leader_check(leader: int, is_self: bool, silent_seconds: float, voters: int) -> Check:
    """`leader` is 0 for none.

    A leader without a majority steps down within an election timeout. A learner would never notice that its leader is
    gone, so the time since the last message of the leader counts too.
    """
    majority = f"{voters // 2 + 1} of {voters} voting nodes must reach each other"
    if not leader:
        return Check("consensus", False, f"no leader: metadata cannot be changed; {majority}")
    if is_self:
        return Check("consensus", True, "this node leads")
    if silent_seconds > limits.LEADER_SILENT_SECONDS_MAX:
        silent = f"the leader, node {leader:016x}, has been silent for {silent_seconds:.0f} s"
        return Check("consensus", False, f"{silent}: metadata cannot be changed; {majority}")
    return Check("consensus", True, f"node {leader:016x} leads")


def log(node: BrokerNode) -> Iterator[Check]:
    if node.log is None:
        yield Check("log", True, "in memory")
        return
    yield Check("log", node.log.stopped is None, str(node.log.stopped) if node.log.stopped is not None else "")


def disk(node: BrokerNode) -> Iterator[Check]:
    if node.log is None or node.settings.storage.type == "memory":
        return
    try:
        yield disk_check(disk_state(node.log, node.settings))
    except OSError as error:  # such as a directory that was removed or unmounted under the broker
        yield Check("disk", False, f"the free space cannot be read: {error}", is_needed=False)


def disk_state(log: WriteAheadLog, settings: Settings) -> DiskState:
    room = shutil.disk_usage(settings.wal.base_path)
    lifecycle, quota = log.lifecycle, log.quota
    return DiskState(
        lifecycle.held_bytes,
        quota.node_bytes,
        quota.slow_node_bytes,
        settings.wal.quota is not None,
        room.free,
        room.total,
        settings.wal.max_file_size,
        is_ballast_in_use=lifecycle.ballast.is_released,
        prepare_error=str(lifecycle.prepare_error) if lifecycle.prepare_error is not None else "",
    )


def disk_check(state: DiskState) -> Check:
    """Informational: consumers are served from a full disk too, and keeping clients away does not free space."""
    fault = _fault(state)
    usage = f"the log uses {size_text(state.used_bytes)} of {size_text(state.quota_bytes)}"
    return Check("disk", not fault, f"{fault}: {usage}" if fault else usage, is_needed=False)


def low_bytes(state: DiskState) -> int:
    """The free bytes below which a disk counts as nearly full."""
    share = min(int(state.total_bytes * limits.DISK_LOW_SHARE), limits.DISK_LOW_BYTES_MAX)
    return max(share, 2 * state.file_bytes)


def _fault(state: DiskState) -> str:
    free = f"{size_text(state.free_bytes)} of {size_text(state.total_bytes)} are free"
    if state.is_ballast_in_use:
        return "disk full: the emergency reserve (ballast) is in use"
    if state.prepare_error:
        return f"cannot create another log file: {state.prepare_error}"
    if state.used_bytes >= state.quota_bytes:
        return "quota reached: producers are refused"
    if state.used_bytes >= state.slow_bytes:
        return "quota nearly reached: producers are slowed down"
    if state.free_bytes < low_bytes(state):
        return f"disk nearly full ({free}); free some space"
    if not state.is_quota_set and state.quota_bytes < _usual_quota(state) * limits.QUOTA_FALLEN_SHARE:
        return (
            f"the quota fell with the free space ({free}; on an empty disk it would be "
            f"{size_text(_usual_quota(state))}); free some space, or set storage.iceberg_config.wal.quota"
        )
    if state.quota_bytes - state.used_bytes > state.free_bytes:
        return f"the free space is smaller than the rest of the quota ({free}); free some space, or lower the quota"
    return ""


def _usual_quota(state: DiskState) -> int:
    """The default quota on the same disk without other data (wal/admission.py)."""
    return min(state.total_bytes // 2, limits.NODE_QUOTA_BYTES_MAX_DEFAULT)


def fence(node: BrokerNode) -> Iterator[Check]:
    if node.fence is not None:
        yield node.fence.check()


def certificates(node: BrokerNode) -> Iterator[Check]:
    check = node.certificates.check(datetime.fromtimestamp(node.clock.wall_us() / 1e6, UTC))
    if check is not None:
        yield check


def broker(node: BrokerNode) -> Iterator[Check]:
    if node.broker.is_closing:
        yield Check("broker", False, "shutting down")
    else:
        yield Check("broker", node.broker.is_ready, "" if node.broker.is_ready else "still reading its topics")


def front_ends(node: BrokerNode) -> Iterator[Check]:
    for front_end in node.services.front_ends:
        yield from front_end.checks()


def subscriptions(node: BrokerNode) -> Iterator[Check]:
    """Informational: other subscriptions are served, and another node would have the same problem."""
    yield from node.broker.delivery_health.checks()


def ingest(node: BrokerNode) -> Iterator[Check]:
    check = node.ingest.check() if node.ingest is not None else None
    if check is not None:
        yield check


def connections(node: BrokerNode) -> Iterator[Check]:
    check = connections_check(node.services.rooms())
    if not check.ok:
        yield check


def children(node: BrokerNode) -> Iterator[Check]:
    around = node.services
    lake = around.lake_probe.check() if around.lake_probe is not None else None
    if lake is not None:
        yield lake
    if around.pipeline is not None:
        yield around.pipeline.check()


# In display order; the first required check that fails is the reason of the 503.
# What a node that starts tells to everyone: nothing of a topic or a client.
START_PROBES: Final[frozenset[Probe]] = frozenset((metadata, consensus, log, disk))
PROBES: Final[tuple[Probe, ...]] = (
    metadata,
    consensus,
    log,
    disk,
    broker,
    front_ends,
    subscriptions,
    ingest,
    connections,
    children,
    fence,
    certificates,
)
