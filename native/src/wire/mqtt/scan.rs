//! Cuts MQTT packets off the bytes of a connection. `icestream/mqtt/codec.py` is the contract for every byte, and the oracle
//! for every verdict.
//!
//!     packet     what it is                                                        decoded by
//!     Publish    PUBLISH without properties, with a topic name and an id that      the fields here; Python would accept
//!                no rule of the codec refuses                                      it, too
//!     Ack        PUBACK, PUBREC, PUBREL, PUBCOMP with the reason 0x00 and          the same
//!                without properties
//!     Ping       PINGREQ                                                           the same
//!     Other      everything else that has an end, malformed or not                 Python
//!
//! Nothing is refused here: a packet that is not certain to be accepted is `Other`, and a head that no packet can have is
//! `Broken`. Python decodes its bytes and finds the reason, so that each refusal is made by one piece of code.

use crate::buffer::Input;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

const CONNECT: u8 = 1;
const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const PUBCOMP: u8 = 7;
const AUTH: u8 = 15;
const PINGREQ_BYTE: u8 = 0xC0;
/// The longest head: the first byte and four bytes of length.
const HEAD_BYTES_MAX: usize = 5;

/// What the packets of a connection are read as; before CONNECT there is no version.
#[derive(Clone, Copy, PartialEq)]
pub enum Version {
    Unknown,
    V3,
    V5,
}

impl Version {
    /// Of a protocol level; every other number is that of a connection before its CONNECT.
    pub fn of_level(level: u8) -> Version {
        match level {
            4 => Version::V3,
            5 => Version::V5,
            _ => Version::Unknown,
        }
    }
}

/// The fields of a PUBLISH without properties.
pub struct Publish<'a> {
    pub qos: u8,
    pub is_retained: bool,
    pub topic: &'a [u8],
    /// 0 for QoS 0.
    pub packet_id: u16,
    pub payload: &'a [u8],
}

pub enum Packet<'a> {
    Publish(Publish<'a>),
    /// `kind`: the packet type.
    Ack {
        kind: u8,
        packet_id: u16,
    },
    Ping,
    Other,
}

pub enum Scanned<'a> {
    /// `needed`: how many bytes the packet has, 0 if its head is not complete.
    Incomplete { needed: usize },
    /// The head can be that of no packet. Python finds the reason in the first `head` bytes.
    Broken { head: usize },
    /// The packet has the first `size` bytes.
    Whole { size: usize, packet: Packet<'a> },
}

/// The packet at the start of `data`. `levels_max`: the most levels of a topic name.
pub fn scan(data: &[u8], version: Version, packet_bytes_max: usize, levels_max: usize) -> Scanned<'_> {
    let Some(&first) = data.first() else { return Scanned::Incomplete { needed: 0 } };
    let broken = Scanned::Broken { head: data.len().min(HEAD_BYTES_MAX) };
    let (mut length, mut head) = (0_usize, 1);
    loop {
        if head == HEAD_BYTES_MAX {
            return broken;
        }
        let Some(&byte) = data.get(head) else {
            return if may_begin(first, version) { Scanned::Incomplete { needed: 0 } } else { broken };
        };
        length |= usize::from(byte & 0x7F) << (7 * (head - 1));
        head += 1;
        if byte < 0x80 {
            // More bytes of length than the value needs: MQTT-1.5.5-1 forbids it, 3.1.1 does not.
            if byte == 0 && head > 2 && version != Version::V3 {
                return broken;
            }
            break;
        }
    }
    let size = head + length;
    if !may_begin(first, version) || size > packet_bytes_max {
        return broken;
    }
    match data.get(head..size) {
        Some(body) => Scanned::Whole { size, packet: decode(first, body, version, levels_max) },
        None => Scanned::Incomplete { needed: size },
    }
}

/// Whether a packet may begin with this byte: its type, and the flags of it.
fn may_begin(first: u8, version: Version) -> bool {
    let (kind, flags) = (first >> 4, first & 0x0F);
    let is_expected = match version {
        Version::Unknown => kind == CONNECT,
        Version::V3 => kind != 0 && kind != AUTH,
        Version::V5 => kind != 0,
    };
    is_expected
        && match kind {
            PUBLISH => flags & 0x06 != 0x06 && flags & 0x0E != 0x08,
            6 | 8 | 10 => flags == 2, // PUBREL, SUBSCRIBE, UNSUBSCRIBE
            _ => flags == 0,
        }
}

fn decode(first: u8, body: &[u8], version: Version, levels_max: usize) -> Packet<'_> {
    match first >> 4 {
        _ if version == Version::Unknown => Packet::Other,
        PUBLISH => plain_publish(first, body, version, levels_max).map_or(Packet::Other, Packet::Publish),
        kind @ PUBACK..=PUBCOMP => {
            plain_ack(body, version).map_or(Packet::Other, |packet_id| Packet::Ack { kind, packet_id })
        }
        _ if first == PINGREQ_BYTE && body.is_empty() => Packet::Ping,
        _ => Packet::Other,
    }
}

fn plain_publish(first: u8, body: &[u8], version: Version, levels_max: usize) -> Option<Publish<'_>> {
    let qos = first >> 1 & 3;
    let (topic_bytes, rest) = body.split_first_chunk()?;
    let (topic, mut rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*topic_bytes)))?;
    let mut packet_id = 0;
    if qos > 0 {
        let (id, behind) = rest.split_first_chunk()?;
        (packet_id, rest) = (u16::from_be_bytes(*id), behind);
    }
    if version == Version::V5 {
        let (&property_bytes, behind) = rest.split_first()?;
        if property_bytes != 0 {
            return None;
        }
        rest = behind;
    }
    let is_plain = (packet_id != 0) == (qos > 0) && is_topic_name(topic, levels_max);
    is_plain.then_some(Publish { qos, is_retained: first & 1 != 0, topic, packet_id, payload: rest })
}

/// `topics.check_topic_name`, and the rules of a text.
fn is_topic_name(topic: &[u8], levels_max: usize) -> bool {
    let has_reserved = topic.iter().any(|byte| matches!(byte, 0 | b'+' | b'#'));
    let slashes = topic.iter().filter(|byte| **byte == b'/').count();
    !topic.is_empty() && !has_reserved && slashes < levels_max && std::str::from_utf8(topic).is_ok()
}

/// The id of an ack that says success and nothing else.
fn plain_ack(body: &[u8], version: Version) -> Option<u16> {
    let (id, rest) = body.split_first_chunk()?;
    let is_plain = match (version, rest) {
        (_, []) => true,
        (Version::V5, [0] | [0, 0]) => true, // the reason 0x00; no properties
        _ => false,
    };
    Some(u16::from_be_bytes(*id)).filter(|id| is_plain && *id != 0)
}

/// The packets of `data` up to the first that is not complete, how many bytes they have, and how many the incomplete one
/// has (0 if that is not known). Each packet is a tuple whose first values are kind, start and end:
///
///     (0, start, end)                                                     decoded by Python
///     (1, start, end, qos, is retained, packet id, topic start, payload start)    PUBLISH without properties
///     (2, start, end, packet type, packet id)                             an ack with the reason 0x00
///     (3, start, end)                                                     PINGREQ
///     (4, start, end)                                                     a head that no packet can have; the last row
///
/// `level`: of the protocol, 0 before CONNECT; then one packet at most is cut off. For tests, and to look at a capture.
#[pyfunction]
pub fn scan_mqtt<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    level: u8,
    packet_bytes_max: usize,
    levels_max: usize,
) -> PyResult<(Bound<'py, PyList>, usize, usize)> {
    let input = Input::new(data)?;
    let bytes = input.as_slice();
    let version = Version::of_level(level);
    let rows = PyList::empty(py);
    let (mut at, mut incomplete) = (0, 0);
    loop {
        let (size, packet) = match scan(&bytes[at..], version, packet_bytes_max, levels_max) {
            Scanned::Incomplete { needed } => {
                incomplete = needed;
                break;
            }
            Scanned::Broken { head } => {
                rows.append((4, at, at + head))?;
                at = bytes.len();
                break;
            }
            Scanned::Whole { size, packet } => (size, packet),
        };
        rows.append(row(py, bytes, at, size, &packet)?)?;
        at += size;
        if version == Version::Unknown {
            break;
        }
    }
    Ok((rows, at, incomplete))
}

fn row<'py>(
    py: Python<'py>,
    bytes: &[u8],
    start: usize,
    size: usize,
    packet: &Packet<'_>,
) -> PyResult<Bound<'py, PyTuple>> {
    let end = start + size;
    match packet {
        Packet::Other => (0, start, end).into_pyobject(py),
        Packet::Publish(publish) => {
            let Publish { qos, is_retained, packet_id, .. } = *publish;
            // Behind the head of the packet and the length of the topic.
            let topic_start = publish.topic.as_ptr() as usize - bytes.as_ptr() as usize;
            let payload_start = end - publish.payload.len();
            (1, start, end, qos, is_retained, packet_id, topic_start, payload_start).into_pyobject(py)
        }
        Packet::Ack { kind, packet_id } => (2, start, end, *kind, *packet_id).into_pyobject(py),
        Packet::Ping => (3, start, end).into_pyobject(py),
    }
}
