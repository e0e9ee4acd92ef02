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
//! A group has rows for any number of lanes (a lane is a shard), joined until a bound is reached. It is handed over lane by
//! lane; the rows of a lane stay in the order of their arrival.

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

enum Segment {
    Events(Vec<Event>),
    Groups(Vec<Group>),
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
        let index = (*position..segments.len()).find(|&index| matches!(segments[index], Segment::Groups(_)));
        *position = index.unwrap_or_else(|| {
            self.segments.push(Segment::Groups(vec![Group::default()]));
            self.segments.len() - 1
        });
        self.bytes += row.target.cost;
        if let Segment::Groups(groups) = &mut self.segments[*position] {
            if groups.last().is_none_or(|group| !group.has_room(row.block.len())) {
                groups.push(Group::default());
            }
            groups.last_mut().expect("a group with room").add(row);
        }
    }

    pub fn into_parts(self) -> impl Iterator<Item = Part> {
        self.segments.into_iter().map(|segment| match segment {
            Segment::Events(events) => Part::Events(events),
            Segment::Groups(groups) => Part::Groups(groups),
        })
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
