//! Bytes that come from Python, and `bytes` objects that are filled in place.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Below this the work is shorter than a round of giving the GIL away and getting it back.
const DETACH_BYTES: usize = 64 * 1024;

/// A bytes-like object, kept alive and unresized for as long as this lives.
pub struct Input<'py> {
    /// Looked up once: with the stable ABI each lookup is a call, and a record has thousands of inputs.
    bytes: *const [u8],
    owner: Owner<'py>,
}

enum Owner<'py> {
    Bytes { _object: Bound<'py, PyBytes> },
    Buffer { _view: PyBuffer<u8> },
}

impl<'py> Input<'py> {
    pub fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(object) = object.cast::<PyBytes>() {
            return Ok(Input { bytes: object.as_bytes(), owner: Owner::Bytes { _object: object.clone() } });
        }
        let view = PyBuffer::<u8>::get(object)?;
        let Some(bytes) = view.as_slice_ptr() else {
            return Err(PyBufferError::new_err("the buffer is not contiguous"));
        };
        Ok(Input { bytes: bytes.as_ptr(), owner: Owner::Buffer { _view: view } })
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the owner keeps the memory alive and unchanged: `bytes` never change, and users of the slice of
        // another buffer keep the GIL (see `read`).
        unsafe { &*self.bytes }
    }
}

/// Calls `work` on the bytes of `object`, without the GIL when they are many. Only `bytes` never change: for a
/// bytearray, a map of a file or a view of one the GIL is kept, else another thread could change them meanwhile.
pub fn read<R: Send>(py: Python<'_>, object: &Bound<'_, PyAny>, work: impl FnOnce(&[u8]) -> R + Send) -> PyResult<R> {
    let input = Input::new(object)?;
    let bytes = input.as_slice();
    if matches!(input.owner, Owner::Bytes { .. }) && bytes.len() >= DETACH_BYTES {
        return Ok(py.detach(|| work(bytes)));
    }
    Ok(work(bytes))
}

/// A `bytes` object that is still being filled: Python has not seen it, so it may still change. Not zeroed first:
/// for a record of 4 MiB that would be another pass over memory.
pub struct Output<'py> {
    object: Bound<'py, PyBytes>,
    start: *mut u8,
    size: usize,
    filled: usize,
}

impl<'py> Output<'py> {
    pub fn new(py: Python<'py>, size: usize) -> PyResult<Self> {
        let wanted = ffi::Py_ssize_t::try_from(size)?;
        // SAFETY: a null source asks for an uninitialised object of the wanted size; a null result is an exception.
        unsafe {
            let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), wanted);
            let object = Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>();
            let start = ffi::PyBytes_AsString(object.as_ptr()).cast();
            Ok(Output { object, start, size, filled: 0 })
        }
    }

    pub fn filled(&self) -> &[u8] {
        // SAFETY: everything below `filled` was written by `put` or `zero`.
        unsafe { std::slice::from_raw_parts(self.start, self.filled) }
    }

    pub fn put(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.size - self.filled);
        // SAFETY: room was checked; `bytes` cannot overlap an object that Python has not seen.
        unsafe { self.start.add(self.filled).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.filled += bytes.len();
    }

    /// Zeros up to `end`.
    pub fn zero(&mut self, end: usize) {
        assert!(self.filled <= end && end <= self.size);
        // SAFETY: room was checked.
        unsafe { self.start.add(self.filled).write_bytes(0, end - self.filled) };
        self.filled = end;
    }

    /// Writes over bytes that are already filled.
    pub fn patch(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.filled);
        // SAFETY: inside the filled part.
        unsafe { self.start.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Address and size, for a system call that fills the object; `finish_at` then says how far it came.
    pub fn target(&mut self) -> (*mut u8, usize) {
        (self.start, self.size)
    }

    /// The object, or a copy of its first `size` bytes when that is not all (the stable ABI cannot cut it).
    ///
    /// # Safety
    /// The caller has filled that many bytes.
    pub unsafe fn finish_at(mut self, size: usize) -> Bound<'py, PyBytes> {
        self.filled = size;
        if size == self.size { self.object } else { PyBytes::new(self.object.py(), self.filled()) }
    }

    pub fn finish(self) -> Bound<'py, PyBytes> {
        assert!(self.filled == self.size);
        self.object
    }
}
