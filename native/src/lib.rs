//! The native twins of Icestream's log code. The contract is `src/icestream/wal/format.py` for every byte of the log, and
//! `src/icestream/model/block.py` for every byte of a block. Nothing here makes decisions: it does what Python requests,
//! faster or outside the GIL.

mod block;
mod block_rows;
mod buffer;
#[cfg(feature = "consensus")]
mod consensus;
mod crc;
mod event;
mod file;
mod planted;
mod read;
mod record;
mod row_digest;
mod scan;
mod state;
mod threads;
mod wire;
mod writer;

#[pyo3::pymodule]
mod icestream_native {
    /// Increased with every change of what these functions take or return; `icestream/runtime/native.py` compares it.
    #[pymodule_export]
    const CONTRACT: u32 = 10;

    #[pymodule_export]
    use crate::block::check_block;
    #[pymodule_export]
    use crate::block_rows::{pick_rows, row_keys, select_rows};
    #[cfg(feature = "consensus")]
    #[pymodule_export]
    use crate::consensus::RaftCore;
    #[pymodule_export]
    use crate::crc::crc32;
    #[pymodule_export]
    use crate::read::read_at;
    #[pymodule_export]
    use crate::record::encode_record;
    #[pymodule_export]
    use crate::row_digest::digest_rows;
    #[pymodule_export]
    use crate::scan::{find_headers, scan_records};
    #[pymodule_export]
    use crate::wire::FrameServer;
    #[cfg(feature = "tls")]
    #[pymodule_export]
    use crate::wire::check_tls;
    #[cfg(feature = "grpc")]
    #[pymodule_export]
    use crate::wire::{GrpcServer, decode_columns};
    #[pymodule_export]
    use crate::wire::{MqttRows, MqttServer, scan_mqtt};
    #[pymodule_export]
    use crate::writer::LogWriter;
}
