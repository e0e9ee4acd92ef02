"""Hazard 39: kill -9 of `serve` leaves children alive, with their memory and their ports.

A child has two reasons to end with its parent: the kernel kills it, and its stdin comes to an end. Here both together
and each of them alone, on real processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from icestream.processes.child_settings import child_command, child_line
from icestream.settings import load
from tests.support.lake_run import LakeRun, children_of, is_running, until
from tests.support.pipeline_process import PipelineRun

GONE_SECONDS = 5.0
# Starts a child that inherits this process's stdin, says its id, and waits to be killed.
PARENT = """
import os, subprocess, sys, time
command = [str(os.getpid()) if part == "PARENT" else part for part in sys.argv[1:]]
child = subprocess.Popen(command, stdin=sys.stdin, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(1000)
"""


def lake_line(folder: Path) -> bytes:
    return child_line(load(flags=[f"data_dir={folder}", "ports.lake=0", "log.level=error"]).settings)


def start_lake(folder: Path, command: list[str]) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(lake_line(folder))
        child.stdin.flush()
    return child


def lake_command(parent: str | None = None) -> list[str]:
    command = list(child_command("lake"))
    if parent is not None:
        command[command.index("--parent") + 1] = parent
    return command


def check_gone(pid: int) -> None:
    until(lambda: not is_running(pid), GONE_SECONDS)


@pytest.mark.parametrize("stopped", [False, True], ids=["it works", "it hangs"])
def test_hazard_39_kill_9_of_the_broker_leaves_no_process_and_no_port(tmp_path: Path, stopped: bool) -> None:
    """A child that hangs (here: SIGSTOP) can neither read its stdin nor handle a signal, and is gone all the same."""
    with LakeRun(tmp_path / "data") as run:
        run.until_api()
        lake = run.lake_pid
        if stopped:
            os.kill(lake, signal.SIGSTOP)
        os.kill(run.process.pid, signal.SIGKILL)
        check_gone(run.process.pid)
        check_gone(lake)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", run.lake_port))


def below(pid: int) -> list[int]:
    """The descendants of a process."""
    children = children_of(pid)
    return children + [further for child in children for further in below(child)]


@pytest.mark.timeout(180)
def test_hazard_39_kill_9_of_the_broker_leaves_no_spark(tmp_path: Path) -> None:
    """The driver, its Java machine and the parent of its Python workers."""
    run = PipelineRun(tmp_path / "data")
    try:
        run.produce("/default/orders", 3)
        run.icestream("lake", "commit-now", "--wait", "120")
        family = below(run.pid)
        assert len(family) >= 4, "lake process, driver, Java, parent of the workers"
        os.kill(run.pid, signal.SIGKILL)
        for pid in family:
            check_gone(pid)
    finally:
        run.kill()


@pytest.mark.parametrize("after_seconds", [0.0, 0.2])
def test_hazard_39_kill_9_while_the_child_still_starts(tmp_path: Path, after_seconds: float) -> None:
    with LakeRun(tmp_path / "data") as run:
        (lake,) = until(lambda: children_of(run.process.pid))
        time.sleep(after_seconds)
        os.kill(run.process.pid, signal.SIGKILL)
        check_gone(lake)


def test_hazard_39_a_child_whose_parent_died_before_it_registered_does_not_start(tmp_path: Path) -> None:
    command = lake_command(parent="1")  # as if it had been handed over to the first process of the machine
    with start_lake(tmp_path, command) as child:
        assert child.stdout is not None
        assert child.stdout.read() == b""
        assert child.wait(GONE_SECONDS) == 0


def test_hazard_39_the_end_of_stdin_alone_ends_it_in_order(tmp_path: Path) -> None:
    with start_lake(tmp_path, lake_command()) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert json.loads(child.stdout.readline())["port"] > 0
        child.stdin.close()
        assert child.wait(GONE_SECONDS) == 0


def test_hazard_39_the_kernel_alone_ends_it(tmp_path: Path) -> None:
    """The child's stdin stays open, because the test holds the other end too: only the kernel's signal ends it."""
    reading, writing = os.pipe()
    try:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, *lake_command("PARENT")],
            stdin=reading,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.write(writing, lake_line(tmp_path))
        with parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            assert is_running(child)
            parent.kill()
            parent.wait(GONE_SECONDS)
            check_gone(child)
    finally:
        os.close(reading)
        os.close(writing)


def test_hazard_39_a_child_without_a_parent_pipe_does_not_start(tmp_path: Path) -> None:
    done = subprocess.run(
        lake_command(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    refusal = json.loads(done.stdout)  # the one line that the parent reads
    assert (done.returncode, [*refusal]) == (3, ["refused"])
    assert "needs a pipe as its stdin" in refusal["refused"]
