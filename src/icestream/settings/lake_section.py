"""`lake`: the process beside the broker that serves the API and the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictBool

from icestream import limits
from icestream.settings import text, units
from icestream.settings.section import Broken, Section, derived


class LakeProcessSection(Section):
    """The lake process: it serves the API and the Iceberg catalog at `ports.lake`."""

    managed: StrictBool = Field(
        default=True,
        description="The broker starts the lake process, restarts it when it fails, and stops it when it stops. False: "
        "run `icestream lake serve` separately, or do without the API; the broker serves either way.",
        json_schema_extra=derived("`true`; `false` with `storage.type` memory, whose brokers leave no file behind"),
    )
    token_file: Annotated[Path, text.FILE] | None = Field(
        default=None,
        description="File with the bearer tokens of the catalog and the API, one in a line, each of at least "
        f"{limits.CATALOG_TOKEN_CHARACTERS_MIN} characters; every request must carry one of them. Without it "
        "every client that reaches the port is served: this machine, unless `node.bind_host` allows more. "
        "It is read when the process starts.",
    )
    share_keys: StrictBool = Field(
        default=False,
        description="Clients of the catalog that ask for it (`X-Iceberg-Access-Delegation: vended-credentials`) get "
        "the keys of `storage.iceberg_config.object_store` with each table. They are the broker's own and open all "
        "that it may open; hence off, and only with a `token_file`.",
    )
    table_roots: tuple[Annotated[str, text.LOCATION], ...] = Field(
        default=(),
        description="Locations besides the warehouse in which the catalog lets clients place tables and register them. "
        "Empty, the default: the catalog touches nothing outside of the warehouse.",
    )
    cache_enabled: StrictBool = Field(
        default=True,
        description="Keep decoded row groups of tables that were read lately, for other readers of the same messages.",
    )
    cache_bytes: Annotated[int, units.size(limits.MIB)] = Field(
        default=limits.GROUP_CACHE_BYTES_DEFAULT,
        description="Memory of the lake process for them; the oldest go first. One row group is as large as a writer "
        "of the table made it, and one that is larger than this is not kept.",
    )
    cache_ttl_ms: Annotated[int, units.duration("ms", 1, limits.GROUP_CACHE_TTL_MS_MAX)] = Field(
        default=limits.GROUP_CACHE_TTL_MS_DEFAULT,
        description="How long one is kept at most. Files never change, so an old one is as good as a new one: this "
        "only gives back memory that is not used.",
    )

    def broken_rules(self) -> Iterator[Broken]:
        if self.share_keys and self.token_file is None:
            yield Broken(
                ("share_keys", "token_file"),
                "every client that reaches the port would get the keys of the object store",
                "set `token_file`, or leave `share_keys` off",
            )
