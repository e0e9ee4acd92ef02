"""The settings of a node: one tree, plain data, frozen. load.py builds it; nothing below it reads the environment.

Tests may build one with `Settings.model_validate({"data_dir": …})`. Keys whose default follows from other keys
(derive.py) are filled in before validation, so a `Settings` object contains final values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, StrictBool, model_validator

from icestream import limits
from icestream.settings import text, units
from icestream.settings.broker_section import BrokerSection
from icestream.settings.danube_section import DanubeSection
from icestream.settings.derive import DATA_DIR_DEFAULT, with_derived_defaults
from icestream.settings.iceberg_config import CatalogSection, IcebergSection
from icestream.settings.lake_section import LakeProcessSection
from icestream.settings.mqtt_section import MqttSection
from icestream.settings.pipeline_section import PipelineSection
from icestream.settings.section import ONLINE, Broken, Section, derived
from icestream.settings.security_section import SecuritySection
from icestream.settings.tls_section import ListenerTlsSection, TlsSection
from icestream.settings.wal_section import WalSection

_PORT = units.count(0, 65_535)


class NodeSection(Section):
    """The identity of this node, and where it listens."""

    name: Annotated[str, text.NAME] = Field(
        default="node-1",
        description="Name of this node in logs, metrics and the cluster. Each node of a cluster needs its own.",
    )
    bind_host: Annotated[str, text.HOST] = Field(
        default="127.0.0.1",
        description="Address that all ports listen on. The default is reachable from this machine only. Another one "
        "needs TLS (`tls.…`) and accounts (`icestream security init`), or `allow_insecure_bind`.",
    )
    advertised_host: Annotated[str, text.HOST] | None = Field(
        default=None,
        description="Host that other machines are told to connect to: clients of Danube, and the executors of a Spark "
        "cluster, which read the log from here. Unset: `bind_host`, or the name of this machine where that is every "
        "address.",
    )
    host_names: tuple[Annotated[str, text.HOST], ...] = Field(
        default=(),
        description="Further names by which clients reach the HTTP listeners, such as that of a load balancer. A "
        "request whose Host is another name is refused: a web page could make its own name resolve to this machine. "
        "`advertised_host`, the name of this machine and addresses need not be listed.",
    )
    child_variables: tuple[Annotated[str, text.VARIABLE], ...] = Field(
        default=(),
        description="Names of environment variables that the lake process and the pipeline get beside the usual ones "
        "(those of the system, Python, Java, Spark, Hadoop, object stores, proxies). All others stay with the broker: "
        "they may hold secrets.",
    )
    allow_insecure_bind: StrictBool = Field(
        default=False,
        description="Allow a `bind_host` that other machines can reach without TLS and accounts: every client that "
        "reaches the ports can then read and write every topic.",
    )


class PortsSection(Section):
    """Every port of a node. 0 takes any free one."""

    danube: Annotated[int, _PORT] = Field(default=6650, description="Danube clients (gRPC).")
    danube_admin: Annotated[int, _PORT] = Field(default=50051, description="Danube's admin services (gRPC).")
    native: Annotated[int, _PORT] = Field(default=6651, description="Native frames of the Icestream client.")
    mqtt: Annotated[int, _PORT] = Field(default=1883, description="Clients of MQTT.")
    mqtt_ws: Annotated[int, _PORT] = Field(default=8083, description="Clients of MQTT by WebSocket.")
    lake: Annotated[int, _PORT] = Field(
        default=8181, description="HTTP of the lake process: Iceberg REST catalog, admin API."
    )
    broker_http: Annotated[int, _PORT] = Field(
        default=9040, description="HTTP of the broker: metrics, health, ranges of the log."
    )
    pipeline_metrics: Annotated[int, _PORT] = Field(default=9041, description="Metrics of the pipeline process.")
    raft: Annotated[int, _PORT] = Field(default=7650, description="Other nodes of the cluster.")

    def broken_rules(self) -> Iterator[Broken]:
        users: dict[int, str] = {}
        for name, port in self:
            if port and port in users:
                yield Broken(
                    (name, users[port]), f"`{name}` and `{users[port]}` both use port {port}", "give each its own"
                )
            users.setdefault(port, name)


def _read_storage_type(value: object) -> object:
    if value == "InMemory":  # the name of seed 000
        return "memory"
    if value not in ("iceberg", "memory"):
        raise ValueError(
            "must be iceberg (or memory, also written InMemory, in tests): Iceberg is the only persistent store, "
            "the legacy segment store with its local and remote types was removed"
        )
    return value


class StorageSection(Section):
    """Where messages stay."""

    type: Annotated[Literal["iceberg", "memory"], BeforeValidator(_read_storage_type)] = Field(
        default="iceberg",
        description="Kind of storage. `iceberg` is the only persistent one; `memory` (also written `InMemory`) is for "
        "tests and forgets everything at the end.",
    )
    iceberg_config: IcebergSection


class MetaStoreSection(Section):
    """The metadata store inside the node (seed 004)."""

    data_dir: Annotated[Path, text.DIRECTORY] = Field(
        description="Directory of the metadata store.", json_schema_extra=derived("`raft` below `data_dir`")
    )
    seed_nodes: tuple[Annotated[str, text.ADDRESS], ...] = Field(
        default=(),
        description="Addresses `host:port` of all nodes of the cluster, this one included. Empty, the default: a node "
        "on its own, which needs no configuration.",
    )
    join_token: SecretStr | None = Field(
        default=None,
        description="One-time token with which this node joins a cluster that has accounts; `icestream cluster "
        "join-token` makes it. Needed for the first start only.",
    )
    tls_certificate: Annotated[Path, text.FILE] | None = Field(
        default=None,
        description="PEM file with the certificate of this node, and its chain. Set: nodes speak TLS with each other, "
        "and each must show one.",
    )
    tls_key: Annotated[Path, text.FILE] | None = Field(
        default=None, description="PEM file with the private key of the certificate."
    )
    tls_authority: Annotated[Path, text.FILE] | None = Field(
        default=None, description="PEM file with the cluster's own authority: every certificate it signs may be a node."
    )

    tls_cluster: Annotated[str, text.NAME] | None = Field(
        default=None,
        description="Name of the cluster in certificates. Set: each certificate must name its cluster and node by the "
        "URI `icestream://CLUSTER/NODE`, and speaks for that node only. Needed with accounts.",
    )

    def broken_rules(self) -> Iterator[Broken]:
        if self.tls_cluster is not None and self.tls_certificate is None:
            yield Broken(
                ("tls_cluster",), "`tls_cluster` is set without TLS between nodes", "set the other `tls_…` too"
            )
        if len({file is None for file in (self.tls_certificate, self.tls_key, self.tls_authority)}) > 1:
            yield Broken(
                ("tls_certificate", "tls_key", "tls_authority"), "TLS between nodes needs a certificate, its key and "
                "the authority", "set all three of `tls_…`, or none",
            )  # fmt: skip
        if len(self.seed_nodes) > limits.SEED_NODES_MAX:
            count = len(self.seed_nodes)
            yield Broken(("seed_nodes",), f"{count} `seed_nodes` are too many", f"list at most {limits.SEED_NODES_MAX}")
        repeated = {node for node in self.seed_nodes if self.seed_nodes.count(node) > 1}
        if repeated:
            yield Broken(
                ("seed_nodes",), f"`seed_nodes` lists {', '.join(sorted(repeated))} more than once", "list each once"
            )


class BackupIcebergSection(Section):
    """Manifests of seed 003 beside each backup. A change applies to the next backup; a running one keeps its copy."""

    enable: StrictBool = Field(
        default=False,
        description="Write a JSON manifest for each batch of files of a backup. Off by default: the object list and "
        "the inventory table say the same, and engines read them.",
        json_schema_extra=ONLINE,
    )
    warehouse: Annotated[str, text.RELATIVE] = Field(
        default="warehouse", description="Warehouse root inside the backup store.", json_schema_extra=ONLINE
    )
    namespace: Annotated[str, text.NAMESPACE] = Field(
        default="icestream",
        description="Namespace of the manifests; dots become slashes in the path.",
        json_schema_extra=ONLINE,
    )
    table: Annotated[str, text.NAME] = Field(
        default="backup", description="Table that the manifests describe.", json_schema_extra=ONLINE
    )
    manifest_prefix: Annotated[str, text.NAME] = Field(
        default="manifest",
        description="First part of the name of each manifest: `<prefix>_<snapshot end>_<number>.json`.",
        json_schema_extra=ONLINE,
    )
    strict: StrictBool = Field(
        default=False,
        description="End a backup whose manifest cannot be written. Off by default: the backup itself does not need "
        "manifests; the root names those that are missing.",
        json_schema_extra=ONLINE,
    )


class BackupScheduleSection(Section):
    """Backups in intervals, made by the pipeline process of the node, each incremental from the one before."""

    interval_ms: Annotated[int, units.duration("ms", 0, limits.BACKUP_INTERVAL_MS_MAX)] = Field(
        default=0,
        description="Time from the begin of a backup to the begin of the next. 0, the default, makes none: "
        "a backup needs a target first.",
    )
    reference: StrictBool = Field(
        default=False,
        description="Pin the files of tables instead of copying them. Off by default: pins do not survive the loss of "
        "the warehouse.",
    )
    keep_count: Annotated[int, units.count(0, limits.BACKUPS_KEPT_MAX)] = Field(
        default=0, description="Complete backups of this node that are kept; older ones are deleted. 0: all."
    )
    keep_age_ms: Annotated[int, units.duration("ms", 0, limits.BACKUP_INTERVAL_MS_MAX)] = Field(
        default=0,
        description="Age from which complete backups of this node are deleted, but for the newest one. 0: none.",
    )


class BackupDrillSection(Section):
    """Drills in intervals, made by a process of the node: the newest backup is restored and compared."""

    interval_ms: Annotated[int, units.duration("ms", 0, limits.BACKUP_INTERVAL_MS_MAX)] = Field(
        default=0,
        description="Time from the begin of a drill to the begin of the next. 0, the default, makes none: a drill "
        "needs the space of a backup and reads all of it twice.",
    )
    directory: Annotated[Path, text.DIRECTORY] | None = Field(
        default=None,
        description="Where the scratch broker of a drill keeps its data until its end. Unset: the directory for "
        "temporary files, because a drill must not fill the disk of the log.",
    )


class BackupArchiveSection(Section):
    """The archive: log and metadata of this node, shipped all the time, for restores to a point in time."""

    enable: StrictBool = Field(
        default=False,
        description="Ship the log and the changes of the metadata store continuously to the target. Off by default: it "
        "needs a target, and a backup as its base.",
    )
    target: Annotated[str, text.LOCATION] | None = Field(
        default=None, description="Where the archive lies. Unset: `backup.target`, where restores look for it."
    )
    interval_ms: Annotated[int, units.duration("ms", 100, limits.ARCHIVE_INTERVAL_MS_MAX)] = Field(
        default=limits.ARCHIVE_INTERVAL_MS_DEFAULT,
        description="Time between two archive objects: what a disaster may lose. The default costs a request each "
        "five seconds.",
    )
    held_bytes_max: Annotated[int, units.size(1)] = Field(
        default=limits.ARCHIVE_HELD_BYTES_DEFAULT,
        description="Bytes of the log that wait for the archive at most; beyond it they are freed as without an "
        "archive, which then has a gap. The default is minutes of a busy broker.",
    )
    keep_age_ms: Annotated[int, units.duration("ms", 0, limits.BACKUP_INTERVAL_MS_MAX)] = Field(
        default=0,
        description="How far back a restore to a point in time reaches at least, as far as there are backups. 0, the "
        "default: to the oldest backup; only what none can use is removed.",
    )


class BackupObjectLockSection(Section):
    """A date before which the store keeps every object of a backup: in buckets of S3 that have object lock."""

    mode: Literal["off", "governance", "compliance"] = Field(
        default="off",
        description="`governance`: accounts with the right `s3:BypassGovernanceRetention` can lift locks; "
        "`compliance`: none can, the owner of the bucket included. Off by default: no target can do it unless its "
        "bucket was created so, and a lock costs until its date.",
    )
    days: Annotated[int, units.count(1, limits.BACKUP_LOCK_DAYS_MAX)] = Field(
        default=limits.BACKUP_LOCK_DAYS_DEFAULT,
        description="Days for which a backup is locked once all its objects are there, with those that it shares "
        "with earlier ones. It is not deleted before, whatever the retention of backups says.",
    )


class BackupSection(Section):
    """Backups, as `icestream backup` makes them on this machine."""

    target: Annotated[str, text.LOCATION] | None = Field(
        default=None,
        description="Where `icestream backup` finds and puts backups without `--to`: a directory, `s3://…`, `gs://…` "
        "or `abfss://…` with the credentials of `object_store`. No default: it should not be on the disk of the data.",
    )
    rate_bytes: Annotated[int, units.size()] = Field(
        default=0,
        description="Bytes per second that a backup writes, manifests included, without `--rate`. 0, the default, is "
        "no limit: a backup that takes longer holds log files for longer.",
    )
    spark_files: Annotated[int, units.count(0, limits.BACKUP_SPARK_FILES_MAX)] = Field(
        default=limits.BACKUP_SPARK_FILES_DEFAULT,
        description="Number of files from which tasks of Spark copy a backup, wherever `pipeline.spark.master` is; "
        "below it threads of one process copy. 0: threads copy always. Encrypted backups, and those of a store with "
        "`table_role_arn`, are copied by threads: executors get neither the key nor all keys of the store.",
    )
    key: Annotated[str, text.LOCATION] | None = Field(
        default=None,
        description="Where the key that encrypts backups comes from without `--key`: `file:PATH`, `env:NAME` or "
        "`command:COMMAND`, with 32 bytes as hex or base64. No default: a lost key is a lost backup.",
    )
    schedule: BackupScheduleSection = BackupScheduleSection()
    object_lock: BackupObjectLockSection = BackupObjectLockSection()
    drill: BackupDrillSection = BackupDrillSection()
    archive: BackupArchiveSection = BackupArchiveSection()
    iceberg: BackupIcebergSection = BackupIcebergSection()

    def broken_rules(self) -> Iterator[Broken]:
        if self.schedule.interval_ms and self.target is None:
            yield Broken(("schedule", "interval_ms"), "scheduled backups need a target", "set `backup.target`")
        if self.drill.interval_ms and self.target is None:
            yield Broken(("drill", "interval_ms"), "drills need a target", "set `backup.target`")
        if self.object_lock.mode != "off" and self.schedule.reference:
            yield Broken(
                ("schedule", "reference"),
                "reference backups cannot be locked: their files are those of the warehouse",
                "set `backup.object_lock.mode` to `off`, or make copies",
            )
        if self.archive.enable and self.archive.target is None and self.target is None:
            yield Broken(("archive", "enable"), "the archive needs a target", "set `backup.target`")


class LogSection(Section):
    """The log messages of the process (not the log of the messages: that is `storage.iceberg_config.wal`)."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="Least severe message that is written. `debug` has lines per connection, hence not the default.",
        json_schema_extra=ONLINE,
    )
    format: Literal["console", "json"] = Field(
        default="console", description="`console` for people, `json` for collectors: one object per line."
    )


class MetricsSection(Section):
    """Prometheus metrics."""

    enable: StrictBool = Field(default=True, description="Serve `/metrics` at `ports.broker_http`.")


class Settings(Section):
    """The root."""

    data_dir: Annotated[Path, text.DIRECTORY] = Field(
        default=Path(DATA_DIR_DEFAULT),
        description="Directory of everything that this node keeps; other directories lie below it unless they are set. "
        "Relative paths start at the working directory of the process.",
    )
    node: NodeSection = NodeSection()
    ports: PortsSection = PortsSection()
    storage: StorageSection
    meta_store: MetaStoreSection
    backup: BackupSection = BackupSection()
    tls: TlsSection = TlsSection()
    log: LogSection = LogSection()
    broker: BrokerSection = BrokerSection()
    danube: DanubeSection = DanubeSection()
    mqtt: MqttSection = MqttSection()
    lake: LakeProcessSection = LakeProcessSection()
    pipeline: PipelineSection = PipelineSection()
    security: SecuritySection = SecuritySection()
    metrics: MetricsSection = MetricsSection()

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, value: Any) -> Any:
        return with_derived_defaults(value) if isinstance(value, dict) else value

    @classmethod
    def default(cls) -> Self:
        """The settings of a node without a file, environment and flags."""
        return cls.model_validate({})

    @property
    def wal(self) -> WalSection:
        return self.storage.iceberg_config.wal

    @property
    def local_socket(self) -> Path:
        """The socket by which processes of this node reach their broker."""
        return self.data_dir / "broker.sock"

    @property
    def catalog(self) -> CatalogSection:
        return self.storage.iceberg_config.catalog

    @property
    def catalog_embedded(self) -> bool:
        """Whether the catalog is the one inside this node: `embedded`, or a REST catalog at this node's own address."""
        return self.catalog.type == "embedded" or (self.catalog.type == "rest" and self._is_own(self.catalog.uri or ""))

    @property
    def needs_accounts(self) -> bool:
        """Whether other machines reach this node, so that it must not serve without accounts (`security init`)."""
        return not text.is_loopback(self.node.bind_host) and not self.node.allow_insecure_bind

    def _plain_listeners(self) -> list[str]:
        """The listeners without TLS."""
        names = ["native", "http", *(["danube"] if self.danube.enable else [])]
        names += ["mqtt"] if self.mqtt.enable else []
        names += ["lake"] if self.lake.managed else []
        return [name for name in names if not self._has_tls(name)]

    def _has_tls(self, listener: str) -> bool:
        own: ListenerTlsSection = getattr(self.tls, listener)
        if listener == "danube" and self.danube.tls_certificate is not None:
            return True
        return own.enable and (own.certificate or self.tls.certificate) is not None

    def broken_rules(self) -> Iterator[Broken]:
        plain = self._plain_listeners()
        if self.needs_accounts and plain:
            yield Broken(
                ("node.bind_host", "node.allow_insecure_bind"),
                f"`node.bind_host` {self.node.bind_host} can be reached from other machines, and clients of "
                f"{', '.join(plain)} could be overheard: no TLS",
                "set `tls.certificate` and `tls.key`, and create accounts with `icestream security init`; or accept "
                "the risk with `node.allow_insecure_bind: true`; or bind to 127.0.0.1",
            )
        uri = self.catalog.uri or ""
        if self.catalog.type == "embedded" and not self._is_own(uri):
            catalog = "storage.iceberg_config.catalog"
            yield Broken(
                (f"{catalog}.type", f"{catalog}.uri"),
                f"an `embedded` catalog is inside this node, and {uri} is somewhere else",
                "leave `uri` out, or set `type: rest` for a catalog elsewhere",
            )

    def _is_own(self, uri: str) -> bool:
        address = text.split_http_uri(uri)
        if address is None:
            return False
        scheme, host, port = address
        own_host = text.is_loopback(host) or host == self.node.bind_host.lower()
        return scheme == ("https" if self._has_tls("lake") else "http") and own_host and port == self.ports.lake
