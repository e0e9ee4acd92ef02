//! Blocks that come from outside: the native twin of `check_block`. `icestream/model/block.py` is the contract for every
//! byte, and the oracle for every verdict and its text.

use crate::buffer::Input;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub const HEAD_BYTES: usize = 32;
pub const ENTRY_BYTES: usize = 8;
pub const ALIGN: usize = 8;
pub const CONSTANT: u8 = 1;
pub const FIXED: u8 = 2;
pub const VARIABLE: u8 = 3;
pub const NULLS: u8 = 1;
pub const KEY: u16 = 2;
pub const PRODUCER_NAME: u16 = 5;
pub const PRODUCER_ID: u16 = 6;
pub const SEQUENCE: u16 = 8;
/// `limits.BLOCK_ROWS_MAX`.
const ROWS_MAX: u32 = 1_048_576;
/// Ids rise, so a directory that adds up has no more entries than there are columns.
const COLUMNS_MAX: usize = 22;

/// What is wrong, in the words of the oracle.
pub type Fault = String;

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Number { width: usize },
    Boolean,
    Binary,
    Text,
    Headers,
}

impl Kind {
    /// Of one value; None where values have lengths of their own.
    pub fn width(self) -> Option<usize> {
        match self {
            Kind::Number { width } => Some(width),
            Kind::Boolean => Some(1),
            _ => None,
        }
    }
}

/// `envelope.COLUMNS`; a test compares.
fn column(id: u16) -> Option<(&'static str, Kind)> {
    const INT32: Kind = Kind::Number { width: 4 };
    const INT64: Kind = Kind::Number { width: 8 };
    Some(match id {
        1 => ("publish_time", INT64),
        2 => ("key", Kind::Binary),
        3 => ("payload", Kind::Binary),
        4 => ("headers", Kind::Headers),
        5 => ("producer_name", Kind::Text),
        6 => ("producer_id", INT64),
        7 => ("request_id", INT64),
        8 => ("sequence", INT64),
        9 => ("topic_name", Kind::Text),
        10 => ("broker_addr", Kind::Text),
        11 => ("subscription_name", Kind::Text),
        12 => ("schema_id", INT64),
        13 => ("schema_version", INT32),
        14 => ("schema_error", Kind::Text),
        15 => ("wire", Kind::Binary),
        16 => ("qos", INT32),
        17 => ("retain", Kind::Boolean),
        18 => ("content_type", Kind::Text),
        64 => ("qos2_client", Kind::Text),
        65 => ("qos2_packet_id", INT32),
        66 => ("origin_epoch", INT64),
        67 => ("origin_offset", INT64),
        _ => return None,
    })
}

/// `N` bytes of `data` from `at` on, if they are there.
fn bytes_at<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..)?.first_chunk().copied()
}

/// The number `index` of a list of u32.
pub fn end_at(ends: &[u8], index: usize) -> usize {
    u32::from_le_bytes(bytes_at(ends, 4 * index).expect("an end")) as usize
}

pub fn padded(size: usize) -> usize {
    size.next_multiple_of(ALIGN)
}

/// The first 32 bytes of a block, checked.
pub struct Head {
    pub rows: usize,
    pub block_bytes: usize,
    pub column_count: usize,
    pub producer_id: i64,
    pub producer_epoch: i32,
    pub first_sequence: i64,
    pub is_numbered: bool,
}

impl Head {
    pub fn decode(data: &[u8]) -> Result<Head, Fault> {
        let Some(head) = data.first_chunk::<HEAD_BYTES>() else { return Err("block header cut off".into()) };
        let four = |at| u32::from_le_bytes(bytes_at(head, at).expect("in the head"));
        let eight = |at| i64::from_le_bytes(bytes_at(head, at).expect("in the head"));
        let (rows, block_bytes) = (four(0), four(4) as usize);
        let (column_count, flags) = (four(20) & 0xffff, four(20) >> 16);
        let size_fits = (HEAD_BYTES..=data.len()).contains(&block_bytes) && block_bytes % ALIGN == 0;
        if !(1..=ROWS_MAX).contains(&rows) || !size_fits || flags != 0 {
            return Err("block header does not add up".into());
        }
        let (producer, epoch, sequence) = (eight(8), four(16) as i32, eight(24));
        let is_numbered = producer != -1 || sequence != -1;
        if is_numbered && (producer < 0 || epoch < 0 || sequence < 0 || sequence > i64::MAX - i64::from(rows)) {
            return Err("block numbering does not add up".into());
        }
        let (rows, column_count) = (rows as usize, column_count as usize);
        Ok(Head {
            rows,
            block_bytes,
            column_count,
            producer_id: producer,
            producer_epoch: epoch,
            first_sequence: sequence,
            is_numbered,
        })
    }
}

/// One column as it is stored.
pub struct Stored<'a> {
    pub id: u16,
    pub encoding: u8,
    pub flags: u8,
    pub kind: Kind,
    pub data: &'a [u8],
    pub rows: usize,
    name: &'static str,
}

/// The data of a column behind its bitmap of nulls.
pub struct Parts<'a> {
    /// Of the rows that are not null; None when none is.
    pub valid: Option<&'a [u8]>,
    pub values: &'a [u8],
}

impl Parts<'_> {
    pub fn is_null(&self, row: usize) -> bool {
        self.valid.is_some_and(|valid| valid[row / 8] >> (row % 8) & 1 == 0)
    }
}

impl<'a> Stored<'a> {
    fn fault(&self, what: &str) -> Fault {
        format!("column {}: {what}", self.name)
    }

    /// For a column that is not CONSTANT.
    pub fn parts(&self) -> Result<Parts<'a>, Fault> {
        if self.flags & NULLS == 0 {
            return Ok(Parts { valid: None, values: self.data });
        }
        let bitmap_bytes = padded(self.rows.div_ceil(8));
        match self.data.split_at_checked(bitmap_bytes) {
            Some((valid, values)) => Ok(Parts { valid: Some(valid), values }),
            None => Err(self.fault("bitmap cut off")),
        }
    }

    /// The width of the values of a FIXED column.
    pub fn fixed_width(&self, values: &[u8]) -> Result<usize, Fault> {
        match self.kind.width() {
            Some(width) if values.len() == width * self.rows => Ok(width),
            _ => Err(self.fault(&format!("{} bytes for {} fixed values", values.len(), self.rows))),
        }
    }

    /// The ends of a VARIABLE column and the bytes behind them; whether the ends rise is not looked at.
    pub fn ends_and_body(&self, values: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Fault> {
        match values.split_at_checked(4 * (self.rows + 1)) {
            Some(both) if self.kind.width().is_none() => Ok(both),
            _ => Err(self.fault("ends cut off")),
        }
    }

    pub fn ends_do_not_rise(&self, body: &[u8]) -> Fault {
        self.fault(&format!("ends do not rise to {}", body.len()))
    }

    /// Every value of the column.
    pub fn check(&self) -> Result<(), Fault> {
        if self.encoding == CONSTANT {
            return self.check_value(self.data);
        }
        let parts = self.parts()?;
        if self.encoding == VARIABLE {
            return self.check_variable(&parts);
        }
        self.fixed_width(parts.values)?;
        if self.kind == Kind::Boolean && parts.values.iter().any(|value| *value > 1) {
            return Err(self.fault("not a boolean"));
        }
        Ok(())
    }

    fn check_variable(&self, parts: &Parts<'a>) -> Result<(), Fault> {
        let (ends, body) = self.ends_and_body(parts.values)?;
        if !rises(ends, body.len()) {
            return Err(self.ends_do_not_rise(body));
        }
        match self.kind {
            Kind::Binary => Ok(()),
            // One pass over all bytes: a list of texts is good when it is good as one text, and no end divides a letter.
            Kind::Text if parts.valid.is_none() => {
                let text = self.text(body)?;
                let whole = (0..=self.rows).all(|index| text.is_char_boundary(end_at(ends, index)));
                if whole { Ok(()) } else { Err(self.fault("not UTF-8")) }
            }
            _ => (0..self.rows)
                .filter(|row| !parts.is_null(*row))
                .try_for_each(|row| self.check_value(&body[end_at(ends, row)..end_at(ends, row + 1)])),
        }
    }

    fn check_value(&self, value: &[u8]) -> Result<(), Fault> {
        match self.kind {
            Kind::Number { width } if value.len() != width => self.wrong_size(value, width),
            Kind::Boolean if value.len() != 1 => self.wrong_size(value, 1),
            Kind::Boolean if value[0] > 1 => Err(self.fault("not a boolean")),
            Kind::Text => self.text(value).map(drop),
            Kind::Headers => self.check_headers(value),
            _ => Ok(()),
        }
    }

    fn wrong_size(&self, value: &[u8], width: usize) -> Result<(), Fault> {
        Err(self.fault(&format!("{} bytes for a value of {width}", value.len())))
    }

    fn text<'b>(&self, value: &'b [u8]) -> Result<&'b str, Fault> {
        std::str::from_utf8(value).map_err(|_| self.fault("not UTF-8"))
    }

    fn check_headers(&self, data: &[u8]) -> Result<(), Fault> {
        let cut_off = || self.fault("headers cut off");
        let two = |at| bytes_at(data, at).map(|bytes| usize::from(u16::from_le_bytes(bytes))).ok_or_else(cut_off);
        let four = |at| bytes_at(data, at).map(|bytes| u32::from_le_bytes(bytes) as usize).ok_or_else(cut_off);
        let mut at = 2;
        let mut last: Option<&[u8]> = None;
        for _ in 0..two(0)? {
            let key_start = at + 2;
            let key_end = key_start + two(at)?;
            let value_start = key_end + 4;
            at = value_start + four(key_end)?;
            // The key is whole: four bytes stand behind it. The value may not be; the end of the loop will tell.
            let key = &data[key_start..key_end];
            if last.is_some_and(|last| key <= last) {
                return Err(self.fault("keys do not rise"));
            }
            last = Some(key);
            self.text(&data[value_start..at.min(data.len())])?;
            self.text(key)?;
        }
        if at == data.len() { Ok(()) } else { Err(self.fault("headers do not end where they should")) }
    }
}

/// Whether the ends go from 0 to `size` and never fall.
fn rises(ends: &[u8], size: usize) -> bool {
    let numbers = ends.chunks_exact(4).map(|end| u32::from_le_bytes(*end.first_chunk().expect("four bytes")));
    let (last, rising) = numbers.fold((0, true), |(last, rising), end| (end, rising & (last <= end)));
    rising && end_at(ends, 0) == 0 && last as usize == size
}

/// A block whose head and directory add up; its values may still be anything.
pub struct Block<'a> {
    pub head: Head,
    pub bytes: &'a [u8],
    pub columns: Vec<Stored<'a>>,
}

impl<'a> Block<'a> {
    /// The block at the start of `data`.
    pub fn decode(data: &'a [u8]) -> Result<Block<'a>, Fault> {
        let head = Head::decode(data)?;
        let bytes = &data[..head.block_bytes];
        let mut at = HEAD_BYTES + ENTRY_BYTES * head.column_count;
        let Some(directory) = bytes.get(HEAD_BYTES..at) else { return Err("column directory cut off".into()) };
        let mut columns: Vec<Stored<'a>> = Vec::with_capacity(head.column_count.min(COLUMNS_MAX));
        for entry in directory.chunks_exact(ENTRY_BYTES) {
            let last = columns.last().map_or(0, |column| column.id);
            let stored = Self::stored(entry.first_chunk().expect("an entry"), last, &bytes[at..], head.rows)?;
            at += padded(stored.data.len());
            columns.push(stored);
        }
        if at != bytes.len() {
            return Err("columns do not fill the block".into());
        }
        Ok(Block { head, bytes, columns })
    }

    /// What an entry of the directory says, with its data at the start of `rest`.
    fn stored(entry: &[u8; ENTRY_BYTES], last: u16, rest: &'a [u8], rows: usize) -> Result<Stored<'a>, Fault> {
        let [id_low, id_high, encoding, flags, size @ ..] = *entry;
        let id = u16::from_le_bytes([id_low, id_high]);
        let flags_max = if encoding == CONSTANT { 0 } else { NULLS };
        let known = column(id).filter(|_| (CONSTANT..=VARIABLE).contains(&encoding) && flags <= flags_max);
        let Some((name, kind)) = known.filter(|_| id > last) else {
            return Err(format!("column entry {id} does not add up"));
        };
        match rest.get(..u32::from_le_bytes(size) as usize) {
            Some(data) => Ok(Stored { id, encoding, flags, kind, data, rows, name }),
            None => Err(format!("column {id} cut off")),
        }
    }

    pub fn column(&self, id: u16) -> Option<&Stored<'a>> {
        self.columns.iter().find(|column| column.id == id)
    }
}

/// Rows, producer, epoch and first sequence as they stand in the head; which columns there are, a bit for each id, the
/// last bit for all ids that have none; bytes that every row repeats.
pub type Found = (usize, i64, i32, i64, u64, usize);

pub fn check(data: &[u8]) -> Result<Found, Fault> {
    let block = Block::decode(data)?;
    if block.bytes.len() != data.len() {
        return Err(format!("block header declares {} bytes, received {}", block.bytes.len(), data.len()));
    }
    let (mut columns, mut repeated) = (0, 0);
    for column in &block.columns {
        column.check()?;
        columns |= 1_u64 << column.id.min(63);
        repeated += if column.encoding == CONSTANT { column.data.len() } else { 0 };
    }
    let Head { rows, producer_id, producer_epoch, first_sequence, .. } = block.head;
    Ok((rows, producer_id, producer_epoch, first_sequence, columns, repeated))
}

/// Structure, types and every single value of one block; ValueError says what does not fit. The GIL is kept: the work is
/// shorter than a wait for it would be.
#[pyfunction]
pub fn check_block(data: &Bound<'_, PyAny>) -> PyResult<Found> {
    check(Input::new(data)?.as_slice()).map_err(PyValueError::new_err)
}
