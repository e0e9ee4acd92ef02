//! The acks of the publishes that a connection received: they leave in the order of receipt (hazard 66), whichever shard
//! is faster, and whether a publish was a row of a group or went to Python as a packet.

use std::collections::{HashMap, VecDeque};

const PUBACK_BYTE: u8 = 0x40;

#[derive(Clone, Copy, PartialEq)]
enum State {
    Waiting,
    /// A PUBACK with the reason 0x00, which 5.0 leaves out as 3.1.1 does.
    Stored,
    /// By Python.
    Encoded,
}

struct Ack {
    packet_id: u16,
    is_qos1: bool,
    state: State,
}

#[derive(Default)]
pub struct Acks {
    waiting: VecDeque<Ack>,
    /// Which publish of the connection, counted from 0, the front of the queue is for.
    first: u64,
    /// Acks that Python made, by place.
    encoded: HashMap<u64, Vec<u8>>,
    /// From this place on no ack leaves.
    stop: Option<u64>,
    /// Acks of QoS 1 messages that have not left.
    qos1_count: usize,
}

impl Acks {
    /// A publish was received. Returns the place of its ack.
    pub fn expect(&mut self, packet_id: u16, is_qos1: bool) -> u64 {
        self.qos1_count += usize::from(is_qos1);
        self.waiting.push_back(Ack { packet_id, is_qos1, state: State::Waiting });
        self.first + self.waiting.len() as u64 - 1
    }

    /// How many have not left.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn qos1_count(&self) -> usize {
        self.qos1_count
    }

    /// The publishes at these places are stored.
    pub fn store(&mut self, place: u64, count: u32) {
        for place in place..place + u64::from(count) {
            if let Some(ack) = self.at(place) {
                ack.state = State::Stored;
            }
        }
    }

    /// Python made the ack; it may be empty.
    pub fn answer(&mut self, place: u64, encoded: Vec<u8>) {
        if let Some(ack) = self.at(place) {
            ack.state = State::Encoded;
            self.encoded.insert(place, encoded);
        }
    }

    /// The packet id of a place that was not answered yet.
    pub fn packet_id(&mut self, place: u64) -> Option<u16> {
        self.at(place).map(|ack| ack.packet_id)
    }

    /// From this place on nothing leaves; None: behind the last that is owed now.
    pub fn stop_at(&mut self, place: Option<u64>) {
        let place = place.unwrap_or(self.first + self.waiting.len() as u64);
        self.stop = Some(self.stop.map_or(place, |stop| stop.min(place)));
    }

    fn at(&mut self, place: u64) -> Option<&mut Ack> {
        self.waiting.get_mut(place.checked_sub(self.first)? as usize)
    }

    /// Appends every ack that may leave to `out`. Returns whether all before the stop have left; then there are none any
    /// more.
    pub fn take_ready(&mut self, out: &mut Vec<u8>) -> bool {
        while let Some(ack) = self.waiting.front() {
            if self.stop.is_some_and(|stop| self.first >= stop) || ack.state == State::Waiting {
                break;
            }
            if ack.state == State::Stored {
                let [high, low] = ack.packet_id.to_be_bytes();
                out.extend_from_slice(&[PUBACK_BYTE, 2, high, low]);
            } else if let Some(encoded) = self.encoded.remove(&self.first) {
                out.extend_from_slice(&encoded);
            }
            self.qos1_count -= usize::from(ack.is_qos1);
            self.waiting.pop_front();
            self.first += 1;
        }
        let is_stopped = self.stop.is_some_and(|stop| self.first >= stop);
        if is_stopped {
            self.first += self.waiting.len() as u64;
            self.waiting.clear();
            self.qos1_count = 0;
            self.encoded.clear();
            self.stop = None;
        }
        is_stopped
    }
}
