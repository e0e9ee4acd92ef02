"""A mosquitto of its own for a test: the oracle that our broker and the tests themselves are held against."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.support.free_ports import free_ports

START_SECONDS: Final = 20.0


def mosquitto_path() -> str | None:
    """The program; None if it is not installed. Debian puts it where only root's PATH looks."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class Mosquitto:
    """Listens on `port` of 127.0.0.1. `settings`: more lines of mosquitto.conf."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        self.port = free_ports(1)[0]
        self._folder = folder
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = mosquitto_path()
        assert program is not None, "mosquitto is not installed"
        configuration = self._folder / "mosquitto.conf"
        configuration.write_text(
            # `user`: where root starts it, it would become one that may not write here.
            f"user {getpass.getuser()}\nlistener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
            f"persistence_location {self._folder}/\nmax_queued_messages 100000\n{self._settings}"
        )
        log = (self._folder / "mosquitto.log").open("ab")
        with log:
            self._process = subprocess.Popen([program, "-c", str(configuration)], stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise AssertionError(f"mosquitto ended: {(self._folder / 'mosquitto.log').read_text()}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("mosquitto does not listen")

    def stop(self) -> None:
        """In order: it writes its sessions."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(START_SECONDS)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Mosquitto:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
