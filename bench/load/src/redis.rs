//! Redis: one command per message, pipelined.

use std::net::TcpStream;

use crate::connection::{connect, Wire};
use crate::options::Options;
use crate::Failure;

pub struct Publisher {
    stream: TcpStream,
    command: Vec<u8>,
    batch: usize,
    part: usize, // answers of a batch that have come
}

impl Publisher {
    pub fn open(address: &str, command: &str, options: &Options) -> Result<Self, Failure> {
        let payload = "x".repeat(options.size);
        let words: Vec<&str> = match command {
            "RPUSH" => vec!["RPUSH", &options.topic, &payload],
            _ => vec!["XADD", &options.topic, "*", "p", &payload],
        };
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text.push_str(&format!("${}\r\n{}\r\n", word.len(), word));
        }
        Ok(Publisher { stream: connect(address)?, command: text.into_bytes(), batch: options.batch, part: 0 })
    }
}

impl Wire for Publisher {
    fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn request(&mut self, out: &mut Vec<u8>) {
        for _ in 0..self.batch {
            out.extend_from_slice(&self.command);
        }
    }

    fn answered(&mut self, data: &[u8]) -> Result<(usize, usize), Failure> {
        let (mut requests, mut at) = (0, 0);
        while let Some(end) = find_line(&data[at..]) {
            let used = match data[at] {
                b':' => end,
                b'$' => {
                    let size: usize = std::str::from_utf8(&data[at + 1..at + end - 2])?.parse()?;
                    end + size + 2
                }
                _ => return Err(String::from_utf8_lossy(&data[at..at + end]).into_owned().into()),
            };
            if at + used > data.len() {
                break;
            }
            at += used;
            self.part += 1;
            if self.part == self.batch {
                self.part = 0;
                requests += 1;
            }
        }
        Ok((requests, at))
    }
}

/// The length of the first line, its end included.
pub fn find_line(data: &[u8]) -> Option<usize> {
    data.iter().position(|byte| *byte == b'\n').map(|at| at + 1)
}
