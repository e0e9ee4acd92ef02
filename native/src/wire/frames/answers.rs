//! The answers to the PUBLISH frames of one connection: they leave in the order of their frames, each when it is whole.

use std::collections::VecDeque;

const PUBLISHED: u8 = 17;
const HEAD_BYTES: usize = 16;
const PART_BYTES: usize = 16;

/// The answer to one frame.
struct Answer {
    number: u64,
    missing: u32,
    parts: Parts,
}

enum Parts {
    /// The base offset of the only part, which is nearly every answer.
    One(i64),
    /// Base offsets.
    Many(Vec<i64>),
    /// Parts as they go onto the wire, because one of them was not stored.
    Encoded(Vec<Vec<u8>>),
    /// The whole frame, made by Python.
    Frame(Vec<u8>),
}

#[derive(Default)]
pub struct Answers {
    waiting: VecDeque<Answer>,
    /// Which PUBLISH of the connection the front of the queue answers.
    first: u64,
}

impl Answers {
    /// A frame of `parts` parts was received. Returns its place, counted from 0.
    pub fn expect(&mut self, number: u64, parts: u32) -> u64 {
        let state = if parts == 1 { Parts::One(-1) } else { Parts::Many(vec![-1; parts as usize]) };
        self.waiting.push_back(Answer { number, missing: parts, parts: state });
        self.first + self.waiting.len() as u64 - 1
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A part was stored.
    pub fn store(&mut self, place: u64, part: u32, base_offset: i64) {
        let Some(answer) = self.at(place) else { return };
        answer.missing = answer.missing.saturating_sub(1);
        match &mut answer.parts {
            Parts::One(base) => *base = base_offset,
            Parts::Many(bases) => bases[part as usize] = base_offset,
            Parts::Encoded(encoded) => encoded[part as usize] = stored(base_offset).to_vec(),
            Parts::Frame(_) => {}
        }
    }

    /// A part has another outcome; `encoded` is what the wire says about it.
    pub fn settle(&mut self, place: u64, part: u32, encoded: Vec<u8>) {
        let Some(answer) = self.at(place) else { return };
        answer.missing = answer.missing.saturating_sub(1);
        let mut parts = match &mut answer.parts {
            Parts::One(base) => vec![stored(*base).to_vec()],
            Parts::Many(bases) => bases.iter().map(|base| stored(*base).to_vec()).collect(),
            Parts::Encoded(parts) => std::mem::take(parts),
            Parts::Frame(_) => return,
        };
        parts[part as usize] = encoded;
        answer.parts = Parts::Encoded(parts);
    }

    /// Python made the whole answer to the frame of this number.
    pub fn replace(&mut self, number: u64, frame: Vec<u8>) {
        if let Ok(index) = self.waiting.binary_search_by_key(&number, |answer| answer.number) {
            self.waiting[index].missing = 0;
            self.waiting[index].parts = Parts::Frame(frame);
        }
    }

    fn at(&mut self, place: u64) -> Option<&mut Answer> {
        self.waiting.get_mut(place.checked_sub(self.first)? as usize)
    }

    /// Appends every answer that may leave to `out`.
    pub fn take_ready(&mut self, out: &mut Vec<u8>) {
        while self.waiting.front().is_some_and(|answer| answer.missing == 0) {
            let answer = self.waiting.pop_front().expect("a front");
            self.first += 1;
            match answer.parts {
                Parts::Frame(frame) => out.extend_from_slice(&frame),
                Parts::One(base) => {
                    head(out, answer.number, PART_BYTES);
                    out.extend_from_slice(&stored(base));
                }
                Parts::Many(bases) => {
                    head(out, answer.number, PART_BYTES * bases.len());
                    bases.iter().for_each(|base| out.extend_from_slice(&stored(*base)));
                }
                Parts::Encoded(parts) => {
                    head(out, answer.number, parts.iter().map(Vec::len).sum());
                    parts.iter().for_each(|part| out.extend_from_slice(part));
                }
            }
        }
    }
}

fn head(out: &mut Vec<u8>, number: u64, body_bytes: usize) {
    out.extend_from_slice(&((HEAD_BYTES - 4 + body_bytes) as u32).to_le_bytes());
    out.extend_from_slice(&[PUBLISHED, 0, 0, 0]);
    out.extend_from_slice(&number.to_le_bytes());
}

/// Outcome STORED, no text, the base offset.
fn stored(base_offset: i64) -> [u8; PART_BYTES] {
    let mut part = [0; PART_BYTES];
    part[8..].copy_from_slice(&base_offset.to_le_bytes());
    part
}
