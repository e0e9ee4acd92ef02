//! Reading a range of a file outside the GIL.

use crate::buffer::Output;
use crate::file::{self, Errno};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Up to `length` bytes at `position`; fewer only at the end of the file.
#[pyfunction]
pub fn read_at<'py>(py: Python<'py>, fd: i32, position: i64, length: usize) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Output::new(py, length)?;
    // A pointer may not cross into `detach`; its address may.
    let (start, size) = out.target();
    let address = start.expose_provenance();
    // SAFETY: the target is ours, and Python has not seen the object yet. On failure it is dropped unread.
    unsafe {
        let read = py.detach(|| file::read_at(fd, position, std::ptr::with_exposed_provenance_mut(address), size));
        Ok(out.finish_at(read.map_err(os_error)?))
    }
}

/// OSError as Python's own calls raise it: with `errno`, and of the subclass that belongs to it.
pub fn os_error(errno: Errno) -> PyErr {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    PyOSError::new_err((errno, text))
}
