"""How a broker starts its child processes, and how their settings reach them.

    command        python -P -m icestream.processes.child_main lake|pipeline|drill --parent PID
    environment    a listed part of the broker's (runtime/child_variables.py)
    stdin          a pipe. The first line is JSON: the settings tree, the node token and the secret of the child's role.
                   Nothing follows; its end asks the child to stop (runtime/parent_pipe.py)

Settings contain secrets. Every account can read a command line, and every process of this account an environment, also
that of the processes which a child starts: a pipe is read once, by the child (hazard 122).

The pipeline process starts `drill`, the broker the other two. Imports neither the lake process nor the pipeline,
because the broker imports this module.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from icestream import errors, limits
from icestream.runtime.instance import NODE_TOKEN_HEADER
from icestream.settings import Settings
from icestream.settings.child_document import as_document

ChildName = Literal["lake", "pipeline", "drill"]
STDIN: Final = 0


class ChildSettings(NamedTuple):
    settings: Settings
    node_token: str = ""
    role_secret: str = ""
    backup_id: str = ""  # which one a drill restores


def child_command(name: ChildName) -> Sequence[str]:
    """The command by which this process starts a child. -P: a file in the working directory must not shadow one of our
    modules."""
    return [sys.executable, "-P", "-m", "icestream.processes.child_main", name, "--parent", str(os.getpid())]


def child_line(settings: Settings, node_token: str = "", role_secret: str = "", backup_id: str = "") -> bytes:
    """The first line on the stdin of a child.

    `node_token`: shared by the children of this broker; the lake process serves requests that carry it even when all
    its connections are busy (lake/http.py). `role_secret`: security/role_secrets.py.
    """
    document = as_document(settings)
    document["data_dir"] = str(settings.data_dir.absolute())
    if settings.catalog_embedded and node_token:
        catalog = document["storage"]["iceberg_config"]["catalog"]
        catalog["headers"] = [*catalog.get("headers", ()), f"{NODE_TOKEN_HEADER}: {node_token}"]
    line = {"settings": document, "node_token": node_token, "role_secret": role_secret, "backup_id": backup_id}
    return json.dumps(line).encode() + b"\n"


def read_child_settings(descriptor: int = STDIN) -> ChildSettings:
    """Reads what the broker wrote for this child. Raises ConfigurationError without it."""
    line = bytearray()
    while not line.endswith(b"\n"):  # nothing follows the line, so no read takes more
        piece = os.read(descriptor, limits.SOCKET_READ_BYTES_MIN)
        if not piece or len(line) > limits.SETTINGS_FILE_BYTES_MAX:
            raise errors.ConfigurationError("a child process needs a pipe as its stdin", hint="icestream lake serve")
        line += piece
    document = json.loads(line)
    settings = Settings.model_validate(document["settings"])
    return ChildSettings(settings, document["node_token"], document["role_secret"], document["backup_id"])
