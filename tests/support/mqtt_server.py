"""Brokers with MQTT in processes of their own, which a test may kill with SIGKILL and start again on the same data."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Protocol

from tests.support.free_ports import free_ports
from tests.support.mosquitto import Mosquitto
from tests.support.serve_process import ServeProcess


class MqttServer(Protocol):
    """One port and one data directory; the process behind them may change."""

    name: str
    port: int

    def start(self) -> None:
        """Returns when the port is open."""

    def kill(self) -> None:
        """SIGKILL: nothing is written any more."""

    def stop(self) -> None:
        """In order."""

    def close(self) -> None:
        """Whatever its state is, nothing is left."""


class IcestreamServer:
    """`icestream serve` with MQTT, and nothing that MQTT does not need. `settings`: by their keys."""

    name = "icestream"

    def __init__(self, folder: Path, settings: dict[str, object] | None = None) -> None:
        (self.port,) = free_ports(1)
        self.folder = folder
        settings = {
            "mqtt.enable": "true",
            "ports.mqtt": self.port,
            "storage.iceberg_config.wal.sync_mode": "periodic",  # kill -9 loses nothing in any mode
            "storage.iceberg_config.wal.max_file_size": "2MiB",
            "storage.iceberg_config.wal.max_message_bytes": "256KiB",
            **(settings or {}),
        }
        self._flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
        self._process: ServeProcess | None = None

    def start(self) -> None:
        self._process = ServeProcess(self.folder / "data", *self._flags, is_fork=True)
        with self._process.killed_on_failure():
            self._process.greeting()

    def kill(self) -> None:
        assert self._end(signal.SIGKILL) == -signal.SIGKILL, "the broker had ended by itself"

    def stop(self) -> None:
        assert self._end(signal.SIGTERM) == 0, "the broker did not stop in order"

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        code, _ = process.stop(number)
        return code

    def close(self) -> None:
        if self._process is not None:
            self._process.__exit__()


class MosquittoServer(Mosquitto):
    """mosquitto in the place of our broker, to hold the tests themselves against.

    It writes its sessions at intervals of minutes and at a stop in order, so SIGKILL loses them: it is stopped instead.
    """

    name = "mosquitto"

    def kill(self) -> None:
        self.stop()

    def close(self) -> None:
        if self.is_running:
            self.stop()
