//! The connections of one listener, behind one epoll descriptor on Python's event loop: accepts, reads every socket that is
//! ready, has the protocol parse what arrived, and writes.
//!
//!     a connection is      because                                              until
//!     paused               Python wants it so                                   Python resumes it
//!     held                 a publish of it waits in Python                      Python releases it
//!     blocked              its rows that are not answered reached the bound     answers have left
//!     behind               rows of it must wait for the next burst              the next burst
//!     flooded              it does not read its answers                         they have left
//!     discarding           our side has ended, or ends when its queue is empty  its end
//!
//! None of them is read or parsed, but for one that is held or blocked: its protocol may park what has to wait, up to a
//! bound, and let go on what may overtake that (hazard 67). What was received before still lies in its input, in order:
//! nothing is refused.

use super::burst::{Burst, Segment, StreamEvent};
use super::epoll::{Epoll, READABLE, WRITABLE, is_broken};
#[cfg(feature = "tls")]
use super::handshakes::Handshakes;
use super::listener::{Accepted, Listener};
use super::socket::Socket;
use super::stream::Stream;
use super::timer::Timer;
#[cfg(feature = "tls")]
use super::tls::{self, Pem};
use crate::event::Event as Wake;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

const WAKE: u64 = 0;
const LISTENER: u64 = 1;
const TIMER: u64 = 2;
const FIRST_CONNECTION: u64 = 3;
/// How many bytes one read asks for; an incomplete frame asks for what it lacks.
const READ_BYTES: usize = 256 * 1024;
const READ_BYTES_MIN: usize = 4 * 1024;
/// A burst is handed over when it has this much: other connections wait for the next one.
const BURST_BYTES_MAX: usize = 8 << 20;
/// How many bytes of a connection one burst takes, if a last read begins below it. A burst becomes a record of the log: with
/// one read in each, large frames would be stored by twice as many writes and syncs.
const CONNECTION_READ_BYTES: usize = 768 * 1024;
const ACCEPTS_MAX: usize = 64;

/// The part of a connection that is the protocol's: its parser, and what Python declared.
pub trait Protocol {
    type Segment: Segment;
    type Bounds;

    fn new() -> Self;

    /// Parses from the start of `data`, as much as may go into this burst. Returns how many bytes that was.
    fn parse(
        &mut self,
        stream: &mut Stream,
        data: &[u8],
        burst: &mut Burst<Self::Segment>,
        bounds: &Self::Bounds,
    ) -> usize;

    /// How many bytes the incomplete frame or packet at the start of `input` has, if that is known.
    fn whole_bytes(&self, input: &[u8]) -> Option<usize>;
}

pub struct Connection<P> {
    pub stream: Stream,
    pub protocol: P,
}

/// Where connections come from.
enum Source {
    Plain(Listener),
    #[cfg(feature = "tls")]
    Tls(Handshakes),
}

impl Source {
    fn fileno(&self) -> RawFd {
        match self {
            Source::Plain(listener) => listener.fileno(),
            #[cfg(feature = "tls")]
            Source::Tls(handshakes) => handshakes.fileno(),
        }
    }

    fn accept(&self) -> Result<Option<Accepted>, i32> {
        match self {
            Source::Plain(listener) => listener.accept(),
            #[cfg(feature = "tls")]
            Source::Tls(handshakes) => Ok(handshakes.take()),
        }
    }
}

pub struct Hub<P: Protocol> {
    pub bounds: P::Bounds,
    pub connections: HashMap<u64, Connection<P>>,
    /// Cost of the rows of all connections that are not answered yet.
    pub pending: usize,
    pending_bytes_max: usize,
    answer_bytes_max: usize,
    epoll: Epoll,
    wake: Wake,
    is_awake: bool,
    source: Option<Source>,
    next_connection: u64,
    burst_number: u64,
    /// Connections with bytes that may be parsed now.
    ready: Vec<u64>,
    /// Connections that wait until answers have left.
    blocked: Vec<u64>,
    /// Of connections that were closed by Python.
    gone: Vec<u64>,
    timer: Timer,
    /// When a connection may have been silent for too long: looked at then, and not with every read.
    silences: BinaryHeap<Reverse<(Instant, u64)>>,
    scratch: Vec<u8>,
}

impl<P: Protocol> Hub<P> {
    /// `pending_bytes_max`: of the rows of all connections that are not answered; `answer_bytes_max`: of the answers that a
    /// peer does not read.
    pub fn new(bounds: P::Bounds, pending_bytes_max: usize, answer_bytes_max: usize) -> PyResult<Hub<P>> {
        let (epoll, wake, timer) = (Epoll::new()?, Wake::new()?, Timer::new()?);
        epoll.add(wake.fileno(), WAKE, READABLE)?;
        epoll.add(timer.fileno(), TIMER, READABLE)?;
        Ok(Hub {
            bounds,
            connections: HashMap::new(),
            pending: 0,
            pending_bytes_max,
            answer_bytes_max,
            epoll,
            wake,
            is_awake: false,
            source: None,
            next_connection: FIRST_CONNECTION,
            burst_number: 0,
            ready: Vec::new(),
            blocked: Vec::new(),
            gone: Vec::new(),
            timer,
            silences: BinaryHeap::new(),
            scratch: Vec::with_capacity(READ_BYTES),
        })
    }

    /// A descriptor that is readable while `receive_all` has something to return.
    pub fn fileno(&self) -> RawFd {
        self.epoll.fileno()
    }

    pub fn get(&self, number: u64) -> Option<&Connection<P>> {
        self.connections.get(&number)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Connection<P>> {
        self.connections.get_mut(&number)
    }

    // --- the listener ---

    /// Takes the descriptor of a listening socket over.
    pub fn listen(&mut self, descriptor: RawFd, keep_alive_seconds: i32) -> PyResult<()> {
        self.epoll.add(descriptor, LISTENER, READABLE)?;
        self.source = Some(Source::Plain(Listener::new(descriptor, keep_alive_seconds)));
        Ok(())
    }

    /// The same for a listener with TLS: connections are accepted, and shown here when their handshakes are done.
    #[cfg(feature = "tls")]
    pub fn listen_tls(
        &mut self,
        descriptor: RawFd,
        keep_alive_seconds: i32,
        pem: &Pem,
        half_open_max: usize,
        handshake_seconds: f64,
    ) -> PyResult<()> {
        let listener = Listener::new(descriptor, keep_alive_seconds);
        let config = tls::server_config(pem, &[])?;
        let deadline = std::time::Duration::from_secs_f64(handshake_seconds);
        let handshakes = Handshakes::start(listener, config, half_open_max, deadline)?;
        self.epoll.add(handshakes.fileno(), LISTENER, READABLE)?;
        self.source = Some(Source::Tls(handshakes));
        Ok(())
    }

    /// New certificates for new connections.
    #[cfg(feature = "tls")]
    pub fn set_tls(&self, pem: &Pem) -> PyResult<()> {
        let config = tls::server_config(pem, &[])?;
        if let Some(Source::Tls(handshakes)) = &self.source {
            handshakes.set_config(config);
        }
        Ok(())
    }

    /// Handshakes that are under way; and since the start those that were closed because they were too many, too slow,
    /// or no TLS of ours.
    #[cfg(feature = "tls")]
    pub fn handshakes(&self) -> (usize, u64, u64, u64) {
        match &self.source {
            Some(Source::Tls(handshakes)) => handshakes.counts(),
            _ => (0, 0, 0, 0),
        }
    }

    /// Stops accepting for a while, or goes on: a failing accept would fail again at once.
    pub fn set_accepting(&self, is_accepting: bool) {
        if let Some(source) = &self.source {
            let _ = self.epoll.change(source.fileno(), LISTENER, if is_accepting { READABLE } else { 0 });
        }
    }

    pub fn stop_listening(&mut self) {
        if let Some(source) = self.source.take() {
            self.epoll.remove(source.fileno());
        }
    }

    // --- in ---

    /// Everything that arrived since the last call.
    pub fn receive_all(&mut self) -> Burst<P::Segment> {
        self.burst_number += 1;
        let mut burst = Burst::new(self.burst_number);
        for connection in std::mem::take(&mut self.gone) {
            burst.add_event(&mut 0, StreamEvent::Gone { connection });
        }
        for number in std::mem::take(&mut self.ready) {
            self.advance(number, &mut burst);
        }
        let mut is_late = false;
        for (token, events) in self.epoll.ready() {
            match token {
                TIMER => is_late = true,
                WAKE => {
                    self.wake.drain();
                    self.is_awake = false;
                }
                LISTENER => self.accept(&mut burst),
                number => self.on_ready(number, events, &mut burst),
            }
            if burst.bytes >= BURST_BYTES_MAX {
                break;
            }
        }
        if is_late {
            self.find_silent(&mut burst);
        }
        if !self.ready.is_empty() {
            self.wake_up();
        }
        burst
    }

    /// Reports the connections that were silent for too long, and sets the timer for the next that may be.
    fn find_silent(&mut self, burst: &mut Burst<P::Segment>) {
        let now = Instant::now();
        while let Some(Reverse((due, number))) = self.silences.peek().copied() {
            if due > now {
                return self.timer.set(Some(due - now));
            }
            self.silences.pop();
            // What lies in the kernel was said in time: this burst may have had no place for it.
            if self.get(number).is_some_and(|connection| connection.stream.can_read()) {
                self.receive(number, burst);
            }
            let Some(Connection { stream, .. }) = self.connections.get_mut(&number) else { continue };
            let Some(silence_max) = stream.silence_max else { continue };
            // The clock of a connection that is not read stands still.
            let mut next = if stream.can_read() { stream.last_read + silence_max } else { now + silence_max };
            if next <= now {
                stream.add_event(burst, StreamEvent::Silent { connection: number });
                next = now + silence_max;
            }
            self.silences.push(Reverse((next, number)));
        }
        self.timer.set(None);
    }

    /// Reports the connection when nothing is received for so long. Called once for each connection.
    pub fn set_silence_max(&mut self, number: u64, silence_max: Duration) {
        let Some(Connection { stream, .. }) = self.connections.get_mut(&number) else { return };
        stream.silence_max = Some(silence_max);
        stream.last_read = Instant::now();
        self.silences.push(Reverse((stream.last_read + silence_max, number)));
        if self.silences.peek().is_some_and(|Reverse((_, first))| *first == number) {
            self.timer.set(Some(silence_max));
        }
    }

    fn accept(&mut self, burst: &mut Burst<P::Segment>) {
        for _ in 0..ACCEPTS_MAX {
            let Some(source) = &self.source else { return };
            match source.accept() {
                Ok(Some(mut accepted)) => {
                    let number = self.next_connection;
                    let certificate = accepted.session.as_ref().and_then(|session| session.certificate());
                    let (peer, early) = (std::mem::take(&mut accepted.peer), std::mem::take(&mut accepted.early));
                    let Ok(socket) = Socket::register(accepted, number, &self.epoll) else { continue };
                    self.next_connection += 1;
                    let mut stream = Stream::new(number, socket, self.answer_bytes_max);
                    stream.add_event(burst, StreamEvent::Connected { connection: number, peer, certificate });
                    if !early.is_empty() {
                        stream.input = early;
                        self.ready.push(number);
                    }
                    self.connections.insert(number, Connection { stream, protocol: P::new() });
                }
                Ok(None) => return,
                Err(errno) => {
                    burst.add_event(&mut 0, StreamEvent::AcceptFailed { errno });
                    return;
                }
            }
        }
    }

    fn on_ready(&mut self, number: u64, events: u32, burst: &mut Burst<P::Segment>) {
        let Some(Connection { stream, .. }) = self.connections.get_mut(&number) else { return };
        if events & WRITABLE != 0 {
            stream.socket.flush(&self.epoll);
            self.on_flushed(number, burst);
        }
        let Some(Connection { stream, .. }) = self.connections.get_mut(&number) else { return };
        if events & READABLE != 0 {
            self.receive(number, burst);
        } else if is_broken(events) {
            // It is not read now. What it sent before is still decided, when Python lets it go on. Answers that it did
            // not read will never leave, so they must not keep its last frames back.
            stream.at_end = true;
            stream.answer_bytes = 0;
            stream.socket.mark_broken(&self.epoll);
            self.advance(number, burst);
        }
    }

    /// The socket took bytes: answers may leave their bound, and Python may send messages again.
    fn on_flushed(&mut self, number: u64, burst: &mut Burst<P::Segment>) {
        let Some(Connection { stream, .. }) = self.connections.get_mut(&number) else { return };
        let queued = stream.socket.queued_bytes();
        if stream.awaits_room && queued <= stream.queue_high / 4 {
            stream.awaits_room = false;
            stream.add_event(burst, StreamEvent::Room { connection: number });
        }
        if queued == 0 && stream.closes_when_empty {
            return self.finish(number, burst);
        }
        if queued == 0 && stream.answer_bytes > 0 {
            let was_flooded = stream.answer_bytes >= stream.answer_bytes_max;
            stream.answer_bytes = 0;
            if was_flooded {
                self.advance(number, burst);
            }
        }
    }

    fn receive(&mut self, number: u64, burst: &mut Burst<P::Segment>) {
        let Some(Connection { stream, .. }) = self.connections.get_mut(&number) else { return };
        if stream.is_discarding {
            self.scratch.clear();
            stream.at_end |= stream.socket.read_into(&mut self.scratch, READ_BYTES) == Some(0);
            return self.finish(number, burst);
        }
        let mut bytes = 0;
        while bytes < CONNECTION_READ_BYTES {
            let (asked, count) = self.read_once(number, burst);
            bytes += count;
            // TLS takes a little of what was read for itself.
            let may_have_more = count > asked - asked / 8;
            let connection = self.connections.get(&number);
            if !may_have_more || !connection.is_some_and(|connection| connection.stream.can_read()) {
                break;
            }
        }
        self.finish(number, burst);
    }

    /// Reads the socket once, and parses what can be parsed. Returns how many bytes were asked for, and received.
    fn read_once(&mut self, number: u64, burst: &mut Burst<P::Segment>) -> (usize, usize) {
        let Some(Connection { stream, protocol }) = self.connections.get_mut(&number) else { return (READ_BYTES, 0) };
        if !stream.input.is_empty() {
            let lacking = protocol.whole_bytes(&stream.input).map(|whole| whole.saturating_sub(stream.input.len()));
            let asked = lacking.map_or(READ_BYTES, |lacking| lacking.clamp(READ_BYTES_MIN, READ_BYTES));
            let count = stream.socket.read_into(&mut stream.input, asked);
            stream.heard(count);
            self.parse_input(number, burst);
            return (asked, count.unwrap_or(0));
        }
        // Nearly every read holds whole frames, which are parsed where they lie.
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let count = stream.socket.read_into(&mut scratch, READ_BYTES);
        stream.heard(count);
        let parsed = self.parse(number, &scratch, burst);
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.stream.input.extend_from_slice(&scratch[parsed..]);
        }
        self.scratch = scratch;
        (READ_BYTES, count.unwrap_or(0))
    }

    /// Parses what a connection has received and could not hand over before.
    fn advance(&mut self, number: u64, burst: &mut Burst<P::Segment>) {
        self.parse_input(number, burst);
        self.finish(number, burst);
    }

    fn parse_input(&mut self, number: u64, burst: &mut Burst<P::Segment>) {
        let Some(Connection { stream, .. }) = self.connections.get_mut(&number) else { return };
        let input = std::mem::take(&mut stream.input);
        let parsed = self.parse(number, &input, burst);
        let Some(Connection { stream, .. }) = self.connections.get_mut(&number) else { return };
        stream.input = if parsed == input.len() {
            Vec::new()
        } else if parsed == 0 {
            input
        } else {
            input[parsed..].to_vec()
        };
    }

    fn parse(&mut self, number: u64, data: &[u8], burst: &mut Burst<P::Segment>) -> usize {
        let Some(Connection { stream, protocol }) = self.connections.get_mut(&number) else { return data.len() };
        let pending = stream.pending;
        stream.is_blocked = false;
        stream.has_backlog = false;
        // At the bound of all connections each of them may have one frame in flight.
        stream.is_at_common_bound = self.pending >= self.pending_bytes_max && pending > 0;
        let parsed = protocol.parse(stream, data, burst, &self.bounds);
        self.pending += stream.pending - pending;
        self.send(number, &[], false);
        parsed
    }

    /// Decides what becomes of a connection behind what was parsed.
    fn finish(&mut self, number: u64, burst: &mut Burst<P::Segment>) {
        let Some(Connection { stream, .. }) = self.connections.get_mut(&number) else { return };
        let has_more = stream.is_blocked || stream.has_parked || stream.has_backlog || !stream.can_parse();
        let is_closed = stream.closes_when_empty && stream.socket.queued_bytes() == 0;
        if is_closed || (stream.at_end && (!has_more || stream.is_discarding || stream.is_failed)) {
            stream.add_event(burst, StreamEvent::Gone { connection: number });
            self.remove(number);
            return;
        }
        stream.update_reading(&self.epoll);
        if (stream.is_blocked || stream.has_parked) && !stream.has_backlog && !stream.is_held {
            if !stream.is_listed {
                stream.is_listed = true;
                self.blocked.push(number);
            }
        } else if stream.has_backlog && stream.can_parse() {
            self.ready.push(number);
        }
    }

    fn remove(&mut self, number: u64) -> bool {
        let Some(Connection { mut stream, .. }) = self.connections.remove(&number) else { return false };
        self.pending -= stream.pending;
        stream.socket.flush(&self.epoll);
        stream.socket.mark_broken(&self.epoll);
        true
    }

    // --- out ---

    /// Sends the replies of the connection, and the pieces, behind everything queued. `is_answer`: the pieces count against
    /// the bound of answers that a client does not read, as replies do. Returns the bytes that the peer has not taken, -1
    /// if it is gone.
    pub fn send(&mut self, number: u64, pieces: &[&[u8]], is_answer: bool) -> isize {
        let Some(Connection { stream, .. }) = self.connections.get_mut(&number) else { return -1 };
        let mut answer_bytes = stream.reply_bytes();
        let replies = std::mem::take(&mut stream.replies);
        stream.delivery_bytes = 0;
        if is_answer {
            answer_bytes += pieces.iter().map(|piece| piece.len()).sum::<usize>();
        }
        if replies.is_empty() {
            stream.socket.send(pieces, &self.epoll);
        } else {
            let all: Vec<&[u8]> = std::iter::once(&replies[..]).chain(pieces.iter().copied()).collect();
            stream.socket.send(&all, &self.epoll);
        }
        let queued = stream.socket.queued_bytes();
        // What a peer that is gone does not take never leaves, and must not keep its last frames back.
        if answer_bytes > 0 && queued > 0 && !stream.socket.is_broken() {
            stream.answer_bytes += answer_bytes;
            stream.update_reading(&self.epoll);
        }
        stream.awaits_room |= stream.is_over_bound();
        queued as isize
    }

    /// Sends the pieces of many connections. Returns the connections that have more bytes queued than their bound.
    pub fn send_all(&mut self, batches: &[(u64, Vec<Bound<'_, PyBytes>>)]) -> Vec<u64> {
        let mut full = Vec::new();
        for (number, pieces) in batches {
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
            self.send(*number, &pieces, false);
            if self.get(*number).is_some_and(|connection| connection.stream.is_over_bound()) {
                full.push(*number);
            }
        }
        full
    }

    /// Rows of a connection were answered. Returns the connection, if it is still there.
    pub fn release(&mut self, number: u64, cost: usize) -> Option<&mut Connection<P>> {
        let connection = self.connections.get_mut(&number)?;
        connection.stream.pending -= cost;
        self.pending -= cost;
        Some(connection)
    }

    /// Answers have left: the connections that waited for them are parsed in the next burst.
    pub fn unblock(&mut self) {
        if self.blocked.is_empty() {
            return;
        }
        for number in std::mem::take(&mut self.blocked) {
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.stream.is_listed = false;
                self.ready.push(number);
            }
        }
        self.wake_up();
    }

    // --- control ---

    /// Changes what decides whether the connection is read.
    pub fn change(&mut self, number: u64, change: impl FnOnce(&mut Connection<P>)) {
        if let Some(connection) = self.connections.get_mut(&number) {
            change(connection);
            connection.stream.update_reading(&self.epoll);
        }
    }

    /// Looks at the connection again in the next burst.
    pub fn advance_later(&mut self, number: u64) {
        self.ready.push(number);
        self.wake_up();
    }

    /// Has `receive_all` called.
    pub fn wake_up(&mut self) {
        if !self.is_awake {
            self.is_awake = true;
            self.wake.signal();
        }
    }

    /// Reads nothing more, until `resume`.
    pub fn pause(&mut self, number: u64) {
        self.change(number, |connection| connection.stream.is_paused = true);
    }

    pub fn resume(&mut self, number: u64) {
        self.change(number, |connection| connection.stream.is_paused = false);
        self.advance_later(number);
    }

    /// Has the protocol park what must not overtake a publish that waits in Python, until `release_held`.
    pub fn hold(&mut self, number: u64) {
        self.change(number, |connection| connection.stream.is_held = true);
    }

    pub fn release_held(&mut self, number: u64) {
        self.change(number, |connection| connection.stream.is_held = false);
        self.advance_later(number);
    }

    /// Sets beyond how many queued bytes Python hears when the queue has drained.
    pub fn set_queue_high(&mut self, number: u64, size: usize) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.stream.queue_high = size;
        }
    }

    /// Ends our side behind everything queued; what still arrives is read and thrown away.
    pub fn end(&mut self, number: u64) {
        self.send(number, &[], false);
        self.change(number, |Connection { stream, .. }| {
            stream.is_discarding = true;
            stream.input = Vec::new();
            stream.socket.end();
        });
        self.advance_later(number);
    }

    /// Closes as soon as the peer has taken everything queued.
    pub fn close_soon(&mut self, number: u64) {
        self.send(number, &[], false);
        self.change(number, |Connection { stream, .. }| {
            stream.is_discarding = true;
            stream.closes_when_empty = true;
            stream.input = Vec::new();
        });
        self.advance_later(number);
    }

    /// Closes at once.
    pub fn abort(&mut self, number: u64) {
        if self.remove(number) {
            self.gone.push(number);
            self.wake_up();
        }
    }

    /// Closes everything.
    pub fn close(&mut self) {
        self.source = None;
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        for number in numbers {
            self.remove(number);
        }
    }

    /// (descriptor, bytes received and not parsed, bytes queued, whether it is read) of a connection, for tests and
    /// diagnosis.
    pub fn inspect(&self, number: u64) -> Option<(RawFd, usize, usize, bool)> {
        let Connection { stream, .. } = self.connections.get(&number)?;
        let socket = &stream.socket;
        Some((socket.fileno(), stream.input.len(), socket.queued_bytes(), socket.is_reading()))
    }
}
