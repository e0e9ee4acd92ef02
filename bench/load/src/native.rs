//! The native protocol (src/icestream/protocol/frame.py is its page; blocks: src/icestream/model/block.py).

use std::net::TcpStream;
use std::io::Write;

use crate::connection::{connect, Input, Reading, Wire};
use crate::msgpack;
use crate::options::Options;
use crate::Failure;

const HELLO: u8 = 1;
const CALL: u8 = 3;
const ERROR: u8 = 5;
const PUBLISH: u8 = 16;
const PUBLISHED: u8 = 17;
const CREDIT: u8 = 18;
const DELIVER: u8 = 19;
const ACK: u8 = 20;
const HEAD: usize = 16;

fn frame(out: &mut Vec<u8>, kind: u8, number: u64, body: &[u8]) {
    out.extend_from_slice(&(12 + body.len() as u32).to_le_bytes());
    out.extend_from_slice(&[kind, 0, 0, 0]);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(body);
}

/// Kind, number and body of the first whole frame, and how long it is.
fn first(data: &[u8]) -> Option<(u8, u64, &[u8], usize)> {
    if data.len() < HEAD {
        return None;
    }
    let size = 4 + u32::from_le_bytes(data[..4].try_into().unwrap()) as usize;
    if data.len() < size {
        return None;
    }
    Some((data[4], u64::from_le_bytes(data[8..16].try_into().unwrap()), &data[HEAD..size], size))
}

fn open(address: &str) -> Result<TcpStream, Failure> {
    let mut stream = connect(address)?;
    let mut body = b"ICESTRM1".to_vec();
    msgpack::map(&mut body, 3);
    msgpack::text(&mut body, "version");
    msgpack::number(&mut body, 1);
    msgpack::text(&mut body, "client");
    msgpack::text(&mut body, "icestream-load");
    msgpack::text(&mut body, "frame_bytes_max");
    msgpack::number(&mut body, 16 << 20);
    let mut out = Vec::new();
    frame(&mut out, HELLO, 1, &body);
    stream.write_all(&out)?;
    answer(&mut stream)?;
    Ok(stream)
}

fn answer(stream: &mut TcpStream) -> Result<Vec<u8>, Failure> {
    let mut input = Input::new();
    loop {
        input.fill(stream)?;
        if let Some((kind, _, body, _)) = first(input.data()) {
            return if kind == ERROR { Err(String::from_utf8_lossy(body).into_owned().into()) } else { Ok(body.to_vec()) };
        }
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

/// A numbered batch of `rows` messages with a payload each.
fn block(rows: usize, size: usize, producer: u64, epoch: u64) -> Vec<u8> {
    let data = 4 * (rows + 1) + rows * size;
    let padded = data.next_multiple_of(8);
    let mut out = Vec::with_capacity(40 + padded);
    out.extend_from_slice(&(rows as u32).to_le_bytes());
    out.extend_from_slice(&((40 + padded) as u32).to_le_bytes());
    out.extend_from_slice(&producer.to_le_bytes());
    out.extend_from_slice(&(epoch as u32).to_le_bytes());
    out.extend_from_slice(&1u16.to_le_bytes());
    out.extend_from_slice(&0u16.to_le_bytes());
    out.extend_from_slice(&0u64.to_le_bytes()); // the first number: set for each frame
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

const FIRST_SEQUENCE_AT: usize = 24;

struct Producer {
    handle: u32,
    block: Vec<u8>,
    sequence: u64,
}

pub struct Publisher {
    stream: TcpStream,
    producers: Vec<Producer>,
    rows: usize,
    next: usize,
    parts: usize, // of each frame
    number: u64,
}

impl Publisher {
    pub fn open(address: &str, number: usize, options: &Options) -> Result<Self, Failure> {
        let mut stream = open(address)?;
        let rows = if options.mixed { 1 } else { options.batch };
        let mut producers = Vec::new();
        for topic in 0..options.topics {
            let topic = format!("/default/{}", options.topic_of(topic));
            let name = format!("load-{}-{number}", std::process::id());
            let found = call(&mut stream, "open_producer", &[("topic", &topic), ("producer", &name)])?;
            let handle = msgpack::find(&found, "handle")? as u32;
            let (id, epoch) = (msgpack::find(&found, "producer_id")?, msgpack::find(&found, "producer_epoch")?);
            producers.push(Producer { handle, block: block(rows, options.size, id, epoch), sequence: 0 });
        }
        let parts = if options.mixed { options.batch } else { 1 };
        Ok(Publisher { stream, producers, rows, next: number, parts, number: 0 })
    }
}

impl Wire for Publisher {
    fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn request(&mut self, out: &mut Vec<u8>) {
        let part_bytes = 16 + self.producers[0].block.len();
        out.extend_from_slice(&((12 + self.parts * part_bytes) as u32).to_le_bytes());
        out.extend_from_slice(&[PUBLISH, 0, 0, 0]);
        self.number += 1;
        out.extend_from_slice(&self.number.to_le_bytes());
        for _ in 0..self.parts {
            let count = self.producers.len();
            let producer = &mut self.producers[self.next % count];
            self.next += 1;
            out.extend_from_slice(&producer.handle.to_le_bytes());
            out.extend_from_slice(&0u32.to_le_bytes());
            out.extend_from_slice(&(producer.block.len() as u32).to_le_bytes());
            out.extend_from_slice(&0u32.to_le_bytes());
            producer.block[FIRST_SEQUENCE_AT..FIRST_SEQUENCE_AT + 8].copy_from_slice(&producer.sequence.to_le_bytes());
            producer.sequence += self.rows as u64;
            out.extend_from_slice(&producer.block);
        }
    }

    fn answered(&mut self, data: &[u8]) -> Result<(usize, usize), Failure> {
        let (mut requests, mut at) = (0, 0);
        while let Some((kind, _, body, size)) = first(&data[at..]) {
            match kind {
                PUBLISHED if body.chunks(16).all(|part| part[..2] == [0, 0]) => requests += 1,
                PUBLISHED | ERROR => return Err(String::from_utf8_lossy(body).into_owned().into()),
                _ => {}
            }
            at += size;
        }
        Ok((requests, at))
    }
}

pub struct Consumer {
    stream: TcpStream,
    handle: u32,
    credit: u64,
}

const CREDIT_MESSAGES: u32 = 8_000;

impl Consumer {
    pub fn open(address: &str, number: usize, options: &Options) -> Result<Self, Failure> {
        let mut stream = open(address)?;
        let topic = format!("/default/{}", options.topic);
        let name = format!("load-{}-{number}", std::process::id());
        let asked = [("topic", topic.as_str()), ("subscription", &name), ("consumer", "c"), ("start", "earliest")];
        let handle = msgpack::find(&call(&mut stream, "subscribe", &asked)?, "handle")? as u32;
        let mut out = Vec::new();
        let body = [handle.to_le_bytes(), CREDIT_MESSAGES.to_le_bytes()].concat();
        frame(&mut out, CREDIT, 0, &body);
        stream.write_all(&out)?;
        Ok(Consumer { stream, handle, credit: 0 })
    }
}

impl Reading for Consumer {
    fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn messages(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(u64, usize), Failure> {
        let (mut messages, mut at) = (0, 0);
        while let Some((kind, _, body, size)) = first(&data[at..]) {
            if kind == DELIVER {
                let word = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap());
                let base = i64::from_le_bytes(body[16..24].try_into().unwrap());
                let (row, rows) = (word(32) as i64, word(36) as i64);
                let mut ack = Vec::with_capacity(32);
                ack.extend_from_slice(&body[..12]); // consumer, shard, generation
                ack.extend_from_slice(&0u32.to_le_bytes());
                ack.extend_from_slice(&(base + row).to_le_bytes());
                ack.extend_from_slice(&(base + row + rows).to_le_bytes());
                frame(out, ACK, 0, &ack);
                messages += rows as u64;
            } else if kind == ERROR {
                return Err(String::from_utf8_lossy(body).into_owned().into());
            }
            at += size;
        }
        self.credit += messages;
        if self.credit >= CREDIT_MESSAGES as u64 / 4 {
            let body = [self.handle.to_le_bytes(), (self.credit as u32).to_le_bytes()].concat();
            frame(out, CREDIT, 0, &body);
            self.credit = 0;
        }
        Ok((messages, at))
    }
}
