//! The loop: every connection takes its turn when its socket is ready. The same for every server.

use std::net::TcpStream;
use std::os::fd::AsRawFd;

use crate::poll::{Poll, READABLE, WRITABLE};
use crate::Failure;

const SILENCE_MS: i32 = 60_000;

pub trait Party {
    fn stream(&self) -> &TcpStream;
    /// Reads if there is something, and sends what it can without waiting.
    fn turn(&mut self, readable: bool) -> Result<(), Failure>;
    fn has_unsent(&self) -> bool;
    fn is_done(&self) -> bool;
}

pub fn connect(address: &str) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60)))?;
    Ok(stream)
}

/// Until all are done.
pub fn run<P: Party>(parties: &mut [P]) -> Result<(), Failure> {
    let mut poll = Poll::new(parties.len())?;
    let mut watched = vec![true; parties.len()];
    let mut writes = vec![false; parties.len()];
    let mut left = parties.len();
    for (number, one) in parties.iter().enumerate() {
        poll.add(one.stream().as_raw_fd(), number)?;
    }
    let mut ready: Vec<(usize, u32)> = (0..parties.len()).map(|number| (number, 0)).collect();
    loop {
        for &(number, events) in &ready {
            let one = &mut parties[number];
            if !watched[number] {
                continue;
            }
            one.turn(events & !WRITABLE != 0)?;
            let fd = one.stream().as_raw_fd();
            if one.is_done() {
                poll.remove(fd)?;
                watched[number] = false;
                left -= 1;
            } else if one.has_unsent() != writes[number] {
                writes[number] = !writes[number];
                poll.change(fd, number, if writes[number] { READABLE | WRITABLE } else { READABLE })?;
            }
        }
        if left == 0 {
            return Ok(());
        }
        poll.wait(SILENCE_MS, &mut ready)?;
        if ready.is_empty() {
            return Err(format!("nothing came for {} s", SILENCE_MS / 1000).into());
        }
    }
}
