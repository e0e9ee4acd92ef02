import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt3.Mqtt3AsyncClient;
import com.hivemq.client.mqtt.mqtt3.Mqtt3BlockingClient;
import com.hivemq.client.mqtt.mqtt3.message.publish.Mqtt3Publish;
import com.hivemq.client.mqtt.mqtt5.Mqtt5BlockingClient;
import com.hivemq.client.mqtt.mqtt5.message.connect.connack.Mqtt5ConnAck;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5DisconnectReasonCode;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PayloadFormatIndicator;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import com.hivemq.client.mqtt.mqtt5.message.subscribe.Mqtt5RetainHandling;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.TimeUnit;

/**
 * A strict MQTT client against a broker: `java -cp JARS HivemqPeer.java HOST PORT [CASE …]`.
 *
 * hivemq-mqtt-client checks every packet of the broker and ends the connection at the first that the specification does
 * not allow. It sends subscription identifiers and topic aliases by itself where the broker allows them. Each case has
 * client ids and topics of its own. Prints a line "CASE passed|failed: why" for each; the exit code is the number that
 * failed.
 */
public final class HivemqPeer {
    interface Case {
        void run() throws Exception;
    }

    static final long SECONDS = 20;
    static String host;
    static int port;

    public static void main(String[] arguments) throws Exception {
        host = arguments[0];
        port = Integer.parseInt(arguments[1]);
        List<String> chosen = Arrays.asList(arguments).subList(2, arguments.length);
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("v3_qos_0_1_2", HivemqPeer::v3Qos);
        cases.put("v3_retained_and_cleared", HivemqPeer::v3Retained);
        cases.put("v3_will_of_a_client_that_was_taken_over", HivemqPeer::v3Will);
        cases.put("v3_session_resumed", HivemqPeer::v3Resumed);
        cases.put("v3_unsubscribed", HivemqPeer::v3Unsubscribed);
        cases.put("v5_qos_0_1_2", HivemqPeer::v5Qos);
        cases.put("v5_all_properties", HivemqPeer::v5Properties);
        cases.put("v5_retained_and_retain_handling", HivemqPeer::v5Retained);
        cases.put("v5_will_by_disconnect_reason", HivemqPeer::v5Will);
        cases.put("v5_no_will_after_normal_disconnect", HivemqPeer::v5NoWill);
        cases.put("v5_shared_subscription", HivemqPeer::v5Shared);
        cases.put("v5_session_resumed", HivemqPeer::v5Resumed);
        cases.put("v5_session_expiry_raised_by_disconnect", HivemqPeer::v5ExpiryRaised);
        cases.put("v5_receive_maximum", HivemqPeer::v5ReceiveMaximum);
        cases.put("v5_topic_aliases_both_ways", HivemqPeer::v5Aliases);
        cases.put("v5_no_local_and_retain_as_published", HivemqPeer::v5Options);
        cases.put("v5_large_payload", HivemqPeer::v5Large);
        cases.put("v5_request_and_response", HivemqPeer::v5Request);
        cases.put("v5_assigned_client_id", HivemqPeer::v5Assigned);
        int failed = 0;
        for (Map.Entry<String, Case> entry : cases.entrySet()) {
            if (!chosen.isEmpty() && !chosen.contains(entry.getKey())) {
                continue;
            }
            try {
                entry.getValue().run();
                System.out.println(entry.getKey() + " passed");
            } catch (Throwable error) {
                failed++;
                System.out.println(entry.getKey() + " failed: " + error);
                error.printStackTrace(System.err);
            }
        }
        System.out.flush();
        System.exit(Math.min(failed, 100));
    }

    // --- shared parts ---

    static String unique(String word) {
        return word + "-" + UUID.randomUUID().toString().substring(0, 8);
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void same(Object wanted, Object actual) {
        if (!wanted.equals(actual)) {
            throw new AssertionError("wanted " + wanted + ", got " + actual);
        }
    }

    static Mqtt5BlockingClient v5(String id) {
        return MqttClient.builder().useMqttVersion5().identifier(id).serverHost(host).serverPort(port).buildBlocking();
    }

    static Mqtt3BlockingClient v3(String id) {
        return MqttClient.builder().useMqttVersion3().identifier(id).serverHost(host).serverPort(port).buildBlocking();
    }

    static Mqtt5BlockingClient connected(String word) {
        Mqtt5BlockingClient client = v5(unique(word));
        client.connect();
        return client;
    }

    static Mqtt5Publish next(Mqtt5BlockingClient.Mqtt5Publishes publishes) throws InterruptedException {
        Optional<Mqtt5Publish> publish = publishes.receive(SECONDS, TimeUnit.SECONDS);
        return publish.orElseThrow(() -> new AssertionError("no message within " + SECONDS + " s"));
    }

    static Mqtt3Publish next(Mqtt3BlockingClient.Mqtt3Publishes publishes) throws InterruptedException {
        Optional<Mqtt3Publish> publish = publishes.receive(SECONDS, TimeUnit.SECONDS);
        return publish.orElseThrow(() -> new AssertionError("no message within " + SECONDS + " s"));
    }

    static String text(Mqtt5Publish publish) {
        return new String(publish.getPayloadAsBytes(), StandardCharsets.UTF_8);
    }

    static String text(Mqtt3Publish publish) {
        return new String(publish.getPayloadAsBytes(), StandardCharsets.UTF_8);
    }

    static void publish(Mqtt5BlockingClient client, String topic, String payload, int qos) {
        client.publishWith().topic(topic).qos(MqttQos.fromCode(qos)).payload(bytes(payload)).send();
    }

    static void publish(Mqtt3BlockingClient client, String topic, String payload, int qos) {
        client.publishWith().topic(topic).qos(MqttQos.fromCode(qos)).payload(bytes(payload)).send();
    }

    // --- MQTT 3.1.1 ---

    static void v3Qos() throws Exception {
        String topic = unique("v3/qos");
        Mqtt3BlockingClient client = v3(unique("v3qos"));
        client.connect();
        try (Mqtt3BlockingClient.Mqtt3Publishes publishes = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(topic + "/#").qos(MqttQos.EXACTLY_ONCE).send();
            for (int qos = 0; qos < 3; qos++) {
                publish(client, topic + "/a", "qos " + qos, qos);
                Mqtt3Publish publish = next(publishes);
                same("qos " + qos, text(publish));
                same(qos, publish.getQos().getCode());
            }
        }
        client.disconnect();
    }

    static void v3Retained() throws Exception {
        String topic = unique("v3/retained");
        Mqtt3BlockingClient client = v3(unique("v3retained"));
        client.connect();
        client.publishWith().topic(topic).qos(MqttQos.AT_LEAST_ONCE).retain(true).payload(bytes("kept")).send();
        try (Mqtt3BlockingClient.Mqtt3Publishes publishes = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(topic).qos(MqttQos.AT_LEAST_ONCE).send();
            Mqtt3Publish publish = next(publishes);
            same("kept", text(publish));
            same(true, publish.isRetain());
            client.publishWith().topic(topic).qos(MqttQos.AT_LEAST_ONCE).retain(true).send();
            same(0, next(publishes).getPayloadAsBytes().length);
            client.unsubscribeWith().topicFilter(topic).send();
            client.subscribeWith().topicFilter(topic).qos(MqttQos.AT_LEAST_ONCE).send();
            publish(client, topic, "behind", 1);
            same("behind", text(next(publishes)));
        }
        client.disconnect();
    }

    static void v3Will() throws Exception {
        String topic = unique("v3/will");
        String id = unique("v3will");
        Mqtt3BlockingClient watcher = v3(unique("v3watcher"));
        watcher.connect();
        try (Mqtt3BlockingClient.Mqtt3Publishes publishes = watcher.publishes(MqttGlobalPublishFilter.ALL)) {
            watcher.subscribeWith().topicFilter(topic).qos(MqttQos.AT_LEAST_ONCE).send();
            Mqtt3BlockingClient first = v3(id);
            first.connectWith().willPublish().topic(topic).qos(MqttQos.AT_LEAST_ONCE).payload(bytes("gone")).applyWillPublish()
                .send();
            Mqtt3BlockingClient second = v3(id);
            second.connect();
            same("gone", text(next(publishes)));
            second.disconnect();
        }
        watcher.disconnect();
    }

    static void v3Resumed() throws Exception {
        String topic = unique("v3/resumed");
        String id = unique("v3resumed");
        Mqtt3BlockingClient client = v3(id);
        same(false, client.connectWith().cleanSession(false).send().isSessionPresent());
        client.subscribeWith().topicFilter(topic).qos(MqttQos.EXACTLY_ONCE).send();
        client.disconnect();
        Mqtt3BlockingClient writer = v3(unique("v3writer"));
        writer.connect();
        for (int number = 0; number < 50; number++) {
            publish(writer, topic, "m" + number, 1 + number % 2);
        }
        writer.disconnect();
        Mqtt3BlockingClient again = v3(id);
        try (Mqtt3BlockingClient.Mqtt3Publishes publishes = again.publishes(MqttGlobalPublishFilter.ALL)) {
            same(true, again.connectWith().cleanSession(false).send().isSessionPresent());
            for (int number = 0; number < 50; number++) {
                Mqtt3Publish publish = next(publishes);
                same("m" + number, text(publish));
                same(1 + number % 2, publish.getQos().getCode());
            }
        }
        again.disconnect();
        Mqtt3BlockingClient end = v3(id);
        same(false, end.connectWith().cleanSession(true).send().isSessionPresent());
        end.disconnect();
    }

    static void v3Unsubscribed() throws Exception {
        String topic = unique("v3/unsubscribed");
        Mqtt3BlockingClient client = v3(unique("v3unsubscribed"));
        client.connect();
        try (Mqtt3BlockingClient.Mqtt3Publishes publishes = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(topic + "/+").qos(MqttQos.AT_LEAST_ONCE).send();
            client.subscribeWith().topicFilter(topic + "/end/#").qos(MqttQos.AT_LEAST_ONCE).send();
            client.unsubscribeWith().topicFilter(topic + "/+").send();
            publish(client, topic + "/a", "none", 1);
            publish(client, topic + "/end/a", "end", 1);
            same("end", text(next(publishes)));
        }
        client.disconnect();
    }

    // --- MQTT 5.0 ---

    static void v5Qos() throws Exception {
        String topic = unique("v5/qos");
        Mqtt5BlockingClient client = connected("v5qos");
        try (Mqtt5BlockingClient.Mqtt5Publishes publishes = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(topic + "/#").qos(MqttQos.EXACTLY_ONCE).send();
            for (int number = 0; number < 60; number++) {
                publish(client, topic + "/a", "m" + number, number % 3);
            }
            List<String> reliable = new ArrayList<>();
            for (int number = 0; number < 60; number++) {
                Mqtt5Publish publish = next(publishes);
                same(Integer.parseInt(text(publish).substring(1)) % 3, publish.getQos().getCode());
                reliable.add(text(publish));
            }
            same(60, new TreeSet<>(reliable).size());
        }
        client.disconnect();
    }

    static void v5Properties() throws Exception {
        String topic = unique("v5/properties");
        Mqtt5BlockingClient client = connected("v5properties");
        try (Mqtt5BlockingClient.Mqtt5Publishes publishes = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(topic).qos(MqttQos.AT_LEAST_ONCE).send();
            client.publishWith().topic(topic).qos(MqttQos.AT_LEAST_ONCE).payload(bytes("é")).messageExpiryInterval(1000)
                .payloadFormatIndicator(Mqtt5PayloadFormatIndicator.UTF_8).contentType("text/plain")
                .responseTopic("answers/é").correlationData(new byte[] {0, 1, (byte) 255}).userProperties().add("b", "2")
                .add("a", "1").add("b", "2").add("", "").applyUserProperties().send();
            Mqtt5Publish publish = next(publishes);
            same("text/plain", publish.getContentType().get().toString());
            same("answers/é", publish.getResponseTopic().get().toString());
            same(Mqtt5PayloadFormatIndicator.UTF_8, publish.getPayloadFormatIndicator().get());
            same(3, publish.getCorrelationData().get().remaining());
            long left = publish.getMessageExpiryInterval().getAsLong();
            same(true, left > 900 && left <= 1000);
            List<String> properties = new ArrayList<>();
            publish.getUserProperties().asList().forEach(entry -> properties.add(entry.getName() + "=" + entry.getValue()));
            same(List.of("b=2", "a=1", "b=2", "="), properties);
        }
        client.disconnect();
    }

    static void v5Retained() throws Exception {
        String topic = unique("v5/retained");
        Mqtt5BlockingClient client = connected("v5retained");
        client.publishWith().topic(topic + "/a").qos(MqttQos.EXACTLY_ONCE).retain(true).payload(bytes("kept")).send();
        try (Mqtt5BlockingClient.Mqtt5Publishes publishes = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(topic + "/+").qos(MqttQos.EXACTLY_ONCE)
                .retainHandling(Mqtt5RetainHandling.DO_NOT_SEND).send();
            publish(client, topic + "/b", "first", 1);
            same("first", text(next(publishes)));
            client.subscribeWith().topicFilter(topic + "/+").qos(MqttQos.EXACTLY_ONCE)
                .retainHandling(Mqtt5RetainHandling.SEND_IF_SUBSCRIPTION_DOES_NOT_EXIST).send();
            publish(client, topic + "/b", "second", 1);
            same("second", text(next(publishes)));
            client.subscribeWith().topicFilter(topic + "/+").qos(MqttQos.EXACTLY_ONCE)
                .retainHandling(Mqtt5RetainHandling.SEND).send();
            Mqtt5Publish publish = next(publishes);
            same("kept", text(publish));
            same(true, publish.isRetain());
        }
        client.publishWith().topic(topic + "/a").qos(MqttQos.AT_LEAST_ONCE).retain(true).send();
        client.disconnect();
    }

    static void v5Will() throws Exception {
        String topic = unique("v5/will");
        Mqtt5BlockingClient watcher = connected("v5watcher");
        try (Mqtt5BlockingClient.Mqtt5Publishes publishes = watcher.publishes(MqttGlobalPublishFilter.ALL)) {
            watcher.subscribeWith().topicFilter(topic).qos(MqttQos.EXACTLY_ONCE).send();
            Mqtt5BlockingClient client = v5(unique("v5will"));
            client.connectWith().willPublish().topic(topic).qos(MqttQos.EXACTLY_ONCE).payload(bytes("gone"))
                .contentType("text/plain").userProperties().add("why", "test").applyUserProperties().applyWillPublish()
                .send();
            client.disconnectWith().reasonCode(Mqtt5DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE).send();
            Mqtt5Publish will = next(publishes);
            same("gone", text(will));
            same("text/plain", will.getContentType().get().toString());
            same(1, will.getUserProperties().asList().size());
        }
        watcher.disconnect();
    }

    static void v5NoWill() throws Exception {
        String topic = unique("v5/nowill");
        Mqtt5BlockingClient watcher = connected("v5watcher");
        try (Mqtt5BlockingClient.Mqtt5Publishes publishes = watcher.publishes(MqttGlobalPublishFilter.ALL)) {
            watcher.subscribeWith().topicFilter(topic).qos(MqttQos.EXACTLY_ONCE).send();
            Mqtt5BlockingClient client = v5(unique("v5nowill"));
            client.connectWith().willPublish().topic(topic).payload(bytes("gone")).applyWillPublish().send();
            client.disconnect();
            publish(watcher, topic, "behind", 1);
            same("behind", text(next(publishes)));
        }
        watcher.disconnect();
    }

    static void v5Shared() throws Exception {
        String topic = unique("v5/shared");
        String group = unique("group");
        Mqtt5BlockingClient first = connected("v5first");
        Mqtt5BlockingClient second = connected("v5second");
        try (Mqtt5BlockingClient.Mqtt5Publishes ofFirst = first.publishes(MqttGlobalPublishFilter.ALL);
            Mqtt5BlockingClient.Mqtt5Publishes ofSecond = second.publishes(MqttGlobalPublishFilter.ALL)) {
            for (Mqtt5BlockingClient member : List.of(first, second)) {
                member.subscribeWith().topicFilter("$share/" + group + "/" + topic + "/#").qos(MqttQos.AT_LEAST_ONCE)
                    .send();
            }
            Mqtt5BlockingClient writer = connected("v5writer");
            TreeSet<String> wanted = new TreeSet<>();
            for (int number = 0; number < 100; number++) {
                publish(writer, topic + "/" + number % 7, "m" + number, 1);
                wanted.add("m" + number);
            }
            writer.disconnect();
            List<String> received = new ArrayList<>();
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
            while (received.size() < 100 && System.nanoTime() < deadline) {
                ofFirst.receive(5, TimeUnit.MILLISECONDS).ifPresent(publish -> received.add(text(publish)));
                ofSecond.receive(5, TimeUnit.MILLISECONDS).ifPresent(publish -> received.add(text(publish)));
            }
            same(wanted, new TreeSet<>(received));
            same(100, received.size());
        }
        first.disconnect();
        second.disconnect();
    }

    static void v5Resumed() throws Exception {
        String topic = unique("v5/resumed");
        String id = unique("v5resumed");
        Mqtt5BlockingClient client = v5(id);
        same(false, client.connectWith().cleanStart(true).sessionExpiryInterval(600).send().isSessionPresent());
        client.subscribeWith().topicFilter(topic).qos(MqttQos.EXACTLY_ONCE).send();
        client.disconnect();
        Mqtt5BlockingClient writer = connected("v5writer");
        for (int number = 0; number < 50; number++) {
            publish(writer, topic, "m" + number, 1 + number % 2);
        }
        writer.disconnect();
        Mqtt5BlockingClient again = v5(id);
        try (Mqtt5BlockingClient.Mqtt5Publishes publishes = again.publishes(MqttGlobalPublishFilter.ALL)) {
            Mqtt5ConnAck connAck = again.connectWith().cleanStart(false).sessionExpiryInterval(0).send();
            same(true, connAck.isSessionPresent());
            for (int number = 0; number < 50; number++) {
                same("m" + number, text(next(publishes)));
            }
        }
        again.disconnect();
        Mqtt5BlockingClient end = v5(id);
        same(false, end.connectWith().cleanStart(false).send().isSessionPresent());
        end.disconnect();
    }

    static void v5ExpiryRaised() throws Exception {
        String id = unique("v5raised");
        Mqtt5BlockingClient client = v5(id);
        client.connectWith().cleanStart(true).sessionExpiryInterval(1).send();
        client.disconnectWith().sessionExpiryInterval(600).send();
        Mqtt5BlockingClient again = v5(id);
        same(true, again.connectWith().cleanStart(false).sessionExpiryInterval(600).send().isSessionPresent());
        again.disconnectWith().sessionExpiryInterval(0).send();
        Mqtt5BlockingClient end = v5(id);
        same(false, end.connectWith().cleanStart(false).send().isSessionPresent());
        end.disconnect();
    }

    static void v5ReceiveMaximum() throws Exception {
        String topic = unique("v5/maximum");
        Mqtt5BlockingClient client = v5(unique("v5maximum"));
        client.connectWith().restrictions().receiveMaximum(2).applyRestrictions().send();
        try (Mqtt5BlockingClient.Mqtt5Publishes publishes = client.publishes(MqttGlobalPublishFilter.ALL, true)) {
            client.subscribeWith().topicFilter(topic).qos(MqttQos.AT_LEAST_ONCE).send();
            Mqtt5BlockingClient writer = connected("v5writer");
            for (int number = 0; number < 20; number++) {
                publish(writer, topic, "m" + number, 1);
            }
            Mqtt5Publish first = next(publishes);
            Mqtt5Publish second = next(publishes);
            publish(writer, topic, "behind", 0);
            first.acknowledge();
            second.acknowledge();
            for (int number = 2; number < 20; number++) {
                Mqtt5Publish publish = next(publishes);
                if (publish.getQos() == MqttQos.AT_MOST_ONCE) {
                    publish = next(publishes);
                }
                same("m" + number, text(publish));
                publish.acknowledge();
            }
            writer.disconnect();
        }
        client.disconnect();
    }

    static void v5Aliases() throws Exception {
        String topic = unique("v5/alias");
        Mqtt5BlockingClient client = v5(unique("v5alias"));
        client.connectWith().restrictions().topicAliasMaximum(2).sendTopicAliasMaximum(2).applyRestrictions().send();
        try (Mqtt5BlockingClient.Mqtt5Publishes publishes = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(topic + "/+").qos(MqttQos.EXACTLY_ONCE).send();
            for (int number = 0; number < 30; number++) {
                publish(client, topic + "/" + number % 3, "m" + number, number % 3);
                Mqtt5Publish publish = next(publishes);
                same("m" + number, text(publish));
                same(topic + "/" + number % 3, publish.getTopic().toString());
            }
        }
        client.disconnect();
    }

    static void v5Options() throws Exception {
        String topic = unique("v5/options");
        Mqtt5BlockingClient client = connected("v5options");
        Mqtt5BlockingClient other = connected("v5other");
        try (Mqtt5BlockingClient.Mqtt5Publishes publishes = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(topic).qos(MqttQos.AT_LEAST_ONCE).noLocal(true).retainAsPublished(true)
                .send();
            publish(client, topic, "own", 1);
            other.publishWith().topic(topic).qos(MqttQos.AT_LEAST_ONCE).retain(true).payload(bytes("other")).send();
            Mqtt5Publish publish = next(publishes);
            same("other", text(publish));
            same(true, publish.isRetain());
        }
        other.publishWith().topic(topic).retain(true).qos(MqttQos.AT_LEAST_ONCE).send();
        client.disconnect();
        other.disconnect();
    }

    static void v5Large() throws Exception {
        String topic = unique("v5/large");
        Mqtt5BlockingClient client = connected("v5large");
        byte[] payload = new byte[200_000];
        Arrays.fill(payload, (byte) 7);
        try (Mqtt5BlockingClient.Mqtt5Publishes publishes = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(topic).qos(MqttQos.EXACTLY_ONCE).send();
            client.publishWith().topic(topic).qos(MqttQos.EXACTLY_ONCE).payload(payload).send();
            same(true, Arrays.equals(payload, next(publishes).getPayloadAsBytes()));
        }
        client.disconnect();
    }

    static void v5Request() throws Exception {
        String topic = unique("v5/request");
        Mqtt5BlockingClient asks = connected("v5asks");
        Mqtt5BlockingClient answers = connected("v5answers");
        try (Mqtt5BlockingClient.Mqtt5Publishes ofAsks = asks.publishes(MqttGlobalPublishFilter.ALL);
            Mqtt5BlockingClient.Mqtt5Publishes ofAnswers = answers.publishes(MqttGlobalPublishFilter.ALL)) {
            answers.subscribeWith().topicFilter(topic).qos(MqttQos.AT_LEAST_ONCE).send();
            asks.subscribeWith().topicFilter(topic + "/answer").qos(MqttQos.AT_LEAST_ONCE).send();
            asks.publishWith().topic(topic).qos(MqttQos.AT_LEAST_ONCE).payload(bytes("question"))
                .responseTopic(topic + "/answer").correlationData(bytes("7")).send();
            Mqtt5Publish question = next(ofAnswers);
            answers.publish(question.getResponseTopic().get().toString().isEmpty() ? null : Mqtt5Publish.builder()
                .topic(question.getResponseTopic().get()).qos(MqttQos.AT_LEAST_ONCE).payload(bytes("answer"))
                .correlationData(question.getCorrelationData().get()).build());
            Mqtt5Publish answer = next(ofAsks);
            same("answer", text(answer));
            same(1, answer.getCorrelationData().get().remaining());
        }
        asks.disconnect();
        answers.disconnect();
    }

    static void v5Assigned() {
        Mqtt5BlockingClient client = MqttClient.builder().useMqttVersion5().serverHost(host).serverPort(port)
            .identifier("").buildBlocking();
        Mqtt5ConnAck connAck = client.connect();
        same(false, connAck.getAssignedClientIdentifier().get().toString().isEmpty());
        client.disconnect();
    }
}
