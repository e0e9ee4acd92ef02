"""`lake`: the process beside the broker that serves the API and the catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictBool

from icestream import limits
from icestream.settings import text
from icestream.settings.section import Section, derived


class LakeProcess(Section):
    """The lake process: it serves the API and the Iceberg catalog at `ports.lake`."""

    managed: StrictBool = Field(
        default=True,
        description="The broker starts the lake process, restarts it when it fails, and ends it with itself. False: "
        "somebody else runs `icestream lake serve`, or nobody does and there is no API; the broker serves either way.",
        json_schema_extra=derived("`true`; `false` with `storage.type` memory, whose brokers leave no file behind"),
    )
    token_file: Annotated[Path, text.FILE] | None = Field(
        default=None,
        description="File with the bearer tokens of the catalog, one in a line, each of at least "
        f"{limits.CATALOG_TOKEN_CHARACTERS_MIN} characters; whoever asks it must send one of them. Without it "
        "everybody may ask who reaches the port, which is this machine unless `node.bind_host` says more. "
        "It is read when the process starts.",
    )
    table_roots: tuple[Annotated[str, text.LOCATION], ...] = Field(
        default=(),
        description="Locations besides the warehouse in which the catalog lets clients place tables and register them. "
        "Empty, the default: the catalog touches nothing outside of the warehouse.",
    )
