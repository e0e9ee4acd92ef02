"""The lake process as a child of its broker: `python -m icestream.lake`. Users run `icestream lake serve` instead.

It does not load the command line, which takes half of the start time. It arranges to end with its parent before it
imports anything slow.
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
    options = parser.parse_args(arguments)
    die_with_parent(options.parent)
    give_way(limits.LAKE_NICENESS)
    return _run(options)


def _run(arguments: argparse.Namespace) -> int:
    import asyncio

    from icestream import error_codes, errors
    from icestream.lake.lake_options import TOKEN_VARIABLE, LakeOptions, pop_foreign_settings, pop_store_options
    from icestream.lake.serving import serve
    from icestream.observability.log import get_logger, set_up_logging
    from icestream.readers.row_group_cache_options import RowGroupCacheOptions
    from icestream.runtime.loop import loop_factory

    set_up_logging(arguments.log_level, arguments.log_format)
    options = LakeOptions(
        arguments.socket,
        arguments.host,
        arguments.port,
        True,
        arguments.warehouse,
        tuple(arguments.table_root),
        arguments.token_file,
        arguments.share_keys,
        pop_store_options(os.environ),
        RowGroupCacheOptions(arguments.cache_bytes > 0, arguments.cache_bytes, arguments.cache_ttl_ms),
        pop_foreign_settings(os.environ),
        arguments.log,
        arguments.namespace,
        os.environ.pop(TOKEN_VARIABLE, ""),
    )
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(
                serve(
                    options,
                    lambda port: print_document({"port": port}),
                    lambda room: print_document({"connections": room}),
                )
            )
    except errors.IcestreamError as error:
        get_logger("lake").error("lake process cannot start", reason=str(error))
        if isinstance(error, errors.ConfigurationError):
            print_document({"refused": str(error)})
        return error_codes.exit_code(error)
    return 0


def print_document(document: Mapping[str, object]) -> None:
    """Prints one line of JSON for the parent (server/child_processes.py)."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    leave(main())
