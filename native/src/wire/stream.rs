//! One connection as every protocol has it: its socket, what was received and not parsed yet, and whether it is read.

use super::burst::{Burst, Segment};
use super::epoll::Epoll;
use super::socket::Socket;
use std::time::{Duration, Instant};

/// What a row costs beside its bytes: its entries in the columns, and its answer.
pub const ROW_COST: usize = 64;

pub struct Stream {
    /// Never used twice.
    pub number: u64,
    pub socket: Socket,
    /// Bytes received and not parsed yet.
    pub input: Vec<u8>,
    /// By Python.
    pub is_paused: bool,
    /// By Python: what the protocol can park is parked, and only what may overtake it goes on.
    pub is_held: bool,
    pub is_discarding: bool,
    pub closes_when_empty: bool,
    /// The bound of what is not answered is reached: it is parsed again when answers have left.
    pub is_blocked: bool,
    /// The bound of what is not answered, of all connections together, is reached, and this one has its share.
    pub is_at_common_bound: bool,
    /// The protocol keeps packets that wait, in front of `input`.
    pub has_parked: bool,
    /// It is in the hub's list of connections that wait for answers to leave.
    pub is_listed: bool,
    /// Bytes are left in `input` that may be parsed in the next burst.
    pub has_backlog: bool,
    pub is_failed: bool,
    pub at_end: bool,
    /// Cost of the rows that are not answered yet.
    pub pending: usize,
    /// Bytes of answers that the socket may not have taken.
    pub answer_bytes: usize,
    pub answer_bytes_max: usize,
    /// Beyond it Python sends no messages, and hears when the queue has drained.
    pub queue_high: usize,
    pub awaits_room: bool,
    /// Answers that leave with the next bytes that are sent, in front of them.
    pub replies: Vec<u8>,
    /// Bytes of `replies` that are no answers: they do not count against the bound of answers.
    pub delivery_bytes: usize,
    /// When bytes were last received, or reading was resumed; and how long there may be none. None: for ever.
    pub last_read: Instant,
    pub silence_max: Option<Duration>,
    /// The burst of the last row that Python must see before what follows it.
    pub event_burst: u64,
    /// The burst of the last row, and the segment in it.
    position: (u64, usize),
}

impl Stream {
    pub fn new(number: u64, socket: Socket, answer_bytes_max: usize) -> Stream {
        Stream {
            number,
            socket,
            input: Vec::new(),
            is_paused: false,
            is_held: false,
            is_discarding: false,
            closes_when_empty: false,
            is_blocked: false,
            is_at_common_bound: false,
            has_parked: false,
            is_listed: false,
            has_backlog: false,
            is_failed: false,
            at_end: false,
            pending: 0,
            answer_bytes: 0,
            answer_bytes_max,
            queue_high: usize::MAX,
            awaits_room: false,
            replies: Vec::new(),
            delivery_bytes: 0,
            last_read: Instant::now(),
            silence_max: None,
            event_burst: 0,
            position: (0, 0),
        }
    }

    /// Whether rows may be cut off now.
    pub fn can_parse(&self) -> bool {
        !self.is_paused && !self.is_failed && !self.is_discarding && self.answer_bytes < self.answer_bytes_max
    }

    /// Whether the socket may be read: bytes that wait to be parsed keep it from growing.
    pub fn can_read(&self) -> bool {
        let is_open = !self.at_end && !self.socket.is_broken();
        is_open && (self.is_discarding || (self.can_parse() && !self.is_blocked && !self.has_backlog))
    }

    pub fn update_reading(&mut self, epoll: &Epoll) {
        let can_read = self.can_read();
        if can_read && !self.socket.is_reading() && self.silence_max.is_some() {
            // While it was not read it could not be heard (hazard 67).
            self.last_read = Instant::now();
        }
        self.socket.set_reading(can_read, epoll);
    }

    /// Bytes of answers that have not been sent.
    pub fn reply_bytes(&self) -> usize {
        self.replies.len() - self.delivery_bytes
    }

    /// The result of a read.
    pub fn heard(&mut self, count: Option<usize>) {
        self.at_end |= count == Some(0);
        if count.is_some() && self.silence_max.is_some() {
            self.last_read = Instant::now();
        }
    }

    /// Whether Python should send no messages now.
    pub fn is_over_bound(&self) -> bool {
        self.socket.queued_bytes() > self.queue_high
    }

    /// The segment of the last row in a burst.
    pub fn position<S: Segment>(&mut self, burst: &Burst<S>) -> &mut usize {
        if self.position.0 != burst.number {
            self.position = (burst.number, 0);
        }
        &mut self.position.1
    }

    pub fn add_event<S: Segment>(&mut self, burst: &mut Burst<S>, event: impl Into<S::Event>) {
        let position = self.position(burst);
        burst.add_event(position, event);
    }
}
