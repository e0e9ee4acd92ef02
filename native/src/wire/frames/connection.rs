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
//!     blocked    nothing; the window of a producer, or a       when answers have left
//!                bound, is full
//!
//! A PUBLISH that is blocked, or arrives while Python holds the connection, is parked, and so is every PUBLISH behind it, up
//! to a bound. ACK, NACK and CREDIT that fit their declaration and PING overtake what is parked: what a client settles must
//! not wait until its own messages are stored (hazard 67). Every other frame, also one that Python might refuse, keeps its
//! place, and at the bound the connection is not read.

use super::answers::Answers;
use super::rows::{CreditRow, Event, PublishRow, Segment, Settlement, Target};
use crate::block;
use crate::wire::burst::Burst;
use crate::wire::hub::Protocol;
use crate::wire::stream::{ROW_COST, Stream};
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

/// Bounds, all of them from `icestream/limits.py`.
pub struct Bounds {
    pub hello_bytes_max: usize,
    /// Unanswered rows of a connection.
    pub connection_bytes_max: usize,
    /// Parked frames of a connection: one more may begin below it.
    pub parked_bytes_max: usize,
    pub ping_bytes_max: usize,
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
    pub queue: u32,
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

#[derive(Default)]
pub struct FrameConnection {
    pub answers: Answers,
    pub producers: HashMap<(u32, u32), Producer>,
    pub consumers: HashMap<u32, Consumer>,
    /// 0 until the handshake: then the first frame is a HELLO.
    pub frame_bytes_max: usize,
    last_publish: u64,
    /// Whole PUBLISH frames that wait, in order.
    parked: Vec<u8>,
}

struct Head {
    /// Behind the size field.
    size: usize,
    kind: u8,
    flags: u8,
    zero: u8,
    number: u64,
}

#[derive(PartialEq)]
enum Step {
    Next,
    Barrier,
    Later,
    Blocked,
}

impl Protocol for FrameConnection {
    type Segment = Segment;
    type Bounds = Bounds;

    fn new() -> FrameConnection {
        FrameConnection::default()
    }

    fn whole_bytes(&self, input: &[u8]) -> Option<usize> {
        let size = input.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*size) as usize + 4)
    }

    fn parse(&mut self, stream: &mut Stream, data: &[u8], burst: &mut Burst<Segment>, bounds: &Bounds) -> usize {
        self.publish_parked(stream, burst, bounds);
        let mut at = 0;
        while !stream.has_backlog && stream.can_parse() && data.len() - at >= HEAD_BYTES {
            let rest = &data[at..];
            let Head { size, kind, flags, zero, number } = head_of(rest);
            let size_max = if self.frame_bytes_max == 0 { bounds.hello_bytes_max } else { self.frame_bytes_max };
            let is_valid = (SIZE_MIN..=size_max).contains(&size) && self.expects(kind);
            if !is_valid || flags & !COMPRESSED != 0 || zero != 0 {
                if self.is_parking(stream) {
                    stream.is_blocked = true;
                    break;
                }
                stream.is_failed = true;
                let event = Event::Malformed { connection: stream.number, size: size as u32, kind };
                stream.add_event(burst, event);
                break;
            }
            let Some(body) = rest.get(HEAD_BYTES..4 + size) else { break };
            let step = match kind {
                PUBLISH if self.is_parking(stream) => Step::Blocked,
                PUBLISH => self.publish(stream, number, flags, body, burst, bounds),
                ACK | NACK if flags == 0 && self.settle(stream, kind, body, burst, bounds) => Step::Next,
                CREDIT if flags == 0 && self.credit(stream, body, burst) => Step::Next,
                _ if self.is_parking(stream) && !is_valid_ping(kind, flags, number, body, bounds) => Step::Blocked,
                _ => {
                    self.hand_over(stream, kind, flags, number, body, burst);
                    if matches!(kind, ACK | NACK | CREDIT | PING) { Step::Next } else { Step::Barrier }
                }
            };
            if step == Step::Blocked && kind == PUBLISH && self.parked.len() < bounds.parked_bytes_max {
                self.parked.extend_from_slice(&rest[..4 + size]);
            } else if matches!(step, Step::Blocked | Step::Later) {
                stream.is_blocked = step == Step::Blocked;
                stream.has_backlog = step == Step::Later;
                break;
            }
            at += 4 + size;
            if step == Step::Barrier {
                stream.has_backlog = at < data.len();
                break;
            }
        }
        stream.has_parked = !self.parked.is_empty();
        at
    }
}

/// The head at the start of `bytes`, which has at least `HEAD_BYTES`.
fn head_of(bytes: &[u8]) -> Head {
    Head {
        size: u32::from_le_bytes(*bytes.first_chunk().expect("a head")) as usize,
        kind: bytes[4],
        flags: bytes[5],
        zero: bytes[6] | bytes[7],
        number: u64::from_le_bytes(*bytes[8..].first_chunk().expect("a head")),
    }
}

/// Whether it is a PING that Python will answer.
fn is_valid_ping(kind: u8, flags: u8, number: u64, body: &[u8], bounds: &Bounds) -> bool {
    kind == PING && flags == 0 && number != 0 && body.len() <= bounds.ping_bytes_max
}

impl FrameConnection {
    /// Whether a PUBLISH that arrives now is parked.
    fn is_parking(&self, stream: &Stream) -> bool {
        stream.is_held || !self.parked.is_empty()
    }

    /// Publishes what is parked, until a frame has to wait.
    fn publish_parked(&mut self, stream: &mut Stream, burst: &mut Burst<Segment>, bounds: &Bounds) {
        if self.parked.is_empty() || stream.is_held || !stream.can_parse() {
            return;
        }
        let mut parked = std::mem::take(&mut self.parked);
        let mut at = 0;
        while at < parked.len() {
            let Head { size, flags, number, .. } = head_of(&parked[at..]);
            let end = at + 4 + size;
            let step = self.publish(stream, number, flags, &parked[at + HEAD_BYTES..end], burst, bounds);
            if matches!(step, Step::Blocked | Step::Later) {
                stream.has_backlog = step == Step::Later;
                break;
            }
            at = end;
            if step == Step::Barrier {
                stream.has_backlog = true;
                break;
            }
        }
        parked.drain(..at);
        if !parked.is_empty() {
            self.parked = parked;
        }
    }

    fn expects(&self, kind: u8) -> bool {
        if self.frame_bytes_max == 0 {
            return kind == HELLO;
        }
        matches!(kind, CALL | PING | PUBLISH | CREDIT | ACK | NACK)
    }

    fn hand_over(
        &self,
        stream: &mut Stream,
        kind: u8,
        flags: u8,
        number: u64,
        body: &[u8],
        burst: &mut Burst<Segment>,
    ) {
        let (connection, last_publish) = (stream.number, self.last_publish);
        stream.event_burst = burst.number;
        burst.bytes += body.len() + ROW_COST;
        let event = Event::Frame { connection, kind, flags, number, body: body.to_vec(), last_publish };
        stream.add_event(burst, event);
    }

    /// Adds an ACK or a NACK as a row; false if it is not as its consumer was declared.
    fn settle(&self, stream: &mut Stream, kind: u8, body: &[u8], burst: &mut Burst<Segment>, bounds: &Bounds) -> bool {
        let Some(settlement) = self.plain_settlement(kind, body, bounds) else { return false };
        burst.bytes += body.len() + ROW_COST * settlement.ranges.len();
        let position = stream.position(burst);
        if kind == ACK {
            burst.add_ack(position, settlement)
        } else {
            burst.add_nack(position, settlement)
        }
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
    fn credit(&self, stream: &mut Stream, body: &[u8], burst: &mut Burst<Segment>) -> bool {
        if body.len() != CREDIT_BYTES {
            return false;
        }
        let [handle, messages] = numbers(body);
        let Some(slot) = self.consumers.get(&handle).map(|consumer| consumer.slot) else { return false };
        burst.bytes += body.len() + ROW_COST;
        burst.add_credit(stream.position(burst), CreditRow { slot, messages });
        true
    }

    fn publish(
        &mut self,
        stream: &mut Stream,
        number: u64,
        flags: u8,
        body: &[u8],
        burst: &mut Burst<Segment>,
        bounds: &Bounds,
    ) -> Step {
        if stream.pending >= bounds.connection_bytes_max || stream.is_at_common_bound {
            return Step::Blocked;
        }
        if stream.event_burst == burst.number {
            return Step::Later;
        }
        let parts = if flags == 0 && number > self.last_publish { self.plain_parts(body, bounds) } else { None };
        let Some(parts) = parts else {
            self.hand_over(stream, PUBLISH, flags, number, body, burst);
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
                connection: stream.number,
                answer,
                part: index as u32,
                producer: part.key,
                slot: producer.slot,
                rows: part.rows,
                cost,
            };
            let row = PublishRow {
                queue: producer.queue,
                target,
                producer_id: producer.producer_id,
                producer_epoch: producer.epoch,
                sequence: part.sequence,
                block: part.block,
            };
            stream.pending += cost;
            burst.add_row(stream.position(burst), row);
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
