//! A burst: everything that arrived since the last poll, as one sequence of rows (hazard 55).
//!
//! The rows of a connection are decided in the order in which they arrived. Rows of one kind are joined across
//! connections, so that Python decides about groups: a burst is a list of segments of one kind each, and a
//! row goes into the first segment of its kind that is not before the last row of its connection.
//!
//!     connection a     PUBLISH 1    PING     PUBLISH 2
//!     connection b     PUBLISH 7    PUBLISH 8    ACK
//!     segments         [groups: a1 b7 b8]    [events: PING]    [acks: b]    [groups: a2]
//!
//! A group has rows for any number of lanes (a lane is a shard), joined until a bound is reached. It is handed over lane by
//! lane; the rows of a lane stay in the order of their arrival.
//!
//! Acks, nacks and credits are kinds of their own, because the order of an ack and a nack of one message matters.

use std::collections::HashMap;

/// A group is closed at this size, so that the log can store it in one record. One block may be larger.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// A record has at most 2,048 shards (`_SHARDS_MAX` in `icestream/wal/appender.py`), and each row may be for another one.
const GROUP_ROWS_MAX: usize = 2048;

/// Something that Python decides by itself.
pub enum Event {
    Connected { connection: u64, peer: String, certificate: Option<Vec<u8>> },
    Frame { connection: u64, kind: u8, flags: u8, number: u64, body: Vec<u8>, last_publish: u64 },
    Malformed { connection: u64, size: u32, kind: u8 },
    Gone { connection: u64 },
    Room { connection: u64 },
    AcceptFailed { errno: i32 },
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
    pub lane: u32,
    pub target: Target,
    pub producer_id: i64,
    pub producer_epoch: i32,
    pub sequence: i64,
    pub block: &'a [u8],
}

/// A row of a group: its facts, and where its block lies.
pub struct GroupRow {
    pub lane: u32,
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
struct Settlements {
    list: Vec<Settlement>,
    last: HashMap<(u32, u32), usize>,
}

enum Segment {
    Events(Vec<Event>),
    Groups(Vec<Group>),
    Acks(Settlements),
    Nacks(Settlements),
    Credits(Vec<CreditRow>),
}

/// The segments of a finished burst, in order.
pub enum Part {
    Events(Vec<Event>),
    Groups(Vec<Group>),
    Acks(Vec<Settlement>),
    Nacks(Vec<Settlement>),
    Credits(Vec<CreditRow>),
}

#[derive(Default)]
pub struct Burst {
    segments: Vec<Segment>,
    pub bytes: usize,
}

impl Burst {
    /// Moves `position`, the segment of the connection's last row, to the segment of its next row: the first that is of
    /// the kind, or a new one behind all others.
    fn segment(
        &mut self,
        position: &mut usize,
        is_of_kind: impl Fn(&Segment) -> bool,
        new: impl FnOnce() -> Segment,
    ) -> &mut Segment {
        let found = self.segments.iter().skip(*position).position(is_of_kind);
        *position = found.map_or(self.segments.len(), |skipped| *position + skipped);
        if found.is_none() {
            self.segments.push(new());
        }
        &mut self.segments[*position]
    }

    pub fn add_event(&mut self, position: &mut usize, event: Event) {
        let is_events = |segment: &Segment| matches!(segment, Segment::Events(_));
        if let Segment::Events(events) = self.segment(position, is_events, || Segment::Events(Vec::new())) {
            events.push(event);
        }
    }

    pub fn add_row(&mut self, position: &mut usize, row: PublishRow<'_>) {
        self.bytes += row.target.cost;
        let is_groups = |segment: &Segment| matches!(segment, Segment::Groups(_));
        if let Segment::Groups(groups) = self.segment(position, is_groups, || Segment::Groups(Vec::new())) {
            if groups.last().is_none_or(|group| !group.has_room(row.block.len())) {
                groups.push(Group::default());
            }
            groups.last_mut().expect("a group with room").add(row);
        }
    }

    pub fn add_ack(&mut self, position: &mut usize, ack: Settlement) {
        let is_acks = |segment: &Segment| matches!(segment, Segment::Acks(_));
        if let Segment::Acks(acks) = self.segment(position, is_acks, || Segment::Acks(Settlements::default())) {
            acks.add(ack);
        }
    }

    pub fn add_nack(&mut self, position: &mut usize, nack: Settlement) {
        let is_nacks = |segment: &Segment| matches!(segment, Segment::Nacks(_));
        if let Segment::Nacks(nacks) = self.segment(position, is_nacks, || Segment::Nacks(Settlements::default())) {
            nacks.add(nack);
        }
    }

    pub fn add_credit(&mut self, position: &mut usize, credit: CreditRow) {
        let is_credits = |segment: &Segment| matches!(segment, Segment::Credits(_));
        if let Segment::Credits(credits) = self.segment(position, is_credits, || Segment::Credits(Vec::new())) {
            credits.push(credit);
        }
    }

    pub fn into_parts(self) -> impl Iterator<Item = Part> {
        self.segments.into_iter().map(|segment| match segment {
            Segment::Events(events) => Part::Events(events),
            Segment::Groups(groups) => Part::Groups(groups),
            Segment::Acks(acks) => Part::Acks(acks.list),
            Segment::Nacks(nacks) => Part::Nacks(nacks.list),
            Segment::Credits(credits) => Part::Credits(credits),
        })
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
        let PublishRow { lane, target, producer_id, producer_epoch, sequence, block } = row;
        let start = self.blocks.len() as u32;
        self.blocks.extend_from_slice(block);
        let end = self.blocks.len() as u32;
        self.largest = self.largest.max(block.len());
        self.rows.push(GroupRow { lane, target, producer_id, producer_epoch, sequence, start, end });
    }

    /// Brings the rows into the order in which they are handed over.
    pub fn sort_by_lane(&mut self) {
        self.rows.sort_by_key(|row| row.lane);
    }

    pub fn size(&self) -> usize {
        self.blocks.len()
    }

    pub fn block(&self, row: &GroupRow) -> &[u8] {
        &self.blocks[row.start as usize..row.end as usize]
    }
}
