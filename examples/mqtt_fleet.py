"""A fleet of sensors, a dashboard that is away for a while, and SQL about all of it.

    make run                                   # in another terminal
    .venv/bin/python examples/mqtt_fleet.py

Each sensor publishes readings with QoS 1, says `online` in a retained message, and has a will that says `offline`. The
dashboard has a durable session: it subscribes, disconnects, and gets everything that was published meanwhile when it
comes back. Then DuckDB reads the same messages as rows of the table that the route stores them in.

Needs the packages paho-mqtt and duckdb with its extension iceberg (docs/engines.md).
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections import Counter
from typing import Any

import duckdb
import paho.mqtt.client as mqtt
from duckdb_extensions import import_extension
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

SITES = ("berlin", "oslo", "porto")
READINGS = ("temperature", "humidity")
SESSION_SECONDS = 3600


class FleetMember:
    """A client of the fleet: connects, and waits for what it is told."""

    def __init__(self, client_id: str, *, is_durable: bool = False) -> None:
        self._is_durable = is_durable
        self._connected, self._subscribed = threading.Event(), threading.Event()
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5)
        self.client.on_connect = lambda *_: self._connected.set()
        self.client.on_subscribe = lambda *_: self._subscribed.set()

    def connect(self, host: str, port: int) -> None:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = SESSION_SECONDS if self._is_durable else 0
        self._connected.clear()
        self.client.connect(host, port, clean_start=not self._is_durable, properties=properties)
        self.client.loop_start()
        assert self._connected.wait(30), "the broker did not answer CONNECT"

    def subscribe(self, topic_filter: str) -> None:
        self._subscribed.clear()
        self.client.subscribe(topic_filter, qos=1)
        assert self._subscribed.wait(30), "the broker did not answer SUBSCRIBE"

    def disconnect(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Sensor(FleetMember):
    def __init__(self, run: str, site: str, number: int) -> None:
        super().__init__(f"{run}-{site}-{number}")
        self._topic = f"fleet/{run}/{site}/{number}"
        self._values = random.Random(f"{site}-{number}")
        self.client.will_set(f"{self._topic}/status", b"offline", qos=1, retain=True)

    def report(self, readings: int) -> int:
        """Publishes readings, and returns when the broker has stored all of them: their number."""
        sent = [self.client.publish(f"{self._topic}/status", b"online", qos=1, retain=True)]
        for number in range(readings):
            reading = READINGS[number % len(READINGS)]
            payload = json.dumps({"value": round(self._values.gauss(20, 3), 2), "number": number})
            sent.append(self.client.publish(f"{self._topic}/{reading}", payload, qos=1))
        for message in sent:
            message.wait_for_publish(60)
        return readings


class Dashboard(FleetMember):
    """Counts the readings of each topic. Its session outlives its connections."""

    def __init__(self, run: str) -> None:
        super().__init__(f"{run}-dashboard", is_durable=True)
        self.client.on_message = lambda client, data, message: self._count(message)
        self.received: Counter[str] = Counter()

    def _count(self, message: mqtt.MQTTMessage) -> None:
        self.received[message.topic] += 1

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while self.received.total() < count:
            assert time.monotonic() < deadline, f"{self.received.total()} of {count} messages came"
            time.sleep(0.05)


def run_fleet(run: str, host: str, port: int, sensors: int, readings: int) -> int:
    """Publishes readings of all sensors; returns their number when the dashboard has all of them."""
    topic_filter = f"fleet/{run}/+/+/+"
    fleet = [Sensor(run, SITES[number % len(SITES)], number) for number in range(sensors)]
    dashboard = Dashboard(run)
    dashboard.connect(host, port)
    for reading in READINGS:
        dashboard.subscribe(f"fleet/{run}/+/+/{reading}")
    for sensor in fleet:
        sensor.connect(host, port)
    published = sum(sensor.report(readings) for sensor in fleet[: sensors // 2])
    dashboard.wait_for(published)
    dashboard.disconnect()
    print(f"The dashboard has {published} readings of {topic_filter}, and is away.")
    missed = sum(sensor.report(readings) for sensor in fleet[sensors // 2 :])
    dashboard.connect(host, port)
    dashboard.wait_for(published + missed)
    print(f"It is back, and got the {missed} readings that it had missed.")
    for sensor in fleet:
        sensor.disconnect()
    dashboard.disconnect()
    return published + missed


def query_table(catalog: str, table: str, run: str, readings: int, seconds: float) -> None:
    """Waits until the table has all readings, and prints what SQL says about them."""
    for name in ("avro", "httpfs", "iceberg"):
        import_extension(name)
        duckdb.load_extension(name)
    duckdb.sql(f"ATTACH '' AS icestream (TYPE iceberg, ENDPOINT '{catalog}', AUTHORIZATION_TYPE 'none')")
    rows = (
        "SELECT level_3 AS site, level_5 AS reading, decode(key) AS topic, decode(payload) AS payload, append_time, "
        f"\"offset\" FROM icestream.{table} WHERE level_1 = 'fleet' AND level_2 = '{run}' AND level_5 <> 'status'"
    )
    deadline = time.monotonic() + seconds
    while (count := _count(rows)) < readings:
        assert time.monotonic() < deadline, f"the table has {count} of {readings} rows after {seconds:.0f} s"
        time.sleep(0.5)
    print(f"The table has {count} rows, one for each reading:")
    show(
        "SELECT site, reading, count(*) AS readings, round(avg(CAST(payload::JSON->>'value' AS DOUBLE)), 1) AS mean "
        f"FROM ({rows}) GROUP BY ALL ORDER BY ALL"
    )
    print("The last value of the topics that contain `temp`:")
    show(
        f"SELECT topic, arg_max(payload, \"offset\") AS last_value FROM ({rows}) WHERE topic LIKE '%temp%' "
        "GROUP BY topic ORDER BY topic LIMIT 5"
    )


def _count(rows: str) -> int:
    try:
        return int(duckdb.sql(f"SELECT count(*) FROM ({rows})").fetchall()[0][0])
    except duckdb.Error:  # the table is created with the first commit
        return 0


def show(query: str) -> None:
    relation: Any = duckdb.sql(query)
    print("  " + " | ".join(relation.columns))
    for row in relation.fetchall():
        print("  " + " | ".join(map(str, row)))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--host", default="127.0.0.1")
    arguments.add_argument("--port", type=int, default=1883)
    arguments.add_argument("--catalog", default="http://127.0.0.1:8181", help="the address of the lake process")
    arguments.add_argument("--table", default="mqtt.messages", help="the table of the route")
    arguments.add_argument("--sensors", type=int, default=12)
    arguments.add_argument("--readings", type=int, default=20, help="of each sensor")
    arguments.add_argument("--wait", type=float, default=120.0, help="seconds for the rows to be committed")
    options = arguments.parse_args()
    run = f"run{int(time.time())}"
    readings = run_fleet(run, options.host, options.port, options.sensors, options.readings)
    query_table(options.catalog, options.table, run, readings, options.wait)


if __name__ == "__main__":
    main()
