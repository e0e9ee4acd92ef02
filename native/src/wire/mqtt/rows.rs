//! The rows of a burst of MQTT connections: bytes that Python decodes, groups of messages as blocks, acks of deliveries.
//!
//! A group has messages for any number of shards (each has a queue, whose number names it) as one block for each, in the
//! order of their arrival. The block is that of `icestream/broker/mqtt/message_rows.py`: key, payload, publisher, QoS and
//! the time of the burst. A column in which all rows are alike is stored once.

use crate::block::{CONSTANT, ENTRY_BYTES, FIXED, HEAD_BYTES, KEY, PRODUCER_NAME, VARIABLE, padded};
use crate::wire::burst::{self, Burst, StreamEvent};
use std::collections::HashMap;
use std::sync::Arc;

const PUBLISH_TIME: u16 = 1;
const PAYLOAD: u16 = 3;
const QOS: u16 = 16;

/// A group is closed at this many rows; and at a number of bytes, so that the log can store it in one record.
const GROUP_ROWS_MAX: usize = 8192;

/// Something that Python decides by itself.
pub enum Event {
    Stream(StreamEvent),
    /// Whole packets; behind them there may be the head of one that cannot be.
    Packets {
        connection: u64,
        data: Vec<u8>,
    },
}

impl From<StreamEvent> for Event {
    fn from(event: StreamEvent) -> Event {
        Event::Stream(event)
    }
}

/// A PUBLISH that fits what Python declared.
pub struct PublishRow<'a> {
    pub queue: u32,
    pub connection: u64,
    /// Of its ack; None for QoS 0.
    pub place: Option<u64>,
    pub qos: u8,
    pub topic: &'a [u8],
    pub payload: &'a [u8],
    pub publisher: &'a Arc<[u8]>,
    /// What the row counts for in the bound of its connection.
    pub cost: usize,
}

/// Rows of one connection that follow one another, and whose acks do.
pub struct Run {
    pub connection: u64,
    pub place: Option<u64>,
    pub count: u32,
    pub cost: usize,
}

/// The values of a column of bytes, one behind the other.
#[derive(Default)]
struct Values {
    ends: Vec<u32>,
    bytes: Vec<u8>,
    has_different: bool,
}

impl Values {
    fn push(&mut self, value: &[u8]) {
        if !self.has_different && !self.ends.is_empty() {
            self.has_different = self.bytes[..self.ends[0] as usize] != *value;
        }
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len() as u32);
    }
}

/// The messages of one shard.
pub struct ShardRows {
    pub queue: u32,
    pub runs: Vec<Run>,
    topics: Values,
    payloads: Values,
    /// Of runs of rows.
    publishers: Vec<(Arc<[u8]>, u32)>,
    qos: Vec<u8>,
}

impl ShardRows {
    fn new(queue: u32) -> ShardRows {
        let (topics, payloads) = (Values::default(), Values::default());
        ShardRows { queue, runs: Vec::new(), topics, payloads, publishers: Vec::new(), qos: Vec::new() }
    }

    pub fn rows(&self) -> usize {
        self.qos.len()
    }

    fn add(&mut self, row: &PublishRow<'_>) {
        self.topics.push(row.topic);
        self.payloads.push(row.payload);
        self.qos.push(row.qos);
        match self.publishers.last_mut() {
            Some((publisher, count)) if Arc::ptr_eq(publisher, row.publisher) => *count += 1,
            _ => self.publishers.push((row.publisher.clone(), 1)),
        }
        match self.runs.last_mut() {
            Some(run) if run.is_followed_by(row) => {
                run.count += 1;
                run.cost += row.cost;
            }
            _ => {
                let PublishRow { connection, place, cost, .. } = *row;
                self.runs.push(Run { connection, place, count: 1, cost });
            }
        }
    }

    /// Appends the block of the messages to `out`.
    pub fn encode(&self, publish_time_us: i64, out: &mut Vec<u8>) {
        let (start, rows) = (out.len(), self.rows());
        out.resize(start + HEAD_BYTES + 5 * ENTRY_BYTES, 0);
        let mut directory = start + HEAD_BYTES;
        let mut put = |out: &mut Vec<u8>, id: u16, encoding: u8, parts: &[&[u8]]| {
            let begin = out.len();
            parts.iter().for_each(|part| out.extend_from_slice(part));
            let size = (out.len() - begin) as u32;
            out.resize(start + padded(out.len() - start), 0);
            let entry = &mut out[directory..directory + ENTRY_BYTES];
            entry[..2].copy_from_slice(&id.to_le_bytes());
            entry[2] = encoding;
            entry[4..].copy_from_slice(&size.to_le_bytes());
            directory += ENTRY_BYTES;
        };
        put(out, PUBLISH_TIME, CONSTANT, &[&publish_time_us.to_le_bytes()]);
        for (id, values) in [(KEY, &self.topics), (PAYLOAD, &self.payloads)] {
            if values.has_different {
                put(out, id, VARIABLE, &[&[0; 4], bytes_of(&values.ends), &values.bytes]);
            } else {
                put(out, id, CONSTANT, &[&values.bytes[..values.ends[0] as usize]]);
            }
        }
        if let [(publisher, _)] = &self.publishers[..] {
            put(out, PRODUCER_NAME, CONSTANT, &[publisher]);
        } else {
            let mut values = Values::default();
            for (publisher, count) in &self.publishers {
                (0..*count).for_each(|_| values.push(publisher));
            }
            put(out, PRODUCER_NAME, VARIABLE, &[&[0; 4], bytes_of(&values.ends), &values.bytes]);
        }
        let qos: Vec<i32> = self.qos.iter().map(|qos| i32::from(*qos)).collect();
        if qos.iter().all(|other| *other == qos[0]) {
            put(out, QOS, CONSTANT, &[bytes_of(&qos[..1])]);
        } else {
            put(out, QOS, FIXED, &[bytes_of(&qos)]);
        }
        let size = (out.len() - start) as u32;
        let head = &mut out[start..start + HEAD_BYTES];
        head[..4].copy_from_slice(&(rows as u32).to_le_bytes());
        head[4..8].copy_from_slice(&size.to_le_bytes());
        head[8..16].copy_from_slice(&(-1_i64).to_le_bytes()); // not numbered
        head[20..22].copy_from_slice(&5_u16.to_le_bytes());
        head[24..32].copy_from_slice(&(-1_i64).to_le_bytes());
    }
}

impl Run {
    fn is_followed_by(&self, row: &PublishRow<'_>) -> bool {
        let next = self.place.map(|place| place + u64::from(self.count));
        self.connection == row.connection && next == row.place
    }
}

/// Numbers as they lie in memory, which is little endian wherever Icestream runs.
pub fn bytes_of<T: Copy>(numbers: &[T]) -> &[u8] {
    // SAFETY: plain numbers, without padding.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// Messages of any number of shards.
#[derive(Default)]
pub struct Group {
    pub shards: Vec<ShardRows>,
    /// What its largest message costs.
    pub largest: usize,
    by_queue: HashMap<u32, usize>,
    rows: usize,
    bytes: usize,
}

impl Group {
    /// How many bytes the blocks have, about.
    pub fn encoded_bytes(&self) -> usize {
        self.bytes + 128 * self.shards.len()
    }

    /// A group without rows has room for a message of any size.
    fn has_room(&self, cost: usize, bytes_max: usize) -> bool {
        self.rows == 0 || (self.rows < GROUP_ROWS_MAX && self.bytes + cost <= bytes_max)
    }

    fn add(&mut self, row: &PublishRow<'_>) {
        self.rows += 1;
        self.bytes += row.cost;
        self.largest = self.largest.max(row.cost);
        // Nearly always the shard of the row before, or one of few.
        let index = match self.shards.last() {
            Some(last) if last.queue == row.queue => self.shards.len() - 1,
            _ => *self.by_queue.entry(row.queue).or_insert_with(|| {
                self.shards.push(ShardRows::new(row.queue));
                self.shards.len() - 1
            }),
        };
        self.shards[index].add(row);
    }
}

/// PUBACKs of deliveries, by connection.
#[derive(Default)]
pub struct DeliveryAcks {
    pub list: Vec<(u64, Vec<u16>)>,
    last: HashMap<u64, usize>,
}

impl DeliveryAcks {
    fn add(&mut self, connection: u64, packet_id: u16) {
        let index = match self.list.last() {
            Some((last, _)) if *last == connection => self.list.len() - 1,
            _ => *self.last.entry(connection).or_insert_with(|| {
                self.list.push((connection, Vec::new()));
                self.list.len() - 1
            }),
        };
        self.list[index].1.push(packet_id);
    }
}

pub enum Segment {
    Events(Vec<Event>),
    Groups(Vec<Group>),
    Acks(DeliveryAcks),
}

impl burst::Segment for Segment {
    type Event = Event;

    fn of_events() -> Segment {
        Segment::Events(Vec::new())
    }

    fn events(&mut self) -> Option<&mut Vec<Event>> {
        if let Segment::Events(events) = self { Some(events) } else { None }
    }
}

impl Segment {
    fn groups(&mut self) -> Option<&mut Vec<Group>> {
        if let Segment::Groups(groups) = self { Some(groups) } else { None }
    }

    fn acks(&mut self) -> Option<&mut DeliveryAcks> {
        if let Segment::Acks(acks) = self { Some(acks) } else { None }
    }
}

impl Burst<Segment> {
    /// `group_bytes_max`: the largest group of more than one message.
    pub fn add_row(&mut self, position: &mut usize, row: &PublishRow<'_>, group_bytes_max: usize) {
        self.bytes += row.cost;
        let groups = self.segment(position, Segment::groups, || Segment::Groups(Vec::new()));
        if groups.last().is_none_or(|group| !group.has_room(row.cost, group_bytes_max)) {
            groups.push(Group::default());
        }
        groups.last_mut().expect("a group with room").add(row);
    }

    pub fn add_ack(&mut self, position: &mut usize, connection: u64, packet_id: u16) {
        self.segment(position, Segment::acks, || Segment::Acks(DeliveryAcks::default())).add(connection, packet_id);
    }
}
