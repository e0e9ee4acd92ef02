//! The Python face of the wire.

use super::answers::{self, Answers};
use super::body::framed;
use super::columns::{Declared, Layout, packed};
use super::connection;
use super::inbox::{Batch, Inbox, News, Open, Options, ROW_COST, Request, lock};
use super::places::Places;
use super::status::Failure;
use crate::wire::tls::{self, Pem};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::HashMap;
use std::net::TcpListener as StdListener;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch::{self, Receiver, Sender};
use tokio_rustls::TlsAcceptor;

/// A path, its columns, and which of them the answer repeats as which field.
type Batched = (String, Vec<Declared>, Option<(usize, u8)>);
type Tls = Arc<Mutex<Option<TlsAcceptor>>>;

/// How long `accept` pauses when it fails, for instance because all descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const SHUTDOWN: Duration = Duration::from_millis(200);

#[pyclass(frozen)]
pub struct GrpcServer {
    inbox: Arc<Inbox>,
    places: Arc<Places>,
    answers: UnboundedSender<Answers>,
    tls: Tls,
    draining: Sender<bool>,
    closing: Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    process: u32,
}

#[pymethods]
impl GrpcServer {
    /// `listener`: the descriptor of a listening socket, which the server takes over.
    #[new]
    #[pyo3(signature = (
        listener, *, batched, streams, metadata_keys, connections_max, message_bytes_max, pending_bytes_max,
        stream_bytes_low, keepalive_ms, tls=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "named, and given in one place")]
    fn new(
        listener: RawFd,
        batched: Vec<Batched>,
        streams: Vec<String>,
        metadata_keys: Vec<String>,
        connections_max: usize,
        message_bytes_max: usize,
        pending_bytes_max: usize,
        stream_bytes_low: usize,
        keepalive_ms: u64,
        tls: Option<Pem>,
    ) -> PyResult<GrpcServer> {
        let mut layouts = Vec::with_capacity(batched.len());
        let mut paths = HashMap::with_capacity(batched.len());
        for (index, (path, columns, echo)) in batched.into_iter().enumerate() {
            layouts.push(Layout::new(&columns, echo)?);
            paths.insert(path, index);
        }
        let acceptor = tls.as_ref().map(acceptor_of).transpose()?;
        let inbox = Arc::new(Inbox::new(Options {
            layouts,
            batched: paths,
            streams: streams.into_iter().collect(),
            metadata_keys,
            message_bytes_max,
            pending_bytes_max,
            stream_bytes_low,
            keepalive_ms,
        })?);
        // SAFETY: the caller gives the descriptor away.
        let listener = unsafe { StdListener::from_raw_fd(listener) };
        listener.set_nonblocking(true)?;
        let tls = Arc::new(Mutex::new(acceptor));
        let (answers, received) = unbounded_channel();
        let (draining, drain) = watch::channel(false);
        let (closing, mut close) = watch::channel(false);
        let places = Places::new(connections_max);
        let (shared, acceptor, shared_places) = (inbox.clone(), tls.clone(), places.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("icestream-grpc".into()).spawn(move || {
            runtime.block_on(async move {
                tokio::spawn(answers::write(received));
                tokio::spawn(listen(shared, shared_places, listener, acceptor, drain));
                let _ = close.wait_for(|close| *close).await;
            });
            runtime.shutdown_timeout(SHUTDOWN);
        })?;
        let process = std::process::id();
        Ok(GrpcServer { inbox, places, answers, tls, draining, closing, thread: Mutex::new(Some(thread)), process })
    }

    fn fileno(&self) -> RawFd {
        self.inbox.event.fileno()
    }

    /// Everything that came since the last call; see the top of `wire`.
    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.check_process()?;
        let (news, open, gone) = self.inbox.take();
        let all = PyList::empty(py);
        for one in news {
            all.append(told(py, one)?)?;
        }
        for (method, batch) in open {
            all.append(self.hand_over(py, method, batch)?)?;
        }
        for one in gone {
            all.append(told(py, one)?)?;
        }
        Ok(all)
    }

    /// Answers calls of a batch: those of `rows`, or all that are left. `failures`: status and message of those among
    /// them that failed, by their row. A row is answered once; what comes later for it is ignored.
    #[pyo3(signature = (batch, rows=None, failures=None))]
    fn complete(
        &self,
        batch: u64,
        rows: Option<Vec<u32>>,
        failures: Option<HashMap<u32, (u8, String)>>,
    ) -> PyResult<()> {
        self.check_process()?;
        let mut failures = failures.unwrap_or_default();
        let numbers = rows.clone();
        let Some(taken) = self.inbox.finish_rows(batch, rows) else { return Ok(()) };
        let answers = taken.into_iter().enumerate().filter_map(|(index, taken)| {
            let row = numbers.as_ref().map_or(index as u32, |rows| rows[index]);
            let (call, answer) = taken?;
            let outcome = match failures.remove(&row) {
                Some((code, message)) => Err(Failure { code, message }),
                None => Ok(answer),
            };
            Some((call, outcome))
        });
        let _ = self.answers.send(answers.collect());
        Ok(())
    }

    fn reply(&self, call: u64, body: &[u8]) -> PyResult<()> {
        self.answer(call, Ok(framed(std::iter::once(body))))
    }

    fn fail(&self, call: u64, code: u8, message: String) -> PyResult<()> {
        self.answer(call, Err(Failure { code, message }))
    }

    /// Queues messages on a stream. Returns the bytes that wait for the peer, or None where the stream is gone.
    fn push(&self, stream: u64, messages: Vec<Bound<'_, PyBytes>>) -> PyResult<Option<usize>> {
        self.check_process()?;
        let Some(queue) = self.inbox.stream(stream) else { return Ok(None) };
        let joined = framed(messages.iter().map(|message| message.as_bytes()));
        Ok(lock(&queue).push(joined, self.inbox.options.stream_bytes_low))
    }

    /// Ends a stream behind what was pushed to it; code 0 is a good end.
    fn finish(&self, stream: u64, code: u8, message: String) -> PyResult<()> {
        self.check_process()?;
        if let Some(queue) = self.inbox.stream(stream) {
            lock(&queue).end(Failure { code, message });
        }
        Ok(())
    }

    /// New certificates for new connections.
    fn set_tls(&self, pem: Pem) -> PyResult<()> {
        *lock(&self.tls) = Some(acceptor_of(&pem)?);
        Ok(())
    }

    /// Clients have accounts from now on (`places`).
    fn guard(&self) {
        self.places.guard();
    }

    /// A connection has proved a credential.
    fn recognise(&self, connection: u32) {
        self.places.recognise(connection);
    }

    /// Connections that are open and those of them that are busy; and since the start: evicted, refused.
    fn connections(&self) -> (usize, usize, u64, u64) {
        self.places.counts()
    }

    fn pending_bytes(&self) -> usize {
        self.inbox.pending_bytes()
    }

    /// Closes the listener and says GOAWAY; calls that are under way can still be answered.
    fn drain(&self) -> PyResult<()> {
        self.check_process()?;
        let _ = self.draining.send(true);
        Ok(())
    }

    /// Ends the thread, and with it every connection.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process()?;
        let _ = self.closing.send(true);
        let thread = lock(&self.thread).take();
        py.detach(|| thread.map(JoinHandle::join));
        Ok(())
    }
}

fn acceptor_of(pem: &Pem) -> PyResult<TlsAcceptor> {
    tls::server_config(pem, &[b"h2"]).map(TlsAcceptor::from)
}

impl GrpcServer {
    /// Threads do not come along with a fork.
    fn check_process(&self) -> PyResult<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        Err(PyRuntimeError::new_err("a gRPC server works only in the process that made it"))
    }

    fn answer(&self, call: u64, outcome: Result<bytes::Bytes, Failure>) -> PyResult<()> {
        self.check_process()?;
        if let Some(call) = self.inbox.finish_call(call) {
            let _ = self.answers.send(vec![(call, outcome)]);
        }
        Ok(())
    }

    fn hand_over<'py>(&self, py: Python<'py>, method: usize, mut open: Open) -> PyResult<Bound<'py, PyAny>> {
        let columns = open.columns.to_python(py)?;
        let count = open.calls.len();
        let echoes = open.columns.echoes(&self.inbox.options.layouts[method]);
        let number = self.inbox.keep(Batch::new(open.calls, echoes, open.columns.bytes + ROW_COST * count));
        let batch = (
            0,
            number,
            method,
            count,
            packed(py, &open.columns.present),
            packed(py, &open.connections),
            packed(py, &open.metadata),
            packed(py, &open.deadlines_ns),
            columns,
        );
        Ok(batch.into_pyobject(py)?.into_any())
    }
}

impl Drop for GrpcServer {
    /// Not in a fork: there the thread, and what wakes it, belongs to the parent.
    fn drop(&mut self) {
        if std::process::id() == self.process {
            let _ = self.closing.send(true);
        }
    }
}

fn told(py: Python<'_>, news: News) -> PyResult<Bound<'_, PyAny>> {
    let value = match news {
        News::Unary(number, request) => asked(py, 1, number, request)?,
        News::Stream(number, request) => asked(py, 2, number, request)?,
        News::StreamGone(stream) => (3, stream).into_pyobject(py)?.into_any(),
        News::StreamLow(stream) => (4, stream).into_pyobject(py)?.into_any(),
        News::Metadata(connection, number, pairs, replaced) => {
            let pairs: Vec<_> = pairs.into_iter().map(|(key, value)| (key, PyBytes::new(py, &value))).collect();
            (5, connection, number, pairs, replaced).into_pyobject(py)?.into_any()
        }
        News::Connection(number, peer, certificate) => {
            (6, number, peer, certificate.map(|der| PyBytes::new(py, &der))).into_pyobject(py)?.into_any()
        }
        News::ConnectionGone(number) => (7, number).into_pyobject(py)?.into_any(),
    };
    Ok(value)
}

fn asked(py: Python<'_>, kind: u8, number: u64, request: Request) -> PyResult<Bound<'_, PyAny>> {
    let body = PyBytes::new(py, &request.body);
    let Request { path, connection, metadata, deadline_ns, .. } = request;
    Ok((kind, number, path, body, connection, metadata, deadline_ns).into_pyobject(py)?.into_any())
}

/// Accepts until the server drains, which closes the listener.
async fn listen(inbox: Arc<Inbox>, places: Arc<Places>, listener: StdListener, tls: Tls, mut draining: Receiver<bool>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut number = 0u32;
    let drain = draining.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = draining.wait_for(|draining| *draining) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        number = number.wrapping_add(1);
        let Some(place) = places.admit(number) else { continue }; // the socket is closed at once
        let (inbox, acceptor, drain) = (inbox.clone(), lock(&tls).clone(), drain.clone());
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = place.evicted() => {}
                () = connection::accept(inbox, socket, number, acceptor, drain, &place) => {}
            }
        });
    }
}
