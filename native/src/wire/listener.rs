//! Accepts stream connections, with the options that every one of them gets.

use super::tls::Session;
use std::io::{Error, ErrorKind};
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub struct Listener {
    fd: OwnedFd,
    keep_alive_seconds: i32,
}

/// An accepted connection. `peer` is empty where the address family has none.
pub struct Accepted {
    pub fd: OwnedFd,
    pub peer: String,
    /// With TLS: its session, the end of our handshake that the peer has not taken, and what it sent behind its own.
    pub session: Option<Session>,
    pub output: Vec<u8>,
    pub early: Vec<u8>,
}

impl Accepted {
    fn plain(fd: OwnedFd, peer: String) -> Accepted {
        Accepted { fd, peer, session: None, output: Vec::new(), early: Vec::new() }
    }
}

impl Listener {
    /// Takes the descriptor of a listening socket over.
    pub fn new(fd: RawFd, keep_alive_seconds: i32) -> Listener {
        // SAFETY: the caller gives the descriptor away.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Listener { fd, keep_alive_seconds }
    }

    pub fn fileno(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The next connection; None if there is none now. Err: accepting failed, for instance because all descriptors are
    /// in use, and would fail again at once.
    pub fn accept(&self) -> Result<Option<Accepted>, i32> {
        let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the kernel writes at most `length` bytes into the address.
        let fd = unsafe { libc::accept4(self.fileno(), address.as_mut_ptr().cast(), &raw mut length, flags) };
        if fd < 0 {
            let error = Error::last_os_error();
            return match (error.kind(), error.raw_os_error()) {
                (ErrorKind::WouldBlock, _) => Ok(None),
                // The client has gone again; the next one may be waiting.
                (ErrorKind::ConnectionAborted | ErrorKind::Interrupted, _) => self.accept(),
                (_, number) => Err(number.unwrap_or(0)),
            };
        }
        // SAFETY: accept4 returned an open descriptor, and filled the address in.
        let (fd, address) = unsafe { (OwnedFd::from_raw_fd(fd), address.assume_init()) };
        let peer = peer_of(&address);
        if let Some(peer) = peer {
            self.set_options(&fd);
            return Ok(Some(Accepted::plain(fd, format!("{peer}"))));
        }
        Ok(Some(Accepted::plain(fd, String::new())))
    }

    /// No delay, because answers are written whole; keep-alive, because a machine that died closes nothing.
    fn set_options(&self, fd: &OwnedFd) {
        let idle = self.keep_alive_seconds;
        for (level, name, value) in [
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, (idle / 3).max(1)),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
        ] {
            // SAFETY: an option of four bytes.
            unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
        }
    }
}

fn peer_of(address: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(address.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which structure it is.
            let address = unsafe { &*(&raw const *address).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(address.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { &*(&raw const *address).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(address.sin6_port)))
        }
        _ => None,
    }
}
