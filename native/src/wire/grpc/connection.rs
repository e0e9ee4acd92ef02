//! One connection: its requests as they come, a ping now and then, and GOAWAY when the server drains.

use super::body::Body;
use super::inbox::{Inbox, MetadataSets, News, Request};
use super::places::{Place, Standing};
use super::push;
use super::status::{self, Call, Failure, UNIMPLEMENTED};
use bytes::Bytes;
use h2::server::{Builder, Connection};
use h2::{Ping, PingPong, RecvStream};
use http::request::Parts;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch::Receiver;
use tokio::time::{Interval, interval, timeout};
use tokio_rustls::TlsAcceptor;

/// A peer that says nothing at all in this time is no client.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// The window of a connection: with the stream window above any message, requests are bounded by this.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const CONCURRENT_STREAMS_MAX: u32 = 4096;
const SEND_BUFFER_BYTES: usize = 256 << 10;
const HEADER_BYTES_MAX: u32 = 64 << 10;

pub async fn accept(
    inbox: Arc<Inbox>,
    socket: TcpStream,
    number: u32,
    tls: Option<TlsAcceptor>,
    draining: Receiver<bool>,
    place: &Place,
) {
    let _ = socket.set_nodelay(true);
    let peer = socket.peer_addr().map(|address| address.to_string()).unwrap_or_default();
    match tls {
        None => {
            let _told = Told::new(&inbox, number, peer, None);
            serve(inbox.clone(), socket, number, draining, place).await;
        }
        Some(tls) => {
            let Ok(Ok(socket)) = timeout(HANDSHAKE, tls.accept(socket)).await else { return };
            let certificates = socket.get_ref().1.peer_certificates();
            let certificate = certificates.and_then(|all| all.first()).map(|first| first.to_vec());
            let _told = Told::new(&inbox, number, peer, certificate);
            serve(inbox.clone(), socket, number, draining, place).await;
        }
    }
}

/// A connection that Python was told of: it is also told when that ends, however it does.
struct Told<'a>(&'a Arc<Inbox>, u32);

impl Told<'_> {
    fn new(inbox: &Arc<Inbox>, number: u32, peer: String, certificate: Option<Vec<u8>>) -> Told<'_> {
        inbox.tell(News::Connection(number, peer, certificate));
        Told(inbox, number)
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.tell(News::ConnectionGone(self.1));
    }
}

async fn serve<T>(inbox: Arc<Inbox>, socket: T, number: u32, mut draining: Receiver<bool>, place: &Place)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = Builder::new();
    builder
        .initial_window_size((inbox.options.message_bytes_max as u32).saturating_add(1 << 16))
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(CONCURRENT_STREAMS_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_header_list_size(HEADER_BYTES_MAX);
    let Ok(Ok(mut connection)) = timeout(HANDSHAKE, builder.handshake::<_, Bytes>(socket)).await else { return };
    let mut heart = connection.ping_pong().map(|pings| Heart::new(pings, inbox.options.keepalive_ms));
    let mut drain = Box::pin(async move {
        let _ = draining.wait_for(|draining| *draining).await;
    });
    let mut is_draining = false;
    let mut requests = Requests { inbox, number, metadata: MetadataSets::default() };
    poll_fn(|context| {
        if !is_draining && drain.as_mut().poll(context).is_ready() {
            is_draining = true;
            connection.graceful_shutdown();
        }
        if heart.as_mut().is_some_and(|heart| heart.has_stopped(context)) {
            return Poll::Ready(());
        }
        let outcome = requests.take(&mut connection, context);
        place.stand(if connection.has_streams() { Standing::Busy } else { Standing::Idle });
        outcome
    })
    .await;
}

/// Asks a silent peer whether it is still there.
struct Heart {
    pings: PingPong,
    beat: Pin<Box<Interval>>,
    waiting: bool,
}

impl Heart {
    fn new(pings: PingPong, keepalive_ms: u64) -> Heart {
        let mut beat = interval(Duration::from_millis(keepalive_ms.max(1)));
        beat.reset();
        Heart { pings, beat: Box::pin(beat), waiting: false }
    }

    fn has_stopped(&mut self, context: &mut Context<'_>) -> bool {
        self.hear(context);
        while self.beat.as_mut().poll_tick(context).is_ready() {
            if self.waiting {
                return true;
            }
            self.waiting = self.pings.send_ping(Ping::opaque()).is_ok();
            self.hear(context);
        }
        false
    }

    fn hear(&mut self, context: &mut Context<'_>) {
        while self.waiting && self.pings.poll_pong(context).is_ready() {
            self.waiting = false;
        }
    }
}

struct Requests {
    inbox: Arc<Inbox>,
    number: u32,
    metadata: MetadataSets,
}

impl Requests {
    /// Everything that the socket has now, with one signal at the end.
    fn take<T>(&mut self, connection: &mut Connection<T, Bytes>, context: &mut Context<'_>) -> Poll<()>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let mut is_new = false;
        let outcome = loop {
            if !self.inbox.has_room(context.waker()) {
                // Answers still leave: the connection goes on, and only new requests wait in it.
                break connection.poll_closed(context).map(drop);
            }
            match connection.poll_accept(context) {
                Poll::Ready(Some(Ok((request, call)))) => {
                    let (head, body) = request.into_parts();
                    is_new |= self.begin(head, body, call);
                }
                Poll::Ready(_) => break Poll::Ready(()),
                Poll::Pending => break Poll::Pending,
            }
        };
        if is_new {
            self.inbox.signal();
        }
        outcome
    }

    /// Whether there is something new for Python already: nearly every request comes whole.
    fn begin(&mut self, head: Parts, body: RecvStream, mut call: Call) -> bool {
        if head.method != http::Method::POST {
            status::fail(&mut call, &Failure::new(UNIMPLEMENTED, "this port speaks gRPC"));
            return false;
        }
        let metadata = match self.inbox.metadata(&head.headers, self.number, &mut self.metadata) {
            Ok(metadata) => metadata,
            Err(failure) => {
                status::fail(&mut call, &failure);
                return false;
            }
        };
        let request = Request {
            path: head.uri.path().to_owned(),
            body: Bytes::new(),
            connection: self.number,
            metadata,
            deadline_ns: status::deadline(&head.headers),
        };
        let mut body = Body::new(body, self.inbox.clone());
        match body.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(message)) => put(&self.inbox, Request { body: message, ..request }, call),
            Poll::Ready(Err(failure)) => status::fail(&mut call, &failure),
            Poll::Pending => {
                tokio::spawn(wait(self.inbox.clone(), request, body, call));
                return false;
            }
        }
        true
    }
}

async fn wait(inbox: Arc<Inbox>, request: Request, mut body: Body, mut call: Call) {
    let outcome = match body.goes_on() {
        Ok(()) => poll_fn(|context| body.poll(context)).await,
        Err(failure) => Err(failure),
    };
    drop(body); // from here on the request counts as a whole one
    match outcome {
        Ok(message) => {
            put(&inbox, Request { body: message, ..request }, call);
            inbox.signal();
        }
        Err(failure) => status::fail(&mut call, &failure),
    }
}

fn put(inbox: &Arc<Inbox>, request: Request, call: Call) {
    if let Some((number, call, queue)) = inbox.put(request, call) {
        tokio::spawn(push::run(inbox.clone(), number, call, queue));
    }
}
