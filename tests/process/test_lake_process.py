"""The broker and its lake process together: started at once, restarted, stopped in order, and idle without requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.process.test_idle import usage
from tests.support.command_line import CommandResult, icestream
from tests.support.free_ports import free_ports
from tests.support.lake_run import LakeRun, get, is_running, request, until
from tests.support.secret_files import secret_file
from tests.support.serve_process import COMMAND, ServeProcess
from tests.support.tables import SCHEMA

MEASURED_SECONDS = 2.0
CPU_SHARE_MAX = 0.02


def test_the_api_is_served_and_a_stop_ends_both_processes(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "data") as run:
        assert "lake: starting" in run.health() or "lake: listens" in run.health()
        assert get(run.http_port, "/readyz")[0] == 200, "the broker does not wait for its lake process"
        run.until_api()
        status, created = request(
            run.lake_port, "POST", "/api/v1/namespaces/default/topics", {"name": "orders", "shards": 3}
        )
        assert (status, json.loads(created)["shards"]) == (201, 3)
        assert 'icestream_child_up{process="lake"} 1.0' in get(run.http_port, "/metrics")[1]
        lake = run.lake_pid
        assert os.getpriority(os.PRIO_PROCESS, lake) > os.getpriority(os.PRIO_PROCESS, run.process.pid)
        began = time.monotonic()
        assert run.stop() == (0, "stopped cleanly: the next start needs no recovery\n")
        assert time.monotonic() - began < 10
        assert not is_running(lake)
    assert not (tmp_path / "data" / "broker.sock").exists()


def test_a_dead_lake_process_is_restarted_while_the_broker_stays_ready(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "data") as run:
        run.until_api()
        first = run.lake_pid
        os.kill(first, signal.SIGKILL)
        health = until(lambda: report if "next start in" in (report := run.health()) else "")
        assert "[!] lake: ended with exit code -9; next start in 0.5 s" in health
        assert health.endswith("ready\n")
        run.until_api()
        assert run.lake_pid != first
        assert 'icestream_child_restarts_total{process="lake"} 1.0' in get(run.http_port, "/metrics")[1]


def test_the_catalog_keeps_its_tables_when_the_lake_process_dies(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "data") as run:
        run.until_api()
        assert request(run.lake_port, "POST", "/v1/namespaces", {"namespace": ["ns"]})[0] == 200
        _, created = request(run.lake_port, "POST", "/v1/namespaces/ns/tables", {"name": "t", "schema": SCHEMA})
        location = json.loads(created)["metadata-location"]
        assert location.startswith(f"file:{tmp_path}/data/warehouse/ns/t-")
        assert Path(location.removeprefix("file:")).is_file()
        os.kill(run.lake_pid, signal.SIGKILL)
        until(lambda: "next start in" in run.health())
        run.until_api()
        assert json.loads(get(run.lake_port, "/v1/namespaces/ns/tables/t")[1]) == json.loads(created)


def test_the_greeting_names_the_lake_port_or_where_to_find_it(tmp_path: Path) -> None:
    """A port that is taken is tested in test_startup.py."""
    with LakeRun(tmp_path / "first") as first:
        health = f"http://127.0.0.1:{first.http_port}/readyz?verbose"
        assert (
            f"  HTTP API and Iceberg REST catalog (starting): at a free port, see `lake` in {health}\n"
            in first.greeting
        )
    (port,) = free_ports(1)
    with LakeRun(tmp_path / "second", "--set", f"ports.lake={port}") as second:
        assert f"  HTTP API (starting): http://127.0.0.1:{port}/api/v1\n" in second.greeting
        assert f"  Iceberg REST catalog: http://127.0.0.1:{port}\n" in second.greeting
        assert second.until_lake() == port


def test_doctor_asks_the_lake_process_of_the_running_broker(tmp_path: Path) -> None:
    tokens = secret_file(tmp_path / "tokens", "0123456789abcdef\n")
    with LakeRun(tmp_path / "data", "--set", f"lake.token_file={tokens}") as run:
        run.until_api()
        sets = [f"data_dir={tmp_path / 'data'}", f"ports.broker_http={run.http_port}", "ports.native=0"]
        sets += ["danube.enable=false", "mqtt.enable=false", f"lake.token_file={tokens}"]
        options = [part for setting in sets for part in ("--set", setting)]
        well = icestream("doctor", *options, "--set", f"ports.lake={run.lake_port}", "--output", "json")
        (free,) = free_ports(1)
        down = icestream("doctor", *options, "--set", f"ports.lake={free}", "--output", "json")
    assert (well.code, lake_finding(well)["state"]) == (0, "ok")
    assert lake_finding(well)["finding"] == f"port {run.lake_port} serves API and catalog"
    assert (down.code, lake_finding(down)["state"]) == (1, "problem")
    assert lake_finding(down)["finding"].startswith("API and catalog not available: ")


def test_a_run_that_does_not_start_leaves_no_process(tmp_path: Path) -> None:
    listed = Path(f"/proc/self/task/{os.getpid()}/children")  # also those that have ended and were not waited for
    before = listed.read_text(encoding="ascii")
    with pytest.raises(AssertionError, match="ended before it was ready"):
        LakeRun(tmp_path / "data", "--set", "ports.native=none")
    assert listed.read_text(encoding="ascii") == before


def lake_finding(ran: CommandResult) -> dict[str, str]:
    (finding,) = [candidate for candidate in ran.document if candidate["check"] == "lake"]
    return finding


def test_idle_processes_use_no_cpu(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "data") as run:
        run.until_api()
        pids = (run.process.pid, run.lake_pid)
        until(lambda: all(is_quiet(pid) for pid in pids))
        # Every WAREHOUSE_FENCE_LOOK_SECONDS a thread of the broker reads the fence of the warehouse and wakes the event
        # loop by one write call. What is measured lies between two of these looks, however late this test gets here.
        calls = usage(run.process.pid)[2]
        until(lambda: usage(run.process.pid)[2] > calls and all(is_quiet(pid) for pid in pids))
        before = [usage(pid) for pid in pids]
        switches = [context_switches(pid) for pid in pids]
        time.sleep(MEASURED_SECONDS)
        for pid, was, switched in zip(pids, before, switches, strict=True):
            now = usage(pid)
            assert (now[0] - was[0]) / MEASURED_SECONDS < CPU_SHARE_MAX
            assert now[1:] == was[1:], "an idle process writes"
            assert context_switches(pid) - switched <= 4, "an idle process wakes up repeatedly"


def is_quiet(pid: int) -> bool:
    before = context_switches(pid)
    time.sleep(0.2)
    return context_switches(pid) == before


def context_switches(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


def test_a_memory_broker_has_a_lake_process_only_on_request(tmp_path: Path) -> None:
    memory = ("--set", "storage.type=memory")
    with ServeProcess(tmp_path / "a", *memory) as process:
        assert not [line for line in process.greeting() if "lake" in line]
    assert not (tmp_path / "a").exists()
    with LakeRun(tmp_path / "b", *memory) as run:
        run.until_api()
        assert get(run.lake_port, "/api/v1/topics")[0] == 200
        status, problem = get(run.lake_port, "/api/v1/wal")
        assert (status, json.loads(problem)["detail"]) == (
            400,
            "this broker keeps its messages in memory and has no log",
        )


def test_it_can_be_run_by_hand_before_and_after_its_broker(tmp_path: Path) -> None:
    """`icestream lake serve` beside a broker that does not manage it."""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    lake = subprocess.Popen(
        [*COMMAND, "lake", "serve", "--broker", str(data_dir / "broker.sock"), "--set", "ports.lake=0"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert lake.stderr is not None
        line = next(line for line in lake.stderr if line.startswith("HTTP API: "))
        port = int(line.rpartition(":")[2].partition("/")[0])
        assert (get(port, "/livez")[0], get(port, "/readyz")[0], get(port, "/api/v1/topics")[0]) == (200, 503, 503)
        for _ in range(2):
            with ServeProcess(data_dir) as process:
                process.greeting()
                until(lambda: get(port, "/api/v1/topics")[0] == 200)
                process.stop(signal.SIGTERM)
            until(lambda: get(port, "/api/v1/topics")[0] == 503)
        lake.send_signal(signal.SIGINT)
        assert lake.wait(20) == 0
    finally:
        lake.kill()
        lake.communicate()


def test_readiness_follows_a_lake_process_that_is_run_by_hand(tmp_path: Path) -> None:
    """Item 15: with `lake.managed: false` it had no line, whether the process was there or not."""
    data_dir = tmp_path / "data"
    (port,) = free_ports(1)
    with ServeProcess(data_dir, "--output", "json", "--set", f"ports.lake={port}") as process:
        http_port = int(process.announcement()["http"].rpartition(":")[2])

        def lake_line() -> str:
            status, body = get(http_port, "/readyz?verbose")
            assert status == 200, body
            return next((line for line in body.splitlines() if "lake:" in line), "")

        assert lake_line() == "", "no lake process runs, and nothing needs it"
        lake = subprocess.Popen(
            [*COMMAND, "lake", "serve", "--broker", str(data_dir / "broker.sock"), "--set", f"ports.lake={port}"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: lake_line() == f"[+] lake: connected, expected on port {port}")
            lake.send_signal(signal.SIGSTOP)  # its connection stays, and its port does not answer
            until(lambda: lake_line().startswith("[!] lake: not serving: "))
            lake.send_signal(signal.SIGCONT)
            until(lambda: lake_line().startswith("[+] lake: "))
        finally:
            lake.kill()
            lake.wait()
        until(lambda: lake_line().startswith("[!] lake: the lake process has disconnected"))
