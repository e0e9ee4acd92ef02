//! Records: encoder and header decoder. The field positions are those of `wal/format.py`.

use crate::buffer::{Input, Output};
use crate::{crc, planted};
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySequence, PyTuple};

pub const MAGIC: u32 = 0x5257_5349;
pub const HEADER_BYTES: usize = 64;
pub const ENTRY_BYTES: usize = 64;
pub const ALIGN: usize = 8;
pub const DATA: u8 = 1;
pub const FOOTER: u8 = 3;
pub const REPAIR: u8 = 4;
const VERSION: u8 = 1;
/// `limits.RECORD_SECTIONS_MAX`.
const SECTIONS_MAX: u32 = 16_384;

/// A header or an entry without its CRC.
pub type Front = [u8; 60];

pub struct Header {
    pub kind: u8,
    pub lsn: u64,
    pub generation: u64,
    pub synced_through: u64,
    pub append_time_us: i64,
    pub header_bytes: u32,
    pub record_bytes: u32,
    pub section_count: u32,
}

impl Header {
    /// The header at the start of `data`, if one that is good stands there and belongs at `position` of its file.
    pub fn decode(data: &[u8], position: u64) -> Option<Header> {
        let front: &Front = data.first_chunk()?;
        if u32_at(front, 0) != MAGIC || front[4] != VERSION || u64::from(u32_at(front, 52)) != position {
            return None;
        }
        let header = Header::fields(front);
        let size = header.header_bytes as usize;
        let fits = header.section_count <= SECTIONS_MAX
            && size == HEADER_BYTES + ENTRY_BYTES * header.section_count as usize
            && header.record_bytes >= header.header_bytes
            && header.record_bytes as usize % ALIGN == 0
            && data.len() >= size;
        (fits && header_crc(front, &data[HEADER_BYTES..size]) == u32_at(data, 60)).then_some(header)
    }

    fn fields(front: &Front) -> Header {
        Header {
            kind: front[5],
            lsn: u64_at(front, 8),
            generation: u64_at(front, 16),
            synced_through: u64_at(front, 24),
            append_time_us: u64_at(front, 32) as i64,
            header_bytes: u32_at(front, 40),
            record_bytes: u32_at(front, 44),
            section_count: u32_at(front, 48),
        }
    }
}

pub fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*data[at..].first_chunk().expect("four bytes"))
}

fn u64_at(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*data[at..].first_chunk().expect("eight bytes"))
}

fn header_crc(front: &Front, directory: &[u8]) -> u32 {
    if planted::crc_without_length() {
        let front = planted::without(front, 44, front.len());
        return crc::joined(front.first_chunk().expect("a front"), &planted::without(directory, 48, ENTRY_BYTES));
    }
    crc::joined(front, directory)
}

pub fn section_crc(front: &Front, body: &[u8]) -> u32 {
    if planted::crc_without_length() {
        let front = planted::without(front, 48, front.len());
        return crc::joined(front.first_chunk().expect("a front"), body);
    }
    crc::joined(front, body)
}

fn padded(size: usize, align: usize) -> usize {
    size.div_ceil(align) * align
}

/// The bodies of one record, all their parts in one list, so that a section costs no allocation of its own.
struct Bodies<'py> {
    parts: Vec<Input<'py>>,
    /// Per section, where its parts end in `parts`.
    ends: Vec<usize>,
    /// All bodies with their padding.
    bytes: usize,
}

impl<'py> Bodies<'py> {
    fn new(sections: &Bound<'py, PyTuple>) -> PyResult<Self> {
        let count = sections.len();
        let mut bodies = Bodies { parts: Vec::with_capacity(count), ends: Vec::with_capacity(count), bytes: 0 };
        for section in sections.iter_borrowed() {
            bodies.add(&section.cast::<PyTuple>()?.get_item(9)?)?;
        }
        Ok(bodies)
    }

    fn add(&mut self, body: &Bound<'py, PyAny>) -> PyResult<()> {
        let first = self.parts.len();
        if let Ok(parts) = body.cast::<PyList>() {
            for part in parts.iter() {
                self.parts.push(Input::new(&part)?);
            }
        } else if let Ok(parts) = body.cast::<PyTuple>() {
            for part in parts.iter_borrowed() {
                self.parts.push(Input::new(&part)?);
            }
        } else {
            self.parts.push(Input::new(body)?);
        }
        self.ends.push(self.parts.len());
        self.bytes += padded(self.parts[first..].iter().map(|part| part.as_slice().len()).sum(), ALIGN);
        Ok(())
    }

    fn put(&self, number: usize, out: &mut Output<'_>) {
        let first = number.checked_sub(1).map_or(0, |former| self.ends[former]);
        for part in &self.parts[first..self.ends[number]] {
            out.put(part.as_slice());
        }
    }
}

/// The numbers of a section. PyO3's own conversions allow for more kinds of objects and cost twice as much, ten times
/// per section.
struct Fields<'a, 'py>(Borrowed<'a, 'py, PyTuple>);

impl Fields<'_, '_> {
    fn unsigned<T: TryFrom<u64>>(&self, index: isize) -> PyResult<T> {
        // SAFETY: a tuple that has ten items: its body, the last, was read before.
        let value = unsafe { ffi::PyLong_AsUnsignedLong(ffi::PyTuple_GetItem(self.0.as_ptr(), index)) };
        self.check(value == u64::MAX)?;
        T::try_from(value).map_err(|_| PyOverflowError::new_err("a field of a section is too large"))
    }

    fn signed(&self, index: isize) -> PyResult<i64> {
        // SAFETY: as above.
        let value = unsafe { ffi::PyLong_AsLong(ffi::PyTuple_GetItem(self.0.as_ptr(), index)) };
        self.check(value == -1)?;
        Ok(value)
    }

    fn check(&self, suspicious: bool) -> PyResult<()> {
        if suspicious { PyErr::take(self.0.py()).map_or(Ok(()), Err) } else { Ok(()) }
    }
}

fn put<const N: usize>(front: &mut Front, at: usize, value: [u8; N]) {
    front[at..at + N].copy_from_slice(&value);
}

/// A size or a position as the format stores it.
fn four(value: usize) -> PyResult<[u8; 4]> {
    match u32::try_from(value) {
        Ok(value) => Ok(value.to_le_bytes()),
        Err(_) => Err(PyOverflowError::new_err("positions and sizes in a log file have 32 bits")),
    }
}

/// An entry without its CRC.
fn entry_front(section: Borrowed<'_, '_, PyTuple>, body_position: usize, body_bytes: usize) -> PyResult<Front> {
    let fields = Fields(section);
    let mut front = [0; 60];
    put(&mut front, 0, fields.unsigned::<u64>(0)?.to_le_bytes());
    put(&mut front, 8, fields.unsigned::<u32>(1)?.to_le_bytes());
    put(&mut front, 12, fields.unsigned::<u8>(2)?.to_le_bytes());
    put(&mut front, 13, fields.unsigned::<u8>(3)?.to_le_bytes());
    put(&mut front, 16, fields.unsigned::<u64>(4)?.to_le_bytes());
    put(&mut front, 24, fields.signed(5)?.to_le_bytes());
    put(&mut front, 32, fields.signed(6)?.to_le_bytes());
    put(&mut front, 40, fields.unsigned::<u32>(7)?.to_le_bytes());
    put(&mut front, 44, four(body_position)?);
    put(&mut front, 48, four(body_bytes)?);
    put(&mut front, 52, fields.unsigned::<u32>(8)?.to_le_bytes());
    Ok(front)
}

/// The bytes of one record that will stand at `position`: the twin of `format.encode_record`.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // the signature of the oracle
pub fn encode_record<'py>(
    py: Python<'py>,
    kind: u8,
    lsn: u64,
    generation: u64,
    synced_through: u64,
    append_time_us: i64,
    position: u32,
    align: usize,
    sections: &Bound<'py, PySequence>,
) -> PyResult<Bound<'py, PyBytes>> {
    if align == 0 {
        return Err(PyValueError::new_err("align must be at least 1"));
    }
    // A tuple cannot change between the two times it is walked: once for the sizes, once for the bytes.
    let sections = sections.to_tuple()?;
    let bodies = Bodies::new(&sections)?;
    let header_bytes = HEADER_BYTES + ENTRY_BYTES * sections.len();
    let total = padded(header_bytes + bodies.bytes, align);
    let mut front = [0; 60];
    put(&mut front, 0, MAGIC.to_le_bytes());
    put(&mut front, 4, [VERSION, kind]);
    put(&mut front, 8, lsn.to_le_bytes());
    put(&mut front, 16, generation.to_le_bytes());
    put(&mut front, 24, synced_through.to_le_bytes());
    put(&mut front, 32, append_time_us.to_le_bytes());
    put(&mut front, 40, four(header_bytes)?);
    put(&mut front, 44, four(total)?);
    put(&mut front, 48, four(sections.len())?);
    put(&mut front, 52, position.to_le_bytes());
    let mut out = Output::new(py, total)?;
    out.zero(header_bytes);
    put_sections(&mut out, &sections, &bodies, position as usize)?;
    out.zero(total);
    let crc = header_crc(&front, &out.filled()[HEADER_BYTES..header_bytes]);
    out.patch(0, &front);
    out.patch(60, &crc.to_le_bytes());
    Ok(out.finish())
}

/// Appends the bodies, and writes each entry into the space left for the directory.
fn put_sections(
    out: &mut Output<'_>,
    sections: &Bound<'_, PyTuple>,
    bodies: &Bodies<'_>,
    position: usize,
) -> PyResult<()> {
    for (number, section) in sections.iter_borrowed().enumerate() {
        let start = out.filled().len();
        bodies.put(number, out);
        let body = &out.filled()[start..];
        let front = entry_front(section.cast::<PyTuple>()?, position + start, body.len())?;
        let crc = section_crc(&front, body);
        let entry = HEADER_BYTES + ENTRY_BYTES * number;
        out.patch(entry, &front);
        out.patch(entry + front.len(), &crc.to_le_bytes());
        out.zero(padded(out.filled().len(), ALIGN));
    }
    Ok(())
}
