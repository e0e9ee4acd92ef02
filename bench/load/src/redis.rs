//! Redis: one command per message, pipelined; or a list command with all messages of a batch.

use std::net::TcpStream;

use crate::options::Options;
use crate::party::connect;
use crate::poll::find_line;
use crate::positions::Positions;
use crate::publishing::Wire;
use crate::Failure;

#[derive(Clone, Copy, PartialEq)]
pub enum Command {
    Push,
    PushMany,
    Add,
}

pub struct Publisher {
    stream: TcpStream,
    command: Command,
    request: Vec<u8>,
    answers: usize, // of each request
    rows: u64,      // of each answer
    part: usize,    // answers of a request that have come
}

impl Publisher {
    pub fn open(address: &str, command: Command, options: &Options) -> Result<Self, Failure> {
        let payload = "x".repeat(options.size);
        let (answers, rows) = if command == Command::PushMany { (1, options.batch) } else { (options.batch, 1) };
        let mut words = match command {
            Command::Add => vec!["XADD", &options.topic, "*", "p"],
            _ => vec!["RPUSH", &options.topic],
        };
        words.extend(std::iter::repeat(payload.as_str()).take(rows));
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text.push_str(&format!("${}\r\n{}\r\n", word.len(), word));
        }
        let request = text.repeat(answers).into_bytes();
        Ok(Publisher { stream: connect(address)?, command, request, answers, rows: rows as u64, part: 0 })
    }

    /// One answer: where it ends, if all of it is there.
    fn answer(&self, data: &[u8], seen: &mut Positions) -> Result<Option<usize>, Failure> {
        let Some(end) = find_line(data) else { return Ok(None) };
        let line = std::str::from_utf8(&data[1..end - 2])?;
        match (data[0], self.command) {
            (b':', Command::Push | Command::PushMany) => {
                let length: u64 = line.parse()?;
                seen.add(0, length.checked_sub(self.rows).ok_or("a list that is too short")?);
                Ok(Some(end))
            }
            (b'$', Command::Add) => {
                let size: usize = line.parse()?;
                let Some(id) = data.get(end..end + size + 2) else { return Ok(None) };
                let text = std::str::from_utf8(&id[..size])?;
                let (time, number) = text.split_once('-').ok_or("not the id of an entry")?;
                seen.add_rising((time.parse()?, number.parse()?))?;
                Ok(Some(end + size + 2))
            }
            _ => Err(String::from_utf8_lossy(&data[..end]).into_owned().into()),
        }
    }
}

impl Wire for Publisher {
    fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn slots(&self) -> Vec<Vec<u8>> {
        vec![self.request.clone()]
    }

    fn stamp(&mut self, _: &mut [u8]) {}

    fn answered(&mut self, data: &[u8], seen: &mut Positions, _: &mut Vec<u8>) -> Result<(usize, usize), Failure> {
        let (mut requests, mut at) = (0, 0);
        while let Some(used) = self.answer(&data[at..], seen)? {
            at += used;
            self.part += 1;
            if self.part == self.answers {
                self.part = 0;
                requests += 1;
            }
        }
        Ok((requests, at))
    }
}
