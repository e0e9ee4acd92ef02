"""How a broker starts its pipeline, and what the child is told. Loads nothing of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final

from icestream.lake.lake_options import NODE_TOKEN_HEADER
from icestream.settings import Settings
from icestream.settings.document import as_document

# Secrets go to the child in its environment, which only its own account can read: never in its command.
VARIABLE: Final = "_ICESTREAM_PIPELINE"


def command() -> Sequence[str]:
    """-P: a file in the working directory must not pass for one of our modules."""
    return [sys.executable, "-P", "-m", "icestream.pipeline", "--parent", str(os.getpid())]


def environment(settings: Settings, lake_port: int, node_token: str = "") -> Mapping[str, str]:
    """What a broker adds to its own. `lake_port`: where its lake process listens, if the settings leave that open.
    `node_token`: by which that process knows the pipeline when all of its connections are busy (lake/http.py)."""
    told = as_document(settings)
    told["data_dir"] = str(settings.data_dir.absolute())
    if settings.catalog_embedded and not settings.ports.lake and lake_port:
        told["ports"]["lake"] = lake_port
        told["storage"]["iceberg_config"]["catalog"].pop("uri", None)
    if settings.catalog_embedded and node_token:
        catalog = told["storage"]["iceberg_config"]["catalog"]
        catalog["headers"] = [*catalog.get("headers", ()), f"{NODE_TOKEN_HEADER}: {node_token}"]
    return {VARIABLE: json.dumps(told)}


def told_settings(found: MutableMapping[str, str]) -> Settings:
    """In the child. It is taken out: nobody whom the child starts shall have it."""
    return Settings.model_validate(json.loads(found.pop(VARIABLE, "{}")))
