"""The commands that README.md and docs/cli.md show work verbatim."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream import testing
from tests.support.command_line import icestream
from tests.tidy.tree import read
from tests.unit.cli.test_commands import SHOWN, words

README = read("README.md")
# These commands run until they are stopped, or change this machine.
# Those of the lake are run by tests/process/test_lake_commands.py.
NOT_RUN = (
    "serve",
    "cluster ",  # needs several nodes: tests/process/test_cluster.py
    "topic takeover",  # the same
    "backup restore",  # needs the lake process: tests/process/test_pipeline.py
    "topic undelete",  # needs a deleted topic: tests/process/test_lake_commands.py
    "lake ",
    "backup ",  # needs the lake process and a target: tests/engines/test_backup_views.py
    "security ",  # switches security on: tests/process/test_security_commands.py
    "mqtt session show",  # needs a client: tests/unit/cli/test_mqtt.py
    "mqtt kick",  # the same
    "pipeline run",
    "pipeline status",
    "wal repair",
    "verify",  # needs the lake process: tests/process
    "backup ",  # the same, and a target: tests/engines/test_backup_views.py
    "--install-completion",
    "--show-completion",
    "doctor",
    "bench",
)


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[testing.TestBroker]:
    """A broker at the default location of the commands; only its port cannot be the default one."""
    monkeypatch.chdir(tmp_path)
    with testing.broker(storage="disk", settings={"data_dir": "icestream-data"}) as test_broker:
        monkeypatch.setenv("ICESTREAM_PORTS__NATIVE", test_broker.address.rpartition(":")[2])
        yield test_broker


def test_the_ten_lines_of_python(broker: testing.TestBroker, tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in program.splitlines() if line]) == 10
    (tmp_path / "hello.py").write_text(program.replace("connect()", f'connect("{broker.address}")'))
    for offset in (0, 1):
        ran = subprocess.run(
            [sys.executable, "hello.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        assert ran.stdout == f"MessageId(topic='/default/greetings', shard=0, offset={offset})\n{offset} b'hello'\n"
        assert offset or all(f"`{line}`" in README for line in ran.stdout.splitlines())


def test_the_three_commands(broker: testing.TestBroker) -> None:
    lines = re.findall(r"^(?:echo hello \| )?\.venv/bin/icestream (.*?) +# (.*)$", README, flags=re.MULTILINE)
    assert [line.split()[0] for line, _ in lines] == ["produce", "consume", "topic"]
    ran = [icestream(*line.split(), given=b"hello\n") for line, _ in lines]
    assert [command.code for command in ran] == [0, 0, 0]
    assert ran[0].out == f"{lines[0][1]}\n"
    assert (
        ran[1].out.split() == lines[1][1].split(":  ")[0].replace("hello: shard, offset, key, payload", "hello").split()
    )


def test_every_command_of_the_page(broker: testing.TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page; but what makes something comes first, and what deletes it last."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "orders.txt").write_text("one\ntwo\n")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "danube_broker_iceberg.yml").write_text(read("config/danube_broker_iceberg.yml"))
    lines = [line for line in SHOWN if not " ".join(words(line)).startswith(NOT_RUN)]
    assert len(lines) > 30
    creating = [line for line in lines if "create" in words(line)]
    gone = [line for line in lines if "delete" in words(line)]
    ends = {"top": ["--once", "--interval", "0.1"], "consume": ["--timeout", "0.2"]}
    for line in [*creating, *(line for line in lines if line not in creating + gone), *reversed(gone)]:
        stdin = b'{"payload": "x"}\n' if "--json" in line else b"hello\n"
        ending = ends.get(words(line)[0], [])
        given_words = [broker.address if word == "127.0.0.1:6651" else word for word in words(line)]
        ran = icestream(*given_words, *ending, given=stdin)
        assert (line, ran.code, "Traceback" in ran.err) == (line, 0, False), ran.err
