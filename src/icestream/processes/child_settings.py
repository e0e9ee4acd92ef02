"""How a broker starts its child processes, and how their settings reach them.

    command        python -P -m icestream.processes.child_main lake|pipeline --parent PID
    environment    _ICESTREAM_CHILD: JSON, the settings tree and the node token

Settings contain secrets. Only the child's own account can read its environment, every account can read its command
line. The child removes the variable when it has read it: processes that it starts must not get it.

Imports neither the lake process nor the pipeline, because the broker imports this module.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final, Literal, NamedTuple

from icestream.runtime.instance import NODE_TOKEN_HEADER
from icestream.settings import Settings
from icestream.settings.child_document import as_document

VARIABLE: Final = "_ICESTREAM_CHILD"
ChildName = Literal["lake", "pipeline"]


class ChildSettings(NamedTuple):
    settings: Settings
    node_token: str = ""


def child_command(name: ChildName) -> Sequence[str]:
    """The command by which this process starts a child. -P: a file in the working directory must not shadow one of our
    modules."""
    return [sys.executable, "-P", "-m", "icestream.processes.child_main", name, "--parent", str(os.getpid())]


def child_environment(settings: Settings, node_token: str = "") -> Mapping[str, str]:
    """The variables that a broker adds to its own environment for a child.

    `node_token`: shared by the children of this broker; the lake process serves requests that carry it even when all
    its connections are busy (lake/http.py).
    """
    document = as_document(settings)
    document["data_dir"] = str(settings.data_dir.absolute())
    if settings.catalog_embedded and node_token:
        catalog = document["storage"]["iceberg_config"]["catalog"]
        catalog["headers"] = [*catalog.get("headers", ()), f"{NODE_TOKEN_HEADER}: {node_token}"]
    return {VARIABLE: json.dumps({"settings": document, "node_token": node_token})}


def pop_child_settings(environment: MutableMapping[str, str]) -> ChildSettings:
    """Reads what the broker passed to this child and removes it from the environment."""
    document = json.loads(environment.pop(VARIABLE, "{}"))
    return ChildSettings(Settings.model_validate(document.get("settings", {})), document.get("node_token", ""))
