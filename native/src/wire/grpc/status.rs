//! Heads and ends of gRPC answers.

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response, header};

pub type Call = SendResponse<Bytes>;

pub const CANCELLED: u8 = 1;
pub const INVALID_ARGUMENT: u8 = 3;
pub const UNIMPLEMENTED: u8 = 12;
pub const INTERNAL: u8 = 13;
pub const UNAVAILABLE: u8 = 14;
pub const UNAUTHENTICATED: u8 = 16;

/// A status that is not OK.
pub struct Failure {
    pub code: u8,
    pub message: String,
}

impl Failure {
    pub fn new(code: u8, message: &str) -> Failure {
        Failure { code, message: message.to_owned() }
    }
}

pub fn head() -> Response<()> {
    let mut head = Response::new(());
    head.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    head
}

/// The peer may be gone at any time; then there is nobody to tell.
pub fn succeed(call: &mut Call, framed: Bytes) {
    let Ok(mut stream) = call.send_response(head(), false) else { return };
    if stream.send_data(framed, false).is_ok() {
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let _ = stream.send_trailers(trailers);
    }
}

/// The empty message, framed.
pub fn empty() -> Bytes {
    Bytes::from_static(&[0; 5])
}

/// Head and status in one: no body was begun.
pub fn fail(call: &mut Call, failure: &Failure) {
    let mut answer = head();
    put(answer.headers_mut(), failure);
    let _ = call.send_response(answer, true);
}

pub fn put(headers: &mut HeaderMap, failure: &Failure) {
    headers.insert("grpc-status", HeaderValue::from(u16::from(failure.code)));
    if let Ok(message) = HeaderValue::from_str(&percent_encoded(&failure.message))
        && !message.is_empty()
    {
        headers.insert("grpc-message", message);
    }
}

fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        if (0x20..0x7F).contains(&byte) && byte != b'%' {
            encoded.push(byte as char);
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// The nanosecond of the monotonic clock at which the caller stops waiting; 0: never.
pub fn deadline(headers: &HeaderMap) -> u64 {
    let Some(text) = headers.get("grpc-timeout").and_then(|value| value.to_str().ok()) else { return 0 };
    let Some((digits, unit)) = text.split_at_checked(text.len().saturating_sub(1)) else { return 0 };
    let unit_ns: u64 = match unit {
        "H" => 3_600_000_000_000,
        "M" => 60_000_000_000,
        "S" => 1_000_000_000,
        "m" => 1_000_000,
        "u" => 1_000,
        "n" => 1,
        _ => return 0,
    };
    match digits.parse::<u64>() {
        Ok(count) => monotonic_ns().saturating_add(count.saturating_mul(unit_ns)).max(1),
        Err(_) => 0,
    }
}

/// The clock of Python's `time.monotonic_ns`.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a plain call with room for its answer; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
