"""How a broker starts its pipeline as a child process, and how settings reach the child. Imports no part of the
pipeline."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final

from icestream.lake.lake_options import NODE_TOKEN_HEADER
from icestream.settings import Settings
from icestream.settings.document import as_document

# Settings contain secrets, so they go to the child in its environment, which only its own account can read, and not in
# its command line, which every account can.
VARIABLE: Final = "_ICESTREAM_PIPELINE"


def command() -> Sequence[str]:
    """-P: a file in the working directory must not shadow one of our modules."""
    return [sys.executable, "-P", "-m", "icestream.pipeline", "--parent", str(os.getpid())]


def environment(settings: Settings, lake_port: int, node_token: str = "") -> Mapping[str, str]:
    """Returns the variables that a broker adds to its own environment for the child. `lake_port`: where its lake
    process listens, if the settings leave that open. `node_token`: identifies the pipeline to that process, which
    admits it even when all its connections are busy (lake/http.py)."""
    document = as_document(settings)
    document["data_dir"] = str(settings.data_dir.absolute())
    if settings.catalog_embedded and not settings.ports.lake and lake_port:
        document["ports"]["lake"] = lake_port
        document["storage"]["iceberg_config"]["catalog"].pop("uri", None)
    if settings.catalog_embedded and node_token:
        catalog = document["storage"]["iceberg_config"]["catalog"]
        catalog["headers"] = [*catalog.get("headers", ()), f"{NODE_TOKEN_HEADER}: {node_token}"]
    return {VARIABLE: json.dumps(document)}


def settings_from(variables: MutableMapping[str, str]) -> Settings:
    """Reads the settings in the child and removes them from its environment: its own children must not get them."""
    return Settings.model_validate(json.loads(variables.pop(VARIABLE, "{}")))
