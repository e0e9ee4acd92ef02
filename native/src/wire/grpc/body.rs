//! The one message of a request, put together from the data that HTTP/2 brings.

use super::inbox::Inbox;
use super::status::{CANCELLED, Failure, INTERNAL, INVALID_ARGUMENT, UNAVAILABLE, UNIMPLEMENTED};
use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use std::sync::Arc;
use std::task::{Context, Poll};

const HEAD_BYTES: usize = 5;

pub struct Body {
    stream: RecvStream,
    inbox: Arc<Inbox>,
    /// What came in one piece is not copied.
    first: Option<Bytes>,
    joined: BytesMut,
    /// Bytes that are counted as pending: all of a request that came in pieces.
    counted: usize,
    in_pieces: bool,
}

impl Body {
    pub fn new(stream: RecvStream, inbox: Arc<Inbox>) -> Body {
        Body { stream, inbox, first: None, joined: BytesMut::new(), counted: 0, in_pieces: false }
    }

    /// From now on the window is given back as data is read: two half requests must not wait for each other's window.
    pub fn goes_on(&mut self) -> Result<(), Failure> {
        self.in_pieces = true;
        let length = self.so_far().len();
        self.give_back(length)
    }

    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, Failure>> {
        loop {
            match self.stream.poll_data(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(Failure::new(CANCELLED, "the call was cancelled"))),
                Poll::Ready(Some(Ok(data))) => {
                    if let Err(failure) = self.take(data) {
                        return Poll::Ready(Err(failure));
                    }
                    if self.stream.is_end_stream() {
                        return Poll::Ready(self.message());
                    }
                }
                Poll::Ready(None) => return Poll::Ready(self.message()),
            }
        }
    }

    fn take(&mut self, data: Bytes) -> Result<(), Failure> {
        let length = data.len();
        if self.first.is_none() && self.joined.is_empty() {
            self.first = Some(data);
        } else {
            if let Some(first) = self.first.take() {
                self.joined.extend_from_slice(&first);
            }
            self.joined.extend_from_slice(&data);
        }
        if self.in_pieces {
            self.give_back(length)?;
        }
        self.check_length()
    }

    fn give_back(&mut self, length: usize) -> Result<(), Failure> {
        self.counted += length;
        if !self.inbox.admit(length) {
            return Err(Failure::new(UNAVAILABLE, "the server is busy: try again"));
        }
        let _ = self.stream.flow_control().release_capacity(length);
        Ok(())
    }

    fn so_far(&self) -> &[u8] {
        self.first.as_deref().unwrap_or(&self.joined)
    }

    fn announced(&self) -> Option<usize> {
        let head = self.so_far().get(1..HEAD_BYTES)?;
        Some(u32::from_be_bytes(head.try_into().expect("four bytes")) as usize)
    }

    fn check_length(&self) -> Result<(), Failure> {
        let Some(announced) = self.announced() else { return Ok(()) };
        let bound = self.inbox.options.message_bytes_max;
        if announced > bound {
            let message = format!("the message has {announced} bytes; at most {bound} are taken");
            return Err(Failure { code: INVALID_ARGUMENT, message });
        }
        if self.so_far().len() > HEAD_BYTES + announced {
            return Err(Failure::new(INTERNAL, "the request goes on after its message"));
        }
        Ok(())
    }

    fn message(&mut self) -> Result<Bytes, Failure> {
        if self.announced().is_none_or(|announced| announced + HEAD_BYTES != self.so_far().len()) {
            return Err(Failure::new(INTERNAL, "the request ends before its message"));
        }
        let mut message = self.first.take().unwrap_or_else(|| self.joined.split().freeze());
        if message[0] != 0 {
            return Err(Failure::new(UNIMPLEMENTED, "compressed requests are not taken"));
        }
        message.advance(HEAD_BYTES);
        Ok(message)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.inbox.dismiss(self.counted);
    }
}

/// Messages one behind the other, each with its gRPC head.
pub fn framed<'a>(messages: impl Iterator<Item = &'a [u8]> + Clone) -> Bytes {
    let mut joined = BytesMut::with_capacity(messages.clone().map(|message| message.len() + HEAD_BYTES).sum());
    for message in messages {
        joined.extend_from_slice(&[0]);
        joined.extend_from_slice(&(message.len() as u32).to_be_bytes());
        joined.extend_from_slice(message);
    }
    joined.freeze()
}
