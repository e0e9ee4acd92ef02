"""The pipeline as a child of its broker: `python -m icestream.pipeline`. People use `icestream pipeline run`.

It ties its life to its parent's before it loads anything that takes time. What it says on stdout is for its parent: one
line, {"port": …} with the port of its metrics, {"missing": …} where it cannot run on this machine, or {"refused": …}
where its configuration cannot be used, such as a port that another process has.
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
    given = parser.parse_args(arguments)
    die_with_parent(given.parent)
    give_way(limits.PIPELINE_NICENESS)
    return _run()


def _run() -> int:
    import asyncio
    import json

    from icestream import error_codes, errors
    from icestream.observability.log import get_logger, set_up_logging
    from icestream.pipeline.driver.child import told_settings
    from icestream.pipeline.driver.serving import serve
    from icestream.runtime.loop import loop_factory

    settings = told_settings(os.environ)
    set_up_logging(settings.log.level, settings.log.format)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve(settings, lambda port: _say(json.dumps({"port": port})), is_child=True))
    except errors.MissingPart as error:
        _say(json.dumps({"missing": f"{error.message}; {error.hint}"}))
        return error_codes.exit_code(error)
    except errors.IcestreamError as error:
        get_logger("pipeline").error("the pipeline cannot run", reason=str(error))
        if isinstance(error, errors.ConfigurationError):
            _say(json.dumps({"refused": str(error)}))
        return error_codes.exit_code(error)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    leave(main())
