//! The Python face of the native protocol.
//!
//! `poll` returns a list, in the order in which it is to be decided:
//!
//!     (0, connection, peer, certificate)                           a connection was accepted; DER, None without one
//!     (1, connection, kind, flags, number, body, last publish)     a frame
//!     (2, connection, size, kind)                                  a head that no frame can have; nothing follows
//!     (3, connection)                                              it is gone; the last row of a connection
//!     (4, connection)                                              its queue has drained below a quarter of its bound
//!     (5, errno)                                                   accepting failed
//!     (6, batch, lanes, slots, columns, blocks, largest)           a group of blocks for one shard or many
//!     (7, batch, lane, slot, rows, sequence, block)                a group of one block
//!     (8, [(slot, shard, generation, ranges), …])                  acks of declared consumers
//!     (9, [(slot, shard, generation, delay, ranges), …])           nacks
//!     (10, [(slot, messages), …])                                  credits
//!
//! A group stands lane by lane: `lane ends` says how many blocks stand up to the end of each lane. Its columns are those of
//! `icestream/model/block_group.py`, packed, little endian: ends and rows as u32, producer ids as i64, epochs as i32,
//! sequences as i64 (-1: not numbered), lane ends as u32. Lanes and slots are u32. `settle` answers a group, `split` makes
//! a group of each lane.
//!
//! Acks, nacks and credits have no answer; they are joined across frames and connections, so that there are few of them,
//! and they are lists of tuples because Python takes each apart.
//!
//! Everything runs in the thread that calls; sockets are touched by `poll`, `send`, `send_all`, `published` and `settle`
//! alone.

use super::connection::{Bounds, Connection, Consumer, Producer};
use crate::buffer::Output;
use crate::event::Event as Wake;
use crate::wire::burst::{Burst, Event, Group, Part, Settlement, Target};
use crate::wire::epoll::{Epoll, READABLE, WRITABLE, is_broken};
#[cfg(feature = "tls")]
use crate::wire::handshakes::Handshakes;
use crate::wire::listener::{Accepted, Listener};
use crate::wire::socket::Socket;
#[cfg(feature = "tls")]
use crate::wire::tls::{self, Pem};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

const WAKE: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_CONNECTION: u64 = 2;
/// How many bytes of a socket one burst takes; an incomplete frame asks for what it lacks.
const READ_BYTES: usize = 256 * 1024;
const READ_BYTES_MIN: usize = 4 * 1024;
/// A burst is handed over when it has this much: other connections wait for the next one.
const BURST_BYTES_MAX: usize = 8 << 20;
const ACCEPTS_MAX: usize = 64;

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

struct State {
    epoll: Epoll,
    wake: Wake,
    is_awake: bool,
    listener: Option<Source>,
    bounds: Bounds,
    pending_bytes_max: usize,
    pending: usize,
    connections: HashMap<u64, Connection>,
    next_connection: u64,
    batches: HashMap<u64, Batch>,
    next_batch: u64,
    burst_number: u64,
    /// Connections with bytes that may be parsed now.
    ready: Vec<u64>,
    /// Connections that wait until answers have left.
    blocked: Vec<u64>,
    /// Of connections that were closed by Python.
    gone: Vec<u64>,
    scratch: Vec<u8>,
}

/// A group that is not answered yet.
struct Batch {
    targets: Vec<Target>,
    /// How many targets there are up to the end of each lane.
    lane_ends: Vec<u32>,
}

#[pyclass(frozen)]
pub struct FrameServer {
    state: Mutex<State>,
}

#[pymethods]
impl FrameServer {
    #[new]
    #[pyo3(signature = (
        *, hello_bytes_max, connection_bytes_max, pending_bytes_max, answer_bytes_max, parts_max, window_max,
        row_bytes_max, rows_bytes_max, unpacked_bytes_max, ranges_max, offset_max, delay_ms_max
    ))]
    #[expect(clippy::too_many_arguments, reason = "named, and given in one place")]
    fn new(
        hello_bytes_max: usize,
        connection_bytes_max: usize,
        pending_bytes_max: usize,
        answer_bytes_max: usize,
        parts_max: usize,
        window_max: u32,
        row_bytes_max: usize,
        rows_bytes_max: usize,
        unpacked_bytes_max: usize,
        ranges_max: usize,
        offset_max: i64,
        delay_ms_max: u32,
    ) -> PyResult<FrameServer> {
        let (epoll, wake) = (Epoll::new()?, Wake::new()?);
        epoll.add(wake.fileno(), WAKE, READABLE)?;
        let bounds = Bounds {
            hello_bytes_max,
            connection_bytes_max,
            answer_bytes_max,
            parts_max,
            window_max,
            row_bytes_max,
            rows_bytes_max,
            unpacked_bytes_max,
            ranges_max,
            offset_max,
            delay_ms_max,
        };
        Ok(FrameServer {
            state: Mutex::new(State {
                epoll,
                wake,
                is_awake: false,
                listener: None,
                bounds,
                pending_bytes_max,
                pending: 0,
                connections: HashMap::new(),
                next_connection: FIRST_CONNECTION,
                batches: HashMap::new(),
                next_batch: 1,
                burst_number: 0,
                ready: Vec::new(),
                blocked: Vec::new(),
                gone: Vec::new(),
                scratch: Vec::with_capacity(READ_BYTES),
            }),
        })
    }

    /// A descriptor that is readable while `poll` has something to return.
    fn fileno(&self) -> RawFd {
        self.lock().epoll.fileno()
    }

    /// Takes the descriptor of a listening socket over.
    fn listen(&self, descriptor: RawFd, keep_alive_seconds: i32) -> PyResult<()> {
        let mut state = self.lock();
        state.epoll.add(descriptor, LISTENER, READABLE)?;
        state.listener = Some(Source::Plain(Listener::new(descriptor, keep_alive_seconds)));
        Ok(())
    }

    /// The same for a listener with TLS: connections are accepted, and shown here when their handshakes are done.
    #[cfg(feature = "tls")]
    fn listen_tls(
        &self,
        descriptor: RawFd,
        keep_alive_seconds: i32,
        pem: Pem,
        half_open_max: usize,
        handshake_seconds: f64,
    ) -> PyResult<()> {
        let listener = Listener::new(descriptor, keep_alive_seconds);
        let config = tls::server_config(&pem, &[])?;
        let deadline = std::time::Duration::from_secs_f64(handshake_seconds);
        let handshakes = Handshakes::start(listener, config, half_open_max, deadline)?;
        let mut state = self.lock();
        state.epoll.add(handshakes.fileno(), LISTENER, READABLE)?;
        state.listener = Some(Source::Tls(handshakes));
        Ok(())
    }

    /// New certificates for new connections.
    #[cfg(feature = "tls")]
    fn set_tls(&self, pem: Pem) -> PyResult<()> {
        let config = tls::server_config(&pem, &[])?;
        if let Some(Source::Tls(handshakes)) = &self.lock().listener {
            handshakes.set_config(config);
        }
        Ok(())
    }

    /// Handshakes that are under way; and since the start those that were closed because they were too many, too slow,
    /// or no TLS of ours.
    #[cfg(feature = "tls")]
    fn handshakes(&self) -> (usize, u64, u64, u64) {
        match &self.lock().listener {
            Some(Source::Tls(handshakes)) => handshakes.counts(),
            _ => (0, 0, 0, 0),
        }
    }

    /// Stops accepting for a while, or goes on: a failing accept would fail again at once.
    fn set_accepting(&self, is_accepting: bool) {
        let state = self.lock();
        if let Some(listener) = &state.listener {
            let _ = state.epoll.change(listener.fileno(), LISTENER, if is_accepting { READABLE } else { 0 });
        }
    }

    fn stop_listening(&self) {
        let mut state = self.lock();
        if let Some(listener) = state.listener.take() {
            state.epoll.remove(listener.fileno());
        }
    }

    /// Everything that arrived since the last call; see the top of this file.
    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut state = self.lock();
        let burst = state.receive_all();
        let events = PyList::empty(py);
        for part in burst.into_parts() {
            match part {
                Part::Events(list) => list.into_iter().try_for_each(|event| events.append(tuple(py, event)?))?,
                Part::Groups(list) => {
                    for group in list {
                        events.append(state.hand_over(py, group)?)?;
                    }
                }
                Part::Acks(list) => events.append((8, acks(list)))?,
                Part::Nacks(list) => events.append((9, nacks(list)))?,
                Part::Credits(list) => {
                    let list: Vec<(u32, u32)> = list.iter().map(|credit| (credit.slot, credit.messages)).collect();
                    events.append((10, list))?;
                }
            }
        }
        Ok(events)
    }

    /// The handshake of a connection is done: frames of this size are read from now on.
    fn open(&self, connection: u64, frame_bytes_max: usize) {
        if let Some(connection) = self.lock().connections.get_mut(&connection) {
            connection.frame_bytes_max = frame_bytes_max;
        }
    }

    /// From now on blocks of this producer for this shard that are as declared are handed over in groups.
    #[expect(clippy::too_many_arguments, reason = "the facts about one producer, given in one place")]
    fn declare(
        &self,
        connection: u64,
        handle: u32,
        shard: u32,
        slot: u32,
        lane: u32,
        producer_id: i64,
        epoch: i32,
        forbidden: u64,
    ) {
        if let Some(connection) = self.lock().connections.get_mut(&connection) {
            let producer = Producer { slot, lane, producer_id, epoch, forbidden, in_flight: 0 };
            connection.producers.insert((handle, shard), producer);
        }
    }

    /// The producer is closed: its frames go to Python as they are.
    fn forget(&self, connection: u64, handle: u32) {
        if let Some(connection) = self.lock().connections.get_mut(&connection) {
            connection.producers.retain(|(of, _), _| *of != handle);
        }
    }

    /// From now on acks, nacks and credits of this consumer that are as declared are handed over in columns.
    fn declare_consumer(&self, connection: u64, handle: u32, slot: u32, shards: u32, allows_cumulative: bool) {
        if let Some(connection) = self.lock().connections.get_mut(&connection) {
            connection.consumers.insert(handle, Consumer { slot, shards, allows_cumulative });
        }
    }

    /// The consumer is closed: its frames go to Python as they are.
    fn forget_consumer(&self, connection: u64, handle: u32) {
        if let Some(connection) = self.lock().connections.get_mut(&connection) {
            connection.consumers.remove(&handle);
        }
    }

    /// Sends the pieces of many connections, each behind everything queued. Returns the connections that have more bytes
    /// queued than their bound.
    fn send_all(&self, batches: Vec<(u64, Vec<Bound<'_, PyBytes>>)>) -> Vec<u64> {
        let mut state = self.lock();
        let mut full = Vec::new();
        for (number, pieces) in &batches {
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
            state.send(*number, &pieces, false);
            if state.connections.get(number).is_some_and(Connection::is_over_bound) {
                full.push(*number);
            }
        }
        full
    }

    /// Sends the pieces behind everything queued. Returns the bytes that the peer has not taken, -1 if it is gone.
    fn send(&self, connection: u64, pieces: Vec<Bound<'_, PyBytes>>) -> isize {
        let pieces: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
        self.lock().send(connection, &pieces, false)
    }

    /// Sets beyond how many queued bytes Python hears when the queue has drained.
    fn set_queue_high(&self, connection: u64, size: usize) {
        if let Some(connection) = self.lock().connections.get_mut(&connection) {
            connection.queue_high = size;
        }
    }

    /// The whole answer to a PUBLISH that Python got as a frame. It leaves behind the answers before it.
    fn published(&self, connection: u64, number: u64, frame: &[u8]) {
        let mut state = self.lock();
        if let Some(connection) = state.connections.get_mut(&connection) {
            connection.answers.replace(number, frame.to_vec());
        }
        state.send_answers(connection);
        state.unblock();
    }

    /// Answers a group. The blocks of each lane were stored one behind the other from its base offset on, but for those
    /// in `exceptions`, which have no offsets and whose part of the answer is given.
    #[pyo3(signature = (batch, base_offsets, exceptions=None))]
    fn settle(&self, batch: u64, base_offsets: Vec<i64>, exceptions: Option<HashMap<usize, Vec<u8>>>) {
        self.lock().settle(batch, &base_offsets, exceptions.unwrap_or_default());
    }

    /// Makes a group of each lane of a group. Returns their numbers, in order.
    fn split(&self, batch: u64) -> Vec<u64> {
        self.lock().split(batch)
    }

    /// Bytes of rows of a connection that are not answered yet.
    fn pending_of(&self, connection: u64) -> usize {
        self.lock().connections.get(&connection).map_or(0, |connection| connection.pending)
    }

    /// Reads nothing more, until `resume`.
    fn pause(&self, connection: u64) {
        self.lock().change(connection, |connection| connection.is_paused = true);
    }

    fn resume(&self, connection: u64) {
        let mut state = self.lock();
        state.change(connection, |connection| connection.is_paused = false);
        state.advance_later(connection);
    }

    /// Ends our side behind everything queued; what still arrives is read and thrown away.
    fn end(&self, connection: u64) {
        let mut state = self.lock();
        state.change(connection, |connection| {
            connection.is_discarding = true;
            connection.input = Vec::new();
            connection.socket.end();
        });
        state.advance_later(connection);
    }

    /// Closes at once.
    fn abort(&self, connection: u64) {
        let mut state = self.lock();
        if state.remove(connection) {
            state.gone.push(connection);
            state.wake_up();
        }
    }

    /// Closes everything.
    fn close(&self) {
        let mut state = self.lock();
        state.listener = None;
        let numbers: Vec<u64> = state.connections.keys().copied().collect();
        for number in numbers {
            state.remove(number);
        }
        state.batches.clear();
    }

    /// (descriptor, bytes received and not parsed, bytes queued, whether it is read) of a connection, for tests and
    /// diagnosis.
    fn inspect(&self, connection: u64) -> Option<(RawFd, usize, usize, bool)> {
        let state = self.lock();
        let connection = state.connections.get(&connection)?;
        let socket = &connection.socket;
        Some((socket.fileno(), connection.input.len(), socket.queued_bytes(), socket.is_reading()))
    }

    /// Bytes of rows that are not answered yet, of all connections.
    fn pending_bytes(&self) -> usize {
        self.lock().pending
    }
}

impl FrameServer {
    /// No code under this lock panics, and a poisoned one still guards a state that is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    // --- in ---

    fn receive_all(&mut self) -> Burst {
        let mut burst = Burst::default();
        self.burst_number += 1;
        for connection in std::mem::take(&mut self.gone) {
            burst.add_event(&mut 0, Event::Gone { connection });
        }
        for number in std::mem::take(&mut self.ready) {
            self.advance(number, &mut burst);
        }
        for (token, events) in self.epoll.ready() {
            match token {
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
        if !self.ready.is_empty() {
            self.wake_up();
        }
        burst
    }

    fn accept(&mut self, burst: &mut Burst) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = &self.listener else { return };
            match listener.accept() {
                Ok(Some(mut accepted)) => {
                    let number = self.next_connection;
                    let certificate = accepted.session.as_ref().and_then(|session| session.certificate());
                    let (peer, early) = (std::mem::take(&mut accepted.peer), std::mem::take(&mut accepted.early));
                    let Ok(socket) = Socket::register(accepted, number, &self.epoll) else { continue };
                    self.next_connection += 1;
                    let mut connection = Connection::new(number, socket);
                    let event = Event::Connected { connection: number, peer, certificate };
                    burst.add_event(connection.position(self.burst_number), event);
                    if !early.is_empty() {
                        connection.input = early;
                        self.ready.push(number);
                    }
                    self.connections.insert(number, connection);
                }
                Ok(None) => return,
                Err(errno) => {
                    burst.add_event(&mut 0, Event::AcceptFailed { errno });
                    return;
                }
            }
        }
    }

    fn on_ready(&mut self, number: u64, events: u32, burst: &mut Burst) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if events & WRITABLE != 0 {
            connection.socket.flush(&self.epoll);
            self.on_flushed(number, burst);
        }
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if events & READABLE != 0 {
            self.receive(number, burst);
        } else if is_broken(events) {
            // It is not read now. What it sent before is still decided, when Python lets it go on. Answers that it did
            // not read will never leave, so they must not keep its last frames back.
            connection.at_end = true;
            connection.answer_bytes = 0;
            connection.socket.mark_broken(&self.epoll);
            self.advance(number, burst);
        }
    }

    /// The socket took bytes: answers may leave their bound, and Python may send messages again.
    fn on_flushed(&mut self, number: u64, burst: &mut Burst) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let queued = connection.socket.queued_bytes();
        if connection.awaits_room && queued <= connection.queue_high / 4 {
            connection.awaits_room = false;
            burst.add_event(connection.position(self.burst_number), Event::Room { connection: number });
        }
        if queued == 0 && connection.answer_bytes > 0 {
            let was_flooded = connection.answer_bytes >= self.bounds.answer_bytes_max;
            connection.answer_bytes = 0;
            if was_flooded {
                self.advance(number, burst);
            }
        }
    }

    fn receive(&mut self, number: u64, burst: &mut Burst) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.is_discarding {
            self.scratch.clear();
            connection.at_end |= connection.socket.read_into(&mut self.scratch, READ_BYTES) == Some(0);
            return self.finish(number, burst);
        }
        if connection.input.is_empty() {
            // Nearly every read holds whole frames, which are parsed where they lie.
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.clear();
            let count = connection.socket.read_into(&mut scratch, READ_BYTES);
            connection.at_end |= count == Some(0);
            let parsed = self.parse(number, &scratch, burst);
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.input.extend_from_slice(&scratch[parsed..]);
            }
            self.scratch = scratch;
        } else {
            let limit = connection.read_bytes(READ_BYTES_MIN, READ_BYTES);
            let count = connection.socket.read_into(&mut connection.input, limit);
            connection.at_end |= count == Some(0);
            self.parse_input(number, burst);
        }
        self.finish(number, burst);
    }

    /// Parses what a connection has received and could not hand over before.
    fn advance(&mut self, number: u64, burst: &mut Burst) {
        self.parse_input(number, burst);
        self.finish(number, burst);
    }

    fn parse_input(&mut self, number: u64, burst: &mut Burst) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let input = std::mem::take(&mut connection.input);
        let parsed = self.parse(number, &input, burst);
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.input = if parsed == input.len() {
            Vec::new()
        } else if parsed == 0 {
            input
        } else {
            input[parsed..].to_vec()
        };
    }

    fn parse(&mut self, number: u64, data: &[u8], burst: &mut Burst) -> usize {
        let Some(connection) = self.connections.get_mut(&number) else { return data.len() };
        let pending = connection.pending;
        // At the bound of all connections each of them may have one frame in flight.
        let is_full = self.pending >= self.pending_bytes_max && pending > 0;
        let parsed = if is_full { 0 } else { connection.parse(data, burst, self.burst_number, &self.bounds) };
        connection.is_blocked |= is_full;
        self.pending += connection.pending - pending;
        parsed
    }

    /// Decides what becomes of a connection behind what was parsed.
    fn finish(&mut self, number: u64, burst: &mut Burst) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let has_more = connection.is_blocked || connection.has_backlog || !connection.can_parse(&self.bounds);
        if connection.at_end && (!has_more || connection.is_discarding || connection.is_failed) {
            burst.add_event(connection.position(self.burst_number), Event::Gone { connection: number });
            self.remove(number);
            return;
        }
        connection.update_reading(&self.bounds, &self.epoll);
        if connection.is_blocked {
            self.blocked.push(number);
        } else if connection.has_backlog && connection.can_parse(&self.bounds) {
            self.ready.push(number);
        }
    }

    fn remove(&mut self, number: u64) -> bool {
        let Some(mut connection) = self.connections.remove(&number) else { return false };
        self.pending -= connection.pending;
        connection.socket.flush(&self.epoll);
        connection.socket.mark_broken(&self.epoll);
        true
    }

    // --- out ---

    /// `is_answer`: counted against the bound of answers that a client does not read.
    fn send(&mut self, number: u64, pieces: &[&[u8]], is_answer: bool) -> isize {
        let Some(connection) = self.connections.get_mut(&number) else { return -1 };
        connection.socket.send(pieces, &self.epoll);
        let queued = connection.socket.queued_bytes();
        if is_answer && queued > 0 {
            connection.answer_bytes += pieces.iter().map(|piece| piece.len()).sum::<usize>();
            connection.update_reading(&self.bounds, &self.epoll);
        }
        connection.awaits_room |= connection.is_over_bound();
        queued as isize
    }

    fn send_answers(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let mut out = Vec::with_capacity(64);
        connection.answers.take_ready(&mut out);
        if !out.is_empty() {
            self.send(number, &[&out], true);
        }
    }

    fn settle(&mut self, batch: u64, base_offsets: &[i64], mut exceptions: HashMap<usize, Vec<u8>>) {
        let Some(Batch { targets, lane_ends }) = self.batches.remove(&batch) else { return };
        let (mut lane, mut next) = (0, base_offsets.first().copied().unwrap_or(-1));
        let mut touched: Vec<u64> = Vec::with_capacity(1);
        for (index, target) in targets.iter().enumerate() {
            if index == lane_ends[lane] as usize {
                lane += 1;
                next = base_offsets.get(lane).copied().unwrap_or(-1);
            }
            let exception = if exceptions.is_empty() { None } else { exceptions.remove(&index) };
            let base = next;
            if exception.is_none() {
                next += i64::from(target.rows);
            }
            let Some(connection) = self.connections.get_mut(&target.connection) else { continue };
            connection.pending -= target.cost;
            self.pending -= target.cost;
            if let Some(producer) = connection.producers.get_mut(&target.producer) {
                producer.in_flight = producer.in_flight.saturating_sub(1);
            }
            match exception {
                None => connection.answers.store(target.answer, target.part, base),
                Some(encoded) => connection.answers.settle(target.answer, target.part, encoded),
            }
            if touched.last() != Some(&target.connection) {
                touched.push(target.connection);
            }
        }
        // A group is handed over lane by lane, so a connection may be touched once for each lane.
        touched.sort_unstable();
        touched.dedup();
        for number in touched {
            self.send_answers(number);
        }
        self.unblock();
    }

    /// Answers have left: the connections that waited for them are parsed in the next burst.
    fn unblock(&mut self) {
        if !self.blocked.is_empty() {
            self.ready.append(&mut self.blocked);
            self.wake_up();
        }
    }

    // --- control ---

    fn change(&mut self, number: u64, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.connections.get_mut(&number) {
            change(connection);
            connection.update_reading(&self.bounds, &self.epoll);
        }
    }

    /// Looks at the connection again in the next burst.
    fn advance_later(&mut self, number: u64) {
        self.ready.push(number);
        self.wake_up();
    }

    fn wake_up(&mut self) {
        if !self.is_awake {
            self.is_awake = true;
            self.wake.signal();
        }
    }

    fn hand_over<'py>(&mut self, py: Python<'py>, mut group: Group) -> PyResult<Bound<'py, PyAny>> {
        if let [row] = &group.rows[..] {
            let block = PyBytes::new(py, group.block(row));
            let (lane, slot, rows, sequence) = (row.lane, row.target.slot, row.target.rows, row.sequence);
            let targets = group.rows.into_iter().map(|row| row.target).collect();
            let batch = self.add_batch(Batch { targets, lane_ends: vec![1] });
            return Ok((7, batch, lane, slot, rows, sequence, block).into_pyobject(py)?.into_any());
        }
        group.sort_by_lane();
        let rows = &group.rows;
        let mut blocks = Output::new(py, group.size())?;
        let mut ends: Vec<u32> = Vec::with_capacity(rows.len());
        let mut lanes: Vec<u32> = Vec::new();
        let mut lane_ends: Vec<u32> = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            blocks.put(group.block(row));
            ends.push(blocks.filled().len() as u32);
            if lanes.last() == Some(&row.lane) {
                *lane_ends.last_mut().expect("an end") += 1;
            } else {
                lanes.push(row.lane);
                lane_ends.push(index as u32 + 1);
            }
        }
        let columns = (
            packed(py, &ends),
            packed(py, &rows.iter().map(|row| row.target.rows).collect::<Vec<_>>()),
            packed(py, &rows.iter().map(|row| row.producer_id).collect::<Vec<_>>()),
            packed(py, &rows.iter().map(|row| row.producer_epoch).collect::<Vec<_>>()),
            packed(py, &rows.iter().map(|row| row.sequence).collect::<Vec<_>>()),
            packed(py, &lane_ends),
        );
        let slots = packed(py, &rows.iter().map(|row| row.target.slot).collect::<Vec<_>>());
        let (lanes, blocks) = (packed(py, &lanes), blocks.finish());
        let largest = group.largest;
        let targets = group.rows.into_iter().map(|row| row.target).collect();
        let batch = self.add_batch(Batch { targets, lane_ends });
        Ok((6, batch, lanes, slots, columns, blocks, largest).into_pyobject(py)?.into_any())
    }

    /// Returns the number of the batch, which is never used twice.
    fn add_batch(&mut self, batch: Batch) -> u64 {
        let number = self.next_batch;
        self.next_batch += 1;
        self.batches.insert(number, batch);
        number
    }

    fn split(&mut self, batch: u64) -> Vec<u64> {
        let Some(Batch { targets, lane_ends }) = self.batches.remove(&batch) else { return Vec::new() };
        let mut targets = targets.into_iter();
        let mut start = 0;
        let mut numbers = Vec::with_capacity(lane_ends.len());
        for end in lane_ends {
            let targets = targets.by_ref().take((end - start) as usize).collect();
            numbers.push(self.add_batch(Batch { targets, lane_ends: vec![end - start] }));
            start = end;
        }
        numbers
    }
}

/// Numbers as they lie in memory, which is little endian wherever Icestream runs.
fn packed<'py, T: Copy>(py: Python<'py>, numbers: &[T]) -> Bound<'py, PyBytes> {
    // SAFETY: plain numbers, without padding.
    let bytes = unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) };
    PyBytes::new(py, bytes)
}

type Ranges = Vec<(i64, i64)>;

fn acks(list: Vec<Settlement>) -> Vec<(u32, u32, u32, Ranges)> {
    list.into_iter().map(|ack| (ack.slot, ack.shard, ack.generation, ack.ranges)).collect()
}

fn nacks(list: Vec<Settlement>) -> Vec<(u32, u32, u32, u32, Ranges)> {
    list.into_iter().map(|nack| (nack.slot, nack.shard, nack.generation, nack.delay_ms, nack.ranges)).collect()
}

fn tuple(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyAny>> {
    let tuple = match event {
        Event::Connected { connection, peer, certificate } => {
            let certificate = certificate.map(|der| PyBytes::new(py, &der));
            (0, connection, peer, certificate).into_pyobject(py)?.into_any()
        }
        Event::Frame { connection, kind, flags, number, body, last_publish } => {
            let body = PyBytes::new(py, &body);
            (1, connection, kind, flags, number, body, last_publish).into_pyobject(py)?.into_any()
        }
        Event::Malformed { connection, size, kind } => (2, connection, size, kind).into_pyobject(py)?.into_any(),
        Event::Gone { connection } => (3, connection).into_pyobject(py)?.into_any(),
        Event::Room { connection } => (4, connection).into_pyobject(py)?.into_any(),
        Event::AcceptFailed { errno } => (5, errno).into_pyobject(py)?.into_any(),
    };
    Ok(tuple)
}
