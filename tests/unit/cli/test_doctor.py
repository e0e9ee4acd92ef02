"""`icestream doctor`: on a machine without a broker, beside one, and where something is wrong."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from icestream import limits, testing
from icestream.cli import doctor_rules
from icestream.cli.doctor_rules import CheckState
from icestream.frontends.mqtt.mqtt_front_end import MqttFrontEnd
from icestream.pipeline.spark_setup.jar_choice import JarChoice, JarCopy, JarOrigin
from icestream.pipeline.spark_setup.java_choice import JavaChoice, JavaInstall, JavaOrigin
from icestream.pipeline.spark_setup.pinned_versions import ICEBERG_SPARK as JAR
from icestream.processes.broker_process import BrokerNode
from tests.support.command_line import CommandResult, icestream
from tests.support.node_settings import node_settings
from tests.support.sample_logs import picture
from tests.support.secret_files import secret_file

MIB = limits.MIB
JAVA = JavaInstall(Path("/usr/lib/jvm/java-17"), JavaOrigin.PATH, "17.0.15")


def doctor(data_dir: Path, *sets: str) -> CommandResult:
    names = ("native", "broker_http", "danube", "danube_admin", "mqtt", "mqtt_ws")
    ports = (*(f"ports.{name}=0" for name in names), "lake.managed=false")
    arguments = [argument for setting in (f"data_dir={data_dir}", *ports, *sets) for argument in ("--set", setting)]
    return icestream("doctor", *arguments, "--output", "json")


def by_check(ran: CommandResult) -> dict[str, Any]:
    return {row["check"]: row for row in ran.document}


def states(ran: CommandResult) -> dict[str, str]:
    return {row["check"]: row["state"] for row in ran.document}


def test_a_fresh_machine_has_no_problems_and_nothing_is_created(tmp_path: Path) -> None:
    ran = doctor(tmp_path / "data")
    assert (ran.code, ran.err) == (0, "")
    states_by_check = states(ran)
    assert "problem" not in states_by_check.values()
    assert set(states_by_check) == {
        "versions", "native part", "open files", "settings", "data", "sync", "disk", "clock", "log", "java", "pyspark",
        "iceberg jar", "ports.native", "ports.broker_http", "ports.danube", "ports.danube_admin", "ports.mqtt",
        "ports.mqtt_ws", "broker",
    }  # fmt: skip
    assert (states_by_check["data"], states_by_check["log"], states_by_check["broker"]) == ("ok", "ok", "warning")
    assert by_check(ran)["broker"]["fix"] == "icestream serve"
    assert list(tmp_path.iterdir()) == []


def test_for_people_it_ends_with_a_count(tmp_path: Path) -> None:
    sets = (
        "ports.native=0",
        "ports.broker_http=0",
        "danube.enable=false",
        "mqtt.enable=false",
        "lake.managed=false",
        "storage.type=memory",
        f"data_dir={tmp_path}",
    )
    ran = icestream("doctor", *(argument for setting in sets for argument in ("--set", setting)))
    lines = ran.out.splitlines()
    assert lines[0].split() == ["check", "state", "finding", "fix"]
    assert lines[-1].endswith(" checks, 0 problems")


def test_the_health_of_a_running_broker_is_checked() -> None:
    with testing.broker(storage="disk") as broker:
        settings, http = broker.node.settings, broker.node.services.http.port
        ports = (f"ports.native={broker.address.rpartition(':')[2]}", f"ports.broker_http={http}")
        ran = doctor(settings.data_dir, *ports, "storage.iceberg_config.wal.max_file_size=16MiB")
    checks = by_check(ran)
    assert "will be created" not in checks["data"]["finding"]
    assert (ran.code, checks["ports.native"]["state"]) == (0, "ok")
    assert checks["ports.native"]["finding"].endswith("in use by an Icestream broker")
    assert checks["broker"]["finding"].startswith("ready, ")
    assert (checks["log"]["state"], checks["log quota"]["state"]) == ("ok", "ok")


@contextmanager
def stranger() -> Iterator[int]:
    """A server that answers every connection in another protocol, and closes it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


PORTS = (
    "ports.native", "ports.broker_http", "ports.danube", "ports.danube_admin", "ports.mqtt", "ports.mqtt_ws",
    "ports.lake",
)  # fmt: skip


@pytest.mark.parametrize("key", PORTS)
def test_a_port_used_by_another_process_is_a_problem(tmp_path: Path, key: str) -> None:
    with stranger() as port:
        ran = doctor(tmp_path, f"{key}={port}", f"lake.managed={key == 'ports.lake'}".lower())
    check = by_check(ran)[key]
    assert (ran.code, check["state"]) == (1, "problem")
    assert f"set {key} to a free port" in check["fix"]


@pytest.mark.parametrize(
    ("key", "protocol"),
    [("danube", "gRPC"), ("danube_admin", "gRPC"), ("mqtt", "MQTT"), ("mqtt_ws", "MQTT")],
)
def test_beside_a_broker_a_port_that_speaks_another_protocol_is_a_problem(key: str, protocol: str) -> None:
    with testing.broker(storage="disk") as broker, stranger() as port:
        settings = broker.node.settings
        ports = (f"ports.native={broker.address.rpartition(':')[2]}", f"ports.{key}={port}")
        # Which the broker itself has not:
        ran = doctor(settings.data_dir, *ports, "danube.enable=true", "mqtt.enable=true")
    assert (states(ran)["ports.native"], states(ran)[f"ports.{key}"]) == ("ok", "problem")
    assert f"it does not speak {protocol}" in by_check(ran)[f"ports.{key}"]["finding"]


def certificates(folder: Path) -> dict[str, Path]:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
    server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    pem = folder / "server.pem"
    pem.chmod(0o600)
    return {"tls_certificate": pem, "tls_key": pem, "tls_client_ca": folder / "ca.pem"}


@pytest.mark.asyncio
@pytest.mark.parametrize("is_tls", [False, True])
async def test_the_ports_of_danube_answer_while_their_broker_runs_and_are_a_problem_without(
    tmp_path: Path, is_tls: bool
) -> None:
    """Another broker, or Danube itself, would speak gRPC there too."""
    tls = certificates(tmp_path) if is_tls else {}
    node = await BrokerNode.start(node_settings(tmp_path / "data", "memory", danube={"enable": True, **tls}))
    try:
        danube, native = node.danube, node.native.port
        settings = [f"ports.danube={danube.port}", f"ports.danube_admin={danube.admin_port}"]
        settings += [f"danube.{key}={path}" for key, path in tls.items()]
        beside = await asyncio.to_thread(doctor, tmp_path / "data", f"ports.native={native}", *settings)
        without = await asyncio.to_thread(doctor, tmp_path / "data", *settings)
    finally:
        await node.stop()
    checks = by_check(beside)
    assert checks["ports.danube"]["finding"] == f"{settings[0].partition('=')[2]} in use by an Icestream broker"
    assert checks["ports.danube_admin"]["finding"] == f"{settings[1].partition('=')[2]} in use by an Icestream broker"
    assert [states(without)[key] for key in ("ports.danube", "ports.danube_admin")] == ["problem", "problem"]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_tls", [False, True])
async def test_the_ports_of_mqtt_answer_while_their_broker_runs_and_are_a_problem_without(
    tmp_path: Path, is_tls: bool
) -> None:
    """mosquitto would speak MQTT there too."""
    pem = {name.removeprefix("tls_"): str(path) for name, path in certificates(tmp_path).items()} if is_tls else {}
    tls = {"mqtt": {name: pem[name] for name in ("certificate", "key")}} if is_tls else {}
    node = await BrokerNode.start(node_settings(tmp_path / "data", "memory", mqtt={"enable": True}, tls=tls))
    try:
        mqtt, native = node.services.front_end(MqttFrontEnd), node.native.port
        settings = [f"ports.mqtt={mqtt.port}", f"ports.mqtt_ws={mqtt.web_port}"]
        settings += [f"tls.mqtt.{key}={path}" for key, path in tls.get("mqtt", {}).items()]
        beside = await asyncio.to_thread(doctor, tmp_path / "data", f"ports.native={native}", *settings)
        without = await asyncio.to_thread(doctor, tmp_path / "data", *settings)
    finally:
        await node.stop()
    checks = by_check(beside)
    assert checks["ports.mqtt"]["finding"] == f"{mqtt.port} in use by an Icestream broker"
    assert checks["ports.mqtt_ws"]["finding"] == f"{mqtt.web_port} in use by an Icestream broker"
    assert [states(without)[key] for key in ("ports.mqtt", "ports.mqtt_ws")] == ["problem", "problem"]


def test_a_broker_with_other_data_is_not_mistaken_for_the_local_one(tmp_path: Path) -> None:
    with testing.broker("disk") as broker:
        native = f"ports.native={broker.node.native.port}"
        other = doctor(tmp_path / "data", native)
        own = doctor(broker.node.settings.data_dir, native)
    assert by_check(other)["data_dir"]["state"] == "warning"
    assert f"no broker has run on {tmp_path / 'data'}" in by_check(other)["data_dir"]["finding"]
    assert "data_dir" not in by_check(own)


def test_unset_ports_are_those_of_the_broker_in_the_directory() -> None:
    with testing.broker("disk", {"danube": {"enable": True}}) as broker:
        ports = [broker.node.danube.port, broker.node.danube.admin_port]
        ran = icestream("doctor", "--broker", str(broker.node.settings.data_dir), "--output", "json")
    checks = by_check(ran)
    shown = [checks[key]["finding"] for key in ("ports.danube", "ports.danube_admin")]
    assert shown == [f"{port} in use by an Icestream broker" for port in ports]


def test_empty_log_files_are_not_counted_as_used() -> None:
    with testing.broker(storage="disk") as broker:
        settings = broker.node.settings
        ran = doctor(settings.data_dir, "storage.iceberg_config.wal.quota=64MiB")
    checks = by_check(ran)
    assert checks["log quota"]["finding"] == "0 % of the quota used"
    assert "the log uses 0 B of 64.0 MiB" in checks["disk"]["finding"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [(0o600, ""), (0o400, ""), (0o640, "can be read by other accounts"), (0o602, "can be read by other accounts")],
)
def test_a_secret_that_other_accounts_can_use_is_a_problem(tmp_path: Path, mode: int, words: str) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef\n")
    tokens.chmod(mode)
    finding = doctor_rules.secret_file("danube.tls_key", str(tokens), tokens.stat().st_mode)
    assert (finding is None) == (not words)
    if finding is not None:
        assert finding.state is CheckState.PROBLEM
        assert f"{words} (mode {mode:04o})" in finding.text
        assert f"chmod 600 {tokens}" in finding.fix


def test_a_world_readable_token_file_is_reported(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef\n")
    tokens.chmod(0o644)
    check = by_check(doctor(tmp_path / "data", f"lake.token_file={tokens}"))["lake.token_file"]
    assert (check["state"], "can be read by other accounts" in check["finding"]) == ("problem", True)
    tokens.chmod(0o600)
    assert "lake.token_file" not in by_check(doctor(tmp_path / "data", f"lake.token_file={tokens}"))


def test_an_unusable_token_file_is_a_problem(tmp_path: Path) -> None:
    secret_file(tmp_path / "tokens", "short\n")
    ran = doctor(tmp_path / "data", f"lake.token_file={tmp_path / 'tokens'}")
    check = by_check(ran)["lake.token_file"]
    assert (ran.code, check["state"]) == (1, "problem")
    assert "shorter than 16 characters" in check["finding"]
    assert "openssl rand -hex 32" in check["fix"]


def test_settings_that_do_not_load_are_a_problem(tmp_path: Path) -> None:
    ran = doctor(tmp_path, "log.level=loud")
    assert (ran.code, states(ran)["settings"]) == (1, "problem")
    assert "log.level = 'loud'" in by_check(ran)["settings"]["finding"]


def test_a_damaged_log_is_a_problem_with_the_command_that_repairs_it(tmp_path: Path) -> None:
    drawn = picture("killed often")
    path = drawn.write_to(tmp_path / "wal")
    file = path / drawn.logs()[1]
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)
    ran = doctor(tmp_path)
    assert (ran.code, states(ran)["log"]) == (1, "problem")
    assert "icestream wal repair" in by_check(ran)["log"]["fix"]


def test_a_failed_sync_and_a_clock_that_went_back_are_reported(tmp_path: Path) -> None:
    drawn = picture("stopped then killed")
    path = drawn.write_to(tmp_path / "wal")
    (path / "sync-failed").touch()
    ahead = time.time() + 3600
    os.utime(path / drawn.logs()[0], (ahead, ahead))
    checks = by_check(doctor(tmp_path))
    assert checks["log sync"]["state"] == "warning"
    assert (checks["clock"]["state"], "in the future" in checks["clock"]["finding"]) == ("warning", True)


def test_a_file_in_place_of_the_data_directory_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    ran = doctor(tmp_path / "data")
    assert (ran.code, states(ran)["data"]) == (1, "problem")


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (doctor_rules.free_disk(1000 * MIB, 0, 500 * MIB, 64 * MIB), CheckState.OK),
        (doctor_rules.free_disk(63 * MIB, 0, 10 * MIB, 64 * MIB), CheckState.PROBLEM),
        (doctor_rules.free_disk(100 * MIB, 50 * MIB, 151 * MIB, 64 * MIB), CheckState.WARNING),
        (doctor_rules.free_disk(100 * MIB, 50 * MIB, 150 * MIB, 64 * MIB), CheckState.OK),
        (doctor_rules.sync_cost(0.001, "always"), CheckState.OK),
        (doctor_rules.sync_cost(0.02, "always"), CheckState.WARNING),
        (doctor_rules.sync_cost(0.02, "periodic"), CheckState.OK),
        (doctor_rules.sync_cost(0.000_001, "always"), CheckState.WARNING),
        (doctor_rules.open_files(-1), CheckState.OK),
        (doctor_rules.open_files(255), CheckState.PROBLEM),
        (doctor_rules.open_files(1024), CheckState.WARNING),
        (doctor_rules.open_files(20_000), CheckState.OK),
        (doctor_rules.clock(0, None), CheckState.PROBLEM),
        (doctor_rules.clock(1_800_000_000, 1_800_000_006), CheckState.WARNING),
        (doctor_rules.clock(1_800_000_000, 1_800_000_004), CheckState.OK),
        (doctor_rules.log_share(79, 100), CheckState.OK),
        (doctor_rules.log_share(80, 100), CheckState.WARNING),
        (doctor_rules.log_share(100, 100), CheckState.PROBLEM),
        (doctor_rules.java(JavaChoice(JAVA, ("JAVA_HOME is unfit",))), CheckState.OK),
        (doctor_rules.java(JavaChoice(None)), CheckState.WARNING),
        (doctor_rules.java(JavaChoice(None, ("it is Java 25",))), CheckState.WARNING),
        (doctor_rules.pyspark("4.1.4"), CheckState.OK),
        (doctor_rules.pyspark(""), CheckState.WARNING),
        (doctor_rules.pyspark("4.2.0"), CheckState.PROBLEM),
        (
            doctor_rules.iceberg_jar(JAR, JarChoice(JarCopy(Path("/x.jar"), JarOrigin.CACHE, JAR.bytes, JAR.sha256))),
            CheckState.OK,
        ),
        (doctor_rules.iceberg_jar(JAR, JarChoice(None)), CheckState.WARNING),
        (doctor_rules.iceberg_jar(JAR, JarChoice(None, ("too short",))), CheckState.WARNING),
        (doctor_rules.iceberg_jar(JAR, JarChoice(None, ("too short",), is_final=True)), CheckState.PROBLEM),
    ],
)
def test_values_are_judged(finding: doctor_rules.CheckResult, state: CheckState) -> None:
    assert (finding.state, bool(finding.fix)) == (state, state is not CheckState.OK)


def test_a_wrong_jar_and_an_unsuitable_java_are_reported_with_the_fix(tmp_path: Path) -> None:
    """A Java that was asked for is refused by its version, a given jar by its size; neither is searched elsewhere."""
    (tmp_path / "java").mkdir()
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="25.0.3"')
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / JAR.file_name).write_bytes(b"PK")
    ran = doctor(tmp_path / "data", f"pipeline.java_home={tmp_path / 'java'}", f"pipeline.jars={tmp_path / 'jars'}")
    checks = by_check(ran)
    assert (checks["java"]["state"], "does not start Spark" in checks["java"]["finding"]) == ("warning", True)
    assert (ran.code, checks["iceberg jar"]["state"]) == (1, "problem")
    assert "ICESTREAM_JARS" in checks["iceberg jar"]["fix"]
