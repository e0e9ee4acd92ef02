"""The lake process as a child of its broker: `python -m icestream.lake`. People use `icestream lake serve`.

Without the command line around it, which is half of the time of a start. It ties its life to its parent's before it
loads anything that takes time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from icestream import limits
from icestream.runtime.leave import leave
from icestream.runtime.parent import die_with_parent
from icestream.runtime.time_slice import give_way

FORMATS = ("console", "json")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m icestream.lake", description="The lake process, as a child.")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", choices=FORMATS, default="console")
    parser.add_argument("--warehouse", default="")
    parser.add_argument("--table-root", action="append", default=[])
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--share-keys", action="store_true")
    parser.add_argument("--cache-bytes", type=int, default=0)
    parser.add_argument("--cache-ttl-ms", type=int, default=1)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--namespace", default="")
    given = parser.parse_args(arguments)
    die_with_parent(given.parent)
    give_way(limits.LAKE_NICENESS)
    return _run(given)


def _run(given: argparse.Namespace) -> int:
    import asyncio

    from icestream import error_codes, errors
    from icestream.lake.lake_options import TOKEN_VARIABLE, LakeOptions, elsewhere_from, store_from
    from icestream.lake.serving import serve
    from icestream.observability.log import get_logger, set_up_logging
    from icestream.readers.row_group_cache_options import RowGroupCacheOptions
    from icestream.runtime.loop import loop_factory

    set_up_logging(given.log_level, given.log_format)
    options = LakeOptions(
        given.socket,
        given.host,
        given.port,
        True,
        given.warehouse,
        tuple(given.table_root),
        given.token_file,
        given.share_keys,
        store_from(os.environ),
        RowGroupCacheOptions(given.cache_bytes > 0, given.cache_bytes, given.cache_ttl_ms),
        elsewhere_from(os.environ),
        given.log,
        given.namespace,
        os.environ.pop(TOKEN_VARIABLE, ""),
    )
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve(options, lambda port: say({"port": port}), lambda room: say({"connections": room})))
    except errors.IcestreamError as error:
        get_logger("lake").error("the lake process cannot serve", reason=str(error))
        if isinstance(error, errors.ConfigurationError):
            say({"refused": str(error)})
        return error_codes.exit_code(error)
    return 0


def say(document: Mapping[str, object]) -> None:
    """The one line that the parent waits for (server/child_processes.py)."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    leave(main())
