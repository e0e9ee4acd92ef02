"""The process that holds the tests' Spark: takes statements, sends rows. `tests/support/spark.py` starts it.

It is a process of its own because PySpark changes the environment of its process and leaves sockets to the garbage
collector, which would be warnings, and so errors, in tests that have nothing to do with it.
"""

from __future__ import annotations

import logging
import sys
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from icestream.backup.file_copy import run_copy_jobs
from icestream.pipeline.round_plan import RoundPlan
from icestream.pipeline.spark.writer import run_jobs, run_round


def main(number: int, settings: dict[str, str]) -> None:
    from pyspark.sql import SparkSession

    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # a page of JSON for each refused statement
    builder = SparkSession.builder.master("local[2]").appName("icestream-tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    connection = Connection(number)
    connection.send(session.version)
    while True:
        try:
            kind, *arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, answer(session, kind, arguments)))
        except Exception as error:  # noqa: BLE001  # the test decides what it makes of it
            connection.send((False, error_text(error)))


def answer(session: Any, kind: str, arguments: list[Any]) -> Any:
    match kind, arguments:
        case "sql", [statement]:
            return [tuple(row) for row in session.sql(statement).collect()]
        case "read", [location, columns]:
            return [tuple(row) for row in session.read.format("iceberg").load(location).select(*columns).collect()]
        case "set", [key, value]:
            return session.conf.set(key, value)
        case "unset", [key]:
            return session.conf.unset(key)
        case "round", [plan]:
            return run_round(session.sparkContext, msgspec.msgpack.decode(plan, type=RoundPlan))
        case "copy", [jobs]:
            return run_jobs(session.sparkContext, run_copy_jobs, jobs)
    raise ValueError(kind)


def error_text(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(java.toString()) if java is not None else str(error)


if __name__ == "__main__":
    main(int(sys.argv[1]), dict(setting.split("=", 1) for setting in sys.argv[2:]))
