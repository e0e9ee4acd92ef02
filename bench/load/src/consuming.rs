//! A connection that takes messages until it has seen enough of them.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::input::Input;
use crate::options::Options;
use crate::party::Party;
use crate::Failure;

pub trait Reading: Send {
    fn stream(&self) -> &TcpStream;
    /// What makes the messages flow.
    fn begin(&mut self, out: &mut Vec<u8>);
    /// Whether the server has confirmed that, where it does.
    fn is_set_up(&self) -> bool;
    /// How many messages these bytes hold, how many bytes that took, and what to say in return.
    fn messages(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(u64, usize), Failure>;
}

pub struct Consuming {
    reading: Box<dyn Reading>,
    pace: Duration,
    has_begun: bool,
    wanted: u64,
    seen: u64,
    input: Input,
    unsent: Vec<u8>,
    began: Instant,
    first: Option<Duration>, // how long the first message took
}

impl Consuming {
    pub fn new(reading: Box<dyn Reading>, options: &Options) -> Result<Self, Failure> {
        reading.stream().set_nonblocking(true)?;
        let pace = Duration::from_millis(options.pace_ms);
        let room = if options.pace_ms > 0 { 1 << 16 } else { 1 << 20 };
        let input = Input::new(room);
        Ok(Consuming { reading, pace, has_begun: false, wanted: 0, seen: 0, input, unsent: Vec::new(), began: Instant::now(), first: None })
    }

    /// Until it has seen so many; 0: until it is set up.
    pub fn begin(&mut self, wanted: u64) {
        self.wanted = wanted;
        self.began = Instant::now();
        if !self.has_begun {
            self.has_begun = true;
            self.reading.begin(&mut self.unsent);
        }
    }

    pub fn seen(&self) -> u64 {
        self.seen
    }

    pub fn first_us(&self) -> Option<u64> {
        self.first.map(|waited| waited.as_micros() as u64)
    }
}

impl Party for Consuming {
    fn stream(&self) -> &TcpStream {
        self.reading.stream()
    }

    fn turn(&mut self, readable: bool) -> Result<(), Failure> {
        if readable {
            self.input.fill(self.reading.stream())?;
            let (count, used) = self.reading.messages(self.input.data(), &mut self.unsent)?;
            self.input.consume(used);
            self.seen += count;
            if count > 0 && self.first.is_none() {
                self.first = Some(self.began.elapsed());
            }
        }
        if !self.unsent.is_empty() {
            match self.reading.stream().write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !self.pace.is_zero() {
            thread::sleep(self.pace);
        }
        Ok(())
    }

    fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn is_done(&self) -> bool {
        self.seen >= self.wanted && self.reading.is_set_up() && self.unsent.is_empty()
    }
}
