//! The native protocol on the wire layer: `icestream/rpc/frame.py` is the contract for every byte.

mod answers;
mod connection;
mod rows;
mod server;

pub use server::FrameServer;
