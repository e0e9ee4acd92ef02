//! Accepts connections of a TLS listener and does their handshakes, in a thread of its own.
//!
//!     half open    at most `half_open_max`; at the bound the oldest is closed for a new one (hazard 120). Each has
//!                  `deadline` to finish
//!     arrived      the handshake is done: it waits for `take`, by the thread of the event loop, which is woken by one
//!                  descriptor
//!
//! A thread of its own, because a handshake costs as much as hundreds of messages: on the event loop a thousand of them
//! a second would delay every ack. A connection that never finishes costs the event loop nothing at all.

use super::epoll::{Epoll, READABLE, WRITABLE, is_broken};
use super::listener::{Accepted, Listener};
use super::tls::Session;
use crate::event::Event;
use rustls::ServerConfig;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Read, Result, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

const STOP: u64 = 0;
const LISTENER: u64 = 1;
const FIRST: u64 = 2;
const READ_BYTES: usize = 16 * 1024;
/// A client that sends more than this before its handshake is done sends no handshake.
const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;
/// How long accepting pauses when it fails, for instance because all descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that were not taken yet; beyond it none is accepted.
const ARRIVED_MAX: usize = 1024;

#[derive(Default)]
struct Arrivals {
    connections: VecDeque<Accepted>,
    /// Half open now; closed since the start because they were too many, too slow, or no TLS.
    counts: (usize, u64, u64, u64),
}

struct Shared {
    arrivals: Mutex<Arrivals>,
    config: Mutex<Arc<ServerConfig>>,
    event: Event,
    stop: Event,
}

pub struct Handshakes {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handshakes {
    pub fn start(
        listener: Listener,
        config: Arc<ServerConfig>,
        half_open_max: usize,
        deadline: Duration,
    ) -> Result<Handshakes> {
        let shared = Arc::new(Shared {
            arrivals: Mutex::default(),
            config: Mutex::new(config),
            event: Event::new()?,
            stop: Event::new()?,
        });
        let epoll = Epoll::new()?;
        epoll.add(shared.stop.fileno(), STOP, READABLE)?;
        epoll.add(listener.fileno(), LISTENER, READABLE)?;
        let mut acceptor = Acceptor {
            shared: shared.clone(),
            epoll,
            listener,
            half_open: BTreeMap::new(),
            next: FIRST,
            half_open_max: half_open_max.max(1),
            deadline,
            paused_until: None,
        };
        let thread = Builder::new().name("icestream-tls".into()).spawn(move || acceptor.run())?;
        Ok(Handshakes { shared, thread: Some(thread), process: std::process::id() })
    }

    /// Readable while a connection waits for `take`.
    pub fn fileno(&self) -> RawFd {
        self.shared.event.fileno()
    }

    pub fn take(&self) -> Option<Accepted> {
        let mut arrivals = lock(&self.shared.arrivals);
        let arrived = arrivals.connections.pop_front();
        if arrived.is_none() {
            self.shared.event.drain();
        }
        arrived
    }

    /// For new connections.
    pub fn set_config(&self, config: Arc<ServerConfig>) {
        *lock(&self.shared.config) = config;
    }

    pub fn counts(&self) -> (usize, u64, u64, u64) {
        lock(&self.shared.arrivals).counts
    }
}

impl Drop for Handshakes {
    /// Closes the listener and what is half open. Not in a fork: there the thread belongs to the parent.
    fn drop(&mut self) {
        if std::process::id() == self.process {
            self.shared.stop.signal();
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

struct HalfOpen {
    accepted: Accepted,
    session: Session,
    deadline: Instant,
    interest: u32,
    /// Of our part of the handshake: what the peer has not taken.
    output: Vec<u8>,
    received: usize,
    early: Vec<u8>,
}

enum Progress {
    Waits,
    Done,
    Failed,
}

struct Acceptor {
    shared: Arc<Shared>,
    epoll: Epoll,
    listener: Listener,
    /// By number, which is the order of their age and of their deadlines.
    half_open: BTreeMap<u64, HalfOpen>,
    next: u64,
    half_open_max: usize,
    deadline: Duration,
    paused_until: Option<Instant>,
}

impl Acceptor {
    fn run(&mut self) {
        loop {
            for (token, events) in self.epoll.wait(self.timeout()) {
                match token {
                    STOP => return,
                    LISTENER => self.accept(),
                    number => self.on_ready(number, events),
                }
            }
            self.close_late();
            self.resume();
        }
    }

    /// Milliseconds until something is due.
    fn timeout(&self) -> i32 {
        let first = self.half_open.values().next().map(|half_open| half_open.deadline);
        let due = [first, self.paused_until].into_iter().flatten().min();
        due.map_or(-1, |due| due.saturating_duration_since(Instant::now()).as_millis().min(60_000) as i32 + 1)
    }

    fn accept(&mut self) {
        if lock(&self.shared.arrivals).connections.len() >= ARRIVED_MAX {
            return self.pause();
        }
        match self.listener.accept() {
            Ok(Some(accepted)) => self.begin(accepted),
            Ok(None) => {}
            Err(_) => self.pause(),
        }
    }

    fn pause(&mut self) {
        self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
        let _ = self.epoll.change(self.listener.fileno(), LISTENER, 0);
    }

    fn resume(&mut self) {
        if self.paused_until.is_some_and(|until| until <= Instant::now()) {
            self.paused_until = None;
            let _ = self.epoll.change(self.listener.fileno(), LISTENER, READABLE);
        }
    }

    fn begin(&mut self, accepted: Accepted) {
        let config = lock(&self.shared.config).clone();
        let Some(session) = Session::new(config) else { return };
        if self.half_open.len() >= self.half_open_max {
            self.half_open.pop_first();
            lock(&self.shared.arrivals).counts.1 += 1;
        }
        let number = self.next;
        self.next += 1;
        if self.epoll.add(accepted.fd.as_raw_fd(), number, READABLE).is_err() {
            return;
        }
        let half_open = HalfOpen {
            accepted,
            session,
            deadline: Instant::now() + self.deadline,
            interest: READABLE,
            output: Vec::new(),
            received: 0,
            early: Vec::new(),
        };
        self.half_open.insert(number, half_open);
        self.count();
    }

    fn on_ready(&mut self, number: u64, events: u32) {
        let Some(half_open) = self.half_open.get_mut(&number) else { return };
        let progress = if is_broken(events) && events & READABLE == 0 { Progress::Failed } else { half_open.advance() };
        match progress {
            Progress::Waits => {
                let interest = READABLE | if half_open.output.is_empty() { 0 } else { WRITABLE };
                if interest != half_open.interest {
                    half_open.interest = interest;
                    let _ = self.epoll.change(half_open.accepted.fd.as_raw_fd(), number, interest);
                }
            }
            Progress::Failed => {
                self.half_open.remove(&number);
                lock(&self.shared.arrivals).counts.3 += 1;
            }
            Progress::Done => {
                let Some(half_open) = self.half_open.remove(&number) else { return };
                self.epoll.remove(half_open.accepted.fd.as_raw_fd());
                let HalfOpen { mut accepted, session, output, early, .. } = half_open;
                accepted.session = Some(session);
                accepted.output = output;
                accepted.early = early;
                let mut arrivals = lock(&self.shared.arrivals);
                arrivals.connections.push_back(accepted);
                self.shared.event.signal();
            }
        }
        self.count();
    }

    fn close_late(&mut self) {
        let now = Instant::now();
        while let Some(entry) = self.half_open.first_entry() {
            if entry.get().deadline > now {
                break;
            }
            entry.remove();
            lock(&self.shared.arrivals).counts.2 += 1;
        }
        self.count();
    }

    fn count(&self) {
        lock(&self.shared.arrivals).counts.0 = self.half_open.len();
    }
}

impl HalfOpen {
    /// One read and one write: the others have their turn before it is read again.
    fn advance(&mut self) -> Progress {
        let mut buffer = [0; READ_BYTES];
        // The descriptor stays with `accepted`: this only lends it the methods of a stream.
        // SAFETY: it is open as long as `accepted` is, and not closed here.
        let mut stream = ManuallyDrop::new(unsafe { File::from_raw_fd(self.accepted.fd.as_raw_fd()) });
        let mut goes_on = true;
        match stream.read(&mut buffer) {
            Ok(0) => return Progress::Failed,
            Ok(count) => {
                self.received += count;
                goes_on = self.session.decrypt(&buffer[..count], &mut self.early);
                self.output.append(&mut self.session.output());
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return Progress::Failed,
        }
        if !self.output.is_empty() {
            match stream.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return Progress::Failed,
            }
        }
        if !self.session.is_handshaking() && goes_on {
            return Progress::Done;
        }
        // An alert says why; it was written above as far as the peer takes it.
        if !goes_on || self.received > HANDSHAKE_BYTES_MAX { Progress::Failed } else { Progress::Waits }
    }
}
