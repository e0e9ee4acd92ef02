"""The pipeline as a child of its broker: `python -m icestream.pipeline`. People use `icestream pipeline run`.

It ties its life to its parent's before it imports anything that takes time. It writes one line to stdout for its
parent: {"port": …} with the port of its metrics, {"missing": …} if it cannot run on this machine, or {"refused": …} if
its configuration cannot be used, such as a port that another process has.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from icestream import limits
from icestream.runtime.leave import leave
from icestream.runtime.parent import die_with_parent
from icestream.runtime.time_slice import give_way


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m icestream.pipeline", description="The pipeline, as a child.")
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    die_with_parent(options.parent)
    give_way(limits.PIPELINE_NICENESS)
    return _run()


def _run() -> int:
    import asyncio
    import json

    from icestream import error_codes, errors
    from icestream.observability.log import get_logger, set_up_logging
    from icestream.pipeline.driver.child import settings_from
    from icestream.pipeline.driver.serving import serve
    from icestream.runtime.loop import loop_factory

    settings = settings_from(os.environ)
    set_up_logging(settings.log.level, settings.log.format)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve(settings, lambda port: _write_line(json.dumps({"port": port})), is_child=True))
    except errors.MissingPart as error:
        _write_line(json.dumps({"missing": f"{error.message}; {error.hint}"}))
        return error_codes.exit_code(error)
    except errors.IcestreamError as error:
        get_logger("pipeline").error("the pipeline cannot run", reason=str(error))
        if isinstance(error, errors.ConfigurationError):
            _write_line(json.dumps({"refused": str(error)}))
        return error_codes.exit_code(error)
    return 0


def _write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    leave(main())
