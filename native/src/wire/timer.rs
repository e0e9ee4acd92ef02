//! A descriptor that becomes readable at a time.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub struct Timer(OwnedFd);

impl Timer {
    pub fn new() -> Result<Timer> {
        // SAFETY: a plain call; the descriptor is checked before it is owned.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        Ok(Timer(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn fileno(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Readable after so long; None: never. What it was set to before is forgotten.
    pub fn set(&self, delay: Option<Duration>) {
        // A time of zero disarms it.
        let delay = delay.map_or(Duration::ZERO, |delay| delay.max(Duration::from_nanos(1)));
        let value = libc::timespec {
            tv_sec: delay.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: libc::c_long::from(delay.subsec_nanos() as i32),
        };
        let interval = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = libc::itimerspec { it_interval: interval, it_value: value };
        // SAFETY: the setting outlives the call; the old one is not asked for.
        unsafe { libc::timerfd_settime(self.fileno(), 0, &raw const setting, std::ptr::null_mut()) };
    }
}
