"""Eclipse Paho's interoperability cases of MQTT: 10 of 3.1.1 and 27 of 5.0, unchanged, from a checkout.

PAHO_TESTING is the folder of a checkout of eclipse/paho.mqtt.testing, which is not ours to keep here. Each case is a
process of its own with a time limit: some wait for ever for what a broker does not send, and a case that fails leaves
clients behind. The cases of one broker run one after the other, because they share client ids; as many brokers as there
are workers run at the same time, because the cases mostly sleep.

PAHO_CASES: the cases to run, by parts of their names. PAHO_REPORT: a file for the outcomes, as JSON:

    {"broker": "icestream", "passed": 37, "failed": 0,
     "cases": [{"protocol": "5.0", "case": "test_basic", "outcome": "passed", "seconds": 3.1, "output": ""}, …]}
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from conformance.kit import Missing
from conformance.mqtt_broker import broker_name, started_broker

VARIABLE: Final = "PAHO_TESTING"
CASE_SECONDS_MAX: Final = 90.0
WORKERS: Final = 4
PROTOCOLS: Final = {"3.1.1": "client_test", "5.0": "client_test5"}
# How many there are in each module: fewer found is a broken checkout, not a good result.
WANTED: Final = {"3.1.1": 10, "5.0": 27}
# Lists the cases of a module, or runs one. Their own main reads options and is not used.
PROGRAM: Final = """
import importlib, logging, sys, unittest
folder, module_name, case, host, port = sys.argv[1:]
sys.path.insert(0, folder)
module = importlib.import_module(module_name)
if not case:
    print(*unittest.defaultTestLoader.getTestCaseNames(module.Test))
    sys.exit()
logging.getLogger().setLevel(logging.ERROR)
module.host, module.port, module.topic_prefix = host, int(port), "client_test5/"
module.topics = ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")
module.wildtopics = ("TopicA/+", "+/C", "#", "/#", "/+", "+/+", "TopicA/#")
module.nosubscribe_topics = ("test/nosubscribe",)
suite = unittest.defaultTestLoader.loadTestsFromName("Test." + case, module)
done = unittest.TextTestRunner(stream=sys.stderr).run(suite)
sys.stdout.flush()
sys.stderr.flush()
import os
os._exit(0 if done.wasSuccessful() else 1)  # threads of clients that were not disconnected would keep it
"""


class Case(NamedTuple):
    protocol: str
    name: str


def main() -> bool:
    """True if every case passed. Raises Missing."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise Missing(f"{VARIABLE} names no checkout of eclipse/paho.mqtt.testing")
    place = Path(folder) / "interoperability"
    if not (place / "client_test5.py").is_file():
        raise Missing(f"{folder} ({VARIABLE}) is no checkout of eclipse/paho.mqtt.testing")
    words = os.environ.get("PAHO_CASES", "").split()
    cases = [case for case in listed(place) if not words or any(word in case.name for word in words)]
    print(f"conformance: {len(cases)} cases of Paho against {broker_name()}", flush=True)
    outcomes = run_all(place, cases)
    report(outcomes)
    return bool(outcomes) and all(outcome["outcome"] == "passed" for outcome in outcomes)


def listed(place: Path) -> list[Case]:
    cases = []
    for protocol, module in PROTOCOLS.items():
        command = [sys.executable, "-c", PROGRAM, str(place), module, "", "", ""]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        names = done.stdout.split()
        if len(names) < WANTED[protocol]:
            raise Missing(f"{module}.py has {len(names)} cases, not {WANTED[protocol]}: {done.stderr[-2000:]}")
        cases += [Case(protocol, name) for name in names]
    return cases


def run_all(place: Path, cases: list[Case]) -> list[dict[str, Any]]:
    """The outcomes, in the order of the cases."""
    pending: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in cases:
        pending.put(case)
    outcomes: dict[Case, dict[str, Any]] = {}

    def work() -> None:
        with started_broker() as (host, port), contextlib.suppress(queue.Empty):
            while True:
                case = pending.get_nowait()
                outcomes[case] = run_case(place, case, host, port)

    # A broker that runs already is one, and its cases cannot overlap.
    count = 1 if ":" in broker_name() else min(WORKERS, len(cases))
    with ThreadPoolExecutor(count) as pool:
        for worker in [pool.submit(work) for _ in range(count)]:
            worker.result()
    return [outcomes[case] for case in cases]


def run_case(place: Path, case: Case, host: str, port: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(place), PROTOCOLS[case.protocol], case.name]
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*command, host, str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=CASE_SECONDS_MAX,
        )
        outcome, output = "passed" if done.returncode == 0 else "failed", done.stdout
    except subprocess.TimeoutExpired as error:
        outcome, output = "timed out", (error.stdout or b"").decode("utf-8", "replace")
    seconds = round(time.monotonic() - began, 1)
    print(f"  {case.protocol:5}  {case.name:32}  {outcome:9}  {seconds:5.1f} s", flush=True)
    is_good = outcome == "passed"
    return {
        "protocol": case.protocol,
        "case": case.name,
        "outcome": outcome,
        "seconds": seconds,
        "output": "" if is_good else output[-8000:],
    }


def report(outcomes: list[dict[str, Any]]) -> None:
    for outcome in outcomes:
        if outcome["outcome"] != "passed":
            print(f"--- {outcome['protocol']} {outcome['case']} {outcome['outcome']}\n{outcome['output']}")
    for protocol in PROTOCOLS:
        chosen = [outcome for outcome in outcomes if outcome["protocol"] == protocol]
        passed = sum(outcome["outcome"] == "passed" for outcome in chosen)
        failed = [outcome["case"] for outcome in chosen if outcome["outcome"] != "passed"]
        print(f"MQTT {protocol}: {passed} of {len(chosen)} passed{': not ' + ', '.join(failed) if failed else ''}")
    path = os.environ.get("PAHO_REPORT")
    if path:
        passed = sum(outcome["outcome"] == "passed" for outcome in outcomes)
        document = {
            "broker": broker_name(),
            "passed": passed,
            "failed": len(outcomes) - passed,
            "cases": outcomes,
        }
        Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
