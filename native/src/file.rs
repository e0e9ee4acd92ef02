//! The system calls of the log, each in the loop that EINTR and short transfers need (hazard 51).

use std::io::Error;
use std::os::fd::RawFd;

/// What one `pwritev` takes (IOV_MAX of Linux).
const CHUNKS_MAX: usize = 1024;

/// `errno` of a call that failed, as Python shows it.
pub type Errno = i32;

fn errno() -> Errno {
    Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Repeats `call` while a signal interrupts it.
fn retried<T: Default + PartialOrd>(mut call: impl FnMut() -> T) -> Result<T, Errno> {
    loop {
        let result = call();
        if result >= T::default() {
            return Ok(result);
        }
        match errno() {
            libc::EINTR => continue,
            other => return Err(other),
        }
    }
}

pub fn sync(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: no memory is involved.
    retried(|| unsafe { libc::fdatasync(fd) }).map(drop)
}

/// Asks the kernel to start writing a range back. A hint: it may fail, and nothing depends on it.
pub fn start_write_back(fd: RawFd, position: i64, length: i64) {
    // SAFETY: no memory is involved.
    unsafe { libc::sync_file_range(fd, position, length, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Reads into `size` bytes at `target`; gives how many there were before the end of the file.
///
/// # Safety
/// The caller owns `size` writable bytes at `target`.
pub unsafe fn read_at(fd: RawFd, position: i64, target: *mut u8, size: usize) -> Result<usize, Errno> {
    let mut done = 0;
    while done < size {
        // SAFETY: the rest of the target, which the caller guarantees to be writable.
        let got = retried(|| unsafe { libc::pread(fd, target.add(done).cast(), size - done, position + done as i64) })?;
        if got == 0 {
            break;
        }
        done += got as usize;
    }
    Ok(done)
}

/// Writes `chunks` one after the other from `position` on. A failure says how many bytes were written before it.
///
/// # Safety
/// Every chunk points at readable bytes. The chunks are used up.
pub unsafe fn write_at(fd: RawFd, position: i64, chunks: &mut [libc::iovec]) -> Result<(), (u64, Errno)> {
    let mut done = 0;
    let mut left = skip(chunks, 0);
    while !left.is_empty() {
        let count = left.len().min(CHUNKS_MAX);
        // SAFETY: `count` chunks that the caller guarantees to be readable.
        let put = retried(|| unsafe { libc::pwritev(fd, left.as_ptr(), count as i32, position + done as i64) });
        match put {
            // Without this a file that accepts no byte and reports no error would be retried for ever.
            Ok(0) => return Err((done, libc::EIO)),
            Ok(size) => {
                done += size as u64;
                left = skip(left, size as usize);
            }
            Err(errno) => return Err((done, errno)),
        }
    }
    Ok(())
}

/// What is left of `chunks` after their first `size` bytes; empty chunks in front go too.
fn skip(chunks: &mut [libc::iovec], mut size: usize) -> &mut [libc::iovec] {
    let mut used = 0;
    while used < chunks.len() && size >= chunks[used].iov_len {
        size -= chunks[used].iov_len;
        used += 1;
    }
    let left = &mut chunks[used..];
    if let Some(first) = left.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(size);
        first.iov_len -= size;
    }
    left
}
