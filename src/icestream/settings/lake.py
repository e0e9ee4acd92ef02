"""`storage.iceberg_config`: catalog, object store and writer of the tables. The key names are those of seed 001."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool

from icestream import limits
from icestream.settings import text, units
from icestream.settings.section import ONLINE, Broken, Section, derived
from icestream.settings.wal import Wal

_FLUSH_INTERVAL = units.duration("ms", limits.WRITER_FLUSH_INTERVAL_MS_MIN, limits.WRITER_FLUSH_INTERVAL_MS_MAX)


class Catalog(Section):
    """The Iceberg catalog that holds the tables of the topics."""

    type: Literal["rest", "glue"] = Field(
        default="rest",
        description="Kind of catalog. `rest`: the Iceberg REST protocol; a `uri` at this node's own address means the "
        "catalog inside the node, which is the default because it needs nothing else to run. `glue`: AWS Glue.",
    )
    uri: Annotated[str, text.HTTP_URI] | None = Field(
        default=None,
        description="Address of the REST catalog; with `glue`, an endpoint other than that of AWS.",
        json_schema_extra=derived("with `rest`, this node's own address: `http://<node.bind_host>:<ports.lake>`"),
    )
    warehouse: Annotated[str, text.LOCATION] = Field(
        description="Location below which the catalog places new tables. The same as `warehouse` one level above, "
        "which is enough to set; two different values are refused.",
        json_schema_extra=derived("`storage.iceberg_config.warehouse`"),
    )
    database: Annotated[str, text.NAME] | None = Field(
        default=None, description="Database of the tables in a `glue` catalog, which needs one; `rest` ignores it."
    )

    def broken_rules(self) -> Iterator[Broken]:
        if self.type == "glue" and self.database is None:
            yield Broken(("type", "database"), "a `glue` catalog needs a `database`", "name the database of the tables")


class ObjectStore(Section):
    """Where the files of the tables lie."""

    type: Literal["s3", "local", "memory"] = Field(
        default="local",
        description="Kind of store. `local` is a directory and the default because it needs no account; `memory` is "
        "for tests and forgets everything at the end.",
    )
    bucket: Annotated[str, text.NAME] | None = Field(default=None, description="Bucket of an `s3` store.")
    region: Annotated[str, text.NAME] | None = Field(
        default=None, description="Region of an `s3` store. Without it: what the credentials of the process name."
    )
    endpoint: Annotated[str, text.HTTP_URI] | None = Field(
        default=None, description="Address of a store that speaks S3 but is not AWS, such as MinIO."
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

    def broken_rules(self) -> Iterator[Broken]:
        if self.type == "s3" and self.bucket is None:
            yield Broken(("type", "bucket"), "an `s3` object store needs a `bucket`", "name the bucket")


class Iceberg(Section):
    """Everything about the tables of the topics, and the log in front of them."""

    catalog: Catalog
    object_store: ObjectStore
    wal: Wal
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
        description="Bytes of messages that one writing task holds at a time; it writes a file when they are reached.",
        json_schema_extra=ONLINE,
    )

    def broken_rules(self) -> Iterator[Broken]:
        if self.catalog.warehouse.rstrip("/") != self.warehouse.rstrip("/"):
            yield Broken(
                ("warehouse", "catalog.warehouse"),
                f"`warehouse` is {self.warehouse} but `catalog.warehouse` is {self.catalog.warehouse}",
                "set only one of them, or both to the same location",
            )
