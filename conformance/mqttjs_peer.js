// MQTT.js against a broker: `NODE_PATH=… node mqttjs_peer.js HOST PORT`. Each case has client ids and topics of its own.
// Prints a line "CASE passed|failed: why" for each; the exit code is the number that failed.
"use strict";

const mqtt = require("mqtt");
const { randomBytes } = require("node:crypto");

const [host, port] = process.argv.slice(2);
const WAIT_MS = 20000;

function unique(word) {
  return `${word}-${randomBytes(4).toString("hex")}`;
}

function same(wanted, actual) {
  const [first, second] = [JSON.stringify(wanted), JSON.stringify(actual)];
  if (first !== second) throw new Error(`wanted ${first}, got ${second}`);
}

async function open(protocolVersion, clientId, options = {}) {
  // No reconnect: a broker that closes must not go unseen.
  const client = await mqtt.connectAsync(`mqtt://${host}:${port}`, {
    protocolVersion, clientId, reconnectPeriod: 0, connectTimeout: WAIT_MS, ...options,
  });
  client.arrived = [];
  client.waiting = [];
  client.on("error", () => {});
  return client;
}

// A handler from the start: a resumed session delivers with CONNACK.
function listen(client) {
  client.on("message", (topic, payload, packet) => {
    const message = { topic, text: payload.toString(), qos: packet.qos, retain: packet.retain, packet };
    const waiter = client.waiting.shift();
    if (waiter) waiter(message);
    else client.arrived.push(message);
  });
  return client;
}

function next(client) {
  if (client.arrived.length) return Promise.resolve(client.arrived.shift());
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("no message in time")), WAIT_MS);
    client.waiting.push((message) => {
      clearTimeout(timer);
      resolve(message);
    });
  });
}

async function roundTrip(version) {
  const topic = unique("js/trip");
  const client = listen(await open(version, unique("js")));
  await client.subscribeAsync(`${topic}/+`, { qos: 2 });
  for (const qos of [0, 1, 2]) {
    await client.publishAsync(`${topic}/a`, `qos ${qos}`, { qos });
    const message = await next(client);
    same([`${topic}/a`, `qos ${qos}`, qos], [message.topic, message.text, message.qos]);
  }
  await client.endAsync();
}

async function retained(version) {
  const topic = unique("js/retained");
  const client = listen(await open(version, unique("js")));
  await client.publishAsync(topic, "kept", { qos: 1, retain: true });
  await client.subscribeAsync(topic, { qos: 1 });
  const message = await next(client);
  same(["kept", true], [message.text, message.retain]);
  await client.publishAsync(topic, "", { qos: 1, retain: true });
  same("", (await next(client)).text);
  await client.endAsync();
}

async function resume(version) {
  const topic = unique("js/resume");
  const id = unique("js");
  const durable = version === 5 ? { clean: false, properties: { sessionExpiryInterval: 600 } } : { clean: false };
  const first = await open(version, id, durable);
  await first.subscribeAsync(`${topic}/#`, { qos: 2 });
  await first.endAsync();
  const writer = await open(version, unique("js"));
  const wanted = [];
  for (let number = 0; number < 20; number++) {
    wanted.push(`m${number}`);
    await writer.publishAsync(`${topic}/a`, `m${number}`, { qos: number < 10 ? 1 : 2 });
  }
  await writer.endAsync();
  const again = listen(mqtt.connect(`mqtt://${host}:${port}`, {
    protocolVersion: version, clientId: id, reconnectPeriod: 0, resubscribe: false, ...durable,
  }));
  again.arrived = [];
  again.waiting = [];
  const present = await new Promise((resolve, reject) => {
    again.once("connect", (connack) => resolve(connack.sessionPresent));
    again.once("error", reject);
  });
  same(true, present);
  const received = [];
  for (let number = 0; number < 20; number++) received.push((await next(again)).text);
  same(wanted, received);
  await again.endAsync();
}

async function will(version) {
  const topic = unique("js/will");
  const watcher = listen(await open(version, unique("js")));
  await watcher.subscribeAsync(topic, { qos: 1 });
  const client = await open(version, unique("js"), { will: { topic, payload: Buffer.from("gone"), qos: 1 } });
  client.stream.destroy();
  same("gone", (await next(watcher)).text);
  await watcher.endAsync();
}

async function properties() {
  const topic = unique("js/properties");
  const client = listen(await open(5, unique("js"), { properties: { topicAliasMaximum: 5, receiveMaximum: 3 } }));
  await client.subscribeAsync(topic, { qos: 1, properties: { subscriptionIdentifier: 7 } });
  for (let number = 0; number < 10; number++) {
    await client.publishAsync(topic, `m${number}`, {
      qos: 1,
      properties: {
        contentType: "text/plain", responseTopic: "answer", correlationData: Buffer.from("7"),
        payloadFormatIndicator: true, messageExpiryInterval: 600, userProperties: { a: ["1", "2"], b: "3" },
      },
    });
    const message = await next(client);
    const got = message.packet.properties;
    same(`m${number}`, message.text);
    same(topic, message.topic);
    same(["text/plain", "answer", "7", true], [
      got.contentType, got.responseTopic, got.correlationData.toString(), got.payloadFormatIndicator,
    ]);
    same({ a: ["1", "2"], b: "3" }, { ...got.userProperties });
    same([7], [].concat(got.subscriptionIdentifier));
  }
  await client.endAsync();
}

async function shared() {
  const topic = unique("js/shared");
  const group = unique("group");
  const members = [listen(await open(5, unique("js"))), listen(await open(5, unique("js")))];
  for (const member of members) await member.subscribeAsync(`$share/${group}/${topic}/#`, { qos: 1 });
  const received = [];
  const all = new Promise((resolve) => {
    for (const member of members) {
      member.on("message", (_topic, payload) => {
        received.push(payload.toString());
        if (received.length === 60) resolve();
      });
    }
  });
  for (let number = 0; number < 60; number++) await members[0].publishAsync(`${topic}/${number % 7}`, `${number}`, { qos: 1 });
  await Promise.race([all, new Promise((_, reject) => setTimeout(() => reject(new Error(`${received.length} of 60`)), WAIT_MS))]);
  same(60, new Set(received).size);
  for (const member of members) await member.endAsync();
}

const CASES = {
  v3_round_trip: () => roundTrip(4),
  v5_round_trip: () => roundTrip(5),
  v3_retained: () => retained(4),
  v5_retained: () => retained(5),
  v3_session_resumed: () => resume(4),
  v5_session_resumed: () => resume(5),
  v3_will: () => will(4),
  v5_will: () => will(5),
  v5_properties: properties,
  v5_shared: shared,
};

(async () => {
  let failed = 0;
  for (const [name, run] of Object.entries(CASES)) {
    try {
      await run();
      console.log(`${name} passed`);
    } catch (error) {
      failed++;
      console.log(`${name} failed: ${error.stack}`);
    }
  }
  process.exit(Math.min(failed, 100));
})();
