//! As much of msgpack as the handshake and the calls of the native protocol need.

use crate::Failure;

pub fn text(out: &mut Vec<u8>, value: &str) {
    if value.len() < 256 {
        out.push(0xd9);
        out.push(value.len() as u8);
    } else {
        out.push(0xda);
        out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    }
    out.extend_from_slice(value.as_bytes());
}

pub fn number(out: &mut Vec<u8>, value: u64) {
    out.push(0xcf);
    out.extend_from_slice(&value.to_be_bytes());
}

pub fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    out.push(0xc5);
    out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    out.extend_from_slice(value);
}

pub fn map(out: &mut Vec<u8>, entries: u8) {
    out.push(0x80 | entries);
}

/// The number under a key of the outermost map.
pub fn find(data: &[u8], key: &str) -> Result<u64, Failure> {
    let mut at = 0;
    let entries = match data.first() {
        Some(byte) if byte & 0xf0 == 0x80 => (byte & 0x0f) as usize,
        _ => return Err("not a document".into()),
    };
    at += 1;
    for _ in 0..entries {
        let (name, after) = span(data, at)?;
        let (_, end) = span(data, after)?;
        if &data[name..after] == key.as_bytes() {
            return integer(&data[after..end]);
        }
        at = end;
    }
    Err(format!("the answer has no {key}").into())
}

pub fn integer(data: &[u8]) -> Result<u64, Failure> {
    let width = |size: usize| data[1..1 + size].iter().fold(0u64, |sum, byte| sum << 8 | *byte as u64);
    match data[0] {
        byte @ 0..=0x7f => Ok(byte as u64),
        0xcc => Ok(width(1)),
        0xcd => Ok(width(2)),
        0xce => Ok(width(4)),
        0xcf => Ok(width(8)),
        _ => Err("not a number".into()),
    }
}

/// Where the value at `at` begins behind its head, and where it ends.
fn span(data: &[u8], at: usize) -> Result<(usize, usize), Failure> {
    let byte = *data.get(at).ok_or("the document is cut off")?;
    let big = |size: usize| data[at + 1..at + 1 + size].iter().fold(0usize, |sum, byte| sum << 8 | *byte as usize);
    let several = |count: usize, mut at: usize| -> Result<(usize, usize), Failure> {
        for _ in 0..count {
            at = span(data, at)?.1;
        }
        Ok((at, at))
    };
    Ok(match byte {
        0..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (at, at + 1),
        0xa0..=0xbf => (at + 1, at + 1 + (byte & 0x1f) as usize),
        0xd9 | 0xc4 => (at + 2, at + 2 + big(1)),
        0xda | 0xc5 => (at + 3, at + 3 + big(2)),
        0xcc | 0xd0 => (at, at + 2),
        0xcd | 0xd1 => (at, at + 3),
        0xce | 0xd2 => (at, at + 5),
        0xcf | 0xd3 | 0xcb => (at, at + 9),
        0x90..=0x9f => several((byte & 0x0f) as usize, at + 1)?,
        0x80..=0x8f => several(2 * (byte & 0x0f) as usize, at + 1)?,
        _ => return Err(format!("a value of kind {byte:#x}").into()),
    })
}
