//! Requests into columns: a protobuf decoder that knows no message, only which fields go to which column.
//!
//! A field of a nested message (one level) may be a column too. Of a field that stands twice the last one counts, as
//! protobuf says, except for repeated ones. A field that is no column, or has the wire type of another kind, is stepped
//! over; its own bytes are not looked at.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

pub const COLUMNS_MAX: usize = 16;
const FIELDS_MAX: usize = 32;

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// A varint.
    Integer,
    /// Length-delimited.
    Bytes,
    /// Length-delimited and UTF-8.
    Text,
    /// Length-delimited, any number of times; kept with tags and lengths, so that the column is itself protobuf.
    Repeated,
}

impl Kind {
    fn of(number: u8) -> PyResult<Kind> {
        match number {
            0 => Ok(Kind::Integer),
            1 => Ok(Kind::Bytes),
            2 => Ok(Kind::Text),
            3 => Ok(Kind::Repeated),
            _ => Err(PyValueError::new_err("a column is 0 (integer), 1 (bytes), 2 (text) or 3 (repeated)")),
        }
    }
}

/// Where a field goes.
#[derive(Clone, Copy)]
enum Place {
    Nowhere,
    Column(u8),
    Nested(u8),
}

type Places = [Place; FIELDS_MAX];

/// What one column is: field `field` of the message, or of its nested message `parent` (0: none).
pub type Declared = (u32, u32, u8);

pub struct Layout {
    kinds: Vec<Kind>,
    top: Places,
    nested: Vec<Places>,
    /// The answer repeats this column as this field.
    echo: Option<(usize, u8)>,
}

impl Layout {
    pub fn new(columns: &[Declared], echo: Option<(usize, u8)>) -> PyResult<Layout> {
        let fits = |field: u32| (1..FIELDS_MAX as u32).contains(&field);
        if columns.len() > COLUMNS_MAX || columns.iter().any(|c| !fits(c.1) || (c.0 != 0 && !fits(c.0))) {
            return Err(PyValueError::new_err("at most 16 columns, of fields 1 to 31"));
        }
        let mut layout = Layout { kinds: vec![], top: [Place::Nowhere; FIELDS_MAX], nested: vec![], echo };
        for (index, &(parent, field, kind)) in columns.iter().enumerate() {
            layout.kinds.push(Kind::of(kind)?);
            let places = match (parent, layout.top[parent as usize]) {
                (0, _) => &mut layout.top,
                (_, Place::Nested(at)) => &mut layout.nested[at as usize],
                _ => {
                    layout.top[parent as usize] = Place::Nested(layout.nested.len() as u8);
                    layout.nested.push([Place::Nowhere; FIELDS_MAX]);
                    layout.nested.last_mut().expect("just pushed")
                }
            };
            places[field as usize] = Place::Column(index as u8);
        }
        match echo {
            Some((column, field)) if layout.kinds.get(column) != Some(&Kind::Integer) || field == 0 || field > 15 => {
                Err(PyValueError::new_err("only an integer column can be answered, as field 1 to 15"))
            }
            _ => Ok(layout),
        }
    }
}

enum Column {
    Integers(Vec<u64>),
    Values { joined: Vec<u8>, ends: Vec<u32> },
}

/// The columns of the requests so far.
pub struct Columns {
    columns: Vec<Column>,
    pub present: Vec<u32>,
    pub bytes: usize,
}

/// What one request holds: integers as they are, the others as begin and end in the request.
#[derive(Default)]
struct Row {
    integers: [u64; COLUMNS_MAX],
    spans: [(usize, usize); COLUMNS_MAX],
    present: u32,
}

/// The bytes are no message of the declared form.
pub struct Malformed;

impl Columns {
    pub fn new(layout: &Layout) -> Columns {
        let empty = |kind: &Kind| match kind {
            Kind::Integer => Column::Integers(vec![]),
            _ => Column::Values { joined: vec![], ends: vec![] },
        };
        Columns { columns: layout.kinds.iter().map(empty).collect(), present: vec![], bytes: 0 }
    }

    /// Adds one request, or nothing at all.
    pub fn add(&mut self, layout: &Layout, request: &[u8]) -> Result<(), Malformed> {
        let mut row = Row::default();
        let read = self.read(layout, &layout.top, request, (0, request.len()), &mut row, true);
        for (index, column) in self.columns.iter_mut().enumerate() {
            match column {
                Column::Integers(values) if read.is_ok() => values.push(row.integers[index]),
                Column::Integers(_) => {}
                // repeated fields were joined while they were read
                Column::Values { joined, ends } if read.is_err() => joined.truncate(last(ends)),
                Column::Values { joined, ends } => {
                    if layout.kinds[index] != Kind::Repeated {
                        let (begin, end) = row.spans[index];
                        joined.extend_from_slice(&request[begin..end]);
                    }
                    ends.push(joined.len() as u32);
                }
            }
        }
        read?;
        self.present.push(row.present);
        self.bytes += request.len();
        Ok(())
    }

    fn read(
        &mut self,
        layout: &Layout,
        places: &Places,
        request: &[u8],
        (mut at, end): (usize, usize),
        row: &mut Row,
        top: bool,
    ) -> Result<(), Malformed> {
        let bytes = &request[..end];
        while at < end {
            let begin = at;
            let tag = varint(bytes, &mut at)?;
            let field = tag >> 3;
            if field == 0 || tag > u64::from(u32::MAX) {
                return Err(Malformed);
            }
            let place = places.get(field as usize).copied().unwrap_or(Place::Nowhere);
            match tag & 7 {
                0 => {
                    let value = varint(bytes, &mut at)?;
                    if let Place::Column(index) = place
                        && layout.kinds[index as usize] == Kind::Integer
                    {
                        row.integers[index as usize] = value;
                        row.present |= 1 << index;
                    }
                }
                2 => {
                    let length = usize::try_from(varint(bytes, &mut at)?).map_err(|_| Malformed)?;
                    let stop = at.checked_add(length).filter(|&stop| stop <= end).ok_or(Malformed)?;
                    match place {
                        Place::Nowhere => {}
                        Place::Nested(_) if !top => {}
                        Place::Nested(nested) => {
                            self.read(layout, &layout.nested[nested as usize], request, (at, stop), row, false)?;
                        }
                        Place::Column(index) => self.take(layout, index, request, (begin, at, stop), row)?,
                    }
                    at = stop;
                }
                1 => at += 8,
                5 => at += 4,
                _ => return Err(Malformed),
            }
        }
        if at == end { Ok(()) } else { Err(Malformed) }
    }

    fn take(
        &mut self,
        layout: &Layout,
        index: u8,
        request: &[u8],
        (tag, begin, end): (usize, usize, usize),
        row: &mut Row,
    ) -> Result<(), Malformed> {
        let column = index as usize;
        match (layout.kinds[column], &mut self.columns[column]) {
            (Kind::Integer, _) | (_, Column::Integers(_)) => return Ok(()),
            (Kind::Repeated, Column::Values { joined, .. }) => joined.extend_from_slice(&request[tag..end]),
            (Kind::Text, _) if std::str::from_utf8(&request[begin..end]).is_err() => return Err(Malformed),
            (Kind::Text | Kind::Bytes, _) => row.spans[column] = (begin, end),
        }
        row.present |= 1 << index;
        Ok(())
    }

    pub fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let mut all = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            all.push(match column {
                Column::Integers(values) => packed(py, values).into_any(),
                Column::Values { joined, ends } => {
                    (PyBytes::new(py, joined), packed(py, ends)).into_pyobject(py)?.into_any()
                }
            });
        }
        PyTuple::new(py, all)
    }

    /// The column that answers repeat.
    pub fn echoes(&mut self, layout: &Layout) -> Option<Echoes> {
        let (column, field) = layout.echo?;
        match &mut self.columns[column] {
            Column::Integers(values) => Some(Echoes { field, values: std::mem::take(values) }),
            Column::Values { .. } => None,
        }
    }
}

pub struct Echoes {
    field: u8,
    values: Vec<u64>,
}

impl Echoes {
    /// The answer to request `index`, framed.
    pub fn answer(&self, index: usize) -> bytes::Bytes {
        let mut framed = vec![0u8; 5];
        if self.values[index] != 0 {
            framed.push(self.field << 3);
            put_varint(&mut framed, self.values[index]);
        }
        framed[4] = (framed.len() - 5) as u8;
        framed.into()
    }
}

/// What a batch of these requests would hold; for tests, so that the decoder can be fed with anything.
#[pyfunction]
#[pyo3(signature = (columns, requests))]
pub fn decode_columns<'py>(
    py: Python<'py>,
    columns: Vec<Declared>,
    requests: Vec<Bound<'py, PyBytes>>,
) -> PyResult<(Vec<bool>, Bound<'py, PyBytes>, Bound<'py, PyTuple>)> {
    let layout = Layout::new(&columns, None)?;
    let mut decoded = Columns::new(&layout);
    let taken = requests.iter().map(|request| decoded.add(&layout, request.as_bytes()).is_ok()).collect();
    Ok((taken, packed(py, &decoded.present), decoded.to_python(py)?))
}

fn last(ends: &[u32]) -> usize {
    ends.last().copied().unwrap_or(0) as usize
}

pub trait Packed: Copy {
    fn put(self, bytes: &mut Vec<u8>);
}

impl Packed for u32 {
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.to_le_bytes());
    }
}

impl Packed for u64 {
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.to_le_bytes());
    }
}

pub fn packed<'py, T: Packed>(py: Python<'py>, values: &[T]) -> Bound<'py, PyBytes> {
    let mut bytes = Vec::with_capacity(std::mem::size_of_val(values));
    values.iter().for_each(|value| value.put(&mut bytes));
    PyBytes::new(py, &bytes)
}

fn varint(bytes: &[u8], at: &mut usize) -> Result<u64, Malformed> {
    let mut value = 0u64;
    for index in 0..10 {
        let byte = *bytes.get(*at).ok_or(Malformed)?;
        *at += 1;
        value |= u64::from(byte & 0x7F).checked_shl(7 * index).unwrap_or(0);
        if byte < 0x80 {
            // the tenth byte holds one bit; protobuf takes no more than that
            return if index == 9 && byte > 1 { Err(Malformed) } else { Ok(value) };
        }
    }
    Err(Malformed)
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}
