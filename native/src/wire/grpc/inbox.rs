//! What came in and waits for Python, and the calls that wait for an answer.
//!
//! A lost wake-up would hang clients. The order that prevents it: news are put under the lock before the signal; Python
//! takes the signal back before it takes the news.

use super::columns::{Columns, Echoes, Layout};
use super::push::Queue;
use super::status::{self, Call, Failure, INVALID_ARGUMENT, UNAUTHENTICATED};
use crate::event::Event;
use bytes::Bytes;
use http::HeaderMap;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// What a request costs beside its bytes: its entries in columns and tables (hazard 73).
pub const ROW_COST: usize = 64;
/// Distinct sets of metadata that a connection has at a time. They are kept for each connection, so that the headers of one
/// client cannot push out those of another (hazard 114).
const METADATA_SETS_MAX: usize = 8;
const METADATA_VALUE_BYTES_MAX: usize = 8 << 10;

pub struct Options {
    pub layouts: Vec<Layout>,
    pub batched: HashMap<String, usize>,
    pub streams: HashSet<String>,
    pub metadata_keys: Vec<String>,
    pub message_bytes_max: usize,
    pub pending_bytes_max: usize,
    pub stream_bytes_low: usize,
    pub keepalive_ms: u64,
}

/// A request as it goes up.
pub struct Request {
    pub path: String,
    pub body: Bytes,
    pub connection: u32,
    pub metadata: u32,
    pub deadline_ns: u64,
}

pub enum News {
    Unary(u64, Request),
    Stream(u64, Request),
    StreamGone(u64),
    StreamLow(u64),
    /// Connection, number in the connection, the set, and the number that it replaces (0: none).
    Metadata(u32, u32, Vec<(String, Vec<u8>)>, u32),
    Connection(u32, String, Option<Vec<u8>>),
    ConnectionGone(u32),
}

/// The batch of one method that grows until Python comes.
pub struct Open {
    pub columns: Columns,
    pub connections: Vec<u32>,
    pub metadata: Vec<u32>,
    pub deadlines_ns: Vec<u64>,
    pub calls: Vec<Call>,
}

/// A batch that Python has.
pub struct Batch {
    /// Those that were answered are gone.
    calls: Vec<Option<Call>>,
    left: usize,
    echoes: Option<Echoes>,
    bytes: usize,
}

impl Batch {
    pub fn new(calls: Vec<Call>, echoes: Option<Echoes>, bytes: usize) -> Batch {
        Batch { left: calls.len(), calls: calls.into_iter().map(Some).collect(), echoes, bytes }
    }

    /// A call that was not answered yet, with the answer that it gets when all is well.
    fn take(&mut self, row: u32) -> Option<(Call, Bytes)> {
        let call = self.calls.get_mut(row as usize)?.take()?;
        self.left -= 1;
        Some((call, self.echoes.as_ref().map_or_else(status::empty, |echoes| echoes.answer(row as usize))))
    }
}

/// The sets of metadata that a connection used last, the newest at the end.
#[derive(Default)]
pub struct MetadataSets {
    sets: Vec<(Vec<u8>, u32)>,
    last: u32,
}

impl MetadataSets {
    fn find(&mut self, encoded: &[u8]) -> Option<u32> {
        let place = self.sets.iter().rposition(|(set, _)| set == encoded)?;
        let number = self.sets[place].1;
        if place + 1 != self.sets.len() {
            let set = self.sets.remove(place);
            self.sets.push(set);
        }
        Some(number)
    }

    /// The number of a new set, and of the one that it replaces (0: none).
    fn add(&mut self, encoded: Vec<u8>) -> (u32, u32) {
        let replaced = if self.sets.len() < METADATA_SETS_MAX { 0 } else { self.sets.remove(0).1 };
        self.last = self.last.wrapping_add(1).max(1);
        self.sets.push((encoded, self.last));
        (self.last, replaced)
    }
}

#[derive(Default)]
struct State {
    news: Vec<News>,
    /// Ends of streams and connections: the last of what Python hears about them (hazard 55).
    gone: Vec<News>,
    open: Vec<Option<Open>>,
    numbers: u64,
    calls: HashMap<u64, (Call, usize)>,
    batches: HashMap<u64, Batch>,
    streams: HashMap<u64, Arc<Mutex<Queue>>>,
}

pub struct Inbox {
    pub options: Options,
    pub event: Event,
    signalled: AtomicBool,
    pending_bytes: AtomicUsize,
    /// Connections that are not read until there is room again.
    paused: Mutex<Vec<Waker>>,
    state: Mutex<State>,
}

/// No code under these locks panics, and a poisoned one still guards a state that is whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    pub fn new(options: Options) -> std::io::Result<Inbox> {
        let open = options.layouts.iter().map(|_| None).collect();
        Ok(Inbox {
            options,
            event: Event::new()?,
            signalled: AtomicBool::new(false),
            pending_bytes: AtomicUsize::new(0),
            paused: Mutex::new(Vec::new()),
            state: Mutex::new(State { open, ..State::default() }),
        })
    }

    pub fn signal(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            self.event.signal();
        }
    }

    pub fn tell(&self, news: News) {
        let mut state = lock(&self.state);
        match news {
            News::ConnectionGone(_) | News::StreamGone(_) => state.gone.push(news),
            _ => state.news.push(news),
        }
        drop(state);
        self.signal();
    }

    /// Counts bytes as pending, and says whether there was room for them. They are counted in any case.
    pub fn admit(&self, bytes: usize) -> bool {
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.options.pending_bytes_max
    }

    pub fn dismiss(&self, bytes: usize) {
        let before = self.pending_bytes.fetch_sub(bytes, Ordering::AcqRel);
        if before >= self.options.pending_bytes_max && before - bytes < self.options.pending_bytes_max {
            lock(&self.paused).drain(..).for_each(Waker::wake);
        }
    }

    /// Whether another request may be taken; if not, `waker` is woken when it may. Nothing is refused at the bound: the
    /// connections are not read, so that no request overtakes another (hazard 73).
    pub fn has_room(&self, waker: &Waker) -> bool {
        if self.pending_bytes() < self.options.pending_bytes_max {
            return true;
        }
        lock(&self.paused).push(waker.clone());
        // Looked at again behind the registration: room that was made in between wakes nothing.
        self.pending_bytes() < self.options.pending_bytes_max
    }

    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Puts a whole request where it belongs. The caller signals, once for all that it puts.
    pub fn put(&self, request: Request, call: Call) -> Option<(u64, Call, Arc<Mutex<Queue>>)> {
        let bytes = request.body.len() + ROW_COST;
        self.admit(bytes);
        if let Some(&method) = self.options.batched.get(&request.path) {
            self.put_batched(method, request, call);
            return None;
        }
        let mut state = lock(&self.state);
        state.numbers += 1;
        let number = state.numbers;
        if !self.options.streams.contains(&request.path) {
            state.calls.insert(number, (call, bytes));
            state.news.push(News::Unary(number, request));
            return None;
        }
        // a stream may live for days: what it asked for is not pending
        self.dismiss(bytes);
        let queue = Arc::new(Mutex::new(Queue::default()));
        state.streams.insert(number, queue.clone());
        state.news.push(News::Stream(number, request));
        Some((number, call, queue))
    }

    fn put_batched(&self, method: usize, request: Request, mut call: Call) {
        let layout = &self.options.layouts[method];
        let mut state = lock(&self.state);
        let open = state.open[method].get_or_insert_with(|| Open {
            columns: Columns::new(layout),
            connections: vec![],
            metadata: vec![],
            deadlines_ns: vec![],
            calls: vec![],
        });
        if open.columns.add(layout, &request.body).is_err() {
            drop(state);
            self.dismiss(request.body.len() + ROW_COST);
            return status::fail(&mut call, &Failure::new(INVALID_ARGUMENT, "the request cannot be decoded"));
        }
        open.connections.push(request.connection);
        open.metadata.push(request.metadata);
        open.deadlines_ns.push(request.deadline_ns);
        open.calls.push(call);
    }

    /// The number of the metadata that Python wants to see, in its connection; 0: none of it is there. A key that comes
    /// twice, or with a value that is too long, fails the call: there must be no doubt whose call it is.
    pub fn metadata(&self, headers: &HeaderMap, connection: u32, sets: &mut MetadataSets) -> Result<u32, Failure> {
        let mut encoded = Vec::new();
        for key in &self.options.metadata_keys {
            let mut values = headers.get_all(key).iter();
            let Some(value) = values.next() else { continue };
            if values.next().is_some() || value.len() > METADATA_VALUE_BYTES_MAX {
                return Err(Failure::new(UNAUTHENTICATED, &format!("{key}: one value of at most 8 KiB is allowed")));
            }
            encoded.extend_from_slice(key.as_bytes());
            encoded.push(0);
            encoded.extend_from_slice(value.as_bytes());
            encoded.push(0);
        }
        if encoded.is_empty() {
            return Ok(0);
        }
        if let Some(number) = sets.find(&encoded) {
            return Ok(number);
        }
        let (number, replaced) = sets.add(encoded);
        let pairs = self.options.metadata_keys.iter().filter_map(|key| {
            headers.get(key).map(|value| (key.clone(), value.as_bytes().to_vec()))
        });
        lock(&self.state).news.push(News::Metadata(connection, number, pairs.collect(), replaced));
        Ok(number)
    }

    /// All that came since the last time: the news, the method and batch of what was batched, and what has ended.
    pub fn take(&self) -> (Vec<News>, Vec<(usize, Open)>, Vec<News>) {
        self.event.drain();
        self.signalled.store(false, Ordering::SeqCst);
        let mut state = lock(&self.state);
        let news = std::mem::take(&mut state.news);
        let open = state.open.iter_mut().enumerate().filter_map(|(method, open)| Some((method, open.take()?))).collect();
        (news, open, std::mem::take(&mut state.gone))
    }

    pub fn keep(&self, batch: Batch) -> u64 {
        let mut state = lock(&self.state);
        state.numbers += 1;
        let number = state.numbers;
        state.batches.insert(number, batch);
        number
    }

    /// The calls of these rows with their answers; all that are left where no rows are given. None: no such batch.
    pub fn finish_rows(&self, number: u64, rows: Option<Vec<u32>>) -> Option<Vec<Option<(Call, Bytes)>>> {
        let mut state = lock(&self.state);
        let batch = state.batches.get_mut(&number)?;
        let rows = rows.unwrap_or_else(|| (0..batch.calls.len() as u32).collect());
        let taken = rows.into_iter().map(|row| batch.take(row)).collect();
        if batch.left == 0 {
            self.dismiss(batch.bytes);
            state.batches.remove(&number);
        }
        Some(taken)
    }

    pub fn finish_call(&self, number: u64) -> Option<Call> {
        let (call, bytes) = lock(&self.state).calls.remove(&number)?;
        self.dismiss(bytes);
        Some(call)
    }

    pub fn stream(&self, number: u64) -> Option<Arc<Mutex<Queue>>> {
        lock(&self.state).streams.get(&number).cloned()
    }

    pub fn forget_stream(&self, number: u64) {
        let mut state = lock(&self.state);
        state.streams.remove(&number);
        state.gone.push(News::StreamGone(number));
        drop(state);
        self.signal();
    }
}
