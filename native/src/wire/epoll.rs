//! The readiness of many sockets behind one descriptor, which the event loop of Python watches like any other.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub const READABLE: u32 = libc::EPOLLIN as u32;
pub const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// Reported whether or not it was asked for.
const BROKEN: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// How many ready sockets one call of `wait` returns. The rest is still ready at the next call.
const EVENTS_MAX: usize = 1024;

/// Whether epoll says that the peer is gone.
pub fn is_broken(events: u32) -> bool {
    events & BROKEN != 0
}

pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    pub fn new() -> Result<Epoll> {
        // SAFETY: a plain call; the descriptor is checked before it is owned.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        Ok(Epoll { fd: unsafe { OwnedFd::from_raw_fd(fd) }, events })
    }

    pub fn fileno(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Watches a descriptor, level-triggered: what is not handled now is reported again.
    pub fn add(&self, fd: RawFd, token: u64, interest: u32) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    pub fn change(&self, fd: RawFd, token: u64, interest: u32) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    pub fn remove(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    fn control(&self, operation: i32, fd: RawFd, token: u64, interest: u32) -> Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: token };
        // SAFETY: both descriptors are open, and the event outlives the call.
        match unsafe { libc::epoll_ctl(self.fileno(), operation, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }

    /// The tokens that are ready now, with what they are ready for. Never blocks.
    pub fn ready(&mut self) -> Vec<(u64, u32)> {
        self.wait(0)
    }

    /// The same, after a wait of at most so many milliseconds; -1: until one is ready.
    pub fn wait(&mut self, milliseconds: i32) -> Vec<(u64, u32)> {
        // SAFETY: the kernel writes at most EVENTS_MAX events into the list.
        let count =
            unsafe { libc::epoll_wait(self.fileno(), self.events.as_mut_ptr(), EVENTS_MAX as i32, milliseconds) };
        self.events[..count.max(0) as usize].iter().map(|event| (event.u64, event.events)).collect()
    }
}
