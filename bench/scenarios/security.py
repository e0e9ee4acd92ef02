"""What accounts and TLS cost those that publish: a broker with accounts against one without, and a broker at whose
other port connections do TLS handshakes against the same one at rest.

    frames, awaited   a producer with a token, with the rights of a grant; the same without accounts
    instructions      the same two by what the broker executes for a message, which does not scatter (instructions.py)
    handshakes        one producer awaits each ack in plain text, while others do handshakes with Danube's port, which
                      the native part serves as it serves all; they take a part of the machine themselves
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench import broker, generator, handshakes, instructions, process
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Load, Target
from bench.harness import Bench, MissingPeer, RunFailed, settle

NAME = "security"
GOAL = "an authenticated produce ≤ 1.02x; 1,000 TLS handshakes a second move the ack p99 of others by ≤ 1.5x"
HANDSHAKES = 1000.0
TOKEN = "ICESTREAM_TOKEN_FILE"
ACCOUNT = "service:local:load"


@contextmanager
def secured(target: Target, path: Path) -> Iterator[None]:
    """Switches accounts on; load has a token that allows it to publish."""
    password = path / "admin.password"
    password.touch(0o600)
    password.write_text("correct horse battery staple\n")
    environment = {**os.environ, "XDG_CONFIG_HOME": str(path)}

    def icestream(*words: str) -> str:
        command = [str(broker.PROGRAM), *words, "--broker", str(path / "icestream")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise RunFailed(f"{' '.join(words)}: {done.stderr.strip()[-500:]}")
        return done.stdout

    for words in (
        ("init", "admin", "--password-file", str(password)),
        ("login", "admin", "--password-file", str(password)),
        ("users", "create", "load", "--service"),
        ("grants", "add", ACCOUNT, "all", "/default/*"),
    ):
        icestream("security", *words)
    lines = icestream("security", "tokens", "create", ACCOUNT).splitlines()
    token = path / "token"
    token.touch(0o600)
    token.write_text(next(line.split()[1] for line in lines if line.startswith("token ")))
    os.environ[TOKEN] = str(token)
    try:
        yield
    finally:
        del os.environ[TOKEN]


def publish(path: Path, seconds: float, messages: int, *, has_accounts: bool) -> dict[str, Load]:
    with broker.running(path, "always") as target:
        broker.warm(target, path)
        if not has_accounts:
            return _loads(target, path, seconds, messages)
        with secured(target, path):
            return _loads(target, path, seconds, messages)


def _loads(target: Target, path: Path, seconds: float, messages: int) -> dict[str, Load]:
    loads = {
        str(count): generator.publish(
            "native", target, connections=count, seconds=seconds, warm_seconds=seconds / 5, topic=f"awaited-{count}"
        )
        for count in (1, 64)
    }
    settle(path)
    return {**loads, "frames": broker.burst(target, messages, topic="frames")}


def beside_handshakes(path: Path, seconds: float) -> tuple[Load, Load, float]:
    """The load at rest, beside handshakes, and how many of those were done in a second."""
    certificate, key, port = path / "node.pem", path / "node.key", process.free_port()
    if (openssl := shutil.which("openssl")) is None:
        raise MissingPeer("the certificate needs openssl")
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    names = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, *make.split(), *names], check=True, capture_output=True)
    key.chmod(0o600)
    settings = {"tls.danube.certificate": certificate, "tls.danube.key": key, "ports.danube": port}
    with broker.running(path, "always", settings=settings) as target:
        broker.warm(target, path)
        at_rest = _awaiting(target, seconds)
        with handshakes.running(target, port, HANDSHAKES, seconds * 1.3) as done:
            beside = _awaiting(target, seconds)
        return at_rest, beside, done.done / (seconds * 1.3)


def _awaiting(target: Target, seconds: float) -> Load:
    return generator.publish("native", target, seconds=seconds, warm_seconds=seconds / 5)


def measure(bench: Bench) -> list[Row]:
    return [
        *bench.attempt(NAME, "authenticated against open", Goal(at_most=1.02), partial(_accounts, bench)),
        *bench.attempt(NAME, "instructions of a message", Goal(at_most=1.02), partial(_instructions, bench)),
        *bench.attempt(NAME, "beside handshakes", Goal(at_most=1.5), partial(_handshakes, bench)),
    ]


def _accounts(bench: Bench) -> list[Row]:
    seconds, messages = bench.pick(2.5, 0.3), int(bench.pick(2e7, 1e5))
    loads = bench.interleave(
        bench.rounds(7),
        {
            "open": partial(publish, seconds=seconds, messages=messages, has_accounts=False),
            "secured": partial(publish, seconds=seconds, messages=messages, has_accounts=True),
        },
    )
    goal = Goal(at_most=1.02)

    def row(what: str, name: str, value: str) -> Row:
        before, behind = ([getattr(load[name], value) for load in loads[side]] for side in ("open", "secured"))
        return Row(NAME, what, ratios(behind, before), goal, ours=str(Figure(behind)), peer=f"open: {Figure(before)}")

    return [
        row("one producer, p50 in us", "1", "p50_us"),
        row("64 producers, server CPU in us a message", "64", "server_us"),
        row("frames, seconds", "frames", "seconds"),
        row("frames, server CPU in us a message", "frames", "server_us"),
    ]


def count(path: Path, messages: int, *, has_accounts: bool) -> dict[str, float]:
    """The instructions of a message that is awaited, and of one in frames of 1,000."""
    with broker.running(path, "always", prefix=instructions.prefix(path)) as target:
        if not has_accounts:
            return _counts(target, path, messages)
        with secured(target, path):
            return _counts(target, path, messages)


def _counts(target: Target, path: Path, messages: int) -> dict[str, float]:
    return {
        "awaited": instructions.instructions_per_message(target, path, messages, topic="awaited"),
        "frames": instructions.instructions_per_message(
            target, path, 100 * messages, topic="frames", batch=broker.ROWS
        ),
    }


def _instructions(bench: Bench) -> list[Row]:
    messages = int(bench.pick(1_000, 100))
    counts = bench.interleave(
        bench.rounds(3),
        {
            "open": partial(count, messages=messages, has_accounts=False),
            "secured": partial(count, messages=messages, has_accounts=True),
        },
    )

    def row(what: str, name: str) -> Row:
        before, behind = ([each[name] for each in counts[side]] for side in ("open", "secured"))
        figure = ratios(behind, before)
        return Row(NAME, what, figure, Goal(at_most=1.02), ours=str(Figure(behind)), peer=f"open: {Figure(before)}")

    return [
        row("one producer, instructions of the broker a message", "awaited"),
        row("frames, instructions of the broker a message", "frames"),
    ]


def _handshakes(bench: Bench) -> list[Row]:
    seconds = bench.pick(5.0, 0.5)
    found = bench.interleave(bench.rounds(5), {"handshakes": partial(beside_handshakes, seconds=seconds)})["handshakes"]
    at_rest, beside = [rest.p99_us for rest, _, _ in found], [load.p99_us for _, load, _ in found]
    return [
        Row(
            NAME,
            "one producer, ack p99 in us beside TLS handshakes",
            ratios(beside, at_rest),
            Goal(at_most=1.5),
            ours=str(Figure(beside)),
            peer=f"at rest: {Figure(at_rest)}",
            note=f"{Figure([rate for _, _, rate in found], '/s')} handshakes",
        )
    ]
