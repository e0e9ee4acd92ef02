//! NATS JetStream: a publish with a reply subject per message, and a push consumer without acks.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::connection::{connect, Reading, Wire};
use crate::options::Options;
use crate::redis::find_line;
use crate::Failure;

fn open(address: &str) -> Result<TcpStream, Failure> {
    let mut stream = connect(address)?;
    let mut info = [0u8; 4096];
    let _ = stream.read(&mut info)?;
    stream.write_all(b"CONNECT {\"verbose\":false,\"pedantic\":false,\"name\":\"icestream-load\"}\r\nPING\r\n")?;
    let mut pong = [0u8; 64];
    let count = stream.read(&mut pong)?;
    if !pong[..count].starts_with(b"PONG") {
        return Err(String::from_utf8_lossy(&pong[..count]).into_owned().into());
    }
    Ok(stream)
}

/// A request to the JetStream API, and its answer.
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

pub struct Publisher {
    stream: TcpStream,
    requests: Vec<Vec<u8>>,
    next: usize,
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
            let _ = ask(&mut stream, &format!("$JS.API.STREAM.CREATE.{}", options.topic), &body);
        }
        let inbox = format!("_INBOX.acks.{}.{number}", std::process::id());
        stream.write_all(format!("SUB {inbox} 9\r\n").as_bytes())?;
        let payload = "x".repeat(options.size);
        let requests = (0..options.topics)
            .map(|topic| format!("PUB {} {inbox} {}\r\n{payload}\r\n", options.topic_of(topic), options.size).into_bytes())
            .collect();
        Ok(Publisher { stream, requests, next: 0, batch: options.batch, part: 0 })
    }
}

impl Wire for Publisher {
    fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn request(&mut self, out: &mut Vec<u8>) {
        for _ in 0..self.batch {
            out.extend_from_slice(&self.requests[self.next % self.requests.len()]);
        }
        self.next += 1;
    }

    fn answered(&mut self, data: &[u8]) -> Result<(usize, usize), Failure> {
        let (messages, used) = count_messages(data, &mut self.stream)?;
        self.part += messages as usize;
        let requests = self.part / self.batch;
        self.part %= self.batch;
        Ok((requests, used))
    }
}

/// Whole messages in these bytes, and how many bytes they take.
fn count_messages(data: &[u8], stream: &mut TcpStream) -> Result<(u64, usize), Failure> {
    let (mut messages, mut at) = (0, 0);
    while let Some(end) = find_line(&data[at..]) {
        let line = &data[at..at + end - 2];
        if line.starts_with(b"MSG ") || line.starts_with(b"HMSG ") {
            let start = line.iter().rposition(|byte| *byte == b' ').ok_or("a message without a size")? + 1;
            let size: usize = std::str::from_utf8(&line[start..])?.parse()?;
            if at + end + size + 2 > data.len() {
                break;
            }
            at += end + size + 2;
            messages += 1;
        } else if line.starts_with(b"PING") {
            stream.write_all(b"PONG\r\n")?;
            at += end;
        } else if line.starts_with(b"-ERR") {
            return Err(String::from_utf8_lossy(line).into_owned().into());
        } else {
            at += end;
        }
    }
    Ok((messages, at))
}

pub struct Consumer {
    stream: TcpStream,
}

impl Consumer {
    pub fn open(address: &str, number: usize, options: &Options) -> Result<Self, Failure> {
        let mut stream = open(address)?;
        let subject = format!("deliver.{}.{number}", std::process::id());
        stream.write_all(format!("SUB {subject} 5\r\n").as_bytes())?;
        let body = format!(
            "{{\"stream_name\":\"{}\",\"config\":{{\"deliver_subject\":\"{subject}\",\"deliver_policy\":\"all\",\"ack_policy\":\"none\"}}}}",
            options.topic
        );
        let text = format!("PUB $JS.API.CONSUMER.CREATE.{} _INBOX.none {}\r\n{body}\r\n", options.topic, body.len());
        stream.write_all(text.as_bytes())?;
        Ok(Consumer { stream })
    }
}

impl Reading for Consumer {
    fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn messages(&mut self, data: &[u8], _: &mut Vec<u8>) -> Result<(u64, usize), Failure> {
        count_messages(data, &mut self.stream)
    }
}
