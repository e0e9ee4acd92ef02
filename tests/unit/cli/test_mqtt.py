"""`icestream mqtt` against a broker, whose clients are connections in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from icestream import testing
from tests.support.command_line import CommandResult, icestream
from tests.support.mqtt_world import WorldClient, connected


class MqttCommands:
    """A broker with MQTT, a publisher, and the command line."""

    def __init__(self, broker: testing.TestBroker) -> None:
        self._broker = broker
        self._local = ("--broker", str(broker.node.settings.local_socket))
        self.publisher = self.connect("publisher")

    def run(self, *arguments: str) -> CommandResult:
        return icestream("mqtt", *arguments, *self._local)

    def rows(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--output", "json")
        assert result.code == 0, result.err
        return result.document

    def connect(self, client_id: str, **options: Any) -> WorldClient:
        thread = self._broker._here()
        return thread.run(connected(self._broker.node.broker, client_id, **options))

    def subscribe(self, client: WorldClient, *filters: str) -> None:
        self._broker._here().run(client.subscribe(*filters, qos=1))

    def lose(self, client: WorldClient) -> None:
        async def lose() -> None:
            client.lose()

        self._broker._here().run(lose())

    def publish(self, topic: str, payload: bytes, **options: Any) -> None:
        self._broker._here().run(self.publisher.publish(topic, payload, **options))


@pytest.fixture(scope="module")
def mqtt() -> Iterator[MqttCommands]:
    with testing.broker(storage="disk", settings={"mqtt": {"enable": True}}) as broker:
        commands = MqttCommands(broker)
        for number in range(3):
            sensor = commands.connect(f"site/sensor-{number}", clean=False, expiry_s=3600)
            commands.subscribe(sensor, f"commands/{number}", "alarms/#")
            if number:
                commands.lose(sensor)
        for number in range(4):
            commands.publish("commands/2", b"reboot %d" % number)
        commands.publish("plant/line-1/temperature", b"21.5", is_retained=True)
        commands.publish("plant/line-2/temperature", b"22.5", is_retained=True)
        yield commands


def test_sessions_that_lag_are_listed_with_their_lag_and_the_reason(mqtt: MqttCommands) -> None:
    (row,) = mqtt.rows("sessions", "--lagging")
    assert (row["client_id"], row["is_connected"], row["wait_reason"]) == (
        "site/sensor-2", False, "the client is not connected",
    )  # fmt: skip
    assert row["lag_messages"] >= 4
    assert row["lag_bytes"] > 4 * len(b"reboot 0")
    lines = [line.split() for line in mqtt.run("sessions", "--lagging").out.splitlines()]
    assert lines[0][:2] == ["client_id", "is_connected"]
    assert lines[1][:2] == ["site/sensor-2", "no"]


def test_sessions_are_filtered_and_cut(mqtt: MqttCommands) -> None:
    names = [row["client_id"] for row in mqtt.rows("sessions", "--client-id", "site/*", "--disconnected")]
    assert names == ["site/sensor-1", "site/sensor-2"]
    assert [row["client_id"] for row in mqtt.rows("sessions", "--client-id", "site/*", "--connected")] == [
        "site/sensor-0"
    ]
    cut = mqtt.run("sessions", "--limit", "2", "--output", "json")
    assert (len(cut.document), "Truncated after 2 rows" in cut.err) == (2, True)
    assert "No sessions." in mqtt.run("sessions", "--client-id", "none").err


def test_a_session_is_shown_as_text_and_as_json(mqtt: MqttCommands) -> None:
    document = mqtt.rows("session", "show", "site/sensor-2")
    assert [row["filter"] for row in document["subscription_list"]] == ["commands/2", "alarms/#"]
    assert max(row["lag_messages"] for row in document["positions"]) >= 4
    text = mqtt.run("session", "show", "site/sensor-2")
    words = [line.split() for line in text.out.splitlines()]
    assert ["is_connected", "no"] in words
    assert ["filter", "qos", "identifier", "is_no_local", "is_retain_as_published", "replay_from", "is_open"] in words
    assert ["topic", "shard", "replay", "position", "next", "lag_messages", "lag_bytes", "lag_age_ms"] in words
    unknown = mqtt.run("session", "show", "nobody")
    assert (unknown.code, "no MQTT session of client id 'nobody'" in unknown.err) == (4, True)


def test_a_client_id_cannot_steer_the_terminal(mqtt: MqttCommands) -> None:
    client = mqtt.connect("evil\x1b[2J\nx", clean=False, expiry_s=3600)
    mqtt.subscribe(client, "$share/g\x1b[1m/t")
    shown = [mqtt.run("sessions", "--client-id", "evil*"), mqtt.run("session", "show", "evil\x1b[2J\nx"),
             mqtt.run("subscriptions"), mqtt.run("session", "show", "$share/g\x1b[1m/t")]  # fmt: skip
    assert [result.code for result in shown] == [0] * 4
    assert all("\x1b" not in result.out + result.err for result in shown)
    assert "evil\\x1b[2J\\nx" in shown[0].out
    assert "evil\\x1b[2J\\nx" in shown[3].out
    (row,) = mqtt.rows("sessions", "--client-id", "evil*")
    assert row["client_id"] == "evil\x1b[2J\nx"


def test_subscriptions_of_a_topic_are_listed(mqtt: MqttCommands) -> None:
    rows = mqtt.rows("subscriptions", "--topic", "commands/1")
    assert [(row["client_id"], row["filter"]) for row in rows] == [("site/sensor-1", "commands/1")]
    assert len(mqtt.rows("subscriptions", "--topic", "alarms/fire")) == 3


def test_topics_and_retained_messages_are_listed_with_their_values(mqtt: MqttCommands) -> None:
    rows = mqtt.rows("topics", "--contains", "line-1", "--values")
    assert [(row["topic"], row["messages"], row["payload"]) for row in rows] == [
        ("plant/line-1/temperature", 1, "21.5")
    ]
    assert [row["payload"] for row in mqtt.rows("topics", "--filter", "commands/2", "--values")] == ["reboot 3"]
    assert mqtt.run("topics", "--filter", "a/b#").code == 4
    rows = mqtt.rows("retained", "--filter", "plant/+/temperature", "--values")
    assert [(row["topic"], row["bytes"], row["payload"]) for row in rows] == [
        ("plant/line-1/temperature", 4, "21.5"),
        ("plant/line-2/temperature", 4, "22.5"),
    ]


def test_retained_messages_are_cleared_after_a_question(mqtt: MqttCommands) -> None:
    mqtt.publish("to/clear", b"x", is_retained=True)
    refused = mqtt.run("retained", "--filter", "to/#", "--clear")
    assert (refused.code, "nothing was cleared" in refused.err) == (4, True)
    assert mqtt.rows("retained", "--filter", "to/#", "--clear", "--yes") == {"cleared": 1}
    assert mqtt.rows("retained", "--filter", "to/#") == []


def test_routes_are_listed(mqtt: MqttCommands) -> None:
    (row,) = mqtt.rows("routes")
    assert (row["filter"], row["topic"], row["table"], len(row["shards"])) == ("#", "/mqtt/messages", None, 4)
    heading, line = (line.split() for line in mqtt.run("routes").out.splitlines())
    assert heading == ["filter", "min_qos", "topic", "table", "shards", "offsets"]
    assert line[:5] == ["#", "0", "/mqtt/messages", "-", "4"]


def test_a_client_is_kicked_and_its_session_deleted(mqtt: MqttCommands) -> None:
    client = mqtt.connect("kicked", clean=False, expiry_s=3600)
    assert mqtt.rows("kick", "kicked") == {
        "client_id": "kicked", "was_connected": True, "is_session_deleted": False,
    }  # fmt: skip
    assert client.ended is not None
    refused = mqtt.run("kick", "kicked", "--delete-session")
    assert (refused.code, "confirmation required" in refused.err) == (4, True)
    assert mqtt.rows("kick", "kicked", "--delete-session", "--yes")["is_session_deleted"] is True
    assert mqtt.run("kick", "kicked").code == 4
