"""A start that cannot succeed says why in one sentence with the documented exit code, and a broker whose ports are not
its own is not taken for a healthy one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.free_ports import free_ports
from tests.support.lake_run import LakeRun, get, until
from tests.support.serve_process import COMMAND, SMALL, WAIT_SECONDS, ServeProcess

CANNOT_BE_USED = 3  # docs/operate.md, Exit codes


def serve(data_dir: Path | str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A start that ends by itself."""
    command = [*COMMAND, "serve", "--set", f"data_dir={data_dir}", *SMALL, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=2 * WAIT_SECONDS, check=False)


def check_refused(ran: subprocess.CompletedProcess[str], *words: str) -> None:
    assert ran.returncode == CANNOT_BE_USED, ran.stderr
    assert "Traceback" not in ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line.startswith(("icestream: ", "hint: "))]
    assert [line.split(":")[0] for line in lines] == ["icestream", "hint"], ran.stderr
    for word in words:
        assert word in "\n".join(lines)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as holder:
        yield holder.getsockname()[1]


def test_a_data_dir_that_is_a_file_is_refused_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    check_refused(serve("data", tmp_path), "data (data_dir) is a file", "--set data_dir=DIRECTORY")
    assert (tmp_path / "data").read_text() == "not a directory"


def test_a_warehouse_that_is_a_file_is_refused_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "tables").write_text("not a directory")
    for path in (tmp_path / "tables", tmp_path / "tables" / "below"):
        ran = serve("data", tmp_path, "--set", f"storage.iceberg_config.warehouse=file:{path}")
        check_refused(ran, f"{path} (storage.iceberg_config.warehouse)", "is a file, and must be a directory")


def test_a_data_dir_that_cannot_be_created_is_refused_with_the_reason(tmp_path: Path) -> None:
    check_refused(serve("/proc/icestream-data", tmp_path), "the directory /proc/icestream-data (data_dir)")


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("ports.native", ()),
        ("ports.broker_http", ()),
        ("ports.danube", ("danube.enable=true",)),
        ("ports.danube_admin", ("danube.enable=true",)),
        ("ports.mqtt", ("mqtt.enable=true",)),
        ("ports.mqtt_ws", ("mqtt.enable=true",)),
        ("ports.lake", ("lake.managed=true",)),
        ("ports.pipeline_metrics", ("pipeline.managed=true",)),
    ],
)
def test_a_port_that_another_process_has_is_refused_with_its_setting(
    tmp_path: Path, taken_port: int, key: str, more: tuple[str, ...]
) -> None:
    sets = [word for setting in (f"{key}={taken_port}", *more) for word in ("--set", setting)]
    ran = serve("data", tmp_path, *sets)
    check_refused(ran, f"cannot listen on 127.0.0.1:{taken_port}: another process listens there", f"--set {key}=0")


def test_a_raft_port_that_another_process_has_is_refused_with_its_setting(tmp_path: Path, taken_port: int) -> None:
    (other,) = free_ports(1)
    seeds = f"meta_store.seed_nodes=127.0.0.1:{taken_port},127.0.0.1:{other}"
    ran = serve("data", tmp_path, "--set", seeds, "--raft-port", str(taken_port))
    check_refused(ran, f":{taken_port}: another process listens there", "--set ports.raft=0")


def test_a_terminal_that_is_closed_stops_a_broker_in_order(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as process:
        process.greeting()
        assert process.stop(signal.SIGHUP) == (0, "stopped cleanly: the next start needs no recovery\n")


def test_a_lake_port_of_another_broker_is_refused_and_the_other_broker_is_named(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "first") as first:
        first.until_api()
        with urllib.request.urlopen(f"http://127.0.0.1:{first.http_port}/livez") as answer:
            instance = answer.headers["Icestream-Instance"]
        ran = serve("second", tmp_path, "--set", "lake.managed=true", "--set", f"ports.lake={first.lake_port}")
        check_refused(ran, f"another broker listens there (instance {instance})", "--set ports.lake=0")
        assert get(first.http_port, "/readyz")[0] == 200


def test_a_lake_port_taken_by_another_process_makes_the_node_unready_until_it_is_free(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with LakeRun(tmp_path / "data", "--set", f"ports.lake={port}") as run:
        run.until_api()
        os.kill(run.lake_pid, signal.SIGKILL)
        with contextlib.closing(until(lambda: listening(port))):
            until(lambda: get(run.http_port, "/readyz")[0] == 503)
            status, reason = get(run.http_port, "/readyz")
            assert (status, f"cannot listen on 127.0.0.1:{port}" in reason) == (503, True), reason
        until(lambda: get(run.http_port, "/readyz")[0] == 200)
        run.until_api()


def listening(port: int) -> socket.socket | None:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return None


def test_every_answer_of_a_node_names_its_instance(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "data") as run:
        run.until_api()
        urls = [
            f"http://127.0.0.1:{port}{path}"
            for port, path in (
                (run.http_port, "/livez"),
                (run.http_port, "/metrics"),
                (run.lake_port, "/livez"),
                (run.lake_port, "/api/v1/health"),
                (run.lake_port, "/v1/config"),
            )
        ]
        instances = set()
        for url in urls:
            with urllib.request.urlopen(url) as answer:
                instances.add(answer.headers["Icestream-Instance"])
        (instance,) = instances
        assert len(instance) == 32
        for path in ("/api/v1/namespaces", "/v1/namespaces"):
            request = urllib.request.Request(f"http://127.0.0.1:{run.lake_port}{path}")
            request.add_header("Icestream-Instance", "0" * 32)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            assert refused.value.code == 421
            document = json.loads(refused.value.read())
            text = document.get("detail") or document["error"]["message"]
            assert f"answered by another broker (instance {instance})" in text
