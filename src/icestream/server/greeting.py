"""What a start says to the person who started it."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from icestream.server.node import Node
from icestream.storage.native import native
from icestream.wal.recovery import RecoveryReport

GAPS_SHOWN = 10
TOPIC = "/default/hello"
DEFAULT_ADDRESS = "127.0.0.1:6651"  # where a command looks when nobody says where


def greeting(node: Node) -> Iterator[str]:
    settings, log = node.settings, node.log
    where = "in memory" if log is None else str(settings.wal.base_path)
    yield f"Icestream: the broker is ready ({where}), sync mode {settings.wal.sync_mode}"
    if native is None:
        yield "  without the native part: syncs run on the event loop, encoding and scanning in Python (slower)"
    if log is not None:
        for line in recovery_lines(log.report):
            yield f"  {line}"
        used, quota = log.upkeep.used_bytes, log.quota.node_bytes
        yield f"  {len(log.upkeep.files)} sealed files, {used} of {quota} bytes, {len(log.state.shards)} shards"
    yield f"  {len(node.broker.topics)} topics in {len(node.broker.topics.namespaces)} namespaces"
    host, around = settings.node.bind_host, node.around
    yield f"Listening: native {host}:{node.native.port}"
    if around.http.port:
        yield f"  health and metrics: http://{host}:{around.http.port}/readyz?verbose, /livez, /metrics"
    if around.lake is not None:
        port = settings.ports.lake or "any free port"
        yield f"  API, in a moment: http://{host}:{port}/api/v1 (the lake process)"
    yield "Try, in another terminal:"
    for command in commands(node):
        yield f"  {command}"
    yield "Stop with Ctrl-C."


def commands(node: Node) -> Iterator[str]:
    """Three that work as they stand, whatever the settings."""
    settings, port = node.settings, node.native.port
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.node.bind_host, settings.node.bind_host)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    at = "" if address == DEFAULT_ADDRESS else f" --address {address}"
    socket = shlex.quote(str(settings.local_socket.absolute()))
    program = shlex.quote(_program())
    yield f"echo hello | {program} produce {TOPIC}{at}"
    yield f"{program} consume {TOPIC}{at}"
    yield f"{program} topic describe {TOPIC}{at if node.around.local is None else f' --socket {socket}'}"


def _program() -> str:
    """How the command line is called here: by its name, in the folder of a checkout, or where Python is."""
    if shutil.which("icestream") is not None:
        return "icestream"
    if Path(".venv/bin/icestream").exists():
        return ".venv/bin/icestream"
    return str(Path(sys.executable).with_name("icestream"))


def recovery_lines(report: RecoveryReport) -> Iterator[str]:
    """What the start found and did, in sentences."""
    if report.clean:
        yield f"clean start at record {report.last_lsn}"
    else:
        yield (
            f"recovered: {report.records_scanned} records read, checkpoint at record {report.checkpoint_lsn}, "
            f"the log ends at record {report.last_lsn}"
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
