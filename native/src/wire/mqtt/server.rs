//! The Python face of MQTT.
//!
//! `poll` returns a list, in the order in which it is to be decided:
//!
//!     (0 to 4, …)                               `StreamEvent` in burst.rs
//!     (5, connection, data)                     whole packets, which Python decodes. Behind them there may be the head of
//!                                               one that cannot be: then nothing follows
//!     (6, batch, queues, ends, rows, connections, blocks, largest)    messages that fit the declarations: a block for each
//!                                               queue, and what the largest message costs
//!     (7, [(connection, packet ids), …])        PUBACKs of deliveries that were sent from here
//!     (8, connection)                           all acks up to the stop have left (`stop_acks`)
//!
//! Of a batch, queues, ends (of the blocks, in `blocks`) and rows have a number for each block; `connections` are those
//! that the messages came from, each at least once. They are packed, little endian: u32, connections u64, packet ids u16.
//! `settle` acks a batch, `release` gives its messages to Python one by one.
//!
//! The ack of a PUBLISH of QoS 1 or 2 that Python decoded has a place too (`expect`), so that the acks of a connection
//! leave in the order of receipt.
//!
//! Everything runs in the thread that calls; sockets are touched by `poll` and by what sends.

use super::connection::{Bounds, MqttConnection, Publisher};
use super::deliveries::{Head, MqttRows};
use super::rows::{Event, Group, Run, Segment, bytes_of};
use crate::wire::hub::{Connection, Hub};
#[cfg(feature = "tls")]
use crate::wire::tls::Pem;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

struct State {
    hub: Hub<MqttConnection>,
    batches: HashMap<u64, Vec<Run>>,
    next_batch: u64,
    /// Connections whose acks have left up to their stop.
    answered: Vec<u64>,
}

#[pyclass(frozen)]
pub struct MqttServer {
    state: Mutex<State>,
}

#[pymethods]
impl MqttServer {
    #[new]
    #[pyo3(signature = (
        *, connect_bytes_max, packet_bytes_max, levels_max, connection_bytes_max, pending_bytes_max, answer_bytes_max,
        row_bytes_max, group_bytes_max
    ))]
    #[expect(clippy::too_many_arguments, reason = "named, and given in one place")]
    fn new(
        connect_bytes_max: usize,
        packet_bytes_max: usize,
        levels_max: usize,
        connection_bytes_max: usize,
        pending_bytes_max: usize,
        answer_bytes_max: usize,
        row_bytes_max: usize,
        group_bytes_max: usize,
    ) -> PyResult<MqttServer> {
        let bounds = Bounds {
            connect_bytes_max,
            packet_bytes_max,
            levels_max,
            connection_bytes_max,
            row_bytes_max,
            group_bytes_max,
        };
        let hub = Hub::new(bounds, pending_bytes_max, answer_bytes_max)?;
        let state = State { hub, batches: HashMap::new(), next_batch: 1, answered: Vec::new() };
        Ok(MqttServer { state: Mutex::new(state) })
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

    /// Everything that arrived since the last call; see the top of this file. `publish_time_us`: of the messages.
    fn poll<'py>(&self, py: Python<'py>, publish_time_us: i64) -> PyResult<Bound<'py, PyList>> {
        let mut state = self.lock();
        let burst = state.hub.receive_all();
        let rows = PyList::empty(py);
        for segment in burst.into_segments() {
            match segment {
                Segment::Events(list) => list.into_iter().try_for_each(|event| rows.append(tuple(py, event)?))?,
                Segment::Groups(list) => {
                    for group in list {
                        rows.append(state.hand_over(py, group, publish_time_us)?)?;
                    }
                }
                Segment::Acks(acks) => {
                    let list: Vec<(u64, Bound<'py, PyBytes>)> =
                        acks.list.iter().map(|(connection, ids)| (*connection, packed(py, ids))).collect();
                    rows.append((7, list))?;
                }
            }
        }
        for connection in std::mem::take(&mut state.answered) {
            rows.append((8, connection))?;
        }
        Ok(rows)
    }

    /// CONNECT was accepted: packets of this protocol level are parsed from now on.
    fn open(&self, connection: u64, level: u8) {
        let mut state = self.lock();
        if let Some(Connection { protocol, .. }) = state.hub.get_mut(connection) {
            protocol.open(level);
        }
        state.hub.resume(connection);
    }

    /// Reports the connection when no byte arrives for so long. Called once.
    fn set_silence_max(&self, connection: u64, seconds: f64) {
        self.lock().hub.set_silence_max(connection, Duration::from_secs_f64(seconds));
    }

    // --- rows ---

    /// Messages of this client for declared topics may be rows from now on. `receive_maximum`: of QoS 1 and 2 messages that
    /// are not acknowledged.
    fn allow_rows(&self, connection: u64, client_id: &[u8], receive_maximum: usize) {
        if let Some(Connection { protocol, .. }) = self.lock().hub.get_mut(connection) {
            protocol.publisher = Some(Publisher::new(client_id, receive_maximum));
        }
    }

    /// Has Python see every PUBLISH, or no longer; what was declared stays.
    fn suspend_rows(&self, connection: u64, is_suspended: bool) {
        self.with_publisher(connection, |publisher| publisher.is_suspended = is_suspended);
    }

    /// Messages for the topic, of at least this QoS, belong to the queue.
    fn declare(&self, connection: u64, topic: &[u8], queue: u32, qos_min: u8) {
        self.with_publisher(connection, |publisher| publisher.declare(topic, queue, qos_min));
    }

    /// Messages for every topic that does not begin with `$`, of at least this QoS, belong to a queue: number crc32 of the
    /// topic mod their count.
    fn declare_all(&self, connection: u64, queues: Vec<u32>, qos_min: u8) {
        self.with_publisher(connection, |publisher| publisher.declare_all(&queues, qos_min));
    }

    fn forget_topics(&self, connection: u64) {
        self.with_publisher(connection, Publisher::forget_topics);
    }

    /// How many QoS 2 messages Python holds between PUBREC and PUBREL.
    fn set_held(&self, connection: u64, held: usize) {
        self.with_publisher(connection, |publisher| publisher.held = held);
    }

    /// The messages of a batch are stored.
    fn settle(&self, batch: u64) {
        let mut state = self.lock();
        let Some(runs) = state.batches.remove(&batch) else { return };
        let mut touched: Vec<u64> = Vec::with_capacity(1);
        for Run { connection, place, count, cost } in runs {
            let Some(Connection { protocol, .. }) = state.hub.release(connection, cost) else { continue };
            if let Some(place) = place {
                protocol.acks.store(place, count);
                if touched.last() != Some(&connection) {
                    touched.push(connection);
                }
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for number in touched {
            state.take_acks(number);
            state.hub.send(number, &[], false);
        }
        state.hub.unblock();
    }

    /// Takes a batch apart. Returns connection, place of the ack (None for QoS 0) and packet id of each message, in the order
    /// of the blocks: each is answered by itself (`answer`).
    fn release(&self, batch: u64) -> Vec<(u64, Option<u64>, u16)> {
        let mut state = self.lock();
        let mut messages = Vec::new();
        for Run { connection, place, count, cost } in state.batches.remove(&batch).unwrap_or_default() {
            let mut acks = state.hub.release(connection, cost).map(|connection| &mut connection.protocol.acks);
            for index in 0..u64::from(count) {
                let place = place.map(|place| place + index);
                let packet_id = acks.as_mut().zip(place).and_then(|(acks, place)| acks.packet_id(place));
                messages.push((connection, place, packet_id.unwrap_or(0)));
            }
        }
        state.hub.unblock();
        messages
    }

    // --- acks ---

    /// A PUBLISH that Python decoded needs an ack. Returns its place, behind those of all before it.
    fn expect(&self, connection: u64, packet_id: u16, is_qos1: bool) -> u64 {
        let mut state = self.lock();
        state.hub.get_mut(connection).map_or(0, |connection| connection.protocol.acks.expect(packet_id, is_qos1))
    }

    /// The ack at a place, as Python made it. It leaves behind the acks before it and behind `output`, with the next bytes
    /// that are sent, or by `flush`.
    fn answer(&self, connection: u64, place: u64, ack: &[u8], output: &[u8]) {
        let mut state = self.lock();
        if let Some(Connection { protocol, stream }) = state.hub.get_mut(connection) {
            stream.replies.extend_from_slice(output);
            protocol.acks.answer(place, ack.to_vec());
        }
        state.take_acks(connection);
    }

    /// Sends the acks that may leave.
    fn flush(&self, connection: u64) -> isize {
        self.lock().hub.send(connection, &[], false)
    }

    /// From this place on no ack leaves; None: from behind those that are owed now. When all before it have left, a row
    /// says so.
    #[pyo3(signature = (connection, place=None))]
    fn stop_acks(&self, connection: u64, place: Option<u64>) {
        let mut state = self.lock();
        if let Some(Connection { protocol, .. }) = state.hub.get_mut(connection) {
            protocol.acks.stop_at(place);
        }
        state.take_acks(connection);
    }

    /// How many acks are owed, and how many of them are of QoS 1 messages.
    fn owed(&self, connection: u64) -> (usize, usize) {
        let state = self.lock();
        state.hub.get(connection).map_or((0, 0), |connection| {
            let acks = &connection.protocol.acks;
            (acks.len(), acks.qos1_count())
        })
    }

    // --- sending ---

    /// Queues the packets of the rows of `spans` (start and end), behind `output` and everything queued: they leave with
    /// the next bytes that are sent, or by `flush`. `packet_ids`: first and count. Returns the bytes of the packets. Raises
    /// ValueError for spans and packet ids that do not fit the rows.
    #[expect(clippy::too_many_arguments, reason = "named by the caller")]
    fn deliver(
        &self,
        connection: u64,
        output: &[u8],
        rows: &MqttRows,
        spans: Vec<(usize, usize)>,
        packet_ids: Vec<(u16, u16)>,
        qos: u8,
        properties: &[u8],
    ) -> PyResult<usize> {
        let mut state = self.lock();
        let Some(Connection { stream, protocol }) = state.hub.get_mut(connection) else { return Ok(0) };
        let start = stream.replies.len();
        stream.replies.extend_from_slice(output);
        let behind = stream.replies.len();
        let head = Head { qos, properties };
        if rows.write(&spans, &packet_ids, &head, &mut stream.replies).is_none() {
            stream.replies.truncate(start);
            return Err(PyValueError::new_err("spans and packet ids do not fit the rows"));
        }
        stream.delivery_bytes += stream.replies.len() - start;
        for (first, count) in packet_ids {
            protocol.in_flight.extend((0..count).map(|index| first.wrapping_add(index)));
        }
        Ok(stream.replies.len() - behind)
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

    // --- control ---

    /// Reads nothing more, until `resume`.
    fn pause(&self, connection: u64) {
        self.lock().hub.pause(connection);
    }

    fn resume(&self, connection: u64) {
        self.lock().hub.resume(connection);
    }

    /// Ends our side behind everything queued; what still arrives is read and thrown away.
    fn end(&self, connection: u64) {
        self.lock().hub.end(connection);
    }

    /// Closes as soon as the peer has taken everything queued.
    fn close_soon(&self, connection: u64) {
        self.lock().hub.close_soon(connection);
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

    /// Bytes of rows of a connection that are not answered yet.
    fn pending_of(&self, connection: u64) -> usize {
        self.lock().hub.get(connection).map_or(0, |connection| connection.stream.pending)
    }

    /// Bytes of rows that are not answered yet, of all connections.
    fn pending_bytes(&self) -> usize {
        self.lock().hub.pending
    }

    /// (descriptor, bytes received and not parsed, bytes queued, whether it is read) of a connection, for tests and
    /// diagnosis.
    fn inspect(&self, connection: u64) -> Option<(RawFd, usize, usize, bool)> {
        self.lock().hub.inspect(connection)
    }
}

impl MqttServer {
    /// No code under this lock panics, and a poisoned one still guards a state that is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_publisher(&self, connection: u64, change: impl FnOnce(&mut Publisher)) {
        let mut state = self.lock();
        if let Some(publisher) = state.hub.get_mut(connection).and_then(|found| found.protocol.publisher.as_mut()) {
            change(publisher);
        }
    }
}

impl State {
    /// Puts the acks that may leave to the replies of their connection.
    fn take_acks(&mut self, number: u64) {
        let Some(Connection { protocol, stream }) = self.hub.get_mut(number) else { return };
        if protocol.acks.take_ready(&mut stream.replies) {
            self.answered.push(number);
            self.hub.wake_up();
        }
    }

    fn hand_over<'py>(&mut self, py: Python<'py>, group: Group, publish_time_us: i64) -> PyResult<Bound<'py, PyAny>> {
        let mut blocks = Vec::with_capacity(group.encoded_bytes());
        let largest = group.largest;
        let (mut queues, mut ends, mut rows): (Vec<u32>, Vec<u32>, Vec<u32>) = Default::default();
        let (mut runs, mut connections): (Vec<Run>, Vec<u64>) = Default::default();
        for shard in group.shards {
            shard.encode(publish_time_us, &mut blocks);
            queues.push(shard.queue);
            ends.push(blocks.len() as u32);
            rows.push(shard.rows() as u32);
            for run in shard.runs {
                if connections.last() != Some(&run.connection) {
                    connections.push(run.connection);
                }
                runs.push(run);
            }
        }
        let batch = self.next_batch;
        self.next_batch += 1;
        self.batches.insert(batch, runs);
        let columns = (packed(py, &queues), packed(py, &ends), packed(py, &rows), packed(py, &connections));
        let (queues, ends, rows, connections) = columns;
        let tuple = (6, batch, queues, ends, rows, connections, PyBytes::new(py, &blocks), largest);
        Ok(tuple.into_pyobject(py)?.into_any())
    }
}

fn packed<'py, T: Copy>(py: Python<'py>, numbers: &[T]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, bytes_of(numbers))
}

fn tuple(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyAny>> {
    match event {
        Event::Stream(event) => event.into_tuple(py),
        Event::Packets { connection, data } => {
            Ok((5, connection, PyBytes::new(py, &data)).into_pyobject(py)?.into_any())
        }
    }
}
