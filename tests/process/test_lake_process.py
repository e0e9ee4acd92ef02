"""The broker and its lake process together: started at once, restarted, stopped in order, and idle when nobody asks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.process.test_idle import usage
from tests.support.command_line import Ran, icestream
from tests.support.free_ports import free_ports
from tests.support.lake_run import LakeRun, get, is_running, request, until
from tests.support.serve_process import COMMAND, ServeProcess
from tests.support.tables import SCHEMA

MEASURED_SECONDS = 2.0
CPU_SHARE_MAX = 0.02


def test_the_api_is_there_and_a_stop_ends_both_in_order(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "data") as run:
        assert "lake: starting" in run.health() or "lake: listens" in run.health()
        assert get(run.http_port, "/readyz")[0] == 200, "the broker waits for nobody"
        run.until_api()
        status, made = request(
            run.lake_port, "POST", "/api/v1/namespaces/default/topics", {"name": "orders", "shards": 3}
        )
        assert (status, json.loads(made)["shards"]) == (201, 3)
        assert 'icestream_child_up{process="lake"} 1.0' in get(run.http_port, "/metrics")[1]
        lake = run.lake_pid
        assert os.getpriority(os.PRIO_PROCESS, lake) > os.getpriority(os.PRIO_PROCESS, run.process.pid)
        began = time.monotonic()
        assert run.stop() == (0, "stopped cleanly: the next start needs no recovery\n")
        assert time.monotonic() - began < 10
        assert not is_running(lake)
    assert not (tmp_path / "data" / "broker.sock").exists()


def test_a_lake_process_that_dies_is_started_again_and_the_broker_stays_ready(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "data") as run:
        run.until_api()
        first = run.lake_pid
        os.kill(first, signal.SIGKILL)
        said = until(lambda: found if "next start in" in (found := run.health()) else "")
        assert "[!] lake: ended with exit code -9; next start in 0.5 s" in said
        assert said.endswith("ready\n")
        run.until_api()
        assert run.lake_pid != first
        assert 'icestream_child_restarts_total{process="lake"} 1.0' in get(run.http_port, "/metrics")[1]


def test_the_catalog_keeps_its_tables_when_the_lake_process_dies(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "data") as run:
        run.until_api()
        assert request(run.lake_port, "POST", "/v1/namespaces", {"namespace": ["ns"]})[0] == 200
        _, made = request(run.lake_port, "POST", "/v1/namespaces/ns/tables", {"name": "t", "schema": SCHEMA})
        location = json.loads(made)["metadata-location"]
        assert location.startswith(f"file:{tmp_path}/data/warehouse/ns/t-")
        assert Path(location.removeprefix("file:")).is_file()
        os.kill(run.lake_pid, signal.SIGKILL)
        until(lambda: "next start in" in run.health())
        run.until_api()
        assert json.loads(get(run.lake_port, "/v1/namespaces/ns/tables/t")[1]) == json.loads(made)


def test_the_greeting_names_the_port_of_the_lake_process_or_the_place_that_says_it(tmp_path: Path) -> None:
    """That of a port which is taken: test_startup.py."""
    with LakeRun(tmp_path / "first") as first:
        health = f"http://127.0.0.1:{first.http_port}/readyz?verbose"
        assert f"  HTTP API and Iceberg REST catalog (starting): at a free port, see `lake` in {health}\n" in first.said
    (port,) = free_ports(1)
    with LakeRun(tmp_path / "second", "--set", f"ports.lake={port}") as second:
        assert f"  HTTP API (starting): http://127.0.0.1:{port}/api/v1\n" in second.said
        assert f"  Iceberg REST catalog: http://127.0.0.1:{port}\n" in second.said
        assert second.until_lake() == port


def test_doctor_asks_the_lake_process_whose_broker_runs(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef\n")
    with LakeRun(tmp_path / "data", "--set", f"lake.token_file={tokens}") as run:
        run.until_api()
        sets = [f"data_dir={tmp_path / 'data'}", f"ports.broker_http={run.http_port}", "ports.native=0"]
        sets += ["danube.enable=false", f"lake.token_file={tokens}"]
        options = [part for one in sets for part in ("--set", one)]
        well = icestream("doctor", *options, "--set", f"ports.lake={run.lake_port}", "--output", "json")
        (free,) = free_ports(1)
        down = icestream("doctor", *options, "--set", f"ports.lake={free}", "--output", "json")
    assert (well.code, lake_finding(well)["state"]) == (0, "ok")
    assert lake_finding(well)["finding"] == f"port {run.lake_port} serves API and catalog"
    assert (down.code, lake_finding(down)["state"]) == (1, "problem")
    assert lake_finding(down)["finding"].startswith("API and catalog not available: ")


def lake_finding(ran: Ran) -> dict[str, str]:
    (found,) = [one for one in ran.document if one["check"] == "lake"]
    return found


def test_neither_uses_any_cpu_while_nobody_asks(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "data") as run:
        run.until_api()
        pids = (run.process.pid, run.lake_pid)
        until(lambda: all(is_quiet(pid) for pid in pids))
        before = [usage(pid) for pid in pids]
        switches = [context_switches(pid) for pid in pids]
        time.sleep(MEASURED_SECONDS)
        for pid, was, switched in zip(pids, before, switches, strict=True):
            now = usage(pid)
            assert (now[0] - was[0]) / MEASURED_SECONDS < CPU_SHARE_MAX
            assert now[1:] == was[1:], "it writes"
            assert context_switches(pid) - switched <= 4, "it wakes up again and again"


def is_quiet(pid: int) -> bool:
    before = context_switches(pid)
    time.sleep(0.2)
    return context_switches(pid) == before


def context_switches(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


def test_a_broker_in_memory_has_a_lake_process_only_when_asked(tmp_path: Path) -> None:
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

        assert lake_line() == "", "nobody runs one, and nothing needs it"
        lake = subprocess.Popen(
            [*COMMAND, "lake", "serve", "--broker", str(data_dir / "broker.sock"), "--set", f"ports.lake={port}"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: lake_line() == f"[+] lake: connected, expected on port {port}")
            lake.send_signal(signal.SIGSTOP)  # its connection stays, and its port answers nobody
            until(lambda: lake_line().startswith("[!] lake: not serving: "))
            lake.send_signal(signal.SIGCONT)
            until(lambda: lake_line().startswith("[+] lake: "))
        finally:
            lake.kill()
            lake.wait()
        until(lambda: lake_line().startswith("[!] lake: the lake process has disconnected"))
