"""`storage.iceberg_config`: catalog, object store and writer of the tables. The key names are those of seed 001."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr, StrictBool

from icestream import limits
from icestream.settings import text, units
from icestream.settings.section import ONLINE, Broken, Section, derived
from icestream.settings.wal_section import WalSection

_FLUSH_INTERVAL = units.duration("ms", limits.WRITER_FLUSH_INTERVAL_MS_MIN, limits.WRITER_FLUSH_INTERVAL_MS_MAX)

_REQUEST_TIMEOUT = units.duration("ms", limits.STORAGE_REQUEST_TIMEOUT_MS_MIN, limits.STORAGE_REQUEST_TIMEOUT_MS_MAX)


class CatalogSection(Section):
    """The Iceberg catalog that holds the tables of the topics."""

    type: Literal["embedded", "rest", "glue", "sql"] = Field(
        description="Kind of catalog. `embedded`: the one inside this node, which needs nothing else to run. `rest`: "
        "the Iceberg REST protocol; a `uri` at this node's own address means the catalog inside the node. `glue`: AWS "
        "Glue. `sql`: the tables of Iceberg's JDBC catalog in PostgreSQL.",
        json_schema_extra=derived("`rest` where a `uri` is set, else `embedded`"),
    )
    uri: Annotated[str, text.CATALOG_URI] | None = Field(
        default=None,
        description="Address of a `rest` catalog, which needs one; with `glue`, an endpoint other than that of AWS; "
        "with `sql`, the database: `postgresql://host:port/database`.",
        json_schema_extra=derived("with `embedded`, this node's own address: `http://<node.bind_host>:<ports.lake>`"),
    )
    warehouse: Annotated[str, text.LOCATION] | None = Field(
        default=None,
        description="Location below which the catalog places new tables; a `rest` catalog may know it by a name. The "
        "same as `warehouse` one level above, which is enough to set; two different values are refused.",
        json_schema_extra=derived("`storage.iceberg_config.warehouse`; with `rest` only where that is set"),
    )
    database: Annotated[str, text.NAME] | None = Field(
        default=None, description="Database of the tables in a `glue` catalog, which needs one; the others ignore it."
    )
    name: Annotated[str, text.NAME] = Field(
        default="icestream",
        description="Name of a `sql` catalog: several may share a database, and every engine must use the same name.",
    )
    token: SecretStr | None = Field(
        default=None, description="Bearer token of a `rest` catalog. Used instead of `credential`."
    )
    credential: SecretStr | None = Field(
        default=None,
        description="OAuth2 client credentials of a `rest` catalog, `id:secret`. A token is fetched with them, and "
        "again before it expires.",
    )
    token_uri: Annotated[str, text.HTTP_URI] | None = Field(
        default=None,
        description="Where the token is fetched.",
        json_schema_extra=derived("with a `credential`, `v1/oauth/tokens` below `uri`"),
    )
    scope: Annotated[str, text.SCOPE] = Field(
        default="catalog", description="Scope that is asked for with the token; Iceberg's own default."
    )
    headers: tuple[Annotated[SecretStr, text.HEADER], ...] = Field(
        default=(), description="Headers of every request to a `rest` catalog, such as `X-Tenant: red`. Never shown."
    )
    region: Annotated[str, text.NAME] | None = Field(
        default=None,
        description="Region of a `glue` catalog. Without it: what the credentials of the process name.",
        json_schema_extra=derived("`object_store.region`"),
    )
    profile: Annotated[str, text.NAME] | None = Field(
        default=None, description="Profile of the AWS credentials of a `glue` catalog."
    )
    access_key_id: SecretStr | None = Field(
        default=None,
        description="Key of a `glue` catalog, with its secret. Without it: the credentials of the process, as in every "
        "tool of AWS (environment, profile, role of the machine).",
    )
    secret_access_key: SecretStr | None = Field(default=None, description="The secret of `access_key_id`.")
    session_token: SecretStr | None = Field(default=None, description="Belongs to keys that expire.")
    user: Annotated[str, text.NAME] | None = Field(default=None, description="User of a `sql` catalog's database.")
    password: SecretStr | None = Field(default=None, description="The password of `user`.")
    request_timeout_ms: Annotated[int, _REQUEST_TIMEOUT] = Field(
        default=limits.STORAGE_REQUEST_TIMEOUT_MS_DEFAULT,
        description="Longest wait for one answer of the catalog; a call with its repeats takes four times that.",
    )

    def broken_rules(self) -> Iterator[Broken]:
        if self.type == "glue" and self.database is None:
            yield Broken(("type", "database"), "a `glue` catalog needs a `database`", "name the database of the tables")
        if self.type == "rest" and self.uri is None:
            yield Broken(
                ("type", "uri"), "a `rest` catalog needs a `uri`", "set its address, or `type: embedded` for our own"
            )
        if self.type == "sql" and text.split_database_uri(self.uri or "") is None:
            yield Broken(
                ("type", "uri"), "a `sql` catalog needs a `uri` of its database", "uri: postgresql://host:5432/database"
            )
        if self.type != "sql" and self.uri is not None and text.split_http_uri(self.uri) is None:
            yield Broken(
                ("uri", "type"), f"a `{self.type}` catalog has no such `uri`", "set `type: sql` for a database"
            )
        if (self.access_key_id is None) != (self.secret_access_key is None):
            yield Broken(
                ("access_key_id", "secret_access_key"),
                "`access_key_id` and `secret_access_key` belong together",
                "set both, or none to use the credentials of the process",
            )


# What the readers and writers of table files can open (catalogs/store_options.py maps each to its kind of store).
WAREHOUSE_SCHEMES: Final = ("file", "s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs", "memory")


class ObjectStoreSection(Section):
    """Where the files of the tables lie, and how they are reached."""

    type: Literal["s3", "gcs", "azure", "local", "memory"] = Field(
        default="local",
        description="Kind of store. `local` is a directory and the default because it needs no account; `memory` is "
        "for tests and forgets everything at the end.",
    )
    bucket: Annotated[str, text.NAME] | None = Field(
        default=None,
        description="Bucket of an `s3` or `gcs` store, container of an `azure` one. The warehouse is its root unless "
        "`warehouse` names another location; then nothing is stored in this one.",
    )
    region: Annotated[str, text.NAME] | None = Field(
        default=None, description="Region of an `s3` store. Without it: what the credentials of the process name."
    )
    endpoint: Annotated[str, text.HTTP_URI] | None = Field(
        default=None,
        description="Address of a store that speaks S3 but is not AWS, such as MinIO; also for `gcs`, `azure`.",
    )
    path_style: StrictBool = Field(
        default=False,
        description="Name the bucket in the path instead of the host name. MinIO needs it, AWS does not; hence off.",
    )
    path: Annotated[Path, text.DIRECTORY] | None = Field(
        default=None,
        description="Directory of a `local` store.",
        json_schema_extra=derived("with `local`, the directory of `warehouse`, else `warehouse` below `data_dir`"),
    )
    file_access: Literal["owner", "group", "all"] = Field(
        default="group",
        description="Which accounts of the machine may read the files that the node makes, also those of the tables in "
        "a `local` store: `owner` (0600 in 0700), `group` (0640 in 0750, as the log has it, and the default because "
        "messages are private) or `all` (0644 in 0755, for engines of other accounts). A stricter umask applies.",
    )
    access_key_id: SecretStr | None = Field(
        default=None,
        description="Key of an `s3` store, with its secret. Without it: the environment, or the role of the machine.",
    )
    secret_access_key: SecretStr | None = Field(default=None, description="The secret of `access_key_id`.")
    session_token: SecretStr | None = Field(default=None, description="Belongs to keys that expire.")
    role_arn: Annotated[str, text.ROLE] | None = Field(
        default=None,
        description="Role that is assumed for an `s3` store, with the keys or the credentials of the process.",
    )
    table_role_arn: Annotated[str, text.ROLE] | None = Field(
        default=None,
        description="Role that is assumed for each table of an `s3` store, narrowed to its files: a broker with "
        "accounts gives such keys to clients of the catalog that ask for them "
        "(`X-Iceberg-Access-Delegation: vended-credentials`), for 15 minutes, and the tasks of the pipeline get them. "
        "Without it clients get none, and can have their requests signed (`remote-signing`); tasks get the keys of the "
        "settings.",
    )
    sts_endpoint: Annotated[str, text.HTTP_URI] | None = Field(
        default=None,
        description="Where roles are assumed. Without it `table_role_arn` is assumed at `endpoint`, as stores that are "
        "not AWS have it, and everything else at AWS's own of the `region`.",
    )
    credentials_file: Annotated[Path, text.DIRECTORY] | None = Field(
        default=None, description="File of a service account, for a `gcs` store. Without it: the role of the machine."
    )
    account_name: Annotated[str, text.NAME] | None = Field(
        default=None, description="Storage account of an `azure` store, which needs one."
    )
    account_key: SecretStr | None = Field(
        default=None, description="Key of the storage account. Without it: the role of the machine."
    )
    request_timeout_ms: Annotated[int, _REQUEST_TIMEOUT] = Field(
        default=limits.STORAGE_REQUEST_TIMEOUT_MS_DEFAULT,
        description="Longest wait for one answer of the store; a call with its repeats takes four times that.",
    )

    def broken_rules(self) -> Iterator[Broken]:
        if self.type in ("s3", "gcs", "azure") and self.bucket is None:
            article = "a" if self.type == "gcs" else "an"
            yield Broken(
                ("type", "bucket"), f"{article} `{self.type}` object store needs a `bucket`", "name the bucket"
            )
        if self.table_role_arn is not None and self.type != "s3":
            yield Broken(
                ("table_role_arn", "type"), "only an `s3` object store has keys for tables", "remove `table_role_arn`"
            )
        if self.type == "azure" and self.account_name is None:
            yield Broken(
                ("type", "account_name"), "an `azure` object store needs an `account_name`", "name the account"
            )
        if (self.access_key_id is None) != (self.secret_access_key is None):
            yield Broken(
                ("access_key_id", "secret_access_key"),
                "`access_key_id` and `secret_access_key` belong together",
                "set both, or none to use the credentials of the process",
            )


class IcebergSection(Section):
    """Everything about the tables of the topics, and the log in front of them."""

    catalog: CatalogSection
    object_store: ObjectStoreSection
    wal: WalSection
    warehouse: Annotated[str, text.LOCATION] = Field(
        description="Location below which the tables lie.",
        json_schema_extra=derived(
            "`catalog.warehouse` if that is set; else the root of the object store, which for `local` is "
            "`warehouse` below `data_dir`"
        ),
    )
    namespace: Annotated[str, text.NAMESPACE] | None = Field(
        default=None,
        description="Iceberg namespace of all topic tables. Without it each table lies in the namespace of its topic, "
        "so that two topics of the same name in different namespaces get different tables.",
    )
    writer_batch_size: Annotated[int, units.count(1, limits.WRITER_BATCH_SIZE_MAX)] = Field(
        default=limits.WRITER_BATCH_SIZE_DEFAULT,
        description="Messages of one topic that are waited for before they are written to its table. Larger batches "
        "make fewer and larger files; `writer_flush_interval_ms` ends the wait.",
        json_schema_extra=ONLINE,
    )
    writer_flush_interval_ms: Annotated[int, _FLUSH_INTERVAL] = Field(
        default=limits.WRITER_FLUSH_INTERVAL_MS_DEFAULT,
        description="Longest time that a message waits for a commit to its table. Each commit costs a snapshot and a "
        "file, so the default prefers few commits to the last second of freshness.",
        json_schema_extra=ONLINE,
    )
    writer_max_memory_bytes: Annotated[int, units.size(limits.MIB)] = Field(
        default=limits.WRITER_MEMORY_BYTES_DEFAULT,
        description="Bytes of uncommitted messages at which a topic is written at once, without waiting for "
        "`writer_batch_size` or `writer_flush_interval_ms`. The memory of a writing task has a fixed bound of its "
        "own (ROUND_TASK_BYTES_MAX in limits.py).",
        json_schema_extra=ONLINE,
    )

    def broken_rules(self) -> Iterator[Broken]:
        scheme, separator, _ = self.warehouse.partition("://")
        if separator and scheme not in WAREHOUSE_SCHEMES:
            yield Broken(
                ("warehouse",),
                f"`warehouse` {self.warehouse} has the scheme {scheme}, which no file system or object store of "
                "Icestream has",
                f"use a directory, or one of {', '.join(WAREHOUSE_SCHEMES)}",
            )
        if self.catalog.warehouse is not None and self.catalog.warehouse.rstrip("/") != self.warehouse.rstrip("/"):
            yield Broken(
                ("warehouse", "catalog.warehouse"),
                f"`warehouse` is {self.warehouse} but `catalog.warehouse` is {self.catalog.warehouse}",
                "set only one of them, or both to the same location",
            )
