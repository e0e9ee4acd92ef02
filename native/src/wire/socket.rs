//! One accepted stream socket: bytes in, and a queue of bytes that the peer has not taken yet.
//!
//! Whether a socket is read is decided by its owner (`set_reading`), whether it is watched for room by its queue. The
//! registration with epoll follows from both and is changed only when it differs.
//!
//! With TLS the queue holds encrypted bytes: pieces are encrypted when they are sent, and decrypted when they are read.

use super::epoll::{Epoll, READABLE, WRITABLE};
use super::listener::Accepted;
use super::tls::Session;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// How many pieces one `writev` takes.
const PIECES_MAX: usize = 64;

thread_local! {
    /// Encrypted bytes of one read.
    static ENCRYPTED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub struct Socket {
    fd: OwnedFd,
    session: Option<Session>,
    token: u64,
    registered: u32,
    is_reading: bool,
    queue: VecDeque<Vec<u8>>,
    /// Of the front of the queue: bytes that the kernel has.
    sent: usize,
    queued_bytes: usize,
    /// The write side is shut down as soon as the queue is empty.
    ends_when_empty: bool,
    is_broken: bool,
}

impl Socket {
    pub fn register(accepted: Accepted, token: u64, epoll: &Epoll) -> Result<Socket> {
        let Accepted { fd, session, output, .. } = accepted;
        epoll.add(fd.as_raw_fd(), token, READABLE)?;
        let mut socket = Socket {
            fd,
            session,
            token,
            registered: READABLE,
            is_reading: true,
            queue: VecDeque::new(),
            sent: 0,
            queued_bytes: 0,
            ends_when_empty: false,
            is_broken: false,
        };
        socket.push(output);
        socket.update(epoll);
        Ok(socket)
    }

    fn push(&mut self, piece: Vec<u8>) {
        if !piece.is_empty() {
            self.queued_bytes += piece.len();
            self.queue.push_back(piece);
        }
    }

    pub fn fileno(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub fn is_reading(&self) -> bool {
        self.is_reading
    }

    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    pub fn set_reading(&mut self, is_reading: bool, epoll: &Epoll) {
        self.is_reading = is_reading;
        self.update(epoll);
    }

    fn update(&mut self, epoll: &Epoll) {
        if self.is_broken {
            return;
        }
        let interest = if self.is_reading { READABLE } else { 0 } | if self.queue.is_empty() { 0 } else { WRITABLE };
        if interest != self.registered {
            self.registered = interest;
            let _ = epoll.change(self.fileno(), self.token, interest);
        }
    }

    /// The peer is gone. The descriptor leaves epoll at once: a broken socket is always ready, and a paused one would
    /// keep the loop turning until its owner reads it.
    pub fn mark_broken(&mut self, epoll: &Epoll) {
        if !self.is_broken {
            self.is_broken = true;
            epoll.remove(self.fileno());
        }
    }

    /// Appends at most `limit` bytes that have arrived to `buffer`. None: nothing there yet. Some(0): the peer has ended
    /// its side, or is gone.
    pub fn read_into(&mut self, buffer: &mut Vec<u8>, limit: usize) -> Option<usize> {
        let Some(session) = &mut self.session else { return read(&self.fd, buffer, limit) };
        let length = buffer.len();
        let is_open = ENCRYPTED.with_borrow_mut(|encrypted| {
            encrypted.clear();
            let count = read(&self.fd, encrypted, limit)?;
            Some(count > 0 && session.decrypt(encrypted, buffer))
        })?;
        let output = session.output();
        // Its registration is brought up to date by the owner, which decides after each read whether to go on.
        self.push(output);
        if !is_open {
            // The next read finds the end: what was read before it is handed over first.
            // SAFETY: a plain call on an open descriptor.
            unsafe { libc::shutdown(self.fileno(), libc::SHUT_RD) };
        }
        match buffer.len() - length {
            0 if is_open => None,
            count => Some(count),
        }
    }

    /// Sends the pieces, or queues what the kernel does not take. Errors are found by the next read.
    pub fn send(&mut self, pieces: &[&[u8]], epoll: &Epoll) {
        if pieces.is_empty() {
            return;
        }
        match &mut self.session {
            Some(session) if !self.is_broken => {
                let encrypted = session.encrypt(pieces);
                self.send_plain(&[&encrypted], epoll);
            }
            _ => self.send_plain(pieces, epoll),
        }
    }

    fn send_plain(&mut self, pieces: &[&[u8]], epoll: &Epoll) {
        if self.is_broken {
            return;
        }
        let mut taken = if self.queue.is_empty() { self.write(pieces) } else { 0 };
        for piece in pieces {
            if taken >= piece.len() {
                taken -= piece.len();
            } else {
                self.queued_bytes += piece.len() - taken;
                self.queue.push_back(piece[taken..].to_vec());
                taken = 0;
            }
        }
        self.update(epoll);
    }

    /// Writes what is queued, as far as the kernel takes it.
    pub fn flush(&mut self, epoll: &Epoll) {
        while !self.queue.is_empty() {
            let first = self.sent;
            let pieces: Vec<&[u8]> = self
                .queue
                .iter()
                .take(PIECES_MAX)
                .enumerate()
                .map(|(index, piece)| if index == 0 { &piece[first..] } else { &piece[..] })
                .collect();
            let offered: usize = pieces.iter().map(|piece| piece.len()).sum();
            let taken = self.write(&pieces);
            self.queued_bytes -= taken;
            let mut rest = taken + first;
            while let Some(piece) = self.queue.front() {
                if rest < piece.len() {
                    break;
                }
                rest -= piece.len();
                self.queue.pop_front();
            }
            self.sent = rest;
            if taken < offered {
                break;
            }
        }
        if self.queue.is_empty() && self.ends_when_empty {
            self.shut_down();
        }
        self.update(epoll);
    }

    /// How many bytes the kernel took of the pieces.
    fn write(&self, pieces: &[&[u8]]) -> usize {
        let mut taken = 0;
        for group in pieces.chunks(PIECES_MAX) {
            let offered: usize = group.iter().map(|piece| piece.len()).sum();
            let count = match group {
                // SAFETY: as many readable bytes as are named.
                [piece] => unsafe { libc::send(self.fileno(), piece.as_ptr().cast(), piece.len(), libc::MSG_NOSIGNAL) },
                _ => {
                    let mut vectors: Vec<libc::iovec> = group
                        .iter()
                        .map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() })
                        .collect();
                    // SAFETY: an all-zero header is valid, and the vectors live until the call returns.
                    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
                    message.msg_iov = vectors.as_mut_ptr();
                    message.msg_iovlen = vectors.len() as _;
                    unsafe { libc::sendmsg(self.fileno(), &raw const message, libc::MSG_NOSIGNAL) }
                }
            };
            taken += count.max(0) as usize;
            if count < offered as isize {
                break;
            }
        }
        taken
    }

    /// Ends our side behind everything queued.
    pub fn end(&mut self) {
        self.ends_when_empty = true;
        if let Some(session) = &mut self.session {
            let last = session.end();
            let taken = if self.queue.is_empty() { self.write(&[&last]) } else { 0 };
            self.push(last[taken..].to_vec());
        }
        if self.queue.is_empty() {
            self.shut_down();
        }
    }

    fn shut_down(&self) {
        // SAFETY: a plain call on an open descriptor.
        unsafe { libc::shutdown(self.fileno(), libc::SHUT_WR) };
    }
}

/// Appends at most `limit` bytes of the descriptor to `buffer`; see `Socket::read_into`.
fn read(fd: &OwnedFd, buffer: &mut Vec<u8>, limit: usize) -> Option<usize> {
    buffer.reserve(limit);
    let room = &mut buffer.spare_capacity_mut()[..limit];
    // SAFETY: the kernel writes at most `limit` bytes into the spare room.
    let count = unsafe { libc::read(fd.as_raw_fd(), room.as_mut_ptr().cast(), limit) };
    if count >= 0 {
        // SAFETY: `count` bytes behind the old length were written.
        unsafe { buffer.set_len(buffer.len() + count as usize) };
        return Some(count as usize);
    }
    match Error::last_os_error().kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => None,
        _ => Some(0),
    }
}
