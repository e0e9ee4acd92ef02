//! A connection that keeps its window full, whatever protocol it speaks.
//!
//! Its requests lie one behind the other in one buffer, made before the clock starts. Request n is slot n % slots; there
//! are at least as many slots as requests in flight, so no slot is touched before its last answer came.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::input::Input;
use crate::options::Options;
use crate::party::Party;
use crate::positions::Positions;
use crate::Failure;

const LATENCIES_ROOM: u64 = 4_000_000;

pub trait Wire: Send {
    fn stream(&self) -> &TcpStream;
    /// The requests, but for what `stamp` sets.
    fn slots(&self) -> Vec<Vec<u8>>;
    /// Sets the numbers of the next request.
    fn stamp(&mut self, request: &mut [u8]);
    /// How many requests these bytes answer, and how many of the bytes that took. `out`: what to say in between.
    fn answered(&mut self, data: &[u8], seen: &mut Positions, out: &mut Vec<u8>) -> Result<(usize, usize), Failure>;
}

pub struct Publishing {
    wire: Box<dyn Wire>,
    buffer: Vec<u8>,
    starts: Vec<usize>, // of the slots, and the end of the last
    next_slot: usize,
    unsent: VecDeque<(usize, usize)>, // stretches of the buffer
    between: Vec<u8>,                 // goes out when no request is half sent
    in_flight: usize,
    limit: u64,
    until: Option<Instant>,
    sent: u64,
    done: u64,
    sent_at: VecDeque<Instant>,
    latencies_us: Vec<u32>,
    input: Input,
    seen: Positions,
}

impl Publishing {
    pub fn new(wire: Box<dyn Wire>, options: &Options) -> Result<Self, Failure> {
        wire.stream().set_nonblocking(true)?;
        let slots = wire.slots();
        let mut starts = vec![0];
        let mut buffer = Vec::new();
        while starts.len() <= options.in_flight.max(slots.len()) {
            buffer.extend_from_slice(&slots[(starts.len() - 1) % slots.len()]);
            starts.push(buffer.len());
        }
        Ok(Publishing {
            wire,
            buffer,
            starts,
            next_slot: 0,
            unsent: VecDeque::new(),
            between: Vec::new(),
            in_flight: options.in_flight,
            limit: 0,
            until: None,
            sent: 0,
            done: 0,
            sent_at: VecDeque::with_capacity(options.in_flight),
            latencies_us: Vec::new(),
            input: Input::new(1 << 18),
            seen: Positions::default(),
        })
    }

    /// So many requests, or until then; counted from here.
    pub fn begin(&mut self, limit: u64, until: Option<Instant>) {
        (self.sent, self.done) = (0, 0);
        (self.limit, self.until) = (limit, until);
        self.latencies_us.clear();
        self.latencies_us.reserve(limit.min(LATENCIES_ROOM) as usize);
    }

    /// Its share of what the options ask for. Time counts from here: right before the start.
    pub fn plan(&mut self, options: &Options) {
        let per_request = (options.connections * options.batch) as u64;
        let limit = if options.messages == 0 { u64::MAX } else { options.messages.div_ceil(per_request) };
        let until = (options.seconds > 0.0).then(|| Instant::now() + Duration::from_secs_f64(options.seconds));
        self.begin(limit, until);
    }

    pub fn planned(&self) -> u64 {
        self.limit
    }

    pub fn answered(&self) -> u64 {
        self.done
    }

    pub fn end(self) -> (Vec<u32>, Positions) {
        (self.latencies_us, self.seen)
    }

    fn take_answers(&mut self) -> Result<(), Failure> {
        self.input.fill(self.wire.stream())?;
        let (count, used) = self.wire.answered(self.input.data(), &mut self.seen, &mut self.between)?;
        self.input.consume(used);
        let now = Instant::now();
        for _ in 0..count {
            let began = self.sent_at.pop_front().ok_or("more answers than requests")?;
            self.latencies_us.push((now - began).as_micros() as u32);
        }
        self.done += count as u64;
        Ok(())
    }

    fn make_requests(&mut self) {
        if self.sent >= self.limit || self.sent_at.len() >= self.in_flight {
            return;
        }
        let now = Instant::now();
        if self.until.is_some_and(|until| now >= until) {
            self.limit = self.sent;
        }
        while self.sent < self.limit && self.sent_at.len() < self.in_flight {
            let (start, end) = (self.starts[self.next_slot], self.starts[self.next_slot + 1]);
            self.wire.stamp(&mut self.buffer[start..end]);
            match self.unsent.back_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => self.unsent.push_back((start, end)),
            }
            self.next_slot = (self.next_slot + 1) % (self.starts.len() - 1);
            self.sent_at.push_back(now);
            self.sent += 1;
        }
    }

    fn send(&mut self) -> Result<(), Failure> {
        let mut stream = self.wire.stream();
        while let Some(&(start, end)) = self.unsent.front() {
            match stream.write(&self.buffer[start..end]) {
                Ok(count) if start + count == end => drop(self.unsent.pop_front()),
                Ok(count) => self.unsent[0].0 += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        if !self.between.is_empty() {
            match stream.write(&self.between) {
                Ok(count) => drop(self.between.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Party for Publishing {
    fn stream(&self) -> &TcpStream {
        self.wire.stream()
    }

    fn turn(&mut self, readable: bool) -> Result<(), Failure> {
        if readable {
            self.take_answers()?;
        }
        self.make_requests();
        self.send()
    }

    fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || !self.between.is_empty()
    }

    fn is_done(&self) -> bool {
        self.done >= self.limit && !self.has_unsent()
    }
}
