"""Backups and restores as processes, with Spark: the command, the broker or the pipeline is killed with kill -9 while
the command stands before an effect. Then the same is typed again, and every message that was acked before the cut is
there once, at its offset, with equal bytes; consumers of a restored topic resume.

The cases follow from the lists of effects: some run always, all of them in `make chaos`. The same at every single call,
in one process: tests/unit/backup/test_interrupted_runs.py, test_interrupted_restores.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

import icestream
from icestream.backup.backup_run import BackupEffect
from icestream.processes.restore_run import RestoreEffect
from tests.support import struck_command
from tests.support.free_ports import free_ports
from tests.support.lake_run import is_running, until
from tests.support.pipeline_process import PipelineRun, state_of
from tests.support.serve_process import COMMAND

TOPIC = "/default/orders"
SECONDS_MAX = 180.0
# Off by default, and locks need a store: tests/contract/test_locked_backups.py
BACKUP_EFFECTS = [effect for effect in BackupEffect if effect not in (BackupEffect.MANIFEST, BackupEffect.LOCK)]
# Of restores beside a live topic.
RESTORE_EFFECTS = [effect for effect in RestoreEffect if effect not in (RestoreEffect.ACCOUNTS, RestoreEffect.SESSIONS)]
VICTIMS = ("command", "broker", "pipeline")
CARE = "care"  # nothing is killed: the pipeline commits, compacts, expires and cleans up meanwhile


class KilledBackups:
    """A broker with its pipeline and a target. `published` has every acked message of the topic by its offset."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._native, self._lake = free_ports(2)
        self.published: dict[int, bytes] = {}
        self.pipelines_killed = 0
        self._numbers = itertools.count()
        self._names = itertools.count()
        self.run = self._started()

    def _started(self) -> PipelineRun:
        flags = (
            f"ports.native={self._native}", f"ports.lake={self._lake}", f"backup.target={self._folder / 'backups'}",
            "broker.cursor_flush_ms=100ms",
        )  # fmt: skip
        return PipelineRun(self._folder / "data", *(part for flag in flags for part in ("--set", flag)))

    def close(self) -> None:
        self.run.__exit__(None)

    # --- clients ---

    def publish(self, count: int = 5) -> None:
        payloads = [b"message %d" % next(self._numbers) for _ in range(count)]
        with icestream.connect_sync(self.run.address) as client, client.producer(TOPIC) as producer:
            placed = producer.send_all(payloads)
        self.published.update(zip((message.offset for message in placed), payloads, strict=True))

    def consume(self, topic: str, count: int) -> list[tuple[int, bytes]]:
        """The next messages of subscription `s`, which are acked."""
        received = []
        with (
            icestream.connect_sync(self.run.address) as client,
            client.subscribe(topic, "s", start="earliest") as consumer,
        ):
            while len(received) < count:
                message = consumer.receive(60)
                assert message is not None, received
                received.append((message.offset, bytes(message.payload)))
                message.ack()
        return received

    # --- commands ---

    def command(self, *arguments: str) -> Any:
        """The JSON output of a command beside the broker."""
        return self.run.icestream("backup", *arguments, "--to", str(self._folder / "backups"))

    def stored(self, *arguments: str) -> Any:
        """The JSON output of a command that needs the target alone."""
        target = ("--to", str(self._folder / "backups"), "--output", "json")
        done = subprocess.run([*COMMAND, "backup", *arguments, *target], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(done.stdout)

    def strike(self, effect: str, victim: str, *arguments: str) -> str:
        """Runs a command, and kills the victim while it stands before the effect; returns its output, empty if it
        failed. A command that has no such effect ends by itself."""
        target = ("--to", str(self._folder / "backups"), "--output", "json")
        socket = ("--broker", str(self.run.data_dir / "broker.sock"))
        process = struck_command.start(effect, ["backup", *arguments, *target, *socket])
        until(lambda: state_of(process.pid) == "T" or process.poll() is not None, SECONDS_MAX)
        if process.poll() is None:
            self._kill(victim, process.pid)
        output, said = process.communicate(timeout=SECONDS_MAX)
        if victim in ("pipeline", CARE):
            assert process.returncode == 0, said
        return output if process.returncode == 0 else ""

    def _kill(self, victim: str, command: int) -> None:
        match victim:
            case "command":
                os.kill(command, signal.SIGKILL)
                return
            case "broker":
                self.run.kill()
                os.kill(command, signal.SIGCONT)
                until(lambda: not is_running(command) or state_of(command) == "Z", SECONDS_MAX)
                self.run = self._started()
            case "pipeline":
                # After many kills the next one is started after a pause, which is not waited for each time.
                if driver := self.run.driver_pid:
                    os.kill(driver, signal.SIGKILL)
                    self.pipelines_killed += 1
                self.publish(1)  # beyond the cut, or not
                os.kill(command, signal.SIGCONT)
            case "care":
                self.publish()
                self.run.icestream("lake", "commit-now", "--wait", "120")
                jobs = ("--only", "compact,expire,clean-up", "--wait", "120")
                self.run.icestream("lake", "maintain", "default.orders", *jobs)
                os.kill(command, signal.SIGCONT)

    def create(self, effect: str, victim: str) -> str:
        """A backup during which the victim was killed; returns its id. It has all that was published before."""
        expected = dict(self.published)
        known = {backup["id"] for backup in self.stored("list")}
        output = self.strike(effect, victim, "create")
        backup_id = json.loads(output)["id"] if output else ""
        if not output:
            begun = [backup for backup in self.stored("list") if backup["id"] not in known]
            backup_id = begun[0]["id"] if begun else ""
            is_cut = bool(backup_id) and any((self._folder / "backups/backups" / backup_id).glob("progress-*"))
            if is_cut:
                backup_id = self.command("create", "--resume", backup_id)["id"]
            elif not begun or begun[0]["state"] == "unfinished":
                if begun:
                    self.command("delete", backup_id, "--yes")
                backup_id = self.command("create")["id"]
        assert self.stored("verify", backup_id, "--deep") == []
        root = self.stored("show", backup_id)
        (topic,) = [topic for topic in root["topics"] if topic["name"] == TOPIC]
        assert topic["shards"][0]["end"] >= len(expected)
        assert not [*(self._folder / "backups").rglob("progress-*")], "nothing of the interruption is left"
        return backup_id

    def restore(self, backup_id: str, effect: str, victim: str) -> str:
        """A restore during which the victim was killed, and the same one again; returns the name of the topic."""
        name = f"again{next(self._names)}"
        chosen = ("restore", backup_id, "--topics", TOPIC, "--as", f"/default/{name}")
        output = self.strike(effect, victim, *chosen)
        if not output and not self._is_restored(name):
            self.command(*chosen)
        return name

    def _is_restored(self, name: str) -> bool:
        """True if the command was killed behind its last effect on the topic."""
        open_restores = self.run.api("restores")["items"]
        names = self.run.icestream("topic", "list")
        return f"/default/{name}" in [topic["topic"] for topic in names] and not open_restores

    def check_restored(self, backup_id: str, name: str) -> None:
        """Every message below the cut is there once with its bytes, and the consumer resumes."""
        root = self.stored("show", backup_id)
        (topic,) = [topic for topic in root["topics"] if topic["name"] == TOPIC]
        end = topic["shards"][0]["end"]
        expected = {offset: payload for offset, payload in self.published.items() if offset < end}
        with contextlib.closing(RestCatalog("ice", uri=self.run.uri)) as catalog:
            rows = catalog.load_table(f"default.{name}").scan().to_arrow()
        pairs = [*zip(rows["offset"].to_pylist(), rows["payload"].to_pylist(), strict=True)]
        assert len(pairs) == end
        assert dict(pairs) == expected
        # What was acked in the last moments before the cut comes again; nothing is skipped.
        received = self.consume(f"/default/{name}", 1)
        assert received[0][0] <= 5
        assert dict(received).items() <= expected.items()
        rest = self.consume(f"/default/{name}", end - received[0][0] - 1)
        assert [*received, *rest] == [(offset, expected[offset]) for offset in range(received[0][0], end)]
        report = self.run.verified(f"/default/{name}", "--deep")
        assert report["is_good"], report


@pytest.fixture
def backups(tmp_path: Path) -> Iterator[KilledBackups]:
    backups = KilledBackups(tmp_path)
    try:
        backups.publish(10)
        backups.consume(TOPIC, 5)
        backups.run.icestream("lake", "commit-now", "--wait", "120")
        backups.publish()
        yield backups
    finally:
        backups.close()


@pytest.mark.timeout(600)
def test_a_killed_backup_is_resumed_and_a_killed_restore_is_repeated(backups: KilledBackups) -> None:
    backup_id = backups.create(BackupEffect.COPY, "command")
    backups.check_restored(backup_id, backups.restore(backup_id, RestoreEffect.CREATE, "broker"))


@pytest.mark.chaos
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("victim", [*VICTIMS, CARE])
def test_a_backup_survives_kills_at_every_effect(backups: KilledBackups, victim: str) -> None:
    for effect in BACKUP_EFFECTS:
        backups.publish()
        backup_id = backups.create(effect, victim)
    backups.check_restored(backup_id, backups.restore(backup_id, "none", "command"))
    assert (backups.pipelines_killed > 2) is (victim == "pipeline")


@pytest.mark.chaos
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_restore_survives_kills_at_every_effect(backups: KilledBackups, victim: str) -> None:
    backup_id = backups.create("none", "command")
    for effect in RESTORE_EFFECTS:
        backups.check_restored(backup_id, backups.restore(backup_id, effect, victim))
