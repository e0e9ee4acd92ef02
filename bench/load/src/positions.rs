//! Where the servers say that they put the messages: each topic without a hole and without a double.

use crate::options::Options;
use crate::Failure;

/// What one connection was told.
#[derive(Default)]
pub struct Positions {
    firsts: Vec<(u32, u64)>, // topic, position of the first of `rows` messages
    rising: u64,             // answers whose position only has to rise: a Redis stream has no numbers without holes
    last: (u64, u64),
}

impl Positions {
    pub fn add(&mut self, topic: usize, first: u64) {
        self.firsts.push((topic as u32, first));
    }

    /// An answer without a position: the wire has checked its order.
    pub fn add_counted(&mut self) {
        self.rising += 1;
    }

    pub fn add_rising(&mut self, position: (u64, u64)) -> Result<(), Failure> {
        if position <= self.last {
            return Err(format!("position {position:?} after {:?}", self.last).into());
        }
        self.last = position;
        self.rising += 1;
        Ok(())
    }
}

/// How many messages are where they should be. `rows`: of each position.
pub fn check(seen: Vec<Positions>, options: &Options) -> Result<u64, Failure> {
    let rows = options.rows() as u64;
    let rising: u64 = seen.iter().map(|one| one.rising).sum();
    let mut all: Vec<(u32, u64)> = seen.into_iter().flat_map(|one| one.firsts).collect();
    all.sort_unstable();
    for pair in all.windows(2) {
        let ((topic, first), (next_topic, next)) = (pair[0], pair[1]);
        if topic == next_topic && next != first + rows {
            return Err(format!("topic {topic}: {rows} messages at {first}, the next ones at {next}").into());
        }
    }
    Ok(all.len() as u64 * rows + rising)
}
