//! `LogWriter`: the Python interface of the threads.

use crate::read::os_error;
use crate::state::{Job, Task};
use crate::threads::{Shared, Turn};
use pyo3::exceptions::{PyOverflowError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Writes and syncs a log in threads of its own. Submissions carry rising tickets (from 1); `poll` says up to which
/// ticket everything is written and synced; the descriptor `fileno()` becomes readable when that has changed.
#[pyclass(frozen)]
pub struct LogWriter {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The `bytes` behind the jobs of the writer thread, by ticket. Only calls from Python touch this list, so the
    /// thread never needs the GIL to release an object.
    held: Mutex<VecDeque<(u64, Py<PyBytes>)>>,
}

fn job(ticket: u64, fd: RawFd, position: i64, data: &Bound<'_, PyBytes>, sync: bool) -> PyResult<Job> {
    let bytes = data.as_bytes();
    if position < 0 || position.checked_add(bytes.len() as i64).is_none() {
        return Err(PyOverflowError::new_err("not a position in a file"));
    }
    Ok(Job { ticket, fd, position, start: bytes.as_ptr(), size: bytes.len(), sync })
}

#[pymethods]
impl LogWriter {
    #[new]
    fn new() -> PyResult<Self> {
        let (shared, threads) = Shared::start()?;
        Ok(LogWriter { shared, threads: Mutex::new(threads), held: Mutex::default() })
    }

    fn fileno(&self) -> RawFd {
        self.shared.event.fileno()
    }

    /// Queues a write of `data` at `position`, and a sync after it.
    fn submit(&self, ticket: u64, fd: RawFd, position: i64, data: &Bound<'_, PyBytes>, sync: bool) -> PyResult<()> {
        let job = job(ticket, fd, position, data, sync)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.shared.state();
        state.admit(ticket, fd, sync)?;
        held.push_back((ticket, data.clone().unbind()));
        state.enqueue(job);
        self.shared.wake(state);
        Ok(())
    }

    /// Writes (and syncs) in the calling thread; returns the nanoseconds of the sync. Fails while anything is queued or
    /// being written: it would overtake it.
    fn write_inline(
        &self,
        py: Python<'_>,
        ticket: u64,
        fd: RawFd,
        position: i64,
        data: &Bound<'_, PyBytes>,
        sync: bool,
    ) -> PyResult<u64> {
        let job = job(ticket, fd, position, data, sync)?;
        let mut state = self.shared.state();
        state.check_open()?;
        if state.writing || !state.queue.is_empty() {
            return Err(PyRuntimeError::new_err("earlier submissions are still under way"));
        }
        state.admit(ticket, fd, sync)?;
        state.writing = true;
        drop(state);
        let result = py.detach(|| self.shared.write_run(&[job], Turn::Inline));
        result.map_err(|failure| os_error(failure.errno))
    }

    /// Syncs everything written so far, concurrently with further writes. All of it must be in `fd` or synced already.
    fn request_sync(&self, fd: RawFd) -> PyResult<()> {
        let mut state = self.shared.state();
        state.check_open()?;
        state.add_sync(fd);
        self.shared.wake(state);
        Ok(())
    }

    /// Asks the kernel to start writing a range to disk once it is written to the file. Only a hint: on a busy device
    /// the call blocks, so it runs in the sync thread, and its errors are ignored.
    fn start_write_back(&self, fd: RawFd, position: i64, length: i64) {
        let mut state = self.shared.state();
        if state.check_open().is_ok() {
            state.add_write_back(Task::WriteBack(fd, position, length));
            self.shared.wake(state);
        }
    }

    /// (written, synced, sync_ns, error): the highest tickets up to which everything is complete, the duration of the
    /// last sync, and the failure that stopped the writer. Also releases the bytes that are written.
    #[allow(clippy::type_complexity)] // four plain values, documented above
    fn poll(&self) -> (u64, u64, u64, Option<(u64, &'static str, i32)>) {
        // Drained first: a change after this line makes it readable again.
        self.shared.event.drain();
        let state = self.shared.state();
        let error = state.failure.map(|failure| (failure.ticket, failure.step, failure.errno));
        let answer = (state.written, state.synced, state.sync_ns, error);
        // After a failure no job is begun any more, but one that was being written when the other thread failed still is.
        let unused = if error.is_some() && !state.writing { u64::MAX } else { state.written };
        drop(state);
        self.release(unused);
        answer
    }

    /// Bytes submitted and not yet written.
    fn queued_bytes(&self) -> u64 {
        self.shared.state().queued_bytes
    }

    /// Syncs done so far, inline ones too.
    fn sync_count(&self) -> u64 {
        self.shared.state().sync_count
    }

    /// Finishes what is queued and ends the threads. `poll` still answers afterwards.
    fn close(&self, py: Python<'_>) {
        self.shared.close();
        // The lock is taken without the GIL and held to the end: a second caller must wait for the same threads.
        py.detach(|| {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            threads.drain(..).for_each(|thread| drop(thread.join()));
        });
        self.release(u64::MAX);
    }
}

impl LogWriter {
    /// Releases the bytes up to `ticket`, outside the lock: dropping an object may run Python code.
    fn release(&self, ticket: u64) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.partition_point(|(number, _)| *number <= ticket);
        let unused: Vec<_> = held.drain(..count).collect();
        drop(held);
        drop(unused);
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        Python::attach(|py| self.close(py));
    }
}
