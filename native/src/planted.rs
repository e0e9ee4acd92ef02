//! Bugs on purpose. Without the feature `planted` every question below is the constant `false` and costs nothing.

#[cfg(feature = "planted")]
fn chosen() -> &'static str {
    static CHOSEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("ICESTREAM_PLANTED").unwrap_or_default())
}

#[cfg(not(feature = "planted"))]
const fn chosen() -> &'static str {
    ""
}

/// The writer says "synced" and only then calls fdatasync.
#[inline(always)]
pub fn report_before_sync() -> bool {
    cfg!(feature = "planted") && chosen() == "report_before_sync"
}

/// Lengths are under no CRC (the fault of the prototype that hazard 5 names).
#[inline(always)]
pub fn crc_without_length() -> bool {
    cfg!(feature = "planted") && chosen() == "crc_without_length"
}

/// The scanner takes the old records of a recycled file for new ones.
#[inline(always)]
pub fn recycled_accepted() -> bool {
    cfg!(feature = "planted") && chosen() == "recycled_accepted"
}

/// `bytes` with the 4-byte field at `field` of every `stride` bytes set to zero.
pub fn without(bytes: &[u8], field: usize, stride: usize) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    for part in copy.chunks_mut(stride) {
        part[field..field + 4].fill(0);
    }
    copy
}
