//! The eventfd by which an event loop is woken.

use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub struct Event(OwnedFd);

impl Event {
    pub fn new() -> Result<Event, Error> {
        // SAFETY: a plain call; the descriptor is checked before it is owned.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        Ok(Event(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn fileno(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes the descriptor readable. It can only fail when it already is.
    pub fn signal(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes.
        unsafe { libc::write(self.fileno(), (&raw const one).cast(), 8) };
    }

    /// Makes it unreadable until the next signal. It can only fail when it already is.
    pub fn drain(&self) {
        let mut count = 0u64;
        // SAFETY: eight writable bytes.
        unsafe { libc::read(self.fileno(), (&raw mut count).cast(), 8) };
    }
}
