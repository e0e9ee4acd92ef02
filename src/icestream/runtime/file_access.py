"""Which accounts of the machine may read the files that a process of a node creates: its umask.

    owner    files 0600 in directories 0700
    group    files 0640 in directories 0750, as those of the log
    all      files 0644 in directories 0755

The umask is set once, before any file is created: it applies to everything that the process and its children write,
data files of Spark's workers included. It is only made stricter: an account whose umask forbids more keeps it.
"""

from __future__ import annotations

import os
from typing import Final, Literal

Access = Literal["owner", "group", "all"]
UMASKS: Final[dict[Access, int]] = {"owner": 0o077, "group": 0o027, "all": 0o022}


def restrict_files(access: Access) -> None:
    """Sets the umask of this process, and of every process that it starts from now on."""
    own = os.umask(0o077)
    os.umask(own | UMASKS[access])
