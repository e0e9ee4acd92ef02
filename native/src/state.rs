//! The state of the log's writes. One mutex guards all of it, so every reader sees a consistent moment: never a sync
//! without the write before it, never an error without the completions before it (hazard 51).

use crate::file::Errno;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::os::fd::RawFd;

/// One submission. It points into a `bytes` object that the Python side keeps alive until its ticket is written.
pub struct Job {
    pub ticket: u64,
    pub fd: RawFd,
    pub position: i64,
    pub start: *const u8,
    pub size: usize,
    pub sync: bool,
}

// SAFETY: the bytes behind `start` never change and outlive the job (`LogWriter::held`).
unsafe impl Send for Job {}
// SAFETY: as above; nothing in a job changes.
unsafe impl Sync for Job {}

impl Job {
    /// Whether `next` continues where this job ends: both can be one `pwritev` and one sync.
    pub fn joins(&self, next: &Job) -> bool {
        self.fd == next.fd && self.position + self.size as i64 == next.position
    }
}

#[derive(Clone, Copy)]
pub struct Failure {
    /// The first ticket that did not complete. For a sync: the first one that is not known to be on disk.
    pub ticket: u64,
    pub step: &'static str,
    pub errno: Errno,
}

/// Work of the second thread, in the order of the requests.
pub enum Task {
    Sync(RawFd),
    WriteBack(RawFd, i64, i64),
}

#[derive(Default)]
pub struct State {
    /// Submissions whose write has not begun. Empty after a failure.
    pub queue: Vec<Job>,
    /// Bytes in the queue and in the batch that the writer thread is writing.
    pub queued_bytes: u64,
    /// The writer thread or `write_inline` is using jobs or files.
    pub writing: bool,
    pub writer_waits: bool,
    pub syncer_waits: bool,
    pub written: u64,
    pub synced: u64,
    pub sync_ns: u64,
    pub sync_count: u64,
    pub failure: Option<Failure>,
    pub closing: bool,
    pub tasks: VecDeque<Task>,
    /// Write-back that was requested before its bytes were written, with the ticket that it waits for.
    write_backs: VecDeque<(u64, Task)>,
    /// Ticket, file and sync flag of the newest submission.
    newest: (u64, Option<RawFd>, bool),
    /// The file that `written` lies in.
    written_fd: Option<RawFd>,
    /// The first ticket that is written but not synced; 0 for none.
    unsynced: u64,
}

impl State {
    pub fn check_open(&self) -> PyResult<()> {
        if let Some(failure) = self.failure {
            let Failure { ticket, step, errno } = failure;
            let text = format!("the log writer stopped: {step} of ticket {ticket} failed with errno {errno}");
            return Err(PyRuntimeError::new_err(text));
        }
        if self.closing {
            return Err(PyRuntimeError::new_err("the log writer is closed"));
        }
        Ok(())
    }

    /// Accepts a submission. Errors after a failure or `close`, and for a ticket or file that is out of order.
    pub fn admit(&mut self, ticket: u64, fd: RawFd, sync: bool) -> PyResult<()> {
        self.check_open()?;
        let (newest, newest_fd, newest_sync) = self.newest;
        if ticket <= newest {
            return Err(PyValueError::new_err(format!("tickets rise: {ticket} came after {newest}")));
        }
        // `synced` is one number for all files. A sync of this file would claim the one before it too, so that one
        // must be synced, or about to be, before this one gets its first byte (hazard 5).
        if newest_fd.is_some_and(|former| former != fd) && !newest_sync && newest > self.synced {
            return Err(PyValueError::new_err("the file before this one ends without a sync"));
        }
        self.newest = (ticket, Some(fd), sync);
        Ok(())
    }

    pub fn enqueue(&mut self, job: Job) {
        self.queued_bytes += job.size as u64;
        self.queue.push(job);
    }

    /// A write-back of bytes that were submitted so far: now, or when they are written.
    pub fn add_write_back(&mut self, task: Task) {
        self.write_backs.push_back((self.newest.0, task));
        self.release_write_backs();
    }

    fn release_write_backs(&mut self) {
        let ready = self.write_backs.partition_point(|(ticket, _)| *ticket <= self.written);
        self.tasks.extend(self.write_backs.drain(..ready).map(|(_, task)| task));
    }

    pub fn add_sync(&mut self, fd: RawFd) {
        // A queued request that has not begun covers this one, too.
        if !self.tasks.iter().any(|task| matches!(task, Task::Sync(other) if *other == fd)) {
            self.tasks.push_back(Task::Sync(fd));
        }
    }

    /// These jobs, in one file, are completely written.
    pub fn wrote(&mut self, jobs: &[Job]) {
        let (Some(first), Some(last)) = (jobs.first(), jobs.last()) else { return };
        self.written = last.ticket;
        self.written_fd = Some(last.fd);
        if self.unsynced == 0 {
            self.unsynced = first.ticket;
        }
        let bytes: usize = jobs.iter().map(|job| job.size).sum();
        self.queued_bytes = self.queued_bytes.saturating_sub(bytes as u64);
        self.release_write_backs();
    }

    /// Writing `run` ended after `done` bytes.
    pub fn write_failed(&mut self, run: &[Job], done: u64, errno: Errno) -> Failure {
        let mut end = 0;
        let fits = |job: &&Job| {
            end += job.size as u64;
            end <= done
        };
        let complete = run.iter().take_while(fits).count();
        self.wrote(&run[..complete]);
        self.fail(Failure { ticket: run[complete].ticket, step: "write", errno })
    }

    /// Everything up to `ticket` is on disk.
    pub fn synced_to(&mut self, ticket: u64, sync_ns: u64) {
        self.synced = self.synced.max(ticket);
        self.unsynced = if self.written > self.synced { self.synced + 1 } else { 0 };
        self.sync_ns = sync_ns;
        self.sync_count += 1;
    }

    pub fn sync_failed(&mut self, errno: Errno) -> Failure {
        self.fail(Failure { ticket: self.unsynced, step: "sync", errno })
    }

    /// Keeps the first failure; nothing is begun after it. Only a failed sync replaces a failed write: a write can be
    /// rolled back, but pages that a sync has lost are reported by the kernel this one time only.
    fn fail(&mut self, failure: Failure) -> Failure {
        self.queue.clear();
        self.queued_bytes = 0;
        match self.failure {
            Some(first) if first.step == "sync" || failure.step == "write" => first,
            _ => *self.failure.insert(failure),
        }
    }

    /// The ticket up to which a sync of `fd` would put new bytes on disk. None if the log continues in another file
    /// (the one before was synced for that, and may be closed by now), or if everything is on disk already.
    pub fn to_sync(&self, fd: RawFd) -> Option<u64> {
        let here = self.failure.is_none() && self.written_fd == Some(fd);
        (here && self.written > self.synced).then_some(self.written)
    }
}
