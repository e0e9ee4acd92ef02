"""`icestream backup …` as a process that stops itself before an effect of its run, so that a test can act at that very
moment: kill it, or what it works with. `python -m tests.support.struck_command EFFECT ARGUMENT…`"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from tests.tidy.tree import ROOT


def struck(effect: str) -> Callable[[StrEnum], None]:
    """Stops this process at the first effect of the name."""
    is_over = False

    def strike(reached: StrEnum) -> None:
        nonlocal is_over
        if reached == effect and not is_over:
            is_over = True
            os.kill(os.getpid(), signal.SIGSTOP)

    return strike


def start(effect: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.struck_command", effect, *arguments],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def main() -> None:
    from icestream.backup.backup_run import BackupRun
    from icestream.cli.main import main as icestream
    from icestream.processes.restore_run import RestoreRun

    effect, *arguments = sys.argv[1:]
    for kind in (BackupRun, RestoreRun):
        plain = kind.__init__

        def begin(self: Any, *given: Any, plain: Any = plain, **options: Any) -> None:
            plain(self, *given, **options)
            self._on_effect = struck(effect)

        kind.__init__ = begin  # type: ignore[method-assign]
    sys.argv = ["icestream", *arguments]
    icestream()


if __name__ == "__main__":
    main()
