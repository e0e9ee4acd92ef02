"""What Java writes on stderr is a message of our log, and what it says at each start is logged at debug level."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from structlog.testing import capture_logs

from icestream.pipeline.spark import jvm_log
from icestream.pipeline.spark.spark_options import SparkOptions, spark_conf

EMPTY = "WARNING: Using incubator modules: jdk.incubator.vector"


@pytest.mark.parametrize(
    ("line", "levels"), [(EMPTY, ["debug"]), ("ERROR TaskSetManager: it is lost", ["warning"]), ("", [])]
)
def test_only_useful_lines_are_warnings(line: str, levels: list[str]) -> None:
    with capture_logs() as logs:
        jvm_log.log_line(line)
    assert [entry["log_level"] for entry in logs] == levels
    assert [entry["line"] for entry in logs] == [line][: len(levels)]


def test_a_process_is_heard_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(jvm_log, "log_line", lines.append)
    with jvm_log.stderr_pipe() as stderr:
        words = "import sys; sys.stderr.write('one\\n' + 'x' * 5000 + '\\nlast')"
        (listening,) = [thread for thread in threading.enumerate() if thread.name == "spark-stderr"]
        subprocess.run([sys.executable, "-c", words], stderr=stderr, check=True)
    listening.join(30)
    assert lines == ["one", "x" * 4096, "x" * (5000 - 4096), "last"]


def test_spark_gets_the_path_of_our_logging_settings() -> None:
    conf = spark_conf(SparkOptions("local[2]"), "-Xplain")
    assert conf["spark.driver.extraJavaOptions"] == f"-Xplain {jvm_log.LOG_OPTION}"
    assert jvm_log.LOG_OPTION.startswith("-Dlog4j2.configurationFile=file:///")
