//! The Python face of the native protocol.
//!
//! `poll` returns a list, in the order in which it is to be decided:
//!
//!     (0 to 4, …)                                                  `StreamEvent` in burst.rs
//!     (5, connection, kind, flags, number, body, last publish)     a frame
//!     (6, connection, size, kind)                                  a head that no frame can have; nothing follows
//!     (7, batch, queues, slots, columns, bodies, largest)          a group: blocks for one shard or many, a body of each
//!     (8, batch, queue, slot, rows, sequence, block)               a group of one block
//!     (9, [(slot, shard, generation, ranges), …])                  acks of declared consumers
//!     (10, [(slot, shard, generation, delay, ranges), …])          nacks
//!     (11, [(slot, messages), …])                                  credits
//!
//! A group stands shard by shard, each named by the number of its queue: `shard ends` says how many blocks stand up to the
//! end of each. Its columns are those of `icestream/model/block_group.py`, packed, little endian: ends and rows as u32,
//! producer ids as i64, epochs as i32, sequences as i64 (-1: not numbered), shard ends as u32. Queues and slots are u32.
//! `settle` answers a group, `split` makes a group of each shard.
//!
//! Acks, nacks and credits have no answer; they are joined across frames and connections, so that there are few of them,
//! and they are lists of tuples because Python takes each apart.
//!
//! Everything runs in the thread that calls; sockets are touched by `poll`, `send`, `send_all`, `published` and `settle`
//! alone.

use super::connection::{Bounds, Consumer, FrameConnection, Producer};
use super::rows::{Event, Group, Segment, Settlement, Target};
use crate::buffer::Output;
use crate::wire::hub::{Connection, Hub};
#[cfg(feature = "tls")]
use crate::wire::tls::Pem;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

struct State {
    hub: Hub<FrameConnection>,
    batches: HashMap<u64, Batch>,
    next_batch: u64,
}

/// A group that is not answered yet.
struct Batch {
    targets: Vec<Target>,
    /// How many targets there are up to the end of each shard.
    shard_ends: Vec<u32>,
}

#[pyclass(frozen)]
pub struct FrameServer {
    state: Mutex<State>,
}

#[pymethods]
impl FrameServer {
    #[new]
    #[pyo3(signature = (
        *, hello_bytes_max, connection_bytes_max, parked_bytes_max, pending_bytes_max, answer_bytes_max, parts_max,
        window_max, row_bytes_max, rows_bytes_max, unpacked_bytes_max, ranges_max, ping_bytes_max, offset_max,
        delay_ms_max
    ))]
    #[expect(clippy::too_many_arguments, reason = "named, and given in one place")]
    fn new(
        hello_bytes_max: usize,
        connection_bytes_max: usize,
        parked_bytes_max: usize,
        pending_bytes_max: usize,
        answer_bytes_max: usize,
        parts_max: usize,
        window_max: u32,
        row_bytes_max: usize,
        rows_bytes_max: usize,
        unpacked_bytes_max: usize,
        ranges_max: usize,
        ping_bytes_max: usize,
        offset_max: i64,
        delay_ms_max: u32,
    ) -> PyResult<FrameServer> {
        let bounds = Bounds {
            hello_bytes_max,
            connection_bytes_max,
            parked_bytes_max,
            parts_max,
            window_max,
            row_bytes_max,
            rows_bytes_max,
            unpacked_bytes_max,
            ranges_max,
            ping_bytes_max,
            offset_max,
            delay_ms_max,
        };
        let hub = Hub::new(bounds, pending_bytes_max, answer_bytes_max)?;
        Ok(FrameServer { state: Mutex::new(State { hub, batches: HashMap::new(), next_batch: 1 }) })
    }

    /// A descriptor that is readable while `poll` has something to return.
    fn fileno(&self) -> RawFd {
        self.lock().hub.fileno()
    }

    /// Takes the descriptor of a listening socket over.
    fn listen(&self, descriptor: RawFd, keep_alive_seconds: i32) -> PyResult<()> {
        self.lock().hub.listen(descriptor, keep_alive_seconds)
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
        self.lock().hub.listen_tls(descriptor, keep_alive_seconds, &pem, half_open_max, handshake_seconds)
    }

    /// New certificates for new connections.
    #[cfg(feature = "tls")]
    fn set_tls(&self, pem: Pem) -> PyResult<()> {
        self.lock().hub.set_tls(&pem)
    }

    /// Handshakes that are under way; and since the start those that were closed because they were too many, too slow,
    /// or no TLS of ours.
    #[cfg(feature = "tls")]
    fn handshakes(&self) -> (usize, u64, u64, u64) {
        self.lock().hub.handshakes()
    }

    /// Stops accepting for a while, or goes on: a failing accept would fail again at once.
    fn set_accepting(&self, is_accepting: bool) {
        self.lock().hub.set_accepting(is_accepting);
    }

    fn stop_listening(&self) {
        self.lock().hub.stop_listening();
    }

    /// Everything that arrived since the last call; see the top of this file.
    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut state = self.lock();
        let burst = state.hub.receive_all();
        let events = PyList::empty(py);
        for segment in burst.into_segments() {
            match segment {
                Segment::Events(list) => list.into_iter().try_for_each(|event| events.append(tuple(py, event)?))?,
                Segment::Groups(list) => {
                    for group in list {
                        events.append(state.hand_over(py, group)?)?;
                    }
                }
                Segment::Acks(acks) => events.append((9, ack_tuples(acks.list)))?,
                Segment::Nacks(nacks) => events.append((10, nack_tuples(nacks.list)))?,
                Segment::Credits(list) => {
                    let list: Vec<(u32, u32)> = list.iter().map(|credit| (credit.slot, credit.messages)).collect();
                    events.append((11, list))?;
                }
            }
        }
        Ok(events)
    }

    /// The handshake of a connection is done: frames of this size are read from now on.
    fn open(&self, connection: u64, frame_bytes_max: usize) {
        if let Some(connection) = self.lock().hub.get_mut(connection) {
            connection.protocol.frame_bytes_max = frame_bytes_max;
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
        queue: u32,
        producer_id: i64,
        epoch: i32,
        forbidden: u64,
    ) {
        if let Some(connection) = self.lock().hub.get_mut(connection) {
            let producer = Producer { slot, queue, producer_id, epoch, forbidden, in_flight: 0 };
            connection.protocol.producers.insert((handle, shard), producer);
        }
    }

    /// The producer is closed: its frames go to Python as they are.
    fn forget(&self, connection: u64, handle: u32) {
        if let Some(connection) = self.lock().hub.get_mut(connection) {
            connection.protocol.producers.retain(|(of, _), _| *of != handle);
        }
    }

    /// From now on acks, nacks and credits of this consumer that are as declared are handed over in columns.
    fn declare_consumer(&self, connection: u64, handle: u32, slot: u32, shards: u32, allows_cumulative: bool) {
        if let Some(connection) = self.lock().hub.get_mut(connection) {
            connection.protocol.consumers.insert(handle, Consumer { slot, shards, allows_cumulative });
        }
    }

    /// The consumer is closed: its frames go to Python as they are.
    fn forget_consumer(&self, connection: u64, handle: u32) {
        if let Some(connection) = self.lock().hub.get_mut(connection) {
            connection.protocol.consumers.remove(&handle);
        }
    }

    /// Sends the pieces of many connections, each behind everything queued. Returns the connections that have more bytes
    /// queued than their bound.
    fn send_all(&self, batches: Vec<(u64, Vec<Bound<'_, PyBytes>>)>) -> Vec<u64> {
        self.lock().hub.send_all(&batches)
    }

    /// Sends the pieces behind everything queued. Returns the bytes that the peer has not taken, -1 if it is gone.
    fn send(&self, connection: u64, pieces: Vec<Bound<'_, PyBytes>>) -> isize {
        let pieces: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
        self.lock().hub.send(connection, &pieces, false)
    }

    /// Sets beyond how many queued bytes Python hears when the queue has drained.
    fn set_queue_high(&self, connection: u64, size: usize) {
        self.lock().hub.set_queue_high(connection, size);
    }

    /// The whole answer to a PUBLISH that Python got as a frame. It leaves behind the answers before it.
    fn published(&self, connection: u64, number: u64, frame: &[u8]) {
        let mut state = self.lock();
        if let Some(connection) = state.hub.get_mut(connection) {
            connection.protocol.answers.replace(number, frame.to_vec());
        }
        state.send_answers(connection);
        state.hub.unblock();
    }

    /// Answers a group. The blocks of each shard were stored one behind the other from its base offset on, but for those
    /// in `exceptions`, which have no offsets and whose part of the answer is given.
    #[pyo3(signature = (batch, base_offsets, exceptions=None))]
    fn settle(&self, batch: u64, base_offsets: Vec<i64>, exceptions: Option<HashMap<usize, Vec<u8>>>) {
        self.lock().settle(batch, &base_offsets, exceptions.unwrap_or_default());
    }

    /// Makes a group of each shard of a group. Returns their numbers, in order.
    fn split(&self, batch: u64) -> Vec<u64> {
        self.lock().split(batch)
    }

    /// Bytes of rows of a connection that are not answered yet.
    fn pending_of(&self, connection: u64) -> usize {
        self.lock().hub.get(connection).map_or(0, |connection| connection.stream.pending)
    }

    /// Reads nothing more, until `resume`.
    fn pause(&self, connection: u64) {
        self.lock().hub.pause(connection);
    }

    fn resume(&self, connection: u64) {
        self.lock().hub.resume(connection);
    }

    /// Parks every PUBLISH, and lets only frames go on that may overtake it, until `release`.
    fn hold(&self, connection: u64) {
        self.lock().hub.hold(connection);
    }

    fn release(&self, connection: u64) {
        self.lock().hub.release_held(connection);
    }

    /// Ends our side behind everything queued; what still arrives is read and thrown away.
    fn end(&self, connection: u64) {
        self.lock().hub.end(connection);
    }

    /// Closes at once.
    fn abort(&self, connection: u64) {
        self.lock().hub.abort(connection);
    }

    /// Closes everything.
    fn close(&self) {
        let mut state = self.lock();
        state.hub.close();
        state.batches.clear();
    }

    /// (descriptor, bytes received and not parsed, bytes queued, whether it is read) of a connection, for tests and
    /// diagnosis.
    fn inspect(&self, connection: u64) -> Option<(RawFd, usize, usize, bool)> {
        self.lock().hub.inspect(connection)
    }

    /// Bytes of rows that are not answered yet, of all connections.
    fn pending_bytes(&self) -> usize {
        self.lock().hub.pending
    }
}

impl FrameServer {
    /// No code under this lock panics, and a poisoned one still guards a state that is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn send_answers(&mut self, number: u64) {
        let Some(Connection { protocol, .. }) = self.hub.get_mut(number) else { return };
        let mut out = Vec::with_capacity(64);
        protocol.answers.take_ready(&mut out);
        if !out.is_empty() {
            self.hub.send(number, &[&out], true);
        }
    }

    fn settle(&mut self, batch: u64, base_offsets: &[i64], mut exceptions: HashMap<usize, Vec<u8>>) {
        let Some(Batch { targets, shard_ends }) = self.batches.remove(&batch) else { return };
        let (mut shard, mut next) = (0, base_offsets.first().copied().unwrap_or(-1));
        let mut touched: Vec<u64> = Vec::with_capacity(1);
        for (index, target) in targets.iter().enumerate() {
            if index == shard_ends[shard] as usize {
                shard += 1;
                next = base_offsets.get(shard).copied().unwrap_or(-1);
            }
            let exception = if exceptions.is_empty() { None } else { exceptions.remove(&index) };
            let base = next;
            if exception.is_none() {
                next += i64::from(target.rows);
            }
            let Some(Connection { protocol, .. }) = self.hub.release(target.connection, target.cost) else { continue };
            if let Some(producer) = protocol.producers.get_mut(&target.producer) {
                producer.in_flight = producer.in_flight.saturating_sub(1);
            }
            match exception {
                None => protocol.answers.store(target.answer, target.part, base),
                Some(encoded) => protocol.answers.settle(target.answer, target.part, encoded),
            }
            if touched.last() != Some(&target.connection) {
                touched.push(target.connection);
            }
        }
        // A group is handed over shard by shard, so a connection may be touched once for each shard.
        touched.sort_unstable();
        touched.dedup();
        for number in touched {
            self.send_answers(number);
        }
        self.hub.unblock();
    }

    fn hand_over<'py>(&mut self, py: Python<'py>, mut group: Group) -> PyResult<Bound<'py, PyAny>> {
        if let [row] = &group.rows[..] {
            let block = PyBytes::new(py, group.block(row));
            let (queue, slot, rows, sequence) = (row.queue, row.target.slot, row.target.rows, row.sequence);
            let targets = group.rows.into_iter().map(|row| row.target).collect();
            let batch = self.add_batch(Batch { targets, shard_ends: vec![1] });
            return Ok((8, batch, queue, slot, rows, sequence, block).into_pyobject(py)?.into_any());
        }
        group.sort_by_queue();
        let rows = &group.rows;
        let (mut ends, mut size): (Vec<u32>, usize) = (Vec::with_capacity(rows.len()), 0);
        let (mut queues, mut shard_ends): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        let bodies = PyList::empty(py);
        for of_shard in rows.chunk_by(|row, next| row.queue == next.queue) {
            let mut body = Output::new(py, of_shard.iter().map(|row| group.block(row).len()).sum())?;
            for row in of_shard {
                body.put(group.block(row));
                ends.push((size + body.filled().len()) as u32);
            }
            size += body.filled().len();
            bodies.append(body.finish())?;
            queues.push(of_shard[0].queue);
            shard_ends.push(ends.len() as u32);
        }
        let columns = (
            packed(py, &ends),
            packed(py, &rows.iter().map(|row| row.target.rows).collect::<Vec<_>>()),
            packed(py, &rows.iter().map(|row| row.producer_id).collect::<Vec<_>>()),
            packed(py, &rows.iter().map(|row| row.producer_epoch).collect::<Vec<_>>()),
            packed(py, &rows.iter().map(|row| row.sequence).collect::<Vec<_>>()),
            packed(py, &shard_ends),
        );
        let slots = packed(py, &rows.iter().map(|row| row.target.slot).collect::<Vec<_>>());
        let queues = packed(py, &queues);
        let largest = group.largest;
        let targets = group.rows.into_iter().map(|row| row.target).collect();
        let batch = self.add_batch(Batch { targets, shard_ends });
        Ok((7, batch, queues, slots, columns, bodies, largest).into_pyobject(py)?.into_any())
    }

    /// Returns the number of the batch, which is never used twice.
    fn add_batch(&mut self, batch: Batch) -> u64 {
        let number = self.next_batch;
        self.next_batch += 1;
        self.batches.insert(number, batch);
        number
    }

    fn split(&mut self, batch: u64) -> Vec<u64> {
        let Some(Batch { targets, shard_ends }) = self.batches.remove(&batch) else { return Vec::new() };
        let mut targets = targets.into_iter();
        let mut start = 0;
        let mut numbers = Vec::with_capacity(shard_ends.len());
        for end in shard_ends {
            let targets = targets.by_ref().take((end - start) as usize).collect();
            numbers.push(self.add_batch(Batch { targets, shard_ends: vec![end - start] }));
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

fn ack_tuples(list: Vec<Settlement>) -> Vec<(u32, u32, u32, Ranges)> {
    list.into_iter().map(|ack| (ack.slot, ack.shard, ack.generation, ack.ranges)).collect()
}

fn nack_tuples(list: Vec<Settlement>) -> Vec<(u32, u32, u32, u32, Ranges)> {
    list.into_iter().map(|nack| (nack.slot, nack.shard, nack.generation, nack.delay_ms, nack.ranges)).collect()
}

fn tuple(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyAny>> {
    let tuple = match event {
        Event::Stream(event) => return event.into_tuple(py),
        Event::Frame { connection, kind, flags, number, body, last_publish } => {
            let body = PyBytes::new(py, &body);
            (5, connection, kind, flags, number, body, last_publish).into_pyobject(py)?.into_any()
        }
        Event::Malformed { connection, size, kind } => (6, connection, size, kind).into_pyobject(py)?.into_any(),
    };
    Ok(tuple)
}
