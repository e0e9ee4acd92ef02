//! NATS JetStream: a publish with a reply subject per message, and a push consumer without acks.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::consuming::Reading;
use crate::options::Options;
use crate::party::connect;
use crate::poll::find_line;
use crate::positions::Positions;
use crate::publishing::Wire;
use crate::Failure;

const ANSWER: &[u8] = b"6"; // the subscription for answers of the JetStream API

fn open(address: &str) -> Result<TcpStream, Failure> {
    let mut stream = connect(address)?;
    let mut info = [0u8; 8192];
    let _ = stream.read(&mut info)?;
    stream.write_all(b"CONNECT {\"verbose\":false,\"pedantic\":false,\"name\":\"icestream-load\"}\r\nPING\r\n")?;
    let mut pong = [0u8; 64];
    let count = stream.read(&mut pong)?;
    if !pong[..count].starts_with(b"PONG") {
        return Err(String::from_utf8_lossy(&pong[..count]).into_owned().into());
    }
    Ok(stream)
}

/// A request to the JetStream API on a connection on which nothing else comes, and its answer.
fn ask(stream: &mut TcpStream, subject: &str, body: &str) -> Result<String, Failure> {
    let inbox = format!("_INBOX.load.{}.{}", std::process::id(), subject.len() * 31 + body.len());
    let text = format!("SUB {inbox} 1\r\nUNSUB 1 1\r\nPUB {subject} {inbox} {}\r\n{body}\r\n", body.len());
    stream.write_all(text.as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0u8; 8192];
    while !answer.windows(2).any(|pair| pair == b"}\r") {
        let count = stream.read(&mut buffer)?;
        answer.extend_from_slice(&buffer[..count]);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    if answer.contains("\"error\"") { Err(answer.into()) } else { Ok(answer) }
}

/// One message as it came.
struct Message<'a> {
    subscription: &'a [u8],
    reply: Option<&'a [u8]>,
    body: &'a [u8],
}

/// The first whole message or other line: what it is, and where it ends.
fn first<'a>(data: &'a [u8], out: &mut Vec<u8>) -> Result<Option<(Option<Message<'a>>, usize)>, Failure> {
    let Some(end) = find_line(data) else { return Ok(None) };
    let line = &data[..end.saturating_sub(2)];
    if line.starts_with(b"MSG ") {
        let mut words = line.split(|byte| *byte == b' ').skip(2);
        let subscription = words.next().ok_or("a message without a subscription")?;
        let (mut reply, mut size) = (None, words.next().ok_or("a message without a size")?);
        if let Some(last) = words.next() {
            (reply, size) = (Some(size), last);
        }
        let size: usize = std::str::from_utf8(size)?.parse()?;
        let Some(body) = data.get(end..end + size) else { return Ok(None) };
        if data.len() < end + size + 2 {
            return Ok(None);
        }
        return Ok(Some((Some(Message { subscription, reply, body }), end + size + 2)));
    }
    if line.starts_with(b"PING") {
        out.extend_from_slice(b"PONG\r\n");
    } else if line.starts_with(b"-ERR") || line.starts_with(b"HMSG") {
        return Err(String::from_utf8_lossy(line).into_owned().into());
    }
    Ok(Some((None, end)))
}

pub struct Publisher {
    stream: TcpStream,
    requests: Vec<Vec<u8>>,
    batch: usize,
    part: usize,
}

impl Publisher {
    pub fn open(address: &str, number: usize, options: &Options) -> Result<Self, Failure> {
        let mut stream = open(address)?;
        if number == 0 {
            let subjects = format!("{0}\",\"{0}-*", options.topic);
            let body = format!(
                "{{\"name\":\"{}\",\"subjects\":[\"{subjects}\"],\"storage\":\"file\",\"num_replicas\":1}}",
                options.topic
            );
            ask(&mut stream, &format!("$JS.API.STREAM.CREATE.{}", options.topic), &body)?;
        }
        let inbox = format!("_INBOX.acks.{}.{number}", std::process::id());
        stream.write_all(format!("SUB {inbox} 9\r\n").as_bytes())?;
        let payload = "x".repeat(options.size);
        let requests = (0..options.topics)
            .map(|topic| {
                let one = format!("PUB {} {inbox} {}\r\n{payload}\r\n", options.topic_of(topic), options.size);
                one.repeat(options.batch).into_bytes()
            })
            .collect();
        Ok(Publisher { stream, requests, batch: options.batch, part: 0 })
    }
}

impl Wire for Publisher {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn slots(&self) -> Vec<Vec<u8>> {
        self.requests.clone()
    }

    fn stamp(&mut self, _: &mut [u8]) {}

    fn answered(&mut self, data: &[u8], seen: &mut Positions, out: &mut Vec<u8>) -> Result<(usize, usize), Failure> {
        let (mut requests, mut at) = (0, 0);
        while let Some((message, used)) = first(&data[at..], out)? {
            at += used;
            if let Some(message) = message {
                seen.add(0, sequence_of(message.body)?);
                self.part += 1;
                if self.part == self.batch {
                    self.part = 0;
                    requests += 1;
                }
            }
        }
        Ok((requests, at))
    }
}

/// Of an ack: {"stream":"bench","seq":17}.
fn sequence_of(body: &[u8]) -> Result<u64, Failure> {
    let text = std::str::from_utf8(body)?;
    let start = text.find("\"seq\":").ok_or_else(|| format!("not an ack: {text}"))? + 6;
    let digits = text[start..].trim_start();
    let end = digits.find(|one: char| !one.is_ascii_digit()).unwrap_or(digits.len());
    Ok(digits[..end].parse()?)
}

pub struct Consumer {
    stream: TcpStream,
    stream_name: String,
    subject: String,
    size: usize,
    is_set_up: bool,
    next: u64,
}

impl Consumer {
    pub fn open(address: &str, number: usize, options: &Options) -> Result<Self, Failure> {
        let mut stream = open(address)?;
        let subject = format!("deliver.{}.{number}", std::process::id());
        stream.write_all(format!("SUB {subject} 5\r\nSUB {subject}.answer 6\r\n").as_bytes())?;
        let stream_name = options.topic.clone();
        Ok(Consumer { stream, stream_name, subject, size: options.size, is_set_up: false, next: 1 })
    }

    fn check(&mut self, message: &Message) -> Result<(), Failure> {
        let reply = message.reply.ok_or("a message without a position")?;
        let position = std::str::from_utf8(reply)?.split('.').nth(5).ok_or("not a position")?.parse::<u64>()?;
        if position != self.next || message.body.len() != self.size {
            return Err(format!("message {position} of {} B, not {}", message.body.len(), self.next).into());
        }
        self.next += 1;
        Ok(())
    }
}

impl Reading for Consumer {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        let (name, subject) = (&self.stream_name, &self.subject);
        let body = format!(
            "{{\"stream_name\":\"{name}\",\"config\":{{\"deliver_subject\":\"{subject}\",\
             \"deliver_policy\":\"all\",\"ack_policy\":\"none\"}}}}"
        );
        let text = format!("PUB $JS.API.CONSUMER.CREATE.{name} {subject}.answer {}\r\n{body}\r\n", body.len());
        out.extend_from_slice(text.as_bytes());
    }

    fn is_set_up(&self) -> bool {
        self.is_set_up
    }

    fn messages(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(u64, usize), Failure> {
        let (mut messages, mut at) = (0, 0);
        while let Some((message, used)) = first(&data[at..], out)? {
            at += used;
            match message {
                Some(answer) if answer.subscription == ANSWER => {
                    let text = String::from_utf8_lossy(answer.body);
                    if text.contains("\"error\"") {
                        return Err(text.into_owned().into());
                    }
                    self.is_set_up = true;
                }
                Some(message) => {
                    self.check(&message)?;
                    messages += 1;
                }
                None => {}
            }
        }
        Ok((messages, at))
    }
}
