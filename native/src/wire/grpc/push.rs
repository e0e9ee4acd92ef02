//! A server stream: what Python pushed and the peer has no window for yet.
//!
//! Python learns from each push how much waits, stops when that is enough for it, and hears once when it has become little.

use super::inbox::{Inbox, News, lock};
use super::status::{self, Call, Failure};
use bytes::Bytes;
use h2::SendStream;
use http::HeaderMap;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

#[derive(Default)]
pub struct Queue {
    pushed: VecDeque<Bytes>,
    waiting_bytes: usize,
    end: Option<Failure>,
    waker: Option<Waker>,
    /// Python wants to hear when little waits.
    wants_more: bool,
    gone: bool,
}

impl Queue {
    /// The bytes that wait now; none where the stream is gone.
    pub fn push(&mut self, framed: Bytes, low: usize) -> Option<usize> {
        if self.gone || self.end.is_some() {
            return None;
        }
        self.waiting_bytes += framed.len();
        self.wants_more |= self.waiting_bytes > low;
        self.pushed.push_back(framed);
        self.wake();
        Some(self.waiting_bytes)
    }

    /// After what was pushed the stream ends with this status (code 0: well).
    pub fn end(&mut self, status: Failure) {
        self.end = Some(status);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whether Python is to be told that little waits.
    fn sent(&mut self, bytes: usize, low: usize) -> bool {
        self.waiting_bytes -= bytes;
        self.waiting_bytes <= low && std::mem::take(&mut self.wants_more)
    }
}

enum Next {
    Data(Bytes),
    End(Failure),
    Reset,
}

pub async fn run(inbox: Arc<Inbox>, number: u64, mut call: Call, queue: Arc<Mutex<Queue>>) {
    if let Ok(mut stream) = call.send_response(status::head(), false) {
        loop {
            match poll_fn(|context| next(&mut stream, &queue, context)).await {
                Next::Data(data) => {
                    if !send(&inbox, number, &mut stream, &queue, data).await {
                        break;
                    }
                }
                Next::End(status) => {
                    let mut trailers = HeaderMap::with_capacity(2);
                    status::put(&mut trailers, &status);
                    let _ = stream.send_trailers(trailers);
                    break;
                }
                Next::Reset => break,
            }
        }
    }
    lock(&queue).gone = true;
    inbox.forget_stream(number);
}

fn next(stream: &mut SendStream<Bytes>, queue: &Mutex<Queue>, context: &mut Context<'_>) -> Poll<Next> {
    if stream.poll_reset(context).is_ready() {
        return Poll::Ready(Next::Reset);
    }
    let mut queue = lock(queue);
    if let Some(data) = queue.pushed.pop_front() {
        return Poll::Ready(Next::Data(data));
    }
    if let Some(end) = queue.end.take() {
        return Poll::Ready(Next::End(end));
    }
    queue.waker = Some(context.waker().clone());
    Poll::Pending
}

/// Sends as the window allows; false: the peer is gone.
async fn send(
    inbox: &Inbox,
    number: u64,
    stream: &mut SendStream<Bytes>,
    queue: &Mutex<Queue>,
    mut data: Bytes,
) -> bool {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = poll_fn(|context| room(stream, context)).await;
        let piece = data.split_to(room.min(data.len()));
        let bytes = piece.len();
        if bytes == 0 || stream.send_data(piece, false).is_err() {
            return false;
        }
        let low = lock(queue).sent(bytes, inbox.options.stream_bytes_low);
        if low {
            inbox.tell(News::StreamLow(number));
        }
    }
    true
}

/// How much may be sent; 0: the peer is gone.
fn room(stream: &mut SendStream<Bytes>, context: &mut Context<'_>) -> Poll<usize> {
    if stream.poll_reset(context).is_ready() {
        return Poll::Ready(0);
    }
    match stream.poll_capacity(context) {
        Poll::Ready(Some(Ok(bytes))) => Poll::Ready(bytes),
        Poll::Ready(_) => Poll::Ready(0),
        Poll::Pending => Poll::Pending,
    }
}
