//! The consensus core for several voters: the `raft` crate behind the interface of `icestream/metadata/core.py`. Bytes in,
//! bytes out; disk, network and clock belong to the driver, and so does the one thing that the crate leaves to chance, the
//! length of an election timeout (`set_election_timeout`).

mod core;
mod mirror;

pub use core::RaftCore;
