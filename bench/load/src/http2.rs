//! HTTP/2 and gRPC as far as a client of unary calls and one server stream needs them, without a runtime and without a
//! future for each call: the `h2` crate takes about as much CPU for a call as the servers that are measured.
//!
//! Headers that were sent once are sent as their place in the table of the peer, as real clients do. Headers that come
//! are not decoded: a call that failed is one that ended without a message. Bodies are small, so the window of a stream
//! never binds a request; the window of the connection does.

use crate::Failure;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD: usize = 9;
const PREFIX: usize = 5; // of a message: not compressed, u32 size
const WINDOW_MAX: u32 = (1 << 31) - 1;
const WINDOW_FIRST: u32 = 65_535;
const WINDOW_STEP: u32 = 1 << 24; // bytes that come before a window is opened again
const FIRST_PLACE: usize = 62; // of the table that both sides keep, behind those that everybody has
const METHOD_POST: u8 = 0x83;
const SCHEME_HTTP: u8 = 0x86;
/// Places of names that everybody has; "te" has none.
const NAME_PLACES: [(&str, u8); 3] = [(":authority", 1), (":path", 4), ("content-type", 31)];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// What came for a call: a piece of its answer, or its end.
pub struct Came<'a> {
    pub stream: u32,
    pub data: &'a [u8],
    pub is_over: bool,
}

pub struct Http2 {
    authority: String,
    fields: Vec<(&'static str, String)>, // in the table of the peer, oldest first
    next: u32,
    window: i64,
    read: u32,     // bytes since the window of the connection was opened
    followed: u32, // the stream whose own window is kept open, too
    followed_read: u32,
}

impl Http2 {
    /// The first bytes of a connection go to `out`.
    pub fn new(authority: &str, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(PREFACE);
        let mut settings = Vec::new();
        for (name, value) in [(2u16, 0), (4, WINDOW_MAX)] {
            settings.extend_from_slice(&name.to_be_bytes()); // no push; the window of a stream
            settings.extend_from_slice(&value.to_be_bytes());
        }
        frame(out, SETTINGS, 0, 0, &settings);
        frame(out, WINDOW, 0, 0, &(WINDOW_MAX - WINDOW_FIRST).to_be_bytes());
        let (authority, fields) = (authority.to_owned(), Vec::new());
        Http2 { authority, fields, next: 1, window: WINDOW_FIRST.into(), read: 0, followed: 0, followed_read: 0 }
    }

    /// Whether so many bytes may be sent now.
    pub fn has_window(&self, size: usize) -> bool {
        self.window >= (PREFIX + size) as i64
    }

    /// Makes a call; returns the number of its stream.
    pub fn call(&mut self, path: &str, message: &[u8], out: &mut Vec<u8>) -> Result<u32, Failure> {
        if !self.has_window(message.len()) {
            return Err("more is under way than the window of the server holds".into());
        }
        let stream = self.next;
        self.next += 2;
        self.window -= (PREFIX + message.len()) as i64;
        let head = out.len();
        frame(out, HEADERS, END_HEADERS, stream, &[]);
        self.header_block(path, out);
        let size = (out.len() - head - HEAD) as u32;
        out[head..head + 3].copy_from_slice(&size.to_be_bytes()[1..]);
        frame_head(out, PREFIX + message.len(), DATA, END_STREAM, stream);
        out.push(0);
        out.extend_from_slice(&(message.len() as u32).to_be_bytes());
        out.extend_from_slice(message);
        Ok(stream)
    }

    /// A server stream: what comes on it does not end, so its window is opened again, too.
    pub fn follow(&mut self, stream: u32) {
        self.followed = stream;
    }

    fn header_block(&mut self, path: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(&[METHOD_POST, SCHEME_HTTP]);
        let authority = self.authority.clone();
        self.field(":path", path, out);
        self.field(":authority", &authority, out);
        self.field("content-type", "application/grpc", out);
        self.field("te", "trailers", out);
    }

    fn field(&mut self, name: &'static str, value: &str, out: &mut Vec<u8>) {
        if let Some(at) = self.fields.iter().position(|(known, text)| *known == name && text == value) {
            out.push(0x80 | (FIRST_PLACE + self.fields.len() - 1 - at) as u8);
            return;
        }
        self.fields.push((name, value.to_owned()));
        match NAME_PLACES.iter().find(|(known, _)| *known == name) {
            Some((_, place)) => out.push(0x40 | place),
            None => {
                out.push(0x40);
                text(out, name);
            }
        }
        text(out, value);
    }

    /// The first frame of `data`: what came for a call, if it is of one, and its size. None: it is not complete.
    pub fn first<'a>(
        &mut self,
        data: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(Option<Came<'a>>, usize)>, Failure> {
        let Some(head) = data.first_chunk::<HEAD>() else { return Ok(None) };
        let size = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & WINDOW_MAX;
        let Some(body) = data.get(HEAD..HEAD + size) else { return Ok(None) };
        let came = match kind {
            DATA => {
                self.count(stream, size as u32, out);
                Some(Came { stream, data: body, is_over: flags & END_STREAM != 0 })
            }
            HEADERS if flags & END_STREAM != 0 => Some(Came { stream, data: &[], is_over: true }),
            _ => {
                self.control(kind, flags, stream, body, out)?;
                None
            }
        };
        Ok(Some((came, HEAD + size)))
    }

    fn control(&mut self, kind: u8, flags: u8, stream: u32, body: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        match kind {
            SETTINGS if flags & ACK == 0 => frame(out, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => frame(out, PING, ACK, 0, body),
            WINDOW if stream == 0 => {
                let more = body.first_chunk::<4>().ok_or("a window without a size")?;
                self.window += i64::from(u32::from_be_bytes(*more));
            }
            RESET | GOAWAY => return Err(format!("the server ended it: {}", String::from_utf8_lossy(body)).into()),
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, stream: u32, size: u32, out: &mut Vec<u8>) {
        self.read += size;
        if self.read > WINDOW_STEP {
            frame(out, WINDOW, 0, 0, &self.read.to_be_bytes());
            self.read = 0;
        }
        if stream == self.followed {
            self.followed_read += size;
            if self.followed_read > WINDOW_STEP {
                frame(out, WINDOW, 0, stream, &self.followed_read.to_be_bytes());
                self.followed_read = 0;
            }
        }
    }
}

/// The first message of a stream's bytes, and how many bytes it took. None: it is not complete.
pub fn message(data: &[u8]) -> Option<(&[u8], usize)> {
    let prefix = data.first_chunk::<PREFIX>()?;
    let size = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    Some((data.get(PREFIX..PREFIX + size)?, PREFIX + size))
}

fn text(out: &mut Vec<u8>, value: &str) {
    assert!(value.len() < 127, "longer texts have longer sizes");
    out.push(value.len() as u8);
    out.extend_from_slice(value.as_bytes());
}

fn frame_head(out: &mut Vec<u8>, size: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&(size as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[u8]) {
    frame_head(out, body.len(), kind, flags, stream);
    out.extend_from_slice(body);
}
