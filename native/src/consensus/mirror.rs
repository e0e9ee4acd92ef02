//! The log as the crate reads it: a copy in memory of what the driver writes. The crate's own storage is for its tests: its
//! snapshots carry no data.
//!
//!     base      the entry before the first one here: that of the last compaction, or of the snapshot
//!     entries   base + 1, base + 2, …
//!     snapshot  the last one that was made or installed, for followers that are behind `base`

use prost::Message as _;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::storage::GetEntriesContext;
use raft::{Error, RaftState, Result, Storage, StorageError};
use std::collections::VecDeque;

#[derive(Default)]
pub struct Mirror {
    pub hard_state: HardState,
    pub conf: ConfState,
    pub snapshot: Option<Snapshot>,
    entries: VecDeque<Entry>,
    base: u64,
    base_term: u64,
}

impl Mirror {
    pub fn base(&self) -> u64 {
        self.base
    }

    fn last(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// Entries of a newer term take the place of those they contradict. False: they do not join what is here.
    pub fn append(&mut self, entries: &[Entry]) -> bool {
        let Some(first) = entries.first() else { return true };
        if first.index <= self.base || first.index > self.last() + 1 {
            return false;
        }
        self.entries.truncate((first.index - self.base - 1) as usize);
        self.entries.extend(entries.iter().cloned());
        true
    }

    pub fn compact(&mut self, index: u64) {
        while self.base < index {
            let Some(entry) = self.entries.pop_front() else { break };
            (self.base, self.base_term) = (entry.index, entry.term);
        }
    }

    pub fn install(&mut self, snapshot: Snapshot) {
        let metadata = snapshot.get_metadata();
        self.entries.clear();
        (self.base, self.base_term) = (metadata.index, metadata.term);
        self.conf = metadata.get_conf_state().clone();
        self.hard_state.commit = self.hard_state.commit.max(metadata.index);
        self.hard_state.term = self.hard_state.term.max(metadata.term);
        self.snapshot = Some(snapshot);
    }
}

impl Storage for Mirror {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf.clone()))
    }

    fn entries(&self, low: u64, high: u64, bytes_max: impl Into<Option<u64>>, _: GetEntriesContext) -> Result<Vec<Entry>> {
        if low <= self.base {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let bytes_max = bytes_max.into().unwrap_or(u64::MAX);
        let mut bytes = 0u64;
        let mut found = Vec::new();
        for entry in self.entries.range((low - self.base - 1) as usize..(high - self.base - 1) as usize) {
            bytes += entry.encoded_len() as u64;
            if !found.is_empty() && bytes > bytes_max {
                break;
            }
            found.push(entry.clone());
        }
        Ok(found)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.base {
            return Ok(self.base_term);
        }
        if index < self.base {
            return Err(Error::Store(StorageError::Compacted));
        }
        let found = self.entries.get((index - self.base - 1) as usize);
        found.map(|entry| entry.term).ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.base + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, index: u64, _: u64) -> Result<Snapshot> {
        match &self.snapshot {
            Some(snapshot) if snapshot.get_metadata().index >= index => Ok(snapshot.clone()),
            _ => Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable)),
        }
    }
}
