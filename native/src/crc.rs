//! CRC-32 (IEEE, as zlib).

use crate::buffer;
use crc32fast::Hasher;
use pyo3::prelude::*;

/// Bytes that `joined` copies together so that one call sees them. crc32fast uses carry-less multiplication from 128
/// bytes on and tables below: the 60 bytes of an entry front and a body of 100 are both slow alone and fast together.
const JOINED_BYTES: usize = 256;

/// CRC of `data`, continuing from `value`, as `zlib.crc32`.
#[pyfunction]
#[pyo3(signature = (data, value = 0))]
pub fn crc32(py: Python<'_>, data: &Bound<'_, PyAny>, value: u32) -> PyResult<u32> {
    buffer::read(py, data, |bytes| update(value, bytes))
}

fn update(value: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(value);
    hasher.update(bytes);
    hasher.finalize()
}

/// CRC of `front` followed by `rest`: every CRC of the format has this shape.
pub fn joined(front: &[u8; 60], rest: &[u8]) -> u32 {
    let head = rest.len().min(JOINED_BYTES - front.len());
    let mut both = [0u8; JOINED_BYTES];
    both[..front.len()].copy_from_slice(front);
    both[front.len()..front.len() + head].copy_from_slice(&rest[..head]);
    let mut hasher = Hasher::new();
    hasher.update(&both[..front.len() + head]);
    hasher.update(&rest[head..]);
    hasher.finalize()
}
