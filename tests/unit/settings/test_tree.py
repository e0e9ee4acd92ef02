"""Defaults, derived defaults and the rules between keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from icestream import errors, limits
from icestream.settings import KEYS, Settings, WalSection, load
from icestream.settings.keys import SECRET_MASK, value_at
from icestream.settings.mqtt_section import parse_route

WAL = "storage.iceberg_config.wal"
ICEBERG = "storage.iceberg_config"
GLUE = (f"{ICEBERG}.catalog.type=glue", f"{ICEBERG}.catalog.database=d")


def settings_with(*flags: str) -> Settings:
    return load(flags=flags).settings


def refused(*flags: str) -> str:
    with pytest.raises(errors.ConfigurationError) as caught:
        load(flags=flags)
    return str(caught.value)


def test_without_settings_a_node_is_complete_and_local() -> None:
    settings = Settings.default()
    assert settings.storage.type == "iceberg"
    assert settings.catalog_embedded
    assert settings.wal.base_path == Path("icestream-data/wal")
    assert settings.meta_store.data_dir == Path("icestream-data/raft")
    warehouse = Path.cwd() / "icestream-data/warehouse"
    assert settings.storage.iceberg_config.warehouse == settings.catalog.warehouse == f"file:{warehouse}"
    assert settings.storage.iceberg_config.object_store.path == Path("icestream-data/warehouse")
    assert (settings.wal.sync_mode, settings.wal.align_bytes) == ("always", 8)
    assert settings.wal.max_file_size == limits.LOG_FILE_BYTES_DEFAULT
    assert settings.wal.quota is None
    assert settings.node.bind_host == "127.0.0.1"


def test_the_ports_of_the_design() -> None:
    assert Settings.default().ports.model_dump() == {
        "danube": 6650,
        "danube_admin": 50051,
        "native": 6651,
        "mqtt": 1883,
        "mqtt_ws": 8083,
        "lake": 8181,
        "broker_http": 9040,
        "pipeline_metrics": 9041,
        "raft": 7650,
    }


def test_directories_follow_data_dir_unless_set(tmp_path: Path) -> None:
    settings = settings_with(f"data_dir={tmp_path}", f"meta_store.data_dir={tmp_path}/elsewhere")
    assert settings.wal.base_path == tmp_path / "wal"
    assert settings.meta_store.data_dir == tmp_path / "elsewhere"
    assert settings.catalog.warehouse == f"file:{tmp_path}/warehouse"


def test_a_data_dir_with_dots_and_spaces_gives_a_plain_warehouse(tmp_path: Path) -> None:
    settings = settings_with(f"data_dir={tmp_path}/a b/../c d")
    assert settings.catalog.warehouse == f"file:{tmp_path}/c d/warehouse"


@pytest.mark.parametrize(
    ("route", "parts"),
    [
        ("# -> /mqtt/messages", ("#", 0, "/mqtt/messages")),
        ("sensors/+/t qos 1 -> /plant/sensors", ("sensors/+/t", 1, "/plant/sensors")),
        (" a b/c -> d -> /x/y ", ("a b/c -> d", 0, "/x/y")),
        ("$SYS/# qos 2 -> /x/y", ("$SYS/#", 2, "/x/y")),
        ("a/# -> /x/y keep 7d", ("a/#", 0, "/x/y", 7 * 86_400_000)),
        ("a/# qos 1 -> /x/y keep 10GiB 90m", ("a/#", 1, "/x/y", 5_400_000, 10 * 2**30)),
    ],
)
def test_a_route_of_mqtt_has_a_filter_a_minimum_qos_and_a_topic(route: str, parts: tuple[Any, ...]) -> None:
    assert parse_route(route) == (*parts, *(0, 0)[len(parts) - 3 :])
    assert settings_with(f"mqtt.replay={route}").mqtt.replay == (route.strip(),)


@pytest.mark.parametrize(
    "route",
    ["", "#", "-> /a/b", "# -> ", "# -> a/b", "# -> /a", "# -> /a/b/c", "#/a -> /a/b", "a+ -> /a/b",
     "# -> /a/b keep", "# -> /a/b keep 7", "# -> /a/b keep 1d 2d", "# -> /a/b keep 0d", "# -> /a/b keep 1d 2GB 3",
     "a qos 3 -> /a/b c", "$share/g/a -> /a/b", "$replay/-1h/a -> /a/b", "a\0b -> /a/b", f"{'a/' * 128}a -> /a/b"],
)  # fmt: skip
def test_a_malformed_route_is_refused(route: str) -> None:
    assert parse_route(route) is None


def test_routes_to_one_topic_keep_the_same() -> None:
    same = '["a/# -> /x/y keep 7d", "b/# -> /x/y keep 7d", "# -> /x/z"]'
    assert len(settings_with(f"mqtt.replay={same}").mqtt.replay) == 3
    with pytest.raises(errors.ConfigurationError, match="two routes to /x/y keep its messages"):
        settings_with('mqtt.replay=["a/# -> /x/y keep 7d", "b/# -> /x/y"]')


def test_mqtt_needs_a_route() -> None:
    assert "topic of its last route" in refused("mqtt.replay=[]")


@pytest.mark.parametrize(
    "flag",
    ["mqtt.proxy_protocol_from=10.0.0.0/33", "mqtt.proxy_protocol_from=lb.example", "mqtt.refused_filters=a#",
     "mqtt.websocket_path=mqtt", "mqtt.websocket_origins=example.com", "mqtt.session_expiry_default_s=31d"],
)  # fmt: skip
def test_wrong_settings_of_mqtt_are_refused(flag: str) -> None:
    assert flag.partition("=")[0] in refused(flag)


def test_a_tree_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings.default().log.level = "debug"  # type: ignore[misc]


def test_one_warehouse_key_sets_both() -> None:
    outer = settings_with(f"{ICEBERG}.warehouse=s3://a/")
    inner = settings_with(f"{ICEBERG}.catalog.warehouse=s3://a/")
    assert outer.catalog.warehouse == inner.storage.iceberg_config.warehouse == "s3://a/"


def test_two_different_warehouses_are_refused_with_both() -> None:
    message = refused(f"{ICEBERG}.warehouse=s3://a/", f"{ICEBERG}.catalog.warehouse=s3://b/")
    assert "s3://a/" in message
    assert "s3://b/" in message


def test_a_trailing_slash_is_the_same_warehouse() -> None:
    settings = settings_with(f"{ICEBERG}.warehouse=s3://a", f"{ICEBERG}.catalog.warehouse=s3://a/")
    assert settings.catalog.warehouse == "s3://a/"


@pytest.mark.parametrize("warehouse", ["file:/w/h", "file:///w/h", "/w/h"])
def test_a_local_store_has_a_file_warehouse(warehouse: str) -> None:
    assert settings_with(f"{ICEBERG}.warehouse={warehouse}").storage.iceberg_config.object_store.path == Path("/w/h")


def test_the_warehouse_is_the_root_of_the_object_store() -> None:
    store = f"{ICEBERG}.object_store"
    assert settings_with(f"{store}.type=s3", f"{store}.bucket=b").catalog.warehouse == "s3://b/"
    assert settings_with(f"{store}.path=/w/h").catalog.warehouse == "file:/w/h"
    assert settings_with(f"{store}.type=memory").catalog.warehouse == "memory://warehouse/"


@pytest.mark.parametrize(
    "flags",
    [
        (f"{ICEBERG}.catalog.uri=http://localhost:8181",),
        (f"{ICEBERG}.catalog.uri=http://127.0.0.1:8181/",),
        (f"{ICEBERG}.catalog.uri=http://[::1]:8181",),
        (f"{ICEBERG}.catalog.uri=http://LOCALHOST:9000", "ports.lake=9000"),
        (f"{ICEBERG}.catalog.uri=http://10.0.0.5:8181", "node.bind_host=10.0.0.5", "node.allow_insecure_bind=true"),
        ("ports.lake=0",),
        ("node.bind_host=::1",),
        ("node.bind_host=0.0.0.0", "node.allow_insecure_bind=true"),
    ],
)
def test_a_rest_uri_at_the_nodes_own_address_is_the_embedded_catalog(flags: tuple[str, ...]) -> None:
    assert settings_with(*flags).catalog_embedded


def test_the_default_catalog_address_is_usable_by_a_client() -> None:
    everywhere = settings_with("node.bind_host=0.0.0.0", "node.allow_insecure_bind=true", "ports.lake=9000")
    assert everywhere.catalog.uri == "http://127.0.0.1:9000"
    assert settings_with("node.bind_host=::1").catalog.uri == "http://[::1]:8181"


@pytest.mark.parametrize(
    "flags",
    [
        (f"{ICEBERG}.catalog.uri=http://localhost:8182",),
        (f"{ICEBERG}.catalog.uri=http://localhost:8181", "ports.lake=9000"),
        (f"{ICEBERG}.catalog.uri=http://catalog.example.org:8181",),
        (f"{ICEBERG}.catalog.uri=https://localhost:8181",),
        (f"{ICEBERG}.catalog.uri=http://localhost",),
        (*GLUE, f"{ICEBERG}.catalog.uri=http://localhost:8181"),
        GLUE,
    ],
)
def test_any_other_catalog_is_a_foreign_one(flags: tuple[str, ...]) -> None:
    assert not settings_with(*flags).catalog_embedded


@pytest.mark.parametrize("kind", ["local", "remote", "disk", "segment", "Local", "", "in-memory", "ICEBERG"])
def test_another_storage_type_is_refused_with_the_reason(kind: str) -> None:
    message = refused(f"storage.type={kind}")
    assert "storage.type" in message
    assert "Iceberg is the only persistent store" in message
    assert "segment store" in message


@pytest.mark.parametrize("kind", ["memory", "InMemory"])
def test_memory_is_for_tests(kind: str) -> None:
    assert settings_with(f"storage.type={kind}").storage.type == "memory"


def test_a_log_file_must_fit_four_of_the_largest_messages() -> None:
    message = refused(f"{WAL}.max_file_size=8MiB")
    assert "`max_file_size` 8MiB" in message
    assert "`max_message_bytes` 4MB" in message
    needed = 4 * (4_000_000 + limits.RECORD_OVERHEAD_BYTES_MAX)
    fits = 2 * limits.MIB - limits.RECORD_OVERHEAD_BYTES_MAX
    assert f"at least {needed} bytes" in message
    assert f"at most {fits}" in message
    assert settings_with(f"{WAL}.max_file_size={needed}").wal.max_file_size == needed
    assert settings_with(f"{WAL}.max_file_size=8MiB", f"{WAL}.max_message_bytes={fits}").wal.max_message_bytes == fits
    refused(f"{WAL}.max_file_size={needed - 1}")
    refused(f"{WAL}.max_file_size=8MiB", f"{WAL}.max_message_bytes={fits + 1}")


def test_the_smallest_file_can_be_used_with_small_messages() -> None:
    wal = WalSection(base_path=Path("x"), max_file_size=limits.LOG_FILE_BYTES_MIN, max_message_bytes=8 * limits.KIB)
    assert wal.max_file_size == 64 * limits.KIB


@pytest.mark.parametrize("value", ["63KiB", "2049MiB", "0"])
def test_the_file_size_has_bounds(value: str) -> None:
    assert "must be a size from 64KiB to 2GiB" in refused(f"{WAL}.max_file_size={value}")


def test_in_flight_bytes_must_have_room_for_one_message() -> None:
    assert "`in_flight_bytes` 1MB has no room" in refused(f"{WAL}.in_flight_bytes=1MB")


def test_a_topic_quota_is_at_most_the_quota() -> None:
    assert "`topic_quota` (2GiB) is above `quota` (1GiB)" in refused(f"{WAL}.quota=1GiB", f"{WAL}.topic_quota=2GiB")
    assert settings_with(f"{WAL}.quota=1GiB", f"{WAL}.topic_quota=1GiB").wal.topic_quota == limits.GIB
    assert settings_with(f"{WAL}.topic_quota=1GiB").wal.quota is None


@pytest.mark.parametrize("value", ["8", "512", "4096"])
def test_alignments(value: str) -> None:
    assert settings_with(f"{WAL}.align_bytes={value}").wal.align_bytes == int(value)


@pytest.mark.parametrize("value", ["0", "16", "1024", "true", "eight"])
def test_other_alignments_are_refused(value: str) -> None:
    assert "must be 8 or 512 or 4096" in refused(f"{WAL}.align_bytes={value}")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "broker-1"])
def test_binding_beyond_loopback_needs_tls_or_the_explicit_flag(host: str) -> None:
    message = refused(f"node.bind_host={host}")
    assert "native, http, danube, mqtt, lake could be overheard: no TLS" in message
    assert "`icestream security init`" in message, "the first way out"
    assert "node.allow_insecure_bind" in message, "the second"
    tls = ("tls.certificate=a.pem", "tls.key=a.key")
    assert settings_with(f"node.bind_host={host}", *tls).needs_accounts
    assert "clients of http could be overheard" in refused(f"node.bind_host={host}", *tls, "tls.http.enable=false")
    assert not settings_with(f"node.bind_host={host}", "node.allow_insecure_bind=true").needs_accounts
    assert settings_with(f"node.bind_host={host}", "node.allow_insecure_bind=true").node.bind_host == host


def test_two_services_cannot_share_a_fixed_port() -> None:
    assert "`native` and `danube` both use port 6650" in refused("ports.native=6650")
    assert settings_with("ports.native=0", "ports.danube=0").ports.native == 0


def test_required_keys_of_each_kind_are_checked() -> None:
    assert "needs a `bucket`" in refused(f"{ICEBERG}.object_store.type=s3")
    assert "needs a `database`" in refused(f"{ICEBERG}.catalog.type=glue")


def test_seed_nodes_are_few_different_addresses() -> None:
    assert "lists a:1 more than once" in refused("meta_store.seed_nodes=a:1,b:1,a:1")
    many = ",".join(f"a:{port}" for port in range(1, limits.SEED_NODES_MAX + 2))
    assert "too many" in refused(f"meta_store.seed_nodes={many}")
    assert "item 2 must be an address" in refused("meta_store.seed_nodes=a:1,b")


def test_rules_hold_without_the_loader_too() -> None:
    tree: dict[str, Any] = {"storage": {"iceberg_config": {"wal": {"max_file_size": "64KiB"}}}}
    with pytest.raises(ValidationError, match="does not hold 4 messages"):
        Settings.model_validate(tree)


def test_every_key_is_described_and_shows_its_default() -> None:
    assert len(KEYS) > 40
    for key in KEYS.values():
        assert len(key.description) >= 5, key.path
        assert key.description.endswith("."), key.path
        assert key.allowed, key.path
        assert key.default is not None or key.optional or key.default_words, key.path


def test_only_some_keys_are_online() -> None:
    online = {path for path, key in KEYS.items() if key.online}
    assert {"log.level", f"{WAL}.quota", "backup.iceberg.enable", "backup.iceberg.table"} <= online
    assert not online & {"data_dir", f"{WAL}.base_path", f"{WAL}.align_bytes", f"{WAL}.sync_mode", "ports.danube"}


CATALOG, STORE = f"{ICEBERG}.catalog", f"{ICEBERG}.object_store"
SECRETS = [
    f"{CATALOG}.{name}"
    for name in ("token", "credential", "headers", "access_key_id", "secret_access_key", "session_token", "password")
] + [f"{STORE}.{name}" for name in ("access_key_id", "secret_access_key", "session_token", "account_key")]


@pytest.mark.parametrize("path", SECRETS)
def test_credentials_are_never_shown(path: str) -> None:
    secret = "X-Key: hunter2" if path.endswith("headers") else "hunter2"
    pair = {"access_key_id": "secret_access_key", "secret_access_key": "access_key_id"}
    section, _, name = path.rpartition(".")
    more = [f"{section}.{pair[name]}=hunter2"] if name in pair else []
    settings = settings_with(f"{path}={secret}", *more)
    key, value = KEYS[path], value_at(settings, path)
    shown = [key.show(value), str(key.plain(value)), repr(settings), str(settings.model_dump_json())]
    assert not any("hunter2" in text for text in shown)
    assert key.show(value) == SECRET_MASK


def test_a_kind_of_catalog_follows_from_its_address() -> None:
    assert settings_with().catalog.type == "embedded"
    assert settings_with(f"{CATALOG}.uri=http://catalog.example.org").catalog.type == "rest"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((f"{CATALOG}.type=rest",), "a `rest` catalog needs a `uri`"),
        ((f"{CATALOG}.type=sql",), "a `sql` catalog needs a `uri` of its database"),
        ((f"{CATALOG}.type=sql", f"{CATALOG}.uri=http://localhost"), "a `sql` catalog needs a `uri` of its database"),
        ((f"{CATALOG}.type=rest", f"{CATALOG}.uri=postgresql://h/d"), "a `rest` catalog has no such `uri`"),
        ((f"{CATALOG}.type=embedded", f"{CATALOG}.uri=http://elsewhere:1"), "is inside this node"),
        ((f"{CATALOG}.uri=postgresql://user:hunter2@h/d",), "without user name and password"),
        ((f"{CATALOG}.access_key_id=hunter2",), "belong together"),
        ((f"{STORE}.type=azure", f"{STORE}.bucket=b"), "needs an `account_name`"),
        ((f"{STORE}.type=gcs",), "a `gcs` object store needs a `bucket`"),
        ((f"{STORE}.role_arn=lake",), "the ARN of a role"),
        ((f"{ICEBERG}.warehouse=hdfs://name-node/lake",), "has the scheme hdfs"),
        ((f"{CATALOG}.headers=hunter2",), "a header such as"),
    ],
)
def test_missing_keys_of_a_catalog_or_store_are_reported(flags: tuple[str, ...], words: str) -> None:
    message = refused(*flags)
    assert words in message
    assert "hunter2" not in message


def test_a_foreign_catalog_gets_a_warehouse_only_if_configured() -> None:
    uri = f"{CATALOG}.uri=http://catalog.example.org"
    assert settings_with(uri).catalog.warehouse is None
    assert settings_with(uri, f"{ICEBERG}.warehouse=s3://b/").catalog.warehouse == "s3://b/"
    assert settings_with(uri, f"{CATALOG}.warehouse=lake").storage.iceberg_config.warehouse == "lake"


def test_bucket_roots_use_the_schemes_of_iceberg() -> None:
    def root(*flags: str) -> str:
        return settings_with(*flags, f"{STORE}.bucket=b").storage.iceberg_config.warehouse

    assert root(f"{STORE}.type=s3") == "s3://b/"
    assert root(f"{STORE}.type=gcs") == "gs://b/"
    assert root(f"{STORE}.type=azure", f"{STORE}.account_name=a") == "abfss://b@a.dfs.core.windows.net/"


def test_keys_are_shared_only_with_tokens(tmp_path: Path) -> None:
    assert "would get the keys of the object store" in refused("lake.share_keys=true")
    assert settings_with("lake.share_keys=true", f"lake.token_file={tmp_path / 'tokens'}").lake.share_keys
