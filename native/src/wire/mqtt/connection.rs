//! One MQTT connection: cuts its bytes into packets (scan.rs).
//!
//!     state      until              what arrives
//!     first      CONNECT            goes to Python; nothing behind it is parsed
//!     deciding   Python opens it    is not parsed
//!     open                          goes to Python as it is, but for the rows below
//!
//! A packet becomes a row, without Python, if it fits what Python declared, so that Python has no reason to refuse it:
//!
//!     PUBLISH    QoS 0 or 1, not retained, without properties, for a topic that Python declared for this connection,
//!                within the Receive Maximum. It becomes a message of a block
//!     PUBACK     with the reason 0x00, of a delivery that was sent from here
//!     PINGREQ    of an open connection is answered here: Python has just polled, so its loop lives (hazard 67)
//!
//! Packets for Python that follow one another are handed over as one piece of bytes. A PUBLISH or PINGREQ behind them waits
//! for the next burst: Python may end the connection, or want to see what follows, when it has decided about them. Acks
//! need not wait, because they commute with all that Python may see before them.

use super::acks::Acks;
use super::rows::{Event, PublishRow, Segment};
use super::scan::{Packet, Publish, Scanned, Version, scan};
use crate::wire::burst::Burst;
use crate::wire::hub::Protocol;
use crate::wire::stream::{ROW_COST, Stream};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

const PUBACK: u8 = 4;
const PINGRESP: [u8; 2] = [0xD0, 0];

/// Bounds, all of them from `icestream/limits.py` or the settings.
pub struct Bounds {
    /// Of CONNECT, before the client is known.
    pub connect_bytes_max: usize,
    pub packet_bytes_max: usize,
    pub levels_max: usize,
    /// Unanswered rows of a connection.
    pub connection_bytes_max: usize,
    /// The largest message that may be a row, with its topic and publisher.
    pub row_bytes_max: usize,
    pub group_bytes_max: usize,
}

/// What Python declared about the messages of a topic.
#[derive(Clone, Copy)]
struct Topic {
    queue: u32,
    /// Messages of a lower QoS go to Python.
    qos_min: u8,
}

/// What Python declared about a client, so that its messages may be rows.
pub struct Publisher {
    client_id: Arc<[u8]>,
    /// The most QoS 1 and 2 messages that are not acknowledged.
    receive_maximum: usize,
    /// QoS 2 messages between PUBREC and PUBREL, which Python knows.
    pub held: usize,
    topics: HashMap<Box<[u8]>, Topic>,
    /// Queues for every topic that does not begin with `$`, and the lowest QoS: crc32 of the topic chooses, as
    /// `icestream/broker/mqtt/routes.py` does.
    for_all: Option<(Box<[u32]>, u8)>,
    /// The topic of the last row: most clients have few.
    last: (Vec<u8>, Option<Topic>),
    /// Python wants to see every PUBLISH for a while.
    pub is_suspended: bool,
}

impl Publisher {
    pub fn new(client_id: &[u8], receive_maximum: usize) -> Publisher {
        Publisher {
            client_id: client_id.into(),
            receive_maximum,
            held: 0,
            topics: HashMap::new(),
            for_all: None,
            last: (Vec::new(), None),
            is_suspended: false,
        }
    }

    pub fn declare(&mut self, topic: &[u8], queue: u32, qos_min: u8) {
        self.topics.insert(topic.into(), Topic { queue, qos_min });
        self.last = (Vec::new(), None);
    }

    pub fn declare_all(&mut self, queues: &[u32], qos_min: u8) {
        self.for_all = (!queues.is_empty()).then(|| (queues.into(), qos_min));
        self.last = (Vec::new(), None);
    }

    pub fn forget_topics(&mut self) {
        self.topics.clear();
        self.for_all = None;
        self.last = (Vec::new(), None);
    }

    fn topic(&mut self, name: &[u8]) -> Option<Topic> {
        // A name is never empty, so the memory of nothing matches none.
        if self.last.0 != name {
            self.last.0.clear();
            self.last.0.extend_from_slice(name);
            self.last.1 = self.topics.get(name).copied().or_else(|| self.topic_of_all(name));
        }
        self.last.1
    }

    fn topic_of_all(&self, name: &[u8]) -> Option<Topic> {
        let (queues, qos_min) = self.for_all.as_ref().filter(|_| name[0] != b'$')?;
        let queue = queues[crc32fast::hash(name) as usize % queues.len()];
        Some(Topic { queue, qos_min: *qos_min })
    }
}

#[derive(PartialEq)]
enum Stage {
    First,
    Deciding,
    Open,
}

pub struct MqttConnection {
    stage: Stage,
    version: Version,
    pub acks: Acks,
    /// None: Python sees every PUBLISH.
    pub publisher: Option<Publisher>,
    /// QoS 1 deliveries that were sent from here (`deliver`), in their order.
    pub in_flight: VecDeque<u16>,
    /// Of the packet that is not complete; 0 if that is not known.
    needed: usize,
}

#[derive(PartialEq)]
enum Step {
    Row,
    HandOver,
    Later,
    Blocked,
}

impl Protocol for MqttConnection {
    type Segment = Segment;
    type Bounds = Bounds;

    fn new() -> MqttConnection {
        MqttConnection {
            stage: Stage::First,
            version: Version::Unknown,
            acks: Acks::default(),
            publisher: None,
            in_flight: VecDeque::new(),
            needed: 0,
        }
    }

    fn whole_bytes(&self, _: &[u8]) -> Option<usize> {
        Some(self.needed).filter(|needed| *needed > 0)
    }

    fn parse(&mut self, stream: &mut Stream, data: &[u8], burst: &mut Burst<Segment>, bounds: &Bounds) -> usize {
        if stream.is_at_common_bound {
            stream.is_blocked = true;
            return 0;
        }
        let mut at = 0;
        // Where the packets begin that are handed over next.
        let mut run = 0;
        self.needed = 0;
        let packet_bytes_max =
            if self.stage == Stage::First { bounds.connect_bytes_max } else { bounds.packet_bytes_max };
        while stream.can_parse() {
            if self.stage == Stage::Deciding {
                stream.is_paused = true;
                break;
            }
            let (size, packet) = match scan(&data[at..], self.version, packet_bytes_max, bounds.levels_max) {
                Scanned::Incomplete { needed } => {
                    self.needed = needed;
                    break;
                }
                Scanned::Broken { head } => {
                    stream.is_failed = true;
                    hand_over(stream, &data[run..at + head], burst);
                    return data.len();
                }
                Scanned::Whole { size, packet } => (size, packet),
            };
            let step = match &packet {
                Packet::Publish(publish) => self.step_of(stream, publish, burst, bounds),
                Packet::Ack { kind: PUBACK, packet_id } => self.ack_step(*packet_id),
                // Whether the client takes the answers is known when they have left; and whether the connection goes on
                // when Python has seen what is before it.
                Packet::Ping if stream.reply_bytes() >= stream.answer_bytes_max => Step::Later,
                Packet::Ping if stream.event_burst == burst.number => Step::Later,
                Packet::Ping if self.stage == Stage::Open => Step::Row,
                _ => Step::HandOver,
            };
            match step {
                Step::HandOver => {
                    self.forget_acked(&data[at..at + size]);
                    at += size;
                    stream.event_burst = burst.number;
                    if self.stage == Stage::First {
                        self.stage = Stage::Deciding;
                    }
                    continue;
                }
                Step::Row => {
                    hand_over(stream, &data[run..at], burst);
                    match packet {
                        Packet::Publish(publish) => self.add_row(stream, &publish, burst, bounds),
                        Packet::Ack { packet_id, .. } => {
                            burst.bytes += size + ROW_COST;
                            let connection = stream.number;
                            burst.add_ack(stream.position(burst), connection, packet_id);
                        }
                        _ => {
                            burst.bytes += size + ROW_COST;
                            stream.replies.extend_from_slice(&PINGRESP);
                        }
                    }
                    at += size;
                    run = at;
                }
                Step::Later | Step::Blocked => {
                    stream.has_backlog = step == Step::Later;
                    stream.is_blocked = step == Step::Blocked;
                    break;
                }
            }
        }
        hand_over(stream, &data[run..at], burst);
        at
    }
}

/// Hands packets to Python, if there are any.
fn hand_over(stream: &mut Stream, data: &[u8], burst: &mut Burst<Segment>) {
    if !data.is_empty() {
        stream.event_burst = burst.number;
        burst.bytes += data.len() + ROW_COST;
        stream.add_event(burst, Event::Packets { connection: stream.number, data: data.to_vec() });
    }
}

impl MqttConnection {
    /// CONNECT was accepted; the caller has the connection read again.
    pub fn open(&mut self, level: u8) {
        self.stage = Stage::Open;
        self.version = Version::of_level(level);
    }

    fn step_of(&mut self, stream: &Stream, publish: &Publish<'_>, burst: &Burst<Segment>, bounds: &Bounds) -> Step {
        let publisher = self.publisher.as_mut().filter(|publisher| !publisher.is_suspended);
        let Some(publisher) = publisher else { return Step::HandOver };
        let Some(topic) = publisher.topic(publish.topic) else { return Step::HandOver };
        let bytes = publish.topic.len() + publish.payload.len() + publisher.client_id.len();
        let is_plain = publish.qos < 2 && publish.qos >= topic.qos_min && !publish.is_retained;
        if !is_plain || bytes > bounds.row_bytes_max {
            return Step::HandOver;
        }
        // Beyond it Python refuses, if the protocol has such a bound.
        if publish.qos > 0 && self.acks.qos1_count() + publisher.held >= publisher.receive_maximum {
            return Step::HandOver;
        }
        if stream.event_burst == burst.number {
            return Step::Later;
        }
        if stream.pending >= bounds.connection_bytes_max { Step::Blocked } else { Step::Row }
    }

    /// A PUBACK is a row if it acks a delivery that was sent from here.
    fn ack_step(&mut self, packet_id: u16) -> Step {
        // Nearly always the oldest.
        match self.in_flight.iter().position(|id| *id == packet_id) {
            Some(index) => {
                self.in_flight.remove(index);
                Step::Row
            }
            None => Step::HandOver,
        }
    }

    /// A PUBACK that Python decodes ends its delivery as well: one that gives a reason, or has properties.
    fn forget_acked(&mut self, packet: &[u8]) {
        if self.in_flight.is_empty() || packet[0] >> 4 != PUBACK {
            return;
        }
        // Behind the first byte and those of the length, of which the last is below 0x80.
        let length_bytes = packet[1..].iter().position(|byte| *byte < 0x80).map_or(0, |last| last + 1);
        if let Some(id) = packet.get(1 + length_bytes..).and_then(|body| body.first_chunk()) {
            self.ack_step(u16::from_be_bytes(*id));
        }
    }

    fn add_row(&mut self, stream: &mut Stream, publish: &Publish<'_>, burst: &mut Burst<Segment>, bounds: &Bounds) {
        let Some(publisher) = &mut self.publisher else { return };
        let Some(Topic { queue, .. }) = publisher.last.1 else { return };
        let cost = publish.topic.len() + publish.payload.len() + publisher.client_id.len() + ROW_COST;
        stream.pending += cost;
        let row = PublishRow {
            queue,
            connection: stream.number,
            place: (publish.qos > 0).then(|| self.acks.expect(publish.packet_id, true)),
            qos: publish.qos,
            topic: publish.topic,
            payload: publish.payload,
            publisher: &publisher.client_id,
            cost,
        };
        burst.add_row(stream.position(burst), &row, bounds.group_bytes_max);
    }
}
