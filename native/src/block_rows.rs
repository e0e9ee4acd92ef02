//! Some rows of a body, and the keys of its rows. A body is one or more blocks, one behind the other (`block.rs`).

use crate::block::{Block, CONSTANT, ENTRY_BYTES, FIXED, Fault, HEAD_BYTES, Head, KEY};
use crate::block::{PRODUCER_ID, PRODUCER_NAME, Parts, SEQUENCE, Stored, end_at, padded};
use crate::buffer::{Input, Output};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::borrow::Cow;

/// A body of only the rows [first_row, first_row + rows). Whole blocks are copied as they are. A block that is cut keeps
/// its producer, and its first sequence moves by the rows that are left out in front. Only what is cut is looked at, and
/// of it only the rows that stay.
#[pyfunction]
pub fn select_rows<'py>(body: &Bound<'py, PyAny>, first_row: i64, rows: i64) -> PyResult<Bound<'py, PyAny>> {
    let input = Input::new(body)?;
    let bytes = input.as_slice();
    let pieces = select(bytes, first_row, rows).map_err(PyValueError::new_err)?;
    let total = pieces.iter().map(|piece| piece.len()).sum();
    let is_all = total == bytes.len() && pieces.iter().all(|piece| matches!(piece, Cow::Borrowed(_)));
    if is_all && body.is_exact_instance_of::<PyBytes>() {
        return Ok(body.clone());
    }
    let mut out = Output::new(body.py(), total)?;
    for piece in &pieces {
        out.put(piece);
    }
    Ok(out.finish().into_any())
}

fn select(body: &[u8], first_row: i64, rows: i64) -> Result<Vec<Cow<'_, [u8]>>, Fault> {
    let (Ok(mut skip), Ok(mut left @ 1..)) = (usize::try_from(first_row), usize::try_from(rows)) else {
        return Err(format!("{rows} rows from row {first_row} on are not a part of a body"));
    };
    let mut pieces = Vec::new();
    let mut rest = body;
    while left > 0 {
        if rest.is_empty() {
            return Err(format!("the body ends {left} rows too early"));
        }
        let head = Head::decode(rest)?;
        let (block, behind) = rest.split_at(head.block_bytes);
        rest = behind;
        if skip >= head.rows {
            skip -= head.rows;
            continue;
        }
        let take = left.min(head.rows - skip);
        pieces.push(if take == head.rows { Cow::Borrowed(block) } else { Cow::Owned(cut(block, skip, take)?) });
        left -= take;
        skip = 0;
    }
    Ok(pieces)
}

/// A new block of the rows [first, first + count) of one.
fn cut(block: &[u8], first: usize, count: usize) -> Result<Vec<u8>, Fault> {
    let Block { head, columns, .. } = Block::decode(block)?;
    let mut out = Vec::with_capacity(block.len());
    out.extend_from_slice(&block[..HEAD_BYTES + ENTRY_BYTES * columns.len()]);
    for (number, column) in columns.iter().enumerate() {
        let start = out.len();
        put_rows(column, first, count, &mut out)?;
        let size = (out.len() - start) as u32;
        let entry = HEAD_BYTES + ENTRY_BYTES * number;
        out[entry + 4..entry + 8].copy_from_slice(&size.to_le_bytes());
        out.resize(padded(out.len()), 0);
    }
    let size = out.len() as u32;
    out[..4].copy_from_slice(&(count as u32).to_le_bytes());
    out[4..8].copy_from_slice(&size.to_le_bytes());
    if head.is_numbered {
        out[24..32].copy_from_slice(&(head.first_sequence + first as i64).to_le_bytes());
    }
    Ok(out)
}

fn put_rows(column: &Stored<'_>, first: usize, count: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
    if column.encoding == CONSTANT {
        out.extend_from_slice(column.data);
        return Ok(());
    }
    let Parts { valid, values } = column.parts()?;
    if let Some(valid) = valid {
        put_bits(valid, first, count, out);
    }
    if column.encoding == FIXED {
        let width = column.fixed_width(values)?;
        out.extend_from_slice(&values[width * first..width * (first + count)]);
        return Ok(());
    }
    let (ends, body) = column.ends_and_body(values)?;
    let start = end_at(ends, first);
    let mut last = start;
    for index in first..=first + count {
        let end = end_at(ends, index);
        if end < last {
            return Err(column.ends_do_not_rise(body));
        }
        last = end;
        out.extend_from_slice(&((end - start) as u32).to_le_bytes());
    }
    out.extend_from_slice(body.get(start..last).ok_or_else(|| column.ends_do_not_rise(body))?);
    Ok(())
}

/// Bits [first, first + count), padded with zeros to a multiple of eight bytes.
fn put_bits(bits: &[u8], first: usize, count: usize, out: &mut Vec<u8>) {
    let (start, shift) = (first / 8, first % 8);
    let size = count.div_ceil(8);
    for at in start..start + size {
        let next = bits.get(at + 1).copied().unwrap_or(0);
        out.push((u16::from_le_bytes([bits[at], next]) >> shift) as u8);
    }
    if count % 8 != 0 {
        *out.last_mut().expect("at least one row") &= (1 << (count % 8)) - 1;
    }
    out.resize(out.len() + (padded(size) - size), 0);
}

/// A body of only these rows, which rise. Whole blocks are copied as they are, and rows that follow one another are cut
/// as `select_rows` does. Of other rows the numbers are no sequence any more: they become the columns producer_id and
/// sequence of a block that is not numbered, as rows of a table have them.
#[pyfunction]
pub fn pick_rows<'py>(body: &Bound<'py, PyAny>, rows: Vec<i64>) -> PyResult<Bound<'py, PyAny>> {
    let input = Input::new(body)?;
    let pieces = pick(input.as_slice(), &rows).map_err(PyValueError::new_err)?;
    let mut out = Output::new(body.py(), pieces.iter().map(|piece| piece.len()).sum())?;
    for piece in &pieces {
        out.put(piece);
    }
    Ok(out.finish().into_any())
}

fn pick<'a>(body: &'a [u8], rows: &[i64]) -> Result<Vec<Cow<'a, [u8]>>, Fault> {
    let rises = rows.windows(2).all(|pair| pair[0] < pair[1]);
    if !rises || rows.first().is_none_or(|first| *first < 0) {
        return Err(format!("{} rows that do not rise are not a part of a body", rows.len()));
    }
    let (mut pieces, mut rest, mut base, mut left) = (Vec::new(), body, 0_i64, rows);
    while !left.is_empty() {
        if rest.is_empty() {
            return Err(format!("the body ends {} rows too early", left.len()));
        }
        let head = Head::decode(rest)?;
        let (block, behind) = rest.split_at(head.block_bytes);
        let end = base + head.rows as i64;
        let (here, later) = left.split_at(left.partition_point(|row| *row < end));
        if here.len() == head.rows {
            pieces.push(Cow::Borrowed(block));
        } else if let (Some(low), Some(high)) = (here.first(), here.last()) {
            pieces.push(Cow::Owned(if high - low + 1 == here.len() as i64 {
                cut(block, (low - base) as usize, here.len())?
            } else {
                gather(block, &here.iter().map(|row| (row - base) as usize).collect::<Vec<_>>())?
            }));
        }
        (rest, base, left) = (behind, end, later);
    }
    Ok(pieces)
}

/// A new block of some rows of one, which do not follow one another.
fn gather(block: &[u8], rows: &[usize]) -> Result<Vec<u8>, Fault> {
    let Block { head, columns, .. } = Block::decode(block)?;
    let mut parts: Vec<(u16, u8, u8, Vec<u8>)> = Vec::with_capacity(columns.len() + 2);
    for column in &columns {
        parts.push((column.id, column.encoding, column.flags, gathered(column, rows)?));
    }
    if head.is_numbered {
        parts.retain(|part| part.0 != PRODUCER_ID && part.0 != SEQUENCE);
        parts.push((PRODUCER_ID, CONSTANT, 0, head.producer_id.to_le_bytes().to_vec()));
        let numbers = rows.iter().flat_map(|row| (head.first_sequence + *row as i64).to_le_bytes()).collect();
        parts.push((SEQUENCE, FIXED, 0, numbers));
        parts.sort_by_key(|part| part.0);
    }
    let mut out = vec![0; HEAD_BYTES + ENTRY_BYTES * parts.len()];
    for (number, (id, encoding, flags, data)) in parts.iter().enumerate() {
        let entry = HEAD_BYTES + ENTRY_BYTES * number;
        out[entry..entry + 2].copy_from_slice(&id.to_le_bytes());
        out[entry + 2] = *encoding;
        out[entry + 3] = *flags;
        out[entry + 4..entry + 8].copy_from_slice(&(data.len() as u32).to_le_bytes());
        out.extend_from_slice(data);
        out.resize(padded(out.len()), 0);
    }
    let size = out.len() as u32;
    out[..4].copy_from_slice(&(rows.len() as u32).to_le_bytes());
    out[4..8].copy_from_slice(&size.to_le_bytes());
    out[8..16].copy_from_slice(&(-1_i64).to_le_bytes());
    out[20..22].copy_from_slice(&(parts.len() as u16).to_le_bytes());
    out[24..32].copy_from_slice(&(-1_i64).to_le_bytes());
    Ok(out)
}

fn gathered(column: &Stored<'_>, rows: &[usize]) -> Result<Vec<u8>, Fault> {
    if column.encoding == CONSTANT {
        return Ok(column.data.to_vec());
    }
    let mut out = Vec::new();
    let Parts { valid, values } = column.parts()?;
    if let Some(valid) = valid {
        out.resize(padded(rows.len().div_ceil(8)), 0);
        for (number, row) in rows.iter().enumerate() {
            out[number / 8] |= (valid[row / 8] >> (row % 8) & 1) << (number % 8);
        }
    }
    if column.encoding == FIXED {
        let width = column.fixed_width(values)?;
        for row in rows {
            out.extend_from_slice(&values[width * row..width * (row + 1)]);
        }
        return Ok(out);
    }
    let (ends, body) = column.ends_and_body(values)?;
    let mut total = 0;
    out.extend_from_slice(&0_u32.to_le_bytes());
    for row in rows {
        let (start, end) = (end_at(ends, *row), end_at(ends, row + 1));
        if end < start || end > body.len() {
            return Err(column.ends_do_not_rise(body));
        }
        total += end - start;
        out.extend_from_slice(&(total as u32).to_le_bytes());
    }
    for row in rows {
        out.extend_from_slice(&body[end_at(ends, *row)..end_at(ends, row + 1)]);
    }
    Ok(out)
}

/// The key of each row; where it is null the bytes of the producer's name, and where that is null nothing.
#[pyfunction]
pub fn row_keys<'py>(body: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let input = Input::new(body)?;
    let mut keys = Vec::new();
    let mut rest = input.as_slice();
    while !rest.is_empty() {
        let block = Block::decode(rest).map_err(PyValueError::new_err)?;
        put_keys(body.py(), &block, &mut keys).map_err(PyValueError::new_err)?;
        rest = &rest[block.bytes.len()..];
    }
    PyList::new(body.py(), keys)
}

fn put_keys<'py>(py: Python<'py>, block: &Block<'_>, keys: &mut Vec<Bound<'py, PyBytes>>) -> Result<(), Fault> {
    let rows = block.head.rows;
    let key = Source::new(py, block.column(KEY))?;
    let is_whole = (0..rows).all(|row| !key.is_null(row));
    let name = Source::new(py, if is_whole { None } else { block.column(PRODUCER_NAME) })?;
    let nothing = PyBytes::new(py, b"");
    keys.reserve(rows);
    keys.extend((0..rows).map(|row| key.get(py, row).or_else(|| name.get(py, row)).unwrap_or_else(|| nothing.clone())));
    Ok(())
}

/// The values of one column of bytes or text, checked.
enum Source<'a, 'py> {
    Nothing,
    Constant(Bound<'py, PyBytes>),
    Variable { parts: Parts<'a>, ends: &'a [u8], body: &'a [u8] },
}

impl<'a, 'py> Source<'a, 'py> {
    fn new(py: Python<'py>, column: Option<&Stored<'a>>) -> Result<Self, Fault> {
        let Some(column) = column else { return Ok(Source::Nothing) };
        column.check()?;
        if column.encoding == CONSTANT {
            return Ok(Source::Constant(PyBytes::new(py, column.data)));
        }
        let parts = column.parts()?;
        let (ends, body) = column.ends_and_body(parts.values)?;
        Ok(Source::Variable { parts, ends, body })
    }

    fn is_null(&self, row: usize) -> bool {
        match self {
            Source::Nothing => true,
            Source::Constant(_) => false,
            Source::Variable { parts, .. } => parts.is_null(row),
        }
    }

    fn get(&self, py: Python<'py>, row: usize) -> Option<Bound<'py, PyBytes>> {
        match self {
            Source::Constant(value) => Some(value.clone()),
            Source::Variable { ends, body, .. } if !self.is_null(row) => {
                Some(PyBytes::new(py, &body[end_at(ends, row)..end_at(ends, row + 1)]))
            }
            _ => None,
        }
    }
}
