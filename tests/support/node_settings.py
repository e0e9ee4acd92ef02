"""Settings of a small node for tests: on the disk of the test, on free ports, without children."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icestream.settings import Settings


def node_settings(data_dir: Path, storage: str = "iceberg", *, managed: bool = False, **sections: Any) -> Settings:
    wal = {"max_file_size": 65536, "max_message_bytes": 8000, "spare_files": 0, "ballast": 0}
    iceberg = {"wal": wal | sections.pop("wal", {}), **sections.pop("iceberg", {})}
    tree: dict[str, Any] = {
        "data_dir": str(data_dir),
        "storage": {"type": storage, "iceberg_config": iceberg},
        "ports": {"native": 0, "broker_http": 0, "lake": 0, "danube": 0, "danube_admin": 0, "mqtt": 0, "mqtt_ws": 0},
        "lake": {"managed": managed},
        "pipeline": {"managed": False},
        "danube": {"enable": False},
        "mqtt": {"enable": False},
        **sections,
    }
    return Settings.model_validate(tree)
