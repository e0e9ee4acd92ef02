"""The broker that MQTT suites run against: a fresh one of ours with the test profile, or a stand-in.

MQTT_BROKER chooses: empty for ours, `mosquitto` for a fresh mosquitto (a check of the suites themselves, and an
oracle), `HOST:PORT` for one that runs already.

The profile is mqtt_profile.yml, which says why each line is there.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from conformance.kit import ROOT, Missing
from tests.support.free_ports import free_ports
from tests.support.mosquitto import Mosquitto, mosquitto_path
from tests.support.serve_process import ServeProcess

PROFILE: Final = ROOT / "conformance" / "mqtt_profile.yml"
VARIABLE: Final = "MQTT_BROKER"


def broker_name() -> str:
    """What is tested, for reports."""
    return os.environ.get(VARIABLE) or "icestream"


@contextlib.contextmanager
def started_broker() -> Iterator[tuple[str, int]]:
    """Host and port of MQTT. Raises Missing."""
    name = broker_name()
    host, _, port = name.rpartition(":")
    if port.isdigit():
        yield host or "127.0.0.1", int(port)
        return
    with tempfile.TemporaryDirectory(prefix="icestream-conformance-") as folder:
        if name == "mosquitto":
            if mosquitto_path() is None:
                raise Missing("mosquitto is not installed: `apt install mosquitto`")
            with Mosquitto(Path(folder)) as mosquitto:
                yield "127.0.0.1", mosquitto.port
        elif name == "icestream":
            (port_number,) = free_ports(1)
            settings = {
                "mqtt.enable": "true",
                "ports.mqtt": port_number,
                "storage.iceberg_config.wal.max_file_size": "64MiB",
                "storage.iceberg_config.wal.max_message_bytes": "1MiB",
            }
            flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
            options = ("--config", str(PROFILE), *flags, "--output", "json")
            with ServeProcess(Path(folder) / "data", *options) as broker:
                broker.announcement()
                yield "127.0.0.1", port_number
        else:
            raise Missing(f"{VARIABLE} is {name!r}, not `mosquitto` or HOST:PORT")
