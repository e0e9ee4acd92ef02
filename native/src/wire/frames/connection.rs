//! One connection of the native protocol: cuts its bytes into frames (the contract is `icestream/rpc/frame.py`).
//!
//! A PUBLISH becomes rows of the burst when every part of it fits what Python declared about its producer; an ACK, NACK or
//! CREDIT when it fits what Python declared about its consumer, so that Python has no reason to refuse it. Every other
//! frame, also one that fits no declaration, goes to Python as it is. Nothing is refused here: what is not as declared
//! is Python's to judge, and a frame that cannot be cut off is reported with its head.
//!
//!     step       after                                         the connection is parsed again
//!     next       a PUBLISH as rows, ACK, NACK, CREDIT, PING    at once
//!     barrier    HELLO, CALL, any other PUBLISH                in the next burst: Python may pause the connection, or
//!                                                              end it, before it decides about what follows
//!     later      nothing; a PUBLISH as rows would be behind    in the next burst, for the same reason
//!                an event of this connection
//!     blocked    nothing; the window of a producer, or the     when answers have left
//!                bound of the connection, is full

use super::answers::Answers;
use crate::block;
use crate::wire::burst::{Burst, CreditRow, Event, PublishRow, Settlement, Target};
use crate::wire::epoll::Epoll;
use crate::wire::socket::Socket;
use std::collections::HashMap;

const HEAD_BYTES: usize = 16;
const SIZE_MIN: usize = 12;
const PART_BYTES: usize = 16;
/// Of an ACK or a NACK before its ranges, and of each range.
const SETTLEMENT_BYTES: usize = 16;
const RANGE_BYTES: usize = 16;
const CREDIT_BYTES: usize = 8;
const CUMULATIVE: u32 = 1;
const COMPRESSED: u8 = 1;
const HELLO: u8 = 1;
const CALL: u8 = 3;
const PING: u8 = 6;
const PUBLISH: u8 = 16;
const CREDIT: u8 = 18;
const ACK: u8 = 20;
const NACK: u8 = 21;
/// What a row costs beside its bytes: its entries in the columns, and its answer.
const ROW_COST: usize = 64;

/// Bounds, all of them from `icestream/limits.py`.
pub struct Bounds {
    pub hello_bytes_max: usize,
    /// Unanswered rows of a connection.
    pub connection_bytes_max: usize,
    /// Answers that the peer does not read.
    pub answer_bytes_max: usize,
    pub parts_max: usize,
    /// Batches of a numbered producer in flight in one shard.
    pub window_max: u32,
    /// The largest block of one row, and of more than one.
    pub row_bytes_max: usize,
    pub rows_bytes_max: usize,
    /// Bytes that the CONSTANT columns of a block may stand for.
    pub unpacked_bytes_max: usize,
    /// Of one ACK or NACK.
    pub ranges_max: usize,
    pub offset_max: i64,
    pub delay_ms_max: u32,
}

/// What Python declared about a producer in one shard.
pub struct Producer {
    pub slot: u32,
    pub lane: u32,
    /// -1: its batches are not numbered.
    pub producer_id: i64,
    pub epoch: i32,
    /// Bits of the columns that its blocks must not have.
    pub forbidden: u64,
    pub in_flight: u32,
}

/// What Python declared about a consumer.
pub struct Consumer {
    pub slot: u32,
    /// Its acks and nacks are for a shard below it.
    pub shards: u32,
    /// An ack may be cumulative.
    pub allows_cumulative: bool,
}

pub struct Connection {
    pub number: u64,
    pub socket: Socket,
    pub answers: Answers,
    pub producers: HashMap<(u32, u32), Producer>,
    pub consumers: HashMap<u32, Consumer>,
    /// 0 until the handshake: then the first frame is a HELLO.
    pub frame_bytes_max: usize,
    /// Bytes received and not parsed yet.
    pub input: Vec<u8>,
    /// By Python.
    pub is_paused: bool,
    pub is_discarding: bool,
    pub is_blocked: bool,
    /// Frames are left in `input` behind a barrier.
    pub has_backlog: bool,
    pub is_failed: bool,
    pub at_end: bool,
    /// Cost of the rows that are not answered yet.
    pub pending: usize,
    /// Bytes of answers that the socket may not have taken.
    pub answer_bytes: usize,
    /// Beyond it Python sends no messages, and hears when the queue has drained.
    pub queue_high: usize,
    pub awaits_room: bool,
    last_publish: u64,
    /// The burst of the last row, and the segment in it.
    position: (u64, usize),
    /// The burst of the last frame that went to Python as it is.
    event_burst: u64,
}

#[derive(PartialEq)]
enum Step {
    Next,
    Barrier,
    Later,
    Blocked,
}

impl Connection {
    pub fn new(number: u64, socket: Socket) -> Connection {
        Connection {
            number,
            socket,
            answers: Answers::default(),
            producers: HashMap::new(),
            consumers: HashMap::new(),
            frame_bytes_max: 0,
            input: Vec::new(),
            is_paused: false,
            is_discarding: false,
            is_blocked: false,
            has_backlog: false,
            is_failed: false,
            at_end: false,
            pending: 0,
            answer_bytes: 0,
            queue_high: usize::MAX,
            awaits_room: false,
            last_publish: 0,
            position: (0, 0),
            event_burst: 0,
        }
    }

    /// Whether frames may be cut off now.
    pub fn can_parse(&self, bounds: &Bounds) -> bool {
        !self.is_paused && !self.is_failed && !self.is_discarding && self.answer_bytes < bounds.answer_bytes_max
    }

    /// Whether the socket may be read: bytes that wait to be parsed keep it from growing.
    fn can_read(&self, bounds: &Bounds) -> bool {
        let is_open = !self.at_end && !self.socket.is_broken();
        is_open && (self.is_discarding || (self.can_parse(bounds) && !self.is_blocked && !self.has_backlog))
    }

    /// Whether Python should send no messages now.
    pub fn is_over_bound(&self) -> bool {
        self.socket.queued_bytes() > self.queue_high
    }

    pub fn update_reading(&mut self, bounds: &Bounds, epoll: &Epoll) {
        self.socket.set_reading(self.can_read(bounds), epoll);
    }

    /// The position of this connection in the burst `number`.
    pub fn position(&mut self, number: u64) -> &mut usize {
        if self.position.0 != number {
            self.position = (number, 0);
        }
        &mut self.position.1
    }

    /// How many bytes the next read asks for: the rest of a frame that has begun, between the two bounds.
    pub fn read_bytes(&self, least: usize, most: usize) -> usize {
        let Some(size) = self.input.first_chunk::<4>() else { return most };
        let whole = u32::from_le_bytes(*size) as usize + 4;
        whole.saturating_sub(self.input.len()).clamp(least, most)
    }

    /// Parses frames from the start of `data`, as many as may go into this burst. Returns how many bytes they had.
    pub fn parse(&mut self, data: &[u8], burst: &mut Burst, burst_number: u64, bounds: &Bounds) -> usize {
        let mut at = 0;
        self.is_blocked = false;
        self.has_backlog = false;
        while self.can_parse(bounds) && data.len() - at >= HEAD_BYTES {
            let rest = &data[at..];
            let size = u32::from_le_bytes(*rest.first_chunk().expect("a head")) as usize;
            let (kind, flags) = (rest[4], rest[5]);
            let number = u64::from_le_bytes(*rest[8..].first_chunk().expect("a head"));
            let zero = rest[6] | rest[7];
            let size_max = if self.frame_bytes_max == 0 { bounds.hello_bytes_max } else { self.frame_bytes_max };
            let is_valid = (SIZE_MIN..=size_max).contains(&size) && self.expects(kind);
            if !is_valid || flags & !COMPRESSED != 0 || zero != 0 {
                self.is_failed = true;
                let event = Event::Malformed { connection: self.number, size: size as u32, kind };
                burst.add_event(self.position(burst_number), event);
                break;
            }
            let Some(body) = rest.get(HEAD_BYTES..4 + size) else { break };
            let step = match kind {
                PUBLISH => self.publish(number, flags, body, burst, burst_number, bounds),
                ACK | NACK if flags == 0 && self.settle(kind, body, burst, burst_number, bounds) => Step::Next,
                CREDIT if flags == 0 && self.credit(body, burst, burst_number) => Step::Next,
                _ => {
                    self.hand_over(kind, flags, number, body, burst, burst_number);
                    if matches!(kind, ACK | NACK | CREDIT | PING) { Step::Next } else { Step::Barrier }
                }
            };
            if matches!(step, Step::Blocked | Step::Later) {
                self.is_blocked = step == Step::Blocked;
                self.has_backlog = step == Step::Later;
                break;
            }
            at += 4 + size;
            if step == Step::Barrier {
                self.has_backlog = at < data.len();
                break;
            }
        }
        at
    }

    fn expects(&self, kind: u8) -> bool {
        if self.frame_bytes_max == 0 {
            return kind == HELLO;
        }
        matches!(kind, CALL | PING | PUBLISH | CREDIT | ACK | NACK)
    }

    fn hand_over(&mut self, kind: u8, flags: u8, number: u64, body: &[u8], burst: &mut Burst, burst_number: u64) {
        let (connection, last_publish) = (self.number, self.last_publish);
        self.event_burst = burst_number;
        burst.bytes += body.len() + ROW_COST;
        let event = Event::Frame { connection, kind, flags, number, body: body.to_vec(), last_publish };
        burst.add_event(self.position(burst_number), event);
    }

    /// Adds an ACK or a NACK as a row; false if it is not as its consumer was declared.
    fn settle(&mut self, kind: u8, body: &[u8], burst: &mut Burst, burst_number: u64, bounds: &Bounds) -> bool {
        let Some(settlement) = self.plain_settlement(kind, body, bounds) else { return false };
        burst.bytes += body.len() + ROW_COST * settlement.ranges.len();
        let position = self.position(burst_number);
        if kind == ACK { burst.add_ack(position, settlement) } else { burst.add_nack(position, settlement) }
        true
    }

    fn plain_settlement(&self, kind: u8, body: &[u8], bounds: &Bounds) -> Option<Settlement> {
        let (head, rest) = body.split_at_checked(SETTLEMENT_BYTES)?;
        let [handle, shard, generation, extra] = numbers(head);
        let consumer = self.consumers.get(&handle)?;
        let (count, remainder) = (rest.len() / RANGE_BYTES, rest.len() % RANGE_BYTES);
        if shard >= consumer.shards || remainder != 0 || !(1..=bounds.ranges_max).contains(&count) {
            return None;
        }
        let mut ranges = Vec::with_capacity(count);
        for chunk in rest.chunks_exact(RANGE_BYTES) {
            let [start, end] = [0, 8].map(|at| i64::from_le_bytes(*chunk[at..].first_chunk().expect("a number")));
            if !(0 <= start && start < end && end <= bounds.offset_max) {
                return None;
            }
            ranges.push((start, end));
        }
        let delay_ms = match (kind, extra) {
            (ACK, 0) => 0,
            (ACK, CUMULATIVE) if consumer.allows_cumulative && ranges.len() == 1 => {
                ranges[0].0 = 0; // everything below its end
                0
            }
            (NACK, delay_ms) if delay_ms <= bounds.delay_ms_max => delay_ms,
            _ => return None,
        };
        Some(Settlement { slot: consumer.slot, shard, generation, delay_ms, ranges })
    }

    /// Adds a CREDIT as a row; false if it is not of a declared consumer.
    fn credit(&mut self, body: &[u8], burst: &mut Burst, burst_number: u64) -> bool {
        if body.len() != CREDIT_BYTES {
            return false;
        }
        let [handle, messages] = numbers(body);
        let Some(slot) = self.consumers.get(&handle).map(|consumer| consumer.slot) else { return false };
        burst.bytes += body.len() + ROW_COST;
        burst.add_credit(self.position(burst_number), CreditRow { slot, messages });
        true
    }

    fn publish(
        &mut self,
        number: u64,
        flags: u8,
        body: &[u8],
        burst: &mut Burst,
        burst_number: u64,
        bounds: &Bounds,
    ) -> Step {
        if self.pending >= bounds.connection_bytes_max {
            return Step::Blocked;
        }
        if self.event_burst == burst_number {
            return Step::Later;
        }
        let parts = if flags == 0 && number > self.last_publish { self.plain_parts(body, bounds) } else { None };
        let Some(parts) = parts else {
            self.hand_over(PUBLISH, flags, number, body, burst, burst_number);
            if number > self.last_publish {
                self.answers.expect(number, 1);
                self.last_publish = number;
            }
            return Step::Barrier;
        };
        if !self.enter_windows(&parts, bounds.window_max) {
            return Step::Blocked;
        }
        self.last_publish = number;
        let answer = self.answers.expect(number, parts.len() as u32);
        for (index, part) in parts.iter().enumerate() {
            let producer = &self.producers[&part.key];
            let cost = part.block.len() + ROW_COST;
            let target = Target {
                connection: self.number,
                answer,
                part: index as u32,
                producer: part.key,
                slot: producer.slot,
                rows: part.rows,
                cost,
            };
            let row = PublishRow {
                lane: producer.lane,
                target,
                producer_id: producer.producer_id,
                producer_epoch: producer.epoch,
                sequence: part.sequence,
                block: part.block,
            };
            self.pending += cost;
            burst.add_row(self.position(burst_number), row);
        }
        Step::Next
    }

    /// The parts of a PUBLISH, if every one of them is as its producer was declared.
    fn plain_parts<'a>(&self, body: &'a [u8], bounds: &Bounds) -> Option<Vec<PlainPart<'a>>> {
        let mut parts = Vec::with_capacity(1);
        let mut at = 0;
        while at < body.len() {
            let head = body.get(at..at + PART_BYTES)?;
            let [handle, shard, block_bytes, zero] = numbers(head);
            at += PART_BYTES;
            let block = body.get(at..at + block_bytes as usize)?;
            at += block::padded(block.len());
            if zero != 0 || at > body.len() || parts.len() == bounds.parts_max {
                return None;
            }
            parts.push(self.plain_part((handle, shard), block, bounds)?);
        }
        Some(parts).filter(|parts| !parts.is_empty())
    }

    fn plain_part<'a>(&self, key: (u32, u32), block: &'a [u8], bounds: &Bounds) -> Option<PlainPart<'a>> {
        let producer = self.producers.get(&key)?;
        let (rows, producer_id, epoch, sequence, columns, repeated) = block::check(block).ok()?;
        let is_numbered = sequence != -1;
        let is_same = if is_numbered {
            producer_id == producer.producer_id && epoch == producer.epoch
        } else {
            producer.producer_id == -1
        };
        let bytes_max = if rows > 1 { bounds.rows_bytes_max } else { bounds.row_bytes_max };
        let fits = block.len() <= bytes_max && repeated.saturating_mul(rows) <= bounds.unpacked_bytes_max;
        let is_plain = is_same && fits && columns & producer.forbidden == 0;
        is_plain.then_some(PlainPart { key, rows: rows as u32, sequence, block })
    }

    /// Counts the parts as in flight; false, and nothing is counted, if a window has no room for them.
    fn enter_windows(&mut self, parts: &[PlainPart<'_>], window_max: u32) -> bool {
        for (index, part) in parts.iter().enumerate() {
            let producer = self.producers.get_mut(&part.key).expect("a declared producer");
            // A frame with more parts than a window has places is let in alone: it could never enter otherwise.
            if part.sequence != -1 && producer.in_flight >= window_max && !(self.answers.is_empty() && index > 0) {
                self.leave_windows(&parts[..index]);
                return false;
            }
            producer.in_flight += 1;
        }
        true
    }

    fn leave_windows(&mut self, parts: &[PlainPart<'_>]) {
        for part in parts {
            if let Some(producer) = self.producers.get_mut(&part.key) {
                producer.in_flight -= 1;
            }
        }
    }
}

struct PlainPart<'a> {
    key: (u32, u32),
    rows: u32,
    sequence: i64,
    block: &'a [u8],
}

/// The first numbers of `bytes`, which has at least so many.
fn numbers<const COUNT: usize>(bytes: &[u8]) -> [u32; COUNT] {
    std::array::from_fn(|index| u32::from_le_bytes(*bytes[4 * index..].first_chunk().expect("a number")))
}
