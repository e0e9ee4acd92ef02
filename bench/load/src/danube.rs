//! A client of Danube's protocol: messages that are sent, delivered and acked, `in_flight` of them at once.
//!
//! Each connection has a producer, an exclusive consumer and a topic of its own: unary SendMessage calls, one stream of
//! ReceiveMessages, and a unary Ack for each message when it comes. The next message is sent when one is acked, so no
//! backlog forms, of which Danube would skip what is beyond 256 messages.
//!
//! A message has its number in the first bytes of its payload, and must come once. Calls that are under way together may
//! be stored in any order, so the order is that of the offsets which the server gave: they must follow each other, and
//! each that does not is counted. A run ends when every message has been acked, but for those that were skipped.

use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::http2::{message, Http2};
use crate::input::Input;
use crate::options::Options;
use crate::party::{connect, Party};
use crate::Failure;

const CREATE_PRODUCER: &str = "/danube.ProducerService/CreateProducer";
const SEND_MESSAGE: &str = "/danube.ProducerService/SendMessage";
const SUBSCRIBE: &str = "/danube.ConsumerService/Subscribe";
const RECEIVE_MESSAGES: &str = "/danube.ConsumerService/ReceiveMessages";
const ACK: &str = "/danube.ConsumerService/Ack";
const SUBSCRIPTION: &[u8] = b"s";
const RELIABLE: u64 = 1;
const NUMBER_BYTES: usize = 8;
/// A cluster of Danube refuses a producer until the topic that it makes has its place; clients try again.
const CREATE_PAUSE: Duration = Duration::from_millis(100);
const CREATE_ATTEMPTS: usize = 100;

enum Call {
    Send,
    Ack(Instant), // when its message was sent
}

pub struct RoundTrips {
    stream: TcpStream,
    http2: Http2,
    received: u32, // the number of the stream of messages
    request: Vec<u8>,
    number_at: usize, // of the message's number, in `request`
    ack: Vec<u8>,
    in_flight: usize,
    limit: u64,
    until: Option<Instant>,
    sent: u64,
    number: u64,                    // of the next message
    sent_at: HashMap<u64, Instant>, // by their numbers: messages that have not come yet
    skipped: usize,                 // of them, by the offsets that have come
    next_offset: Option<u64>,
    arrived: u64,
    calls: HashMap<u32, Call>,
    open_acks: usize,
    acked: u64,
    disordered: u64,
    latencies_us: Vec<u32>,
    input: Input,
    pending: Vec<u8>, // of a message that has not come whole
    unsent: Vec<u8>,
}

impl RoundTrips {
    /// Returns a connection whose consumer has got its first message.
    pub fn open(address: &str, number: usize, options: &Options) -> Result<Self, Failure> {
        if options.size < NUMBER_BYTES {
            return Err(format!("a message has at least {NUMBER_BYTES} bytes").into());
        }
        let mut unsent = Vec::new();
        let http2 = Http2::new(address, &mut unsent);
        let mut found = RoundTrips {
            stream: connect(address)?,
            http2,
            received: 0,
            request: Vec::new(),
            number_at: 0,
            ack: Vec::new(),
            in_flight: options.in_flight,
            limit: 0,
            until: None,
            sent: 0,
            number: 0,
            sent_at: HashMap::new(),
            skipped: 0,
            next_offset: None,
            arrived: 0,
            calls: HashMap::new(),
            open_acks: 0,
            acked: 0,
            disordered: 0,
            latencies_us: Vec::new(),
            input: Input::new(1 << 18),
            pending: Vec::new(),
            unsent,
        };
        found.prepare(address, &format!("/default/{}-{number}", options.topic), options.size)?;
        found.begin(1, None);
        found.turn(false)?;
        while !found.is_done() {
            found.turn(true)?; // waits: the socket still blocks
        }
        found.stream.set_nonblocking(true)?;
        Ok(found)
    }

    fn prepare(&mut self, address: &str, topic: &str, size: usize) -> Result<(), Failure> {
        let mut asked = Vec::new();
        number(&mut asked, 1, 1);
        bytes(&mut asked, 2, b"p");
        bytes(&mut asked, 3, topic.as_bytes());
        number(&mut asked, 6, RELIABLE);
        let producer = number_of(&self.create(&asked)?, 2)?;
        asked.clear();
        number(&mut asked, 1, 2);
        bytes(&mut asked, 2, topic.as_bytes());
        bytes(&mut asked, 3, b"c");
        bytes(&mut asked, 4, SUBSCRIPTION);
        let consumer = number_of(&self.answer(SUBSCRIBE, &asked)?.ok_or("the subscription was refused")?, 2)?;
        asked.clear();
        number(&mut asked, 1, 3);
        number(&mut asked, 2, consumer);
        self.received = self.http2.call(RECEIVE_MESSAGES, &asked, &mut self.unsent)?;
        self.http2.follow(self.received);
        let mut place = Vec::new();
        number(&mut place, 1, producer);
        bytes(&mut place, 2, topic.as_bytes());
        bytes(&mut place, 3, address.as_bytes());
        number(&mut self.request, 1, 7);
        bytes(&mut self.request, 2, &place);
        bytes(&mut self.request, 3, &vec![b'x'; size]);
        self.number_at = self.request.len() - size;
        number(&mut self.request, 4, 1_790_000_000_000);
        bytes(&mut self.request, 5, b"p");
        Ok(())
    }

    fn create(&mut self, asked: &[u8]) -> Result<Vec<u8>, Failure> {
        for _ in 0..CREATE_ATTEMPTS {
            if let Some(found) = self.answer(CREATE_PRODUCER, asked)? {
                return Ok(found);
            }
            thread::sleep(CREATE_PAUSE);
        }
        Err("no producer can be made".into())
    }

    /// One call, while nothing else is under way. None: it was refused.
    fn answer(&mut self, path: &str, asked: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let stream = self.http2.call(path, asked, &mut self.unsent)?;
        self.stream.write_all(&std::mem::take(&mut self.unsent))?;
        let mut found = Vec::new();
        loop {
            while let Some((came, size)) = self.http2.first(self.input.data(), &mut self.unsent)? {
                let came = came.map(|came| (came.stream, came.data.to_vec(), came.is_over));
                self.input.consume(size);
                let Some((of, data, is_over)) = came else { continue };
                if of == stream {
                    found.extend_from_slice(&data);
                    if is_over {
                        return Ok(message(&found).map(|(answer, _)| answer.to_vec()));
                    }
                }
            }
            self.input.fill(&self.stream)?;
        }
    }

    /// So many messages, or until then; counted from here.
    pub fn begin(&mut self, limit: u64, until: Option<Instant>) {
        (self.sent, self.acked, self.limit, self.until) = (0, 0, limit, until);
        self.latencies_us.clear();
    }

    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// How many messages have come since the connection was opened.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// How often an offset did not follow the one before it.
    pub fn disordered(&self) -> u64 {
        self.disordered
    }

    /// From each send to the answer of the ack.
    pub fn latencies_us(self) -> Vec<u32> {
        self.latencies_us
    }

    fn take(&mut self) -> Result<(), Failure> {
        self.input.fill(&self.stream)?;
        let input = std::mem::take(&mut self.input);
        let (data, mut at) = (input.data(), 0);
        while let Some((came, size)) = self.http2.first(&data[at..], &mut self.unsent)? {
            at += size;
            let Some(came) = came else { continue };
            if came.stream != self.received {
                self.take_answer(came.stream, came.data, came.is_over)?;
            } else if came.is_over {
                return Err("the stream of messages ended".into());
            } else {
                self.take_messages(came.data)?;
            }
        }
        self.input = input;
        self.input.consume(at);
        Ok(())
    }

    fn take_answer(&mut self, stream: u32, data: &[u8], is_over: bool) -> Result<(), Failure> {
        if !data.is_empty() {
            if let Some(Call::Ack(sent_at)) = self.calls.remove(&stream) {
                self.latencies_us.push(sent_at.elapsed().as_micros() as u32);
                self.open_acks -= 1;
                self.acked += 1;
            }
        } else if is_over && self.calls.contains_key(&stream) {
            return Err("a call was refused".into());
        }
        Ok(())
    }

    fn take_messages(&mut self, data: &[u8]) -> Result<(), Failure> {
        if self.pending.is_empty() {
            let used = self.ack_whole(data)?;
            self.pending.extend_from_slice(&data[used..]);
        } else {
            let mut pending = std::mem::take(&mut self.pending);
            pending.extend_from_slice(data);
            let used = self.ack_whole(&pending)?;
            pending.drain(..used);
            self.pending = pending;
        }
        Ok(())
    }

    /// Acks every message that is whole; returns how many bytes they have.
    fn ack_whole(&mut self, data: &[u8]) -> Result<usize, Failure> {
        let mut at = 0;
        while let Some((delivered, size)) = message(&data[at..]) {
            let place = field(delivered, 2)?.ok_or("a message without its place")?;
            let payload = field(delivered, 3)?.ok_or("a message without a payload")?;
            let came = u64::from_le_bytes(*payload.first_chunk().ok_or("a payload without its number")?);
            self.ack.clear();
            number(&mut self.ack, 1, 9);
            bytes(&mut self.ack, 2, place);
            bytes(&mut self.ack, 3, SUBSCRIPTION);
            let stream = self.http2.call(ACK, &self.ack, &mut self.unsent)?;
            self.take_offset(number_of(place, 5)?);
            if let Some(sent_at) = self.sent_at.remove(&came) {
                self.arrived += 1;
                self.calls.insert(stream, Call::Ack(sent_at));
                self.open_acks += 1;
            }
            at += size;
        }
        Ok(at)
    }

    fn take_offset(&mut self, offset: u64) {
        let expected = self.next_offset.unwrap_or(offset);
        if offset < expected {
            self.disordered += 1;
            self.skipped = self.skipped.saturating_sub(1); // it came late, or a second time
            return;
        }
        if offset > expected {
            self.disordered += 1;
            self.skipped += (offset - expected) as usize;
        }
        self.next_offset = Some(offset + 1);
    }

    /// Messages that were sent and have not been acked.
    fn open_count(&self) -> usize {
        (self.sent_at.len() + self.open_acks).saturating_sub(self.skipped)
    }

    fn make_requests(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if self.until.is_some_and(|until| now >= until) {
            self.limit = self.sent;
        }
        while self.sent < self.limit
            && self.open_count() < self.in_flight
            && self.http2.has_window(2 * self.request.len())
        {
            self.request[self.number_at..self.number_at + NUMBER_BYTES].copy_from_slice(&self.number.to_le_bytes());
            let stream = self.http2.call(SEND_MESSAGE, &self.request, &mut self.unsent)?;
            self.calls.insert(stream, Call::Send);
            self.sent_at.insert(self.number, now);
            self.number += 1;
            self.sent += 1;
        }
        Ok(())
    }
}

impl Party for RoundTrips {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn turn(&mut self, readable: bool) -> Result<(), Failure> {
        if readable {
            self.take()?;
        }
        self.make_requests()?;
        if !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn is_done(&self) -> bool {
        self.sent >= self.limit && self.open_count() == 0 && self.calls.is_empty() && self.unsent.is_empty()
    }
}

// --- protobuf ---------------------------------------------------------------------------------------------------------

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(field << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn read_varint(data: &[u8], at: &mut usize) -> Result<u64, Failure> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *data.get(*at).ok_or("a number is cut off")?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("a number is too long".into())
}

/// Calls `take` with the number of each field, and its number or its bytes.
fn fields<'a>(data: &'a [u8], mut take: impl FnMut(u64, u64, &'a [u8])) -> Result<(), Failure> {
    let mut at = 0;
    while at < data.len() {
        let tag = read_varint(data, &mut at)?;
        let value = read_varint(data, &mut at)?;
        match tag & 7 {
            0 => take(tag >> 3, value, &[]),
            2 => {
                let end = at.checked_add(value as usize).ok_or("a field is too long")?;
                take(tag >> 3, 0, data.get(at..end).ok_or("a field is cut off")?);
                at = end;
            }
            kind => return Err(format!("a field of wire type {kind}").into()),
        }
    }
    Ok(())
}

fn field(data: &[u8], wanted: u64) -> Result<Option<&[u8]>, Failure> {
    let mut found = None;
    fields(data, |field, _, content| {
        if field == wanted {
            found = Some(content);
        }
    })?;
    Ok(found)
}

fn number_of(data: &[u8], wanted: u64) -> Result<u64, Failure> {
    let mut found = 0;
    fields(data, |field, value, _| {
        if field == wanted {
            found = value;
        }
    })?;
    Ok(found)
}
