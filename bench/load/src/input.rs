//! Bytes that were read and not used yet.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;

use crate::Failure;

const ROOM: usize = 1 << 16;

#[derive(Default)]
pub struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    pub fn new(size: usize) -> Self {
        Input { buffer: vec![0; size.max(ROOM)], start: 0, end: 0 }
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

    /// One read. Nothing happens where nothing is there.
    pub fn fill(&mut self, mut stream: &TcpStream) -> Result<(), Failure> {
        if self.buffer.len() - self.end < ROOM {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.buffer.len() - self.end < ROOM {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        match stream.read(&mut self.buffer[self.end..]) {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(count) => {
                self.end += count;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
