"""The greeting that `icestream serve` prints when the broker is ready, and the same facts as JSON for programs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from icestream.catalogs.topic_table_name import table_for_topic
from icestream.cluster.cluster_node import ClusterNode
from icestream.cluster.members import voters_wanted
from icestream.cluster.node_info import NodeInfo
from icestream.frontends.front_end import local_address
from icestream.frontends.mqtt.mqtt_front_end import MqttFrontEnd
from icestream.frontends.native.native_front_end import NativeFrontEnd
from icestream.model.topic_name import TopicName
from icestream.observability.words import counted, size_text
from icestream.processes.component_options import fixed_namespace
from icestream.processes.node import node_health as health
from icestream.processes.node.presentation.program_path import program_path
from icestream.runtime.native import native
from icestream.settings import Settings
from icestream.settings.derive import DATA_DIR_DEFAULT
from icestream.wal.recovery import RecoveryReport

if TYPE_CHECKING:
    from icestream.processes.broker_process import BrokerNode

GAPS_SHOWN = 10
TOPIC = TopicName("default", "hello")
DEFAULT_ADDRESS = "127.0.0.1:6651"  # the default of the --broker option


def greeting(node: BrokerNode) -> Iterator[str]:
    settings, log = node.settings, node.log
    where = "in memory" if log is None else str(settings.wal.base_path)
    yield f"Icestream: the broker is ready ({where}), sync mode {settings.wal.sync_mode}"
    if node.cluster is not None:
        yield f"  {_cluster_line(node, node.cluster)}"
    if native is None:
        yield "  without the native part: syncs run on the event loop, encoding and scanning in Python (slower)"
    if log is not None:
        for line in recovery_lines(log.report):
            yield f"  {line}"
    yield f"  {_contents(node)}"
    for warning in startup_warnings(node):
        yield f"  warning: {warning}"
    services = node.services
    first, *others = [line for front_end in services.front_ends for line in front_end.greeting_lines()]
    yield f"Listening: {first}"
    for line in others:
        yield f"  {line}"
    if services.lake is not None:
        yield from _lake_lines(node)
    yield "Try, in another terminal:"
    for command in example_commands(node):
        yield f"  {command}"
    yield "Stop with Ctrl-C."


def startup_warnings(node: BrokerNode) -> list[str]:
    """Problems that do not stop the broker now, but will."""
    checks = (*health.disk(node), *health.certificates(node))
    return [f"{check.name}: {check.reason}" for check in checks if not check.ok]


def _lake_lines(node: BrokerNode) -> Iterator[str]:
    """A free port that the lake process chooses itself is not known yet; the health endpoint shows it later."""
    settings = node.settings
    if not settings.ports.lake:
        services = "HTTP API and Iceberg REST catalog" if settings.catalog_embedded else "HTTP API"
        health = f"{_url(node, 'http', node.services.http.port)}/readyz?verbose"
        yield f"  {services} (starting): at a free port, see `lake` in {health}"
        return
    url = _url(node, "lake", settings.ports.lake)
    yield f"  HTTP API (starting): {url}/api/v1"
    if settings.catalog_embedded:
        yield f"  Iceberg REST catalog: {url}"


def catalog_url(node: BrokerNode) -> str:
    """The URL of the embedded catalog; empty without one, or while its port is unknown."""
    settings, lake = node.settings, node.services.lake
    port = settings.ports.lake or (lake.port if lake is not None else 0)
    return _url(node, "lake", port) if settings.catalog_embedded and port else ""


def _cluster_line(node: BrokerNode, cluster: ClusterNode) -> str:
    info = cluster.info()
    leader = node.broker.topics.owners.find_node(f"{info.leader:016x}") if info.leader else None
    leads = f"{leader.name} is the leader" if leader is not None else "no leader yet"
    if info.leader == info.node:
        leads = "this node is the leader"
    members = members_text(info, len(node.settings.meta_store.seed_nodes))
    return (
        f"node {node.settings.node.name} of cluster {info.cluster.hex()[:8]}: {leads}; {members}; "
        f"other nodes reach it at {cluster.address}"
    )


def members_text(info: NodeInfo, seeds: int) -> str:
    """The members of the cluster. A first start is ready as soon as there is a leader, while others still join."""
    members, votes = len(info.voters) + len(info.learners), len(info.voters)
    nodes = max(members, seeds)
    voters = voters_wanted(nodes)
    summary = f"{counted(votes, 'voter')}, {counted(len(info.learners), 'learner')}"
    if members < seeds or votes < voters:
        are, vote = "is" if members == 1 else "are", "votes" if votes == 1 else "vote"
        so_far = f"{members} of {nodes} nodes {are} in it so far, {votes} of {voters} voters {vote}"
        return f"{so_far}; the others follow once they are there"
    if info.node not in (*info.voters, *info.learners):
        return f"this node is being let in; {summary} as far as it knows"
    return summary


def announcement(node: BrokerNode) -> dict[str, object]:
    """The JSON document for programs: addresses and state. The lake port is null unless it is configured."""
    settings, services = node.settings, node.services
    log = node.log
    api = _url(node, "lake", settings.ports.lake) if services.lake is not None and settings.ports.lake else None
    return {
        "ready": True,
        "pid": os.getpid(),
        "data_dir": str(settings.data_dir.absolute()),
        **{name: address for front_end in services.front_ends for name, address in front_end.addresses().items()},
        "socket": str(settings.local_socket.absolute()) if services.local is not None else None,
        "api": f"{api}/api/v1" if api is not None else None,
        "catalog": api if settings.catalog_embedded else None,
        "raft": node.cluster.address if node.cluster is not None else None,
        "node": f"{node.cluster.id:016x}" if node.cluster is not None else None,
        "cluster": node.cluster.identity.cluster_id.hex() if node.cluster is not None else None,
        "storage": settings.storage.type,
        "sync_mode": settings.wal.sync_mode,
        "topics": len(node.broker.topics),
        "clean_start": log.report.clean if log is not None else True,
        "new_gaps": len(log.report.gaps) if log is not None else 0,
        "warnings": startup_warnings(node),
    }


def _contents(node: BrokerNode) -> str:
    contents = counted(len(node.broker.topics), "topic")
    if node.log is None:
        return contents
    used, quota = node.log.lifecycle.used_bytes, node.log.quota.node_bytes
    return f"{contents}, the log uses {size_text(used)} of {size_text(quota)}"


def _url(node: BrokerNode, listener: str, port: int) -> str:
    scheme = "http" if node.services.tls(listener) is None else "https"
    return f"{scheme}://{local_address(node.settings.node.bind_host, port)}"


def example_commands(node: BrokerNode) -> Iterator[str]:
    """Commands that work as printed, with these settings."""
    settings = node.settings
    address = local_address(settings.node.bind_host, node.services.front_end(NativeFrontEnd).port)
    broker_option = "" if address == DEFAULT_ADDRESS else f" --broker {address}"
    if node.services.tls(NativeFrontEnd.name) is not None and node.services.local is not None:
        broker_option = _socket_option(settings)  # which tells commands the certificate
    program = shlex.quote(program_path())
    yield f"echo hello | {program} produce {TOPIC}{broker_option}"
    yield f"{program} consume {TOPIC}{broker_option}"
    admin_option = broker_option if node.services.local is None else _socket_option(settings)
    yield f"{program} topic describe {TOPIC}{admin_option}"
    mqtt = node.services.front_end(MqttFrontEnd)
    if mqtt.port and node.services.tls(mqtt.name) is None:
        host, _, port = local_address(settings.node.bind_host, mqtt.port).rpartition(":")
        host = host.strip("[]")
        place = ("" if host == "127.0.0.1" else f" -h {host}") + ("" if port == "1883" else f" -p {port}")
        yield f"mosquitto_pub{place} -q 1 -t sensors/1/temperature -m 21.5   # or any other client of MQTT"
    if node.cluster is not None and node.services.local is not None:
        yield f"{program} cluster status{_socket_option(settings)}"
    if node.services.pipeline is not None and node.services.local is not None:
        table = table_for_topic(TOPIC, fixed_namespace(settings))
        yield f"{program} lake commit-now{_socket_option(settings)}   # the same message as a row: {table}"


def _socket_option(settings: Settings) -> str:
    """Empty if commands find the local socket by default."""
    if str(settings.data_dir) == DATA_DIR_DEFAULT:
        return ""
    return f" --broker {shlex.quote(str(settings.data_dir.absolute()))}"


def recovery_lines(report: RecoveryReport) -> Iterator[str]:
    """The results of recovery, a sentence for each."""
    if report.clean and not report.last_lsn:
        yield "a new log"
    elif report.clean:
        yield f"clean start at record {report.last_lsn}"
    else:
        yield (
            f"recovered: {counted(report.records_scanned, 'record')} read, "
            f"checkpoint at record {report.checkpoint_lsn}, the log ends at record {report.last_lsn}"
        )
    if report.rewritten_file:
        yield f"{report.rewritten_file} was not sealed: written anew and synced"
    if report.tail_bytes:
        yield f"{report.tail_bytes} bytes of unfinished writes, which no sync had reached, cut from {report.tail_file}"
    if report.sync_failed_before:
        yield "a sync failed in the last run: check the disk; what was unsealed has been written anew"
    for name in report.bad_checkpoints:
        yield f"{name} was not readable; the older checkpoint and more of the log were used"
    for gap in report.gaps[:GAPS_SHOWN]:
        yield f"declared gap: {gap.key} offsets {gap.start} to {gap.end - 1} ({gap.reason})"
    if len(report.gaps) > GAPS_SHOWN:
        yield f"and {len(report.gaps) - GAPS_SHOWN} more declared gaps: icestream wal inspect lists them"
