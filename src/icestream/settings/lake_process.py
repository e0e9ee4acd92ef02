"""`lake`: the process beside the broker that serves the API (and, later, the catalog)."""

from __future__ import annotations

from pydantic import Field, StrictBool

from icestream.settings.section import Section, derived


class LakeProcess(Section):
    """The lake process: it serves the API at `ports.lake`."""

    managed: StrictBool = Field(
        default=True,
        description="The broker starts the lake process, restarts it when it fails, and ends it with itself. False: "
        "somebody else runs `icestream lake serve`, or nobody does and there is no API; the broker serves either way.",
        json_schema_extra=derived("`true`; `false` with `storage.type` memory, whose brokers leave no file behind"),
    )
