//! A burst: everything that arrived since the last poll, as one sequence of rows (hazard 55).
//!
//! The rows of a connection are decided in the order in which they arrived. Rows of one kind are joined across
//! connections, so that Python decides about groups: a burst is a list of segments, each of events or of groups, and a
//! row goes into the first segment of its kind that is not before the last row of its connection.
//!
//!     connection a     PUBLISH 1    ACK      PUBLISH 2
//!     connection b     PUBLISH 7    PUBLISH 8
//!     segments         [groups: a1 b7 b8]    [events: ACK]    [groups: a2]
//!
//! The groups of a segment have one lane each (a shard); inside of a group rows stand in the order of their arrival.

use std::collections::HashMap;

/// A group is closed at this size, so that the log can store it in one record. One block may be larger.
const GROUP_BYTES_MAX: usize = 1 << 20;
const GROUP_ROWS_MAX: usize = 4096;

/// Something that Python decides by itself.
pub enum Event {
    Connected { connection: u64, peer: String },
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

/// Blocks for one shard, one behind the other, with a column for each fact that a decision needs.
pub struct Group {
    pub lane: u32,
    pub targets: Vec<Target>,
    pub ends: Vec<u32>,
    pub sequences: Vec<i64>,
    pub blocks: Vec<u8>,
    pub largest: usize,
}

/// A block that fits the declaration of its producer.
pub struct PublishRow<'a> {
    pub lane: u32,
    pub target: Target,
    pub sequence: i64,
    pub block: &'a [u8],
}

enum Segment {
    Events(Vec<Event>),
    Groups { groups: Vec<Group>, by_lane: HashMap<u32, usize> },
}

/// The segments of a finished burst, in order.
pub enum Part {
    Events(Vec<Event>),
    Groups(Vec<Group>),
}

#[derive(Default)]
pub struct Burst {
    segments: Vec<Segment>,
    pub bytes: usize,
}

impl Burst {
    /// `position`: the segment of the connection's last row; moved to the segment of this one.
    pub fn add_event(&mut self, position: &mut usize, event: Event) {
        let segments = &self.segments;
        let index = (*position..segments.len()).find(|&index| matches!(segments[index], Segment::Events(_)));
        *position = index.unwrap_or_else(|| {
            self.segments.push(Segment::Events(Vec::new()));
            self.segments.len() - 1
        });
        if let Segment::Events(events) = &mut self.segments[*position] {
            events.push(event);
        }
    }

    pub fn add_row(&mut self, position: &mut usize, row: PublishRow<'_>) {
        let segments = &self.segments;
        let index = (*position..segments.len()).find(|&index| matches!(segments[index], Segment::Groups { .. }));
        *position = index.unwrap_or_else(|| {
            self.segments.push(Segment::Groups { groups: Vec::new(), by_lane: HashMap::new() });
            self.segments.len() - 1
        });
        self.bytes += row.target.cost;
        if let Segment::Groups { groups, by_lane } = &mut self.segments[*position] {
            let open = by_lane.get(&row.lane).copied().filter(|&open| groups[open].has_room(row.block.len()));
            let open = open.unwrap_or_else(|| {
                groups.push(Group::new(row.lane));
                by_lane.insert(row.lane, groups.len() - 1);
                groups.len() - 1
            });
            groups[open].add(row);
        }
    }

    pub fn into_parts(self) -> impl Iterator<Item = Part> {
        self.segments.into_iter().map(|segment| match segment {
            Segment::Events(events) => Part::Events(events),
            Segment::Groups { groups, .. } => Part::Groups(groups),
        })
    }
}

impl Group {
    fn new(lane: u32) -> Group {
        let (targets, ends, sequences, blocks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Group { lane, targets, ends, sequences, blocks, largest: 0 }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.blocks.len() + bytes <= GROUP_BYTES_MAX && self.targets.len() < GROUP_ROWS_MAX
    }

    fn add(&mut self, row: PublishRow<'_>) {
        self.blocks.extend_from_slice(row.block);
        self.ends.push(self.blocks.len() as u32);
        self.sequences.push(row.sequence);
        self.largest = self.largest.max(row.block.len());
        self.targets.push(row.target);
    }
}
