//! As much of Linux as the standard library leaves out: epoll, the CPU clock of this process, memchr.

use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub const READABLE: u32 = 0x001;
pub const WRITABLE: u32 = 0x004;
const ADD: c_int = 1;
const REMOVE: c_int = 2;
const CHANGE: c_int = 3;
const CLOSE_ON_EXEC: c_int = 0o2000000;
const PROCESS_CPU: c_int = 2;

#[derive(Clone, Copy)]
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
struct Event {
    events: u32,
    data: u64,
}

#[repr(C)]
struct TimeSpec {
    seconds: c_long,
    nanoseconds: c_long,
}

extern "C" {
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(poll: c_int, what: c_int, fd: c_int, event: *mut Event) -> c_int;
    fn epoll_wait(poll: c_int, events: *mut Event, room: c_int, timeout_ms: c_int) -> c_int;
    fn clock_gettime(clock: c_int, found: *mut TimeSpec) -> c_int;
    fn memchr(data: *const c_void, byte: c_int, size: usize) -> *const c_void;
}

pub struct Poll {
    fd: OwnedFd,
    events: Vec<Event>,
}

impl Poll {
    pub fn new(room: usize) -> io::Result<Self> {
        let fd = checked(unsafe { epoll_create1(CLOSE_ON_EXEC) })?;
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Poll { fd, events: vec![Event { events: 0, data: 0 }; room.max(1)] })
    }

    pub fn add(&self, fd: c_int, number: usize) -> io::Result<()> {
        self.control(ADD, fd, number, READABLE)
    }

    pub fn change(&self, fd: c_int, number: usize, events: u32) -> io::Result<()> {
        self.control(CHANGE, fd, number, events)
    }

    pub fn remove(&self, fd: c_int) -> io::Result<()> {
        self.control(REMOVE, fd, 0, 0)
    }

    fn control(&self, what: c_int, fd: c_int, number: usize, events: u32) -> io::Result<()> {
        let mut event = Event { events, data: number as u64 };
        checked(unsafe { epoll_ctl(self.fd.as_raw_fd(), what, fd, &mut event) }).map(|_| ())
    }

    /// Number and events of each that is ready; nothing after the timeout.
    pub fn wait(&mut self, timeout_ms: c_int, found: &mut Vec<(usize, u32)>) -> io::Result<()> {
        found.clear();
        let room = self.events.len() as c_int;
        let count = unsafe { epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), room, timeout_ms) };
        match checked(count) {
            Ok(count) => found.extend(self.events[..count as usize].iter().map(|one| (one.data as usize, one.events))),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// CPU that this process has used, user and system.
pub fn cpu_seconds() -> f64 {
    let mut found = TimeSpec { seconds: 0, nanoseconds: 0 };
    unsafe { clock_gettime(PROCESS_CPU, &mut found) };
    found.seconds as f64 + found.nanoseconds as f64 / 1e9
}

/// The length of the first line, its end included.
pub fn find_line(data: &[u8]) -> Option<usize> {
    let found = unsafe { memchr(data.as_ptr().cast(), b'\n' as c_int, data.len()) };
    if found.is_null() { None } else { Some(found as usize - data.as_ptr() as usize + 1) }
}
