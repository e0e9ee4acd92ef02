//! The native twins of Icestream's log code. `src/icestream/wal/format.py` is the contract for every byte; nothing here
//! decides anything, it only does faster, or outside the GIL, what the Python side asked for.

mod buffer;
mod crc;
mod event;
mod file;
mod planted;
mod read;
mod record;
mod scan;
mod state;
mod threads;
mod writer;

#[pyo3::pymodule]
mod icestream_native {
    #[pymodule_export]
    use crate::crc::crc32;
    #[pymodule_export]
    use crate::read::read_at;
    #[pymodule_export]
    use crate::record::encode_record;
    #[pymodule_export]
    use crate::scan::{find_headers, scan_records};
    #[pymodule_export]
    use crate::writer::LogWriter;
}
