"""`make conformance`: our front ends judged by software that is not ours. `python -m conformance SUITE …` runs some.

    iceberg    Iceberg's REST compatibility kit                 Maven, Java
    paho       Eclipse Paho's interoperability cases of MQTT    a checkout of eclipse/paho.mqtt.testing in PAHO_TESTING
    hivemq     hivemq-mqtt-client, a strict MQTT client         Maven, Java
    mqttjs     MQTT.js, the client of web pages                 Node.js, npm

A suite that needs something which is not here is skipped if all are run, and an error if it is named. The exit code is
0 if every suite that ran passed, and at least one ran.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from conformance import hivemq, iceberg, mqttjs, paho
from conformance.kit import Missing

SUITES: Final[dict[str, Callable[[], bool]]] = {
    "iceberg": iceberg.main,
    "paho": paho.main,
    "hivemq": hivemq.main,
    "mqttjs": mqttjs.main,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        sys.exit(f"conformance: there is no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    outcomes: dict[str, str] = {}
    for name in names or SUITES:
        try:
            outcomes[name] = "passed" if SUITES[name]() else "failed"
        except Missing as missing:
            print(f"conformance: {name}: {missing}", file=sys.stderr)
            outcomes[name] = "failed" if names else "skipped"
    print(f"conformance: {', '.join(f'{name} {outcome}' for name, outcome in outcomes.items())}")
    return 0 if "passed" in outcomes.values() and "failed" not in outcomes.values() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
