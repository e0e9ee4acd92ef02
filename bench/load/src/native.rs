//! The native protocol (src/icestream/protocol/frame.py is its page; blocks: src/icestream/model/block.py).

use std::io::Write;
use std::net::TcpStream;

use crate::consuming::Reading;
use crate::input::Input;
use crate::msgpack;
use crate::options::Options;
use crate::party::connect;
use crate::positions::Positions;
use crate::publishing::Wire;
use crate::Failure;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const CALL: u8 = 3;
const RESULT: u8 = 4;
const ERROR: u8 = 5;
const PUBLISH: u8 = 16;
const PUBLISHED: u8 = 17;
const CREDIT: u8 = 18;
const DELIVER: u8 = 19;
const ACK: u8 = 20;
const GAP: u8 = 22;
const HEAD: usize = 16;
const PART: usize = 16;
const DONE: usize = 16;

fn frame(out: &mut Vec<u8>, kind: u8, number: u64, body: &[u8]) {
    out.extend_from_slice(&(12 + body.len() as u32).to_le_bytes());
    out.extend_from_slice(&[kind, 0, 0, 0]);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(body);
}

/// Kind and body of the first whole frame, and how long it is.
fn first(data: &[u8]) -> Option<(u8, &[u8], usize)> {
    if data.len() < HEAD {
        return None;
    }
    let size = 4 + u32::from_le_bytes(data[..4].try_into().unwrap()) as usize;
    if data.len() < size {
        return None;
    }
    Some((data[4], &data[HEAD..size], size))
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(data[at..at + 4].try_into().unwrap())
}

fn i64_at(data: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(data[at..at + 8].try_into().unwrap())
}

/// What the file of ICESTREAM_TOKEN_FILE holds, as for every client; empty without it.
fn token() -> Result<String, Failure> {
    match std::env::var("ICESTREAM_TOKEN_FILE") {
        Ok(path) => Ok(std::fs::read_to_string(path)?.trim().to_owned()),
        Err(_) => Ok(String::new()),
    }
}

fn open(address: &str) -> Result<TcpStream, Failure> {
    let mut stream = connect(address)?;
    let mut body = b"ICESTRM1".to_vec();
    let token = token()?;
    msgpack::map(&mut body, if token.is_empty() { 3 } else { 4 });
    if !token.is_empty() {
        msgpack::text(&mut body, "credential");
        msgpack::map(&mut body, 1);
        msgpack::text(&mut body, "token");
        msgpack::text(&mut body, &token);
    }
    msgpack::text(&mut body, "version");
    msgpack::number(&mut body, 1);
    msgpack::text(&mut body, "client");
    msgpack::text(&mut body, "icestream-load");
    msgpack::text(&mut body, "frame_bytes_max");
    msgpack::number(&mut body, 16 << 20);
    let mut out = Vec::new();
    frame(&mut out, HELLO, 1, &body);
    stream.write_all(&out)?;
    answer(&stream)?;
    Ok(stream)
}

/// The answer to the only question that is open.
fn answer(stream: &TcpStream) -> Result<Vec<u8>, Failure> {
    let mut input = Input::new(0);
    loop {
        input.fill(stream)?;
        let Some((kind, body, size)) = first(input.data()) else { continue };
        return match kind {
            WELCOME | RESULT if size == input.data().len() => Ok(body.to_vec()),
            ERROR => Err(String::from_utf8_lossy(body).into_owned().into()),
            _ => Err(format!("a frame of kind {kind} where one answer was due").into()),
        };
    }
}

fn call(stream: &mut TcpStream, method: &str, arguments: &[(&str, &str)]) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    msgpack::map(&mut body, 2);
    msgpack::text(&mut body, "method");
    msgpack::text(&mut body, method);
    msgpack::text(&mut body, "arguments");
    msgpack::map(&mut body, arguments.len() as u8);
    for (name, value) in arguments {
        msgpack::text(&mut body, name);
        msgpack::text(&mut body, value);
    }
    let mut out = Vec::new();
    frame(&mut out, CALL, 7, &body);
    stream.write_all(&out)?;
    answer(stream)
}

/// A numbered batch of `rows` messages with a payload each. Whose it is, and its first number, are set for each frame.
fn block(rows: usize, size: usize) -> Vec<u8> {
    let data = 4 * (rows + 1) + rows * size;
    let padded = data.next_multiple_of(8);
    let mut out = Vec::with_capacity(40 + padded);
    out.extend_from_slice(&(rows as u32).to_le_bytes());
    out.extend_from_slice(&((40 + padded) as u32).to_le_bytes());
    out.extend_from_slice(&[0; 12]); // producer and epoch
    out.extend_from_slice(&1u16.to_le_bytes());
    out.extend_from_slice(&0u16.to_le_bytes());
    out.extend_from_slice(&[0; 8]); // the first number
    out.extend_from_slice(&3u16.to_le_bytes()); // payload
    out.extend_from_slice(&[3, 0]); // variable
    out.extend_from_slice(&(data as u32).to_le_bytes());
    for row in 0..=rows {
        out.extend_from_slice(&((row * size) as u32).to_le_bytes());
    }
    out.resize(40 + 4 * (rows + 1) + rows * size, b'x');
    out.resize(40 + padded, 0);
    out
}

struct Producer {
    handle: u32,
    id: u64,
    epoch: u32,
    sequence: u64,
}

pub struct Publisher {
    stream: TcpStream,
    producers: Vec<Producer>,
    topics: usize,
    rows: usize,
    size: usize,
    parts: usize,
    number: u64,
    next: usize,     // which producer the next part is of
    answered: usize, // and the next answer
}

impl Publisher {
    pub fn open(address: &str, number: usize, options: &Options) -> Result<Self, Failure> {
        let mut stream = open(address)?;
        let mut producers = Vec::new();
        for handle in 0..options.handles {
            let topic = format!("/default/{}", options.topic_of(handle));
            let name = format!("load-{}-{number}-{handle}", std::process::id());
            let found = call(&mut stream, "open_producer", &[("topic", &topic), ("producer", &name)])?;
            let value = |key: &str| msgpack::find(&found, key);
            let (handle, epoch) = (value("handle")? as u32, value("producer_epoch")? as u32);
            producers.push(Producer { handle, id: value("producer_id")?, epoch, sequence: 0 });
        }
        let Options { topics, size, parts, .. } = *options;
        Ok(Publisher { stream, producers, topics, rows: options.rows(), size, parts, number: 0, next: 0, answered: 0 })
    }
}

impl Wire for Publisher {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn slots(&self) -> Vec<Vec<u8>> {
        let block = block(self.rows, self.size);
        let mut body = Vec::new();
        for _ in 0..self.parts {
            body.extend_from_slice(&[0; 8]); // handle, shard 0
            body.extend_from_slice(&(block.len() as u32).to_le_bytes());
            body.extend_from_slice(&0u32.to_le_bytes());
            body.extend_from_slice(&block);
        }
        let mut out = Vec::new();
        frame(&mut out, PUBLISH, 0, &body);
        vec![out]
    }

    fn stamp(&mut self, request: &mut [u8]) {
        self.number += 1;
        request[8..16].copy_from_slice(&self.number.to_le_bytes());
        let part_bytes = (request.len() - HEAD) / self.parts;
        for part in request[HEAD..].chunks_exact_mut(part_bytes) {
            let count = self.producers.len();
            let producer = &mut self.producers[self.next];
            self.next = (self.next + 1) % count;
            part[..4].copy_from_slice(&producer.handle.to_le_bytes());
            let block = &mut part[PART..];
            block[8..16].copy_from_slice(&producer.id.to_le_bytes());
            block[16..20].copy_from_slice(&producer.epoch.to_le_bytes());
            block[24..32].copy_from_slice(&producer.sequence.to_le_bytes());
            producer.sequence += self.rows as u64;
        }
    }

    fn answered(&mut self, data: &[u8], seen: &mut Positions, _: &mut Vec<u8>) -> Result<(usize, usize), Failure> {
        let (mut requests, mut at) = (0, 0);
        while let Some((kind, body, size)) = first(&data[at..]) {
            if kind != PUBLISHED || body.len() != self.parts * DONE {
                return Err(format!("a frame of kind {kind}: {}", String::from_utf8_lossy(body)).into());
            }
            for done in body.chunks_exact(DONE) {
                if done[..8] != [0; 8] {
                    return Err(format!("refused: {}", String::from_utf8_lossy(body)).into());
                }
                seen.add(self.answered % self.topics, i64_at(done, 8) as u64);
                self.answered = (self.answered + 1) % self.producers.len();
            }
            requests += 1;
            at += size;
        }
        Ok((requests, at))
    }
}

pub struct Consumer {
    stream: TcpStream,
    handle: u32,
    credit: u32, // in all
    used: u32,   // of it, since the last time that credit was given
    acks: bool,
    next: i64,
}

impl Consumer {
    pub fn open(address: &str, number: usize, options: &Options) -> Result<Self, Failure> {
        let mut stream = open(address)?;
        let topic = format!("/default/{}", options.topic);
        let name = match options.subscription.as_str() {
            "" => format!("load-{}-{number}", std::process::id()),
            given => format!("{given}-{number}"),
        };
        let asked = [("topic", topic.as_str()), ("subscription", &name), ("consumer", "c"), ("start", "earliest")];
        let handle = msgpack::find(&call(&mut stream, "subscribe", &asked)?, "handle")? as u32;
        let Options { credit, acks, .. } = *options;
        Ok(Consumer { stream, handle, credit, used: 0, acks, next: 0 })
    }

    fn give_credit(&self, messages: u32, out: &mut Vec<u8>) {
        frame(out, CREDIT, 0, &[self.handle.to_le_bytes(), messages.to_le_bytes()].concat());
    }

    /// Takes one delivery: which offsets it has.
    fn take(&mut self, body: &[u8]) -> Result<(i64, i64), Failure> {
        let start = i64_at(body, 16) + u32_at(body, 32) as i64;
        let end = start + u32_at(body, 36) as i64;
        if start != self.next {
            return Err(format!("offsets from {start} came, not from {}", self.next).into());
        }
        self.next = end;
        Ok((start, end))
    }
}

impl Reading for Consumer {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        self.give_credit(self.credit, out);
    }

    fn is_set_up(&self) -> bool {
        true
    }

    fn messages(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(u64, usize), Failure> {
        let (before, mut at) = (self.next, 0);
        let mut ack = None;
        while let Some((kind, body, size)) = first(&data[at..]) {
            if kind == DELIVER {
                let (start, end) = self.take(body)?;
                let head: [u8; 12] = body[..12].try_into().unwrap(); // consumer, shard, generation
                ack = Some((head, ack.map_or(start, |(_, start, _)| start), end));
            } else if kind == ERROR || kind == GAP {
                return Err(format!("a frame of kind {kind}: {}", String::from_utf8_lossy(body)).into());
            }
            at += size;
        }
        if let (Some((head, start, end)), true) = (ack, self.acks) {
            let range = [start.to_le_bytes(), end.to_le_bytes()].concat();
            frame(out, ACK, 0, &[&head[..], &[0; 4], &range].concat());
        }
        let messages = (self.next - before) as u64;
        self.used += messages as u32;
        if self.used >= self.credit / 4 {
            self.give_credit(self.used, out);
            self.used = 0;
        }
        Ok((messages, at))
    }
}
