"""The configuration examples of the seeds load key for key; the two YAML texts are copied from them unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.settings import Settings, load

SEED_001 = """\
storage:
  type: "iceberg"
  iceberg_config:
    catalog:
      type: "rest"  # or "glue"
      uri: "http://localhost:8181"
      warehouse: "s3://danube-warehouse/"
      # For Glue catalog:
      # database: "danube_iceberg"
    object_store:
      type: "s3"
      bucket: "danube-messages"
      region: "us-east-1"
      # endpoint: "http://localhost:9000"  # For MinIO
      # path_style: true
    wal:
      base_path: "/var/lib/danube/wal"
      max_file_size: 67108864  # 64MB
      sync_mode: "periodic"
      sync_interval_ms: 1000
    warehouse: "s3://danube-warehouse/"
"""
SEED_004 = """\
meta_store:
  data_dir: "./danube-data/raft"
  seed_nodes:
    - "0.0.0.0:7650"
    - "0.0.0.0:7651"
    - "0.0.0.0:7652"
"""


def settings_of(text: str, tmp_path: Path) -> Settings:
    file = tmp_path / "broker.yml"
    file.write_text(text)
    return load(file).settings


def test_seed_001_storage(tmp_path: Path) -> None:
    settings = settings_of(SEED_001, tmp_path)
    iceberg = settings.storage.iceberg_config
    assert settings.storage.type == "iceberg"
    assert (iceberg.catalog.type, iceberg.catalog.uri) == ("rest", "http://localhost:8181")
    assert iceberg.catalog.warehouse == iceberg.warehouse == "s3://danube-warehouse/"
    store = iceberg.object_store
    assert (store.type, store.bucket, store.region) == ("s3", "danube-messages", "us-east-1")
    wal = iceberg.wal
    assert (wal.base_path, wal.max_file_size) == (Path("/var/lib/danube/wal"), 67108864)
    assert (wal.sync_mode, wal.sync_interval_ms) == ("periodic", 1000)
    assert settings.catalog_embedded


def test_seed_001_with_its_commented_lines(tmp_path: Path) -> None:
    lines = SEED_001.replace('# endpoint: "http://localhost:9000"  #', 'endpoint: "http://localhost:9000" #')
    lines = lines.replace("# path_style", "path_style")
    lines = lines.replace('type: "rest"  # or "glue"', 'type: "glue"').replace("# database", "database")
    iceberg = settings_of(lines, tmp_path).storage.iceberg_config
    assert (iceberg.object_store.endpoint, iceberg.object_store.path_style) == ("http://localhost:9000", True)
    assert (iceberg.catalog.type, iceberg.catalog.database) == ("glue", "danube_iceberg")


def test_seed_004_meta_store(tmp_path: Path) -> None:
    meta_store = settings_of(SEED_004, tmp_path).meta_store
    assert meta_store.data_dir == Path("danube-data/raft")
    assert meta_store.seed_nodes == ("0.0.0.0:7650", "0.0.0.0:7651", "0.0.0.0:7652")


def test_both_examples_in_one_file(tmp_path: Path) -> None:
    settings = settings_of(SEED_001 + SEED_004, tmp_path)
    assert settings.wal.sync_mode == "periodic"
    assert len(settings.meta_store.seed_nodes) == 3


def test_seed_003_backup_knobs(tmp_path: Path) -> None:
    text = "backup:\n  iceberg: {enable: true, warehouse: w, namespace: a.b, table: t, manifest_prefix: m}\n"
    backup = settings_of(text, tmp_path).backup.iceberg
    assert backup.model_dump() == {
        "enable": True,
        "warehouse": "w",
        "namespace": "a.b",
        "table": "t",
        "manifest_prefix": "m",
        "strict": False,
    }
    assert not Settings.default().backup.iceberg.enable


@pytest.mark.parametrize("name", ["writer_batch_size", "writer_flush_interval_ms", "writer_max_memory_bytes"])
def test_seed_000_writer_knobs(name: str, tmp_path: Path) -> None:
    settings = settings_of(f"storage:\n  iceberg_config:\n    {name}: 2000000\n", tmp_path)
    assert getattr(settings.storage.iceberg_config, name) == 2_000_000


def test_seed_000_in_memory(tmp_path: Path) -> None:
    assert settings_of("storage: {type: InMemory}", tmp_path).storage.type == "memory"
