//! A connection that keeps its window full, whatever protocol it speaks.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::Failure;

pub trait Wire {
    fn stream(&mut self) -> &mut TcpStream;
    /// Adds the next request to what is sent.
    fn request(&mut self, out: &mut Vec<u8>);
    /// How many requests these bytes answer, and how many of the bytes that took.
    fn answered(&mut self, data: &[u8]) -> Result<(usize, usize), Failure>;
}

pub trait Reading {
    fn stream(&mut self) -> &mut TcpStream;
    /// How many messages these bytes hold, how many bytes that took, and what to say in return.
    fn messages(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(u64, usize), Failure>;
}

pub fn connect(address: &str) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

/// Sends all requests; how long each waited for its answer, in microseconds.
pub fn pump(wire: &mut dyn Wire, options: &Options) -> Result<Vec<u32>, Failure> {
    let requests = options.requests();
    let mut latencies = Vec::with_capacity(requests.min(10_000_000) as usize);
    let mut sent_at: VecDeque<Instant> = VecDeque::with_capacity(options.in_flight);
    let mut input = Input::new();
    let mut out = Vec::new();
    let (mut sent, mut done) = (0u64, 0u64);
    while done < requests {
        out.clear();
        let now = Instant::now();
        while sent < requests && sent_at.len() < options.in_flight {
            wire.request(&mut out);
            sent_at.push_back(now);
            sent += 1;
        }
        wire.stream().write_all(&out)?;
        let mut answered = 0;
        while answered == 0 {
            input.fill(wire.stream())?;
            let (count, used) = wire.answered(input.data())?;
            input.consume(used);
            answered = count;
        }
        let now = Instant::now();
        for _ in 0..answered {
            let began = sent_at.pop_front().ok_or("more answers than requests")?;
            latencies.push((now - began).as_micros() as u32);
        }
        done += answered as u64;
    }
    Ok(latencies)
}

/// Reads until so many messages have come.
pub fn drain(reading: &mut dyn Reading, messages: u64) -> Result<u64, Failure> {
    let mut input = Input::new();
    let mut out = Vec::new();
    let mut seen = 0;
    while seen < messages {
        input.fill(reading.stream())?;
        out.clear();
        let (count, used) = reading.messages(input.data(), &mut out)?;
        input.consume(used);
        seen += count;
        if !out.is_empty() {
            reading.stream().write_all(&out)?;
        }
    }
    Ok(seen)
}

/// Bytes that were read and not used yet.
pub struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    pub fn new() -> Self {
        Input { buffer: vec![0; 1 << 20], start: 0, end: 0 }
    }

    pub fn data(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    pub fn fill(&mut self, stream: &mut TcpStream) -> Result<(), Failure> {
        if self.buffer.len() - self.end < 1 << 16 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.buffer.len() - self.end < 1 << 16 {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        let count = stream.read(&mut self.buffer[self.end..])?;
        if count == 0 {
            return Err("the server closed the connection".into());
        }
        self.end += count;
        Ok(())
    }
}
