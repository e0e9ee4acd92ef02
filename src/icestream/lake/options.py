"""What the lake process is told at its start. Loads nothing of it: a broker only needs to know how to start one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LakeOptions:
    socket: Path  # of the broker that it belongs to
    host: str = "127.0.0.1"
    port: int = 8181  # 0: any that is free
    is_child: bool = False  # it ends with the process that started it, which holds its stdin

    def command(self, log_level: str, log_format: str) -> Sequence[str]:
        """How a broker starts it. -P: a file in the working directory must not pass for one of our modules."""
        return [
            sys.executable, "-P", "-m", "icestream.lake", "--parent", str(os.getpid()), "--socket", str(self.socket),
            "--host", self.host, "--port", str(self.port), "--log-level", log_level, "--log-format", log_format,
        ]  # fmt: skip
