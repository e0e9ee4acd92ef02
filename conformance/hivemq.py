"""hivemq-mqtt-client as a strict MQTT peer: HivemqPeer.java, run from its source, against a fresh broker.

The client ends a connection at the first packet of the broker that MQTT does not allow, which a lenient client would
pass over.
"""

from __future__ import annotations

import subprocess
from typing import Final

from conformance.kit import ROOT, Missing, class_path, java
from conformance.mqtt_broker import broker_name, started_broker

POM: Final = ROOT / "conformance" / "hivemq_pom.xml"
PROGRAM: Final = ROOT / "conformance" / "HivemqPeer.java"
SECONDS_MAX: Final = 600


def main() -> bool:
    """True if every case passed. Raises Missing."""
    program = java()
    modules = subprocess.run([program, "--list-modules"], capture_output=True, text=True, check=False).stdout
    if "jdk.compiler" not in modules:
        raise Missing(f"{program} cannot run a source file: it needs a JDK (`apt install default-jdk-headless`)")
    command = [program, "-cp", class_path(POM, "hivemq-mqtt-client"), str(PROGRAM)]
    with started_broker() as (host, port):
        print(f"conformance: hivemq-mqtt-client against {broker_name()}", flush=True)
        try:
            done = subprocess.run(
                [*command, host, str(port)], stdout=subprocess.PIPE, text=True, timeout=SECONDS_MAX, check=False
            )
            output, is_good = done.stdout, done.returncode == 0
        except subprocess.TimeoutExpired as error:  # its calls wait for ever for what a broker does not send
            output, is_good = (error.stdout or b"").decode("utf-8", "replace") + "the next case timed out\n", False
    print(output, end="")
    outcomes = [line.split(maxsplit=2) for line in output.splitlines()]
    passed = sum(outcome[1] == "passed" for outcome in outcomes)
    print(f"hivemq-mqtt-client: {passed} of {len(outcomes)} passed")
    return bool(outcomes) and is_good
