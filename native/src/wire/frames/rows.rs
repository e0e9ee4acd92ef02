//! The rows of a burst of native connections: events, groups of blocks, acks, nacks and credits.
//!
//! A group has rows for any number of shards (each has a queue, whose number names it), joined until a bound is reached. It
//! is handed over shard by shard; the rows of a shard stay in the order of their arrival.
//!
//! Acks, nacks and credits are kinds of their own, because the order of an ack and a nack of one message matters.

use crate::wire::burst::{self, Burst, StreamEvent};
use std::collections::HashMap;

/// A group is closed at this size, so that the log can store it in one record. One block may be larger.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// A record has at most 2,048 shards (`_SHARDS_MAX` in `icestream/wal/appender.py`), and each row may be for another one.
const GROUP_ROWS_MAX: usize = 2048;

/// Something that Python decides by itself.
pub enum Event {
    Stream(StreamEvent),
    Frame { connection: u64, kind: u8, flags: u8, number: u64, body: Vec<u8>, last_publish: u64 },
    Malformed { connection: u64, size: u32, kind: u8 },
}

impl From<StreamEvent> for Event {
    fn from(event: StreamEvent) -> Event {
        Event::Stream(event)
    }
}

/// Where the answer to a row goes: a part of an answer of a connection.
pub struct Target {
    pub connection: u64,
    /// Which PUBLISH of the connection, counted from 0.
    pub answer: u64,
    pub part: u32,
    /// Handle and shard of the producer.
    pub producer: (u32, u32),
    pub slot: u32,
    pub rows: u32,
    /// What the row counts for in the bound of its connection.
    pub cost: usize,
}

/// A block that fits the declaration of its producer.
pub struct PublishRow<'a> {
    pub queue: u32,
    pub target: Target,
    pub producer_id: i64,
    pub producer_epoch: i32,
    pub sequence: i64,
    pub block: &'a [u8],
}

/// A row of a group: its facts, and where its block lies.
pub struct GroupRow {
    pub queue: u32,
    pub target: Target,
    pub producer_id: i64,
    pub producer_epoch: i32,
    pub sequence: i64,
    start: u32,
    end: u32,
}

/// Rows in the order of their arrival.
#[derive(Default)]
pub struct Group {
    pub rows: Vec<GroupRow>,
    blocks: Vec<u8>,
    pub largest: usize,
}

/// Offsets of one shard that a consumer acks or nacks.
pub struct Settlement {
    pub slot: u32,
    pub shard: u32,
    pub generation: u32,
    /// Of a nack; 0 for an ack.
    pub delay_ms: u32,
    /// [start, end) each, in the order of arrival; one that continues the last is joined with it.
    pub ranges: Vec<(i64, i64)>,
}

/// Additional credit of a consumer.
pub struct CreditRow {
    pub slot: u32,
    pub messages: u32,
}

/// The settlements of a segment, and the last one of each consumer in a shard.
#[derive(Default)]
pub struct Settlements {
    pub list: Vec<Settlement>,
    last: HashMap<(u32, u32), usize>,
}

pub enum Segment {
    Events(Vec<Event>),
    Groups(Vec<Group>),
    Acks(Settlements),
    Nacks(Settlements),
    Credits(Vec<CreditRow>),
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

    fn acks(&mut self) -> Option<&mut Settlements> {
        if let Segment::Acks(acks) = self { Some(acks) } else { None }
    }

    fn nacks(&mut self) -> Option<&mut Settlements> {
        if let Segment::Nacks(nacks) = self { Some(nacks) } else { None }
    }

    fn credits(&mut self) -> Option<&mut Vec<CreditRow>> {
        if let Segment::Credits(credits) = self { Some(credits) } else { None }
    }
}

impl Burst<Segment> {
    pub fn add_row(&mut self, position: &mut usize, row: PublishRow<'_>) {
        self.bytes += row.target.cost;
        let groups = self.segment(position, Segment::groups, || Segment::Groups(Vec::new()));
        if groups.last().is_none_or(|group| !group.has_room(row.block.len())) {
            groups.push(Group::default());
        }
        groups.last_mut().expect("a group with room").add(row);
    }

    pub fn add_ack(&mut self, position: &mut usize, ack: Settlement) {
        self.segment(position, Segment::acks, || Segment::Acks(Settlements::default())).add(ack);
    }

    pub fn add_nack(&mut self, position: &mut usize, nack: Settlement) {
        self.segment(position, Segment::nacks, || Segment::Nacks(Settlements::default())).add(nack);
    }

    pub fn add_credit(&mut self, position: &mut usize, credit: CreditRow) {
        self.segment(position, Segment::credits, || Segment::Credits(Vec::new())).push(credit);
    }
}

impl Settlements {
    /// Joins it with the last one of the consumer in the shard if they are alike: then nothing of this consumer and
    /// shard lies between them.
    fn add(&mut self, settlement: Settlement) {
        let key = (settlement.slot, settlement.shard);
        let last = self.last.get(&key).map(|&last| &mut self.list[last]);
        let alike = (settlement.generation, settlement.delay_ms);
        match last.filter(|last| (last.generation, last.delay_ms) == alike) {
            Some(last) => {
                for (start, end) in settlement.ranges {
                    match last.ranges.last_mut() {
                        Some(range) if range.1 == start => range.1 = end,
                        _ => last.ranges.push((start, end)),
                    }
                }
            }
            None => {
                self.last.insert(key, self.list.len());
                self.list.push(settlement);
            }
        }
    }
}

impl Group {
    /// A group without rows has room for a block of any size.
    fn has_room(&self, bytes: usize) -> bool {
        self.rows.is_empty() || (self.blocks.len() + bytes <= GROUP_BYTES_MAX && self.rows.len() < GROUP_ROWS_MAX)
    }

    fn add(&mut self, row: PublishRow<'_>) {
        let PublishRow { queue, target, producer_id, producer_epoch, sequence, block } = row;
        let start = self.blocks.len() as u32;
        self.blocks.extend_from_slice(block);
        let end = self.blocks.len() as u32;
        self.largest = self.largest.max(block.len());
        self.rows.push(GroupRow { queue, target, producer_id, producer_epoch, sequence, start, end });
    }

    /// Brings the rows into the order in which they are handed over.
    pub fn sort_by_queue(&mut self) {
        self.rows.sort_by_key(|row| row.queue);
    }

    pub fn block(&self, row: &GroupRow) -> &[u8] {
        &self.blocks[row.start as usize..row.end as usize]
    }
}
