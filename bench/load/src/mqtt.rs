//! MQTT: publishers of QoS 0 and 1, and subscribers that ack what they get.
//!
//! The first 8 bytes of a payload are the number of its connection (u16) and of the message on it (u48), big endian: a
//! subscriber sees what is lost, doubled or out of order. PUBACKs must come in the order of the publishes (MQTT-4.6.0-2).
//!
//! 3.1.1 unless `version=5` asks for 5.0, whose servers bound the messages in flight (Receive Maximum), some to 20.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::consuming::Reading;
use crate::options::Options;
use crate::party::connect;
use crate::positions::Positions;
use crate::publishing::Wire;
use crate::Failure;

const CONNACK: u8 = 2;
const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const SUBACK: u8 = 9;
const DISCONNECT: u8 = 14;
const NUMBER_BYTES: usize = 8;
const EXPIRY_PROPERTY: u8 = 0x11;

fn text(out: &mut Vec<u8>, value: &str) {
    out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    out.extend_from_slice(value.as_bytes());
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut found = vec![first];
    let mut left = body.len();
    loop {
        let byte = (left & 0x7f) as u8;
        left >>= 7;
        if left == 0 {
            found.push(byte);
            break;
        }
        found.push(byte | 0x80);
    }
    found.extend_from_slice(body);
    found
}

/// `is_kept`: the session outlives the connection, and is resumed if it is there.
fn connect_packet(client_id: &str, version: u8, is_kept: bool) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, "MQTT");
    body.extend_from_slice(&[version, if is_kept { 0 } else { 2 }, 0, 0]);
    if version == 5 {
        if is_kept {
            body.extend_from_slice(&[5, EXPIRY_PROPERTY, 0xff, 0xff, 0xff, 0xff]);
        } else {
            body.push(0);
        }
    }
    text(&mut body, client_id);
    packet(0x10, &body)
}

/// The first whole packet: its first byte, its body, and where it ends.
fn first(data: &[u8]) -> Result<Option<(u8, &[u8], usize)>, Failure> {
    let Some(&head) = data.first() else { return Ok(None) };
    let (mut length, mut at) = (0usize, 1usize);
    for shift in [0, 7, 14, 21] {
        let Some(&byte) = data.get(at) else { return Ok(None) };
        at += 1;
        length |= ((byte & 0x7f) as usize) << shift;
        if byte < 0x80 {
            return Ok(data.get(at..at + length).map(|body| (head, body, at + length)));
        }
    }
    Err("a remaining length of more than four bytes".into())
}

fn check_connack(body: &[u8]) -> Result<(), Failure> {
    match body {
        [_, 0, ..] => Ok(()),
        _ => Err(format!("the server refuses the connection: {body:?}").into()),
    }
}

fn other(head: u8, body: &[u8]) -> Failure {
    if head >> 4 == DISCONNECT {
        format!("the server disconnects: {body:?}").into()
    } else {
        format!("a packet that nothing asked for: 0x{head:02x} {:?}", &body[..body.len().min(20)]).into()
    }
}

pub struct Publisher {
    stream: TcpStream,
    request: Vec<u8>,
    ids: Vec<usize>,      // where the packet ids of a request stand
    payloads: Vec<usize>, // where its payloads begin
    connection: u16,
    next_id: u16,
    next_acked: u16,
    next_number: u64,
    batch: usize,
    part: usize, // acks of a request that have come
    is_acked: bool,
}

impl Publisher {
    pub fn open(address: &str, number: usize, options: &Options) -> Result<Self, Failure> {
        let mut stream = connect(address)?;
        let id = format!("load-{}-{number}", std::process::id());
        stream.write_all(&connect_packet(&id, options.version, false))?;
        let mut answer = Vec::new();
        let mut buffer = [0u8; 1024];
        loop {
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return Err("the server closed the connection".into());
            }
            answer.extend_from_slice(&buffer[..count]);
            if let Some((head, body, _)) = first(&answer)? {
                if head >> 4 != CONNACK {
                    return Err(other(head, body));
                }
                check_connack(body)?;
                break;
            }
        }
        let (mut request, mut ids, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.batch {
            let mut body = Vec::new();
            text(&mut body, &options.topic_of(number));
            let id_at = body.len();
            if options.qos > 0 {
                body.extend_from_slice(&[0, 0]);
            }
            if options.version == 5 {
                body.push(0);
            }
            let payload_at = body.len();
            body.resize(payload_at + options.size.max(NUMBER_BYTES), b'x');
            let whole = packet(0x30 | options.qos << 1, &body);
            let start = request.len() + whole.len() - body.len();
            ids.push(start + id_at);
            payloads.push(start + payload_at);
            request.extend_from_slice(&whole);
        }
        Ok(Publisher {
            stream,
            request,
            ids,
            payloads,
            connection: number as u16,
            next_id: 1,
            next_acked: 1,
            next_number: 0,
            batch: options.batch,
            part: 0,
            is_acked: options.qos > 0,
        })
    }
}

/// Packet ids go round, without 0.
fn following(id: u16) -> u16 {
    if id == u16::MAX { 1 } else { id + 1 }
}

impl Wire for Publisher {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn slots(&self) -> Vec<Vec<u8>> {
        vec![self.request.clone()]
    }

    fn stamp(&mut self, request: &mut [u8]) {
        for (id, payload) in self.ids.iter().zip(&self.payloads) {
            if self.is_acked {
                request[*id..id + 2].copy_from_slice(&self.next_id.to_be_bytes());
                self.next_id = following(self.next_id);
            }
            let number = (self.connection as u64) << 48 | self.next_number;
            request[*payload..payload + NUMBER_BYTES].copy_from_slice(&number.to_be_bytes());
            self.next_number += 1;
        }
    }

    fn answered(&mut self, data: &[u8], seen: &mut Positions, _: &mut Vec<u8>) -> Result<(usize, usize), Failure> {
        let (mut requests, mut at) = (0, 0);
        while let Some((head, body, used)) = first(&data[at..])? {
            at += used;
            let [high, low, reason @ ..] = body else { return Err(other(head, body)) };
            if head >> 4 != PUBACK || reason.first().is_some_and(|code| *code >= 0x80) {
                return Err(other(head, body));
            }
            let id = u16::from_be_bytes([*high, *low]);
            if id != self.next_acked {
                return Err(format!("PUBACK of {id}, not of {}", self.next_acked).into());
            }
            self.next_acked = following(id);
            seen.add_counted();
            self.part += 1;
            if self.part == self.batch {
                self.part = 0;
                requests += 1;
            }
        }
        Ok((requests, at))
    }
}

pub struct Consumer {
    stream: TcpStream,
    greeting: Vec<u8>,
    is_v5: bool,
    is_set_up: bool,
    is_subscribed: bool, // by this connection; else the session must be there
    last: HashMap<u16, u64>,
}

impl Consumer {
    pub fn open(address: &str, number: usize, options: &Options) -> Result<Self, Failure> {
        let id = if options.session.is_empty() {
            format!("load-{}-consumer-{number}", std::process::id())
        } else {
            format!("{}-{number}", options.session)
        };
        let mut greeting = connect_packet(&id, options.version, !options.session.is_empty());
        if !options.is_resumed {
            let mut body = vec![0, 1];
            if options.version == 5 {
                body.push(0);
            }
            let filter = if options.topics == 1 { options.topic.clone() } else { format!("{}/#", options.topic) };
            text(&mut body, &filter);
            body.push(options.qos);
            greeting.extend_from_slice(&packet(0x82, &body));
        }
        Ok(Consumer {
            stream: connect(address)?,
            greeting,
            is_v5: options.version == 5,
            is_set_up: false,
            is_subscribed: !options.is_resumed,
            last: HashMap::new(),
        })
    }

    fn take(&mut self, head: u8, body: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let topic = u16::from_be_bytes([body[0], body[1]]) as usize;
        let mut at = 2 + topic;
        if head & 0x06 != 0 {
            out.extend_from_slice(&[0x40, 2, body[at], body[at + 1]]);
            at += 2;
        }
        if self.is_v5 {
            at += 1 + body[at] as usize; // fewer than 128 bytes of properties: nothing here sends more
        }
        let number = u64::from_be_bytes(body[at..at + NUMBER_BYTES].try_into()?);
        let (connection, number) = ((number >> 48) as u16, number & 0xffff_ffff_ffff);
        let expected = self.last.get(&connection).map_or(number, |last| last + 1);
        if number != expected {
            return Err(format!("message {number} of connection {connection}, not {expected}").into());
        }
        self.last.insert(connection, number);
        Ok(())
    }
}

impl Reading for Consumer {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.greeting);
    }

    fn is_set_up(&self) -> bool {
        self.is_set_up
    }

    fn messages(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(u64, usize), Failure> {
        let (mut messages, mut at) = (0, 0);
        while let Some((head, body, used)) = first(&data[at..])? {
            at += used;
            match head >> 4 {
                PUBLISH => {
                    self.take(head, body, out)?;
                    messages += 1;
                }
                CONNACK => {
                    check_connack(body)?;
                    if !self.is_subscribed {
                        if body[0] != 1 {
                            return Err("the session is gone".into());
                        }
                        self.is_set_up = true;
                    }
                }
                SUBACK if body.last().is_some_and(|code| *code < 0x80) => self.is_set_up = true,
                _ => return Err(other(head, body)),
            }
        }
        Ok((messages, at))
    }
}
