//! Deliveries: PUBLISH packets of the rows of a plain block (`icestream/broker/mqtt/message_rows.py`), written from its
//! columns. A block is shared by all clients that get rows of it; only the head and the packet id are of one client.

use crate::block::{CONSTANT, VARIABLE};
use crate::buffer::Input;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

const PUBLISH_BYTE: u8 = 0x30;
const ENDS_BYTES: usize = 4;
const PACKET_ID_BYTES: usize = 2;

/// A column of bytes: the values, and where each ends; no ends: every row has the same value.
struct Column {
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

impl Column {
    fn new(rows: usize, encoding: u8, data: &[u8]) -> Option<Column> {
        match encoding {
            CONSTANT => Some(Column { ends: Vec::new(), bytes: data.to_vec() }),
            VARIABLE => {
                let (ends, bytes) = data.split_at_checked(ENDS_BYTES * (rows + 1))?;
                let ends: Vec<u32> = ends.chunks_exact(ENDS_BYTES).map(|end| number(end)).collect();
                let is_rising = ends.is_sorted() && ends[0] == 0 && ends[rows] as usize == bytes.len();
                is_rising.then(|| Column { ends, bytes: bytes.to_vec() })
            }
            _ => None,
        }
    }

    fn value(&self, row: usize) -> &[u8] {
        if self.ends.is_empty() {
            return &self.bytes;
        }
        &self.bytes[self.ends[row] as usize..self.ends[row + 1] as usize]
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[pyclass(frozen)]
pub struct MqttRows {
    rows: usize,
    topics: Column,
    payloads: Column,
}

#[pymethods]
impl MqttRows {
    /// Raises ValueError for columns that do not add up.
    #[new]
    fn new(
        rows: usize,
        topic_encoding: u8,
        topics: &Bound<'_, PyAny>,
        payload_encoding: u8,
        payloads: &Bound<'_, PyAny>,
    ) -> PyResult<MqttRows> {
        let topics = Column::new(rows, topic_encoding, Input::new(topics)?.as_slice());
        let payloads = Column::new(rows, payload_encoding, Input::new(payloads)?.as_slice());
        match (topics, payloads) {
            (Some(topics), Some(payloads)) => Ok(MqttRows { rows, topics, payloads }),
            _ => Err(PyValueError::new_err(format!("the columns of {rows} messages do not add up"))),
        }
    }
}

/// What the packets of a run share.
pub struct Head<'a> {
    pub qos: u8,
    /// As they stand in a packet, with their length; empty in 3.1.1.
    pub properties: &'a [u8],
}

impl MqttRows {
    /// Appends the packets of the rows of `spans` (start and end) with these packet ids (first and count), none for QoS 0.
    /// Returns None, and appends nothing, if there is no such row, or not one id for each.
    pub fn write(
        &self,
        spans: &[(usize, usize)],
        packet_ids: &[(u16, u16)],
        head: &Head<'_>,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let rows: usize = spans.iter().map(|(start, end)| end.saturating_sub(*start)).sum();
        let ids: usize = packet_ids.iter().map(|(_, count)| usize::from(*count)).sum();
        if spans.iter().any(|(start, end)| start > end || *end > self.rows) || (head.qos > 0 && ids != rows) {
            return None;
        }
        let mut ids = packet_ids.iter().flat_map(|(first, count)| (0..*count).map(|index| first.wrapping_add(index)));
        let first = PUBLISH_BYTE | head.qos << 1;
        let id_bytes = if head.qos > 0 { PACKET_ID_BYTES } else { 0 };
        for row in spans.iter().flat_map(|(start, end)| *start..*end) {
            let (topic, payload) = (self.topics.value(row), self.payloads.value(row));
            let length = 2 + topic.len() + id_bytes + head.properties.len() + payload.len();
            out.push(first);
            push_length(length, out);
            out.extend_from_slice(&(topic.len() as u16).to_be_bytes());
            out.extend_from_slice(topic);
            if head.qos > 0 {
                out.extend_from_slice(&ids.next()?.to_be_bytes());
            }
            out.extend_from_slice(head.properties);
            out.extend_from_slice(payload);
        }
        Some(())
    }
}

/// A variable byte integer.
fn push_length(mut length: usize, out: &mut Vec<u8>) {
    while length >= 0x80 {
        out.push(length as u8 & 0x7F | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}
