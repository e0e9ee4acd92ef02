//! The digest of rows: the twin of the loops in `icestream/readers/row_hashes.py`, whose head has the formulas.

use crate::buffer::Input;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
const WEIGHT: u64 = 0xD6E8_FEB8_6659_FD93;

type Fault = String;
/// Kind, seed, one byte for each row (1: it has a value) or empty for all, and the buffers of the kind.
type ColumnArguments<'py> = (u8, u64, Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>);

/// Two sums over `rows` rows, each mod 2^64.
#[pyfunction]
pub fn digest_rows(rows: usize, columns: Vec<ColumnArguments<'_>>) -> PyResult<(u64, u64)> {
    let mut first = vec![0u64; rows];
    let mut second = vec![0u64; rows];
    for (kind, seed, mask, buffers) in &columns {
        let mask = Input::new(mask)?;
        let inputs = buffers.iter().map(Input::new).collect::<PyResult<Vec<_>>>()?;
        let slices: Vec<&[u8]> = inputs.iter().map(Input::as_slice).collect();
        let mut target = Target { mask: mask.as_slice(), seed: *seed, first: &mut first, second: &mut second };
        add_column(*kind, &mut target, &slices).map_err(PyValueError::new_err)?;
    }
    let (mut low, mut high) = (0u64, 0u64);
    for (a, b) in first.iter().zip(&second) {
        let row = mix(a ^ mix(*b));
        low = low.wrapping_add(row);
        high = high.wrapping_add(mix(b.wrapping_add(row.wrapping_mul(WEIGHT))));
    }
    Ok((low, high))
}

fn add_column(kind: u8, target: &mut Target<'_>, buffers: &[&[u8]]) -> Result<(), Fault> {
    match (kind, buffers) {
        (0, [values]) => {
            if values.len() != 8 * target.first.len() {
                return Err(format!("{} bytes for {} numbers", values.len(), target.first.len()));
            }
            target.add_numbers(values);
            Ok(())
        }
        (1, [ends, data]) => {
            let seed = target.seed;
            target.add(|row| text(seed, ends, data, row))
        }
        (2, [codes, ends, data]) => {
            let seed = target.seed;
            let count = (ends.len() / 4).saturating_sub(1);
            let words = (0..count).map(|code| text(seed, ends, data, code)).collect::<Result<Vec<_>, _>>()?;
            target.add(|row| {
                let code = int(codes, row)?;
                words.get(code).copied().ok_or_else(|| format!("no value has the code {code}"))
            })
        }
        (3, [ends, key_ends, keys, value_ends, values, value_mask]) => {
            let seed = target.seed;
            target.add(|row| {
                let (mut a, mut b) = (seed, seed.wrapping_mul(STEP));
                for pair in int(ends, row)?..int(ends, row + 1)? {
                    let key = text(seed, key_ends, keys, pair)?;
                    let value = match value_mask.get(pair) {
                        Some(0) => (seed, !seed),
                        _ => text(seed ^ STEP, value_ends, values, pair)?,
                    };
                    a = a.wrapping_add(mix(key.0 ^ mix(value.0.wrapping_add(STEP))));
                    b = b.wrapping_add(mix(key.1 ^ mix(value.1.wrapping_add(WEIGHT))));
                }
                Ok((a, b))
            })
        }
        _ => Err(format!("a column of kind {kind} has {} buffers", buffers.len())),
    }
}

struct Target<'a> {
    mask: &'a [u8],
    seed: u64,
    first: &'a mut [u64],
    second: &'a mut [u64],
}

impl Target<'_> {
    /// Without a check for each row, so that the compiler can work on several rows at a time.
    fn add_numbers(&mut self, values: &[u8]) {
        let seed = self.seed;
        let rows = self.first.iter_mut().zip(self.second.iter_mut()).zip(values.chunks_exact(8));
        for (row, ((first, second), bytes)) in rows.enumerate() {
            if self.mask.get(row) == Some(&0) {
                continue;
            }
            let value = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            let mixed = mix(value.wrapping_add(STEP) ^ seed);
            *first = first.wrapping_add(mix(mixed ^ seed));
            *second = second.wrapping_add(mix(mixed.wrapping_mul(WEIGHT).wrapping_add(seed)));
        }
    }

    fn add(&mut self, hash: impl Fn(usize) -> Result<(u64, u64), Fault>) -> Result<(), Fault> {
        for row in 0..self.first.len() {
            if self.mask.get(row) == Some(&0) {
                continue;
            }
            let (a, b) = hash(row)?;
            self.first[row] = self.first[row].wrapping_add(mix(a ^ self.seed));
            self.second[row] = self.second[row].wrapping_add(mix(b.wrapping_add(self.seed)));
        }
        Ok(())
    }
}

/// The hash of the value at `index` of an array of bytes with these ends.
fn text(seed: u64, ends: &[u8], data: &[u8], index: usize) -> Result<(u64, u64), Fault> {
    let (start, end) = (int(ends, index)?, int(ends, index + 1)?);
    let value = data.get(start..end).ok_or_else(|| format!("a value from {start} to {end} of {} bytes", data.len()))?;
    let mut a = mix(seed.wrapping_add((value.len() as u64).wrapping_mul(STEP)));
    let mut b = mix(a ^ WEIGHT);
    let (mut step, mut weight) = (0u64, 0u64);
    let mut add = |word: u64| {
        step = step.wrapping_add(STEP);
        weight = weight.wrapping_add(WEIGHT);
        let mixed = mix(word.wrapping_add(step) ^ seed);
        a = a.wrapping_add(mixed);
        b = b.wrapping_add(mixed.wrapping_mul(weight | 1));
    };
    let mut words = value.chunks_exact(8);
    for word in &mut words {
        add(u64::from_le_bytes(word.try_into().expect("eight bytes")));
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let mut word = [0u8; 8];
        word[..rest.len()].copy_from_slice(rest);
        add(u64::from_le_bytes(word));
    }
    Ok((a, b))
}

fn int(values: &[u8], index: usize) -> Result<usize, Fault> {
    let bytes = values.get(4 * index..4 * index + 4).ok_or_else(|| format!("no number {index}"))?;
    usize::try_from(i32::from_le_bytes(bytes.try_into().expect("four bytes"))).map_err(|error| error.to_string())
}

fn mix(value: u64) -> u64 {
    let mut mixed = value;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
