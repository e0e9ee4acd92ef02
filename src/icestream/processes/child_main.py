"""A child process of a broker: `python -m icestream.processes.child_main lake|pipeline|drill`. Users run `icestream
lake serve`, `icestream pipeline run` and `icestream backup drill` instead.

    1  ties its life to its parent's, before it imports anything that takes time (hazard 39)
    2  gives way to the broker: a lower priority than its parent
    3  reads its settings from its stdin (child_settings.py)
    4  runs the root of its process until its parent closes its stdin, or a signal

It does not load the command line, which takes half of the start time. It reports to its parent by lines of JSON on
stdout (node/child_processes.py): {"port": …} when it listens, {"missing": …} if it cannot run on this machine,
{"refused": …} if its configuration cannot be used, {"connections": …} when its connections are all taken, {"drill": …}
with the outcome of a drill.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from icestream import limits
from icestream.runtime.time_slice import lower_priority

if TYPE_CHECKING:
    from icestream.processes.child_settings import ChildSettings

_PR_SET_PDEATHSIG: Final = 1
NICENESS: Final = {
    "lake": limits.LAKE_NICENESS,
    "pipeline": limits.PIPELINE_NICENESS,
    "drill": limits.PIPELINE_NICENESS,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m icestream.processes.child_main", description="A child process.")
    parser.add_argument("name", choices=sorted(NICENESS))
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    _die_with_parent(options.parent)
    lower_priority(NICENESS[options.name])
    return _run(options.name)


def _die_with_parent(parent_pid: int) -> None:
    """Asks Linux for SIGKILL at the end of the parent; exits at once if the parent is gone already.

    It works while the child hangs, and after kill -9 of the parent. The pipe of runtime/parent_pipe.py ends the child
    in order; each of the two is sufficient (hazard 39).
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A parent that was gone before the call sends no signal any more.
    if os.getppid() != parent_pid:
        raise SystemExit(0)


def _run(name: str) -> int:
    import asyncio

    from icestream import error_codes, errors
    from icestream.observability.log import get_logger, set_up_logging
    from icestream.processes.child_settings import read_child_settings
    from icestream.runtime.loop import loop_factory

    try:
        child = read_child_settings()
    except errors.ConfigurationError as error:
        _report(refused=str(error))
        return error_codes.exit_code(error)
    set_up_logging(child.settings.log.level, child.settings.log.format)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_ROOTS[name](child))
    except errors.MissingPart as error:
        _report(missing=f"{error.message}; {error.hint}")
        return error_codes.exit_code(error)
    except errors.IcestreamError as error:
        get_logger(name).error("child process cannot run", process=name, reason=str(error))
        if isinstance(error, errors.ConfigurationError):
            _report(refused=str(error))
        return error_codes.exit_code(error)
    return 0


def _run_lake(child: ChildSettings) -> Coroutine[Any, Any, None]:
    from icestream.processes.lake_process import run_lake

    return run_lake(
        child.settings,
        lambda port: _report(port=port),
        is_child=True,
        node_token=child.node_token,
        role_secret=lambda: child.role_secret,
        on_crowding=lambda room: _report(connections=room),
    )


def _run_pipeline(child: ChildSettings) -> Coroutine[Any, Any, None]:
    from icestream.processes.pipeline_process import run_pipeline

    return run_pipeline(
        child.settings, lambda port: _report(port=port), is_child=True, role_secret=lambda: child.role_secret
    )


async def _run_drill(child: ChildSettings) -> None:
    from icestream.processes.drill_process import run_drill

    _report(drill=(await run_drill(child.settings, child.backup_id)).outcome)


_ROOTS: Final[dict[str, Callable[[ChildSettings], Coroutine[Any, Any, None]]]] = {
    "lake": _run_lake,
    "pipeline": _run_pipeline,
    "drill": _run_drill,
}


def _report(**line: object) -> None:
    """Writes one line of JSON for the parent."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _exit_at_once(code: int) -> NoReturn:
    """Flushes the output and exits without tearing down the interpreter: everything is closed, the teardown takes up to
    a second with large libraries loaded, and the stop of a broker waits for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit_at_once(main())
