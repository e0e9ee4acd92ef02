//! Walking a log file's bytes: record by record from a known place, or header by header from anywhere.

use crate::record::{ALIGN, DATA, ENTRY_BYTES, FOOTER, Front, HEADER_BYTES, Header, MAGIC, REPAIR};
use crate::record::{section_crc, u32_at};
use crate::{buffer, planted};
use pyo3::prelude::*;

/// position, lsn, kind, synced_through, append_time_us, header_bytes, record_bytes, section_count
type Record = (u64, u64, u8, u64, i64, u32, u32, u32);

/// The good records from `position` on, where they end, the LSN expected there, and why the walk ended.
#[pyfunction]
pub fn scan_records(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    position: u64,
    generation: u64,
    lsn: u64,
) -> PyResult<(Vec<Record>, u64, u64, &'static str)> {
    buffer::read(py, data, |bytes| Walk::new(position, generation, lsn).run(bytes))
}

struct Walk {
    generation: u64,
    end: u64,
    next_lsn: u64,
    records: Vec<Record>,
}

impl Walk {
    fn new(position: u64, generation: u64, lsn: u64) -> Walk {
        Walk { generation, end: position, next_lsn: lsn, records: Vec::new() }
    }

    fn run(mut self, mut data: &[u8]) -> (Vec<Record>, u64, u64, &'static str) {
        let reason = loop {
            if data.len() < HEADER_BYTES {
                break "end";
            }
            let Some(header) = self.header(data) else { break "bad" };
            if header.kind == FOOTER {
                break "footer";
            }
            if !self.is_next(&header) || !sections_are_good(data, &header, self.end) {
                break "bad";
            }
            self.take(&header);
            data = &data[header.record_bytes as usize..];
        };
        (self.records, self.end, self.next_lsn, reason)
    }

    fn header(&self, data: &[u8]) -> Option<Header> {
        Header::decode(data, self.end).filter(|header| is_of(header, self.generation))
    }

    fn is_next(&self, header: &Header) -> bool {
        match header.kind {
            DATA => header.lsn == self.next_lsn,
            REPAIR => header.lsn >= self.next_lsn,
            _ => false,
        }
    }

    fn take(&mut self, header: &Header) {
        self.records.push((
            self.end,
            header.lsn,
            header.kind,
            header.synced_through,
            header.append_time_us,
            header.header_bytes,
            header.record_bytes,
            header.section_count,
        ));
        self.end += u64::from(header.record_bytes);
        // The last LSN of all has no next one; a header that claims it is followed by nothing that fits.
        self.next_lsn = header.lsn.saturating_add(1);
    }
}

fn is_of(header: &Header, generation: u64) -> bool {
    planted::recycled_accepted() || header.generation == generation
}

fn sections_are_good(data: &[u8], header: &Header, position: u64) -> bool {
    let Some(record) = data.get(..header.record_bytes as usize) else { return false };
    let directory = &record[HEADER_BYTES..header.header_bytes as usize];
    directory.chunks_exact(ENTRY_BYTES).all(|entry| section_is_good(record, header, position, entry))
}

fn section_is_good(record: &[u8], header: &Header, position: u64, entry: &[u8]) -> bool {
    let front: &Front = entry.first_chunk().expect("an entry");
    let Some(start) = u64::from(u32_at(entry, 44)).checked_sub(position) else { return false };
    let end = start + u64::from(u32_at(entry, 48));
    if start < u64::from(header.header_bytes) || end > record.len() as u64 {
        return false;
    }
    section_crc(front, &record[start as usize..end as usize]) == u32_at(entry, 60)
}

/// Every good header of this generation with at least `lsn_min`, wherever it stands: the evidence of hazard 5.
#[pyfunction]
pub fn find_headers(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    position: u64,
    generation: u64,
    lsn_min: u64,
) -> PyResult<Vec<(u64, u64, u64)>> {
    buffer::read(py, data, |bytes| headers(bytes, position, generation, lsn_min))
}

fn headers(data: &[u8], position: u64, generation: u64, lsn_min: u64) -> Vec<(u64, u64, u64)> {
    // Records start at multiples of ALIGN of the file, which need not be those of `data`.
    let skip = (position.next_multiple_of(ALIGN as u64) - position) as usize;
    let mut found = Vec::new();
    let aligned = data.get(skip..).unwrap_or_default();
    for at in magics(aligned) {
        let here = position + (skip + at) as u64;
        let Some(header) = Header::decode(&aligned[at..], here) else { continue };
        if is_of(&header, generation) && matches!(header.kind, DATA | REPAIR) && header.lsn >= lsn_min {
            found.push((here, header.lsn, header.synced_through));
        }
    }
    found
}

/// Where the magic stands at a multiple of ALIGN.
fn magics(data: &[u8]) -> impl Iterator<Item = usize> {
    let magic = MAGIC.to_le_bytes();
    let slots = data.chunks_exact(ALIGN).enumerate();
    slots.filter(move |(_, slot)| slot[..4] == magic).map(|(number, _)| number * ALIGN)
}
