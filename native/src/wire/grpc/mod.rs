//! gRPC over HTTP/2, as far as it is the same for every service: one thread accepts, reads, frames and answers, and never
//! takes the GIL. Python decides everything and is woken once for a burst of requests, by an eventfd.
//!
//!     unary, batched    methods whose requests are taken apart here into declared columns; all that came since the
//!                       last poll is one batch, and is answered by one call
//!     unary, raw        every other path: its bytes go up, bytes or a status come down
//!     server stream     paths that were declared as streams; what is pushed waits here for the window of the peer
//!
//! What `poll` returns: what happened, in order; then one batch for each method; last, what has ended (hazard 55: a
//! request that arrived whole is decided before the end of its connection):
//!
//!     (0, batch, method, count, present, connections, metadata, deadlines, columns)
//!     (1, call, path, body, connection, metadata, deadline)        a raw unary call
//!     (2, stream, path, body, connection, metadata, deadline)      a stream was opened
//!     (3, stream)                                                  it is gone, for whatever reason
//!     (4, stream)                                                  what was pushed to it fell below the low mark
//!     (5, connection, metadata, [(key, value), …], replaced)       a set of the metadata that Python asked to see; the
//!                                                                  set `replaced` is not used behind this burst
//!     (6, connection, peer, certificate)                           certificate: DER, or None
//!     (7, connection)                                              it is gone
//!
//! `metadata` is the number of a set in its connection, 0 for none. A connection has at most 8 sets at a time.
//!
//! Numbers of rows are packed, little endian: `present` (a bit for each column), `connections` and `metadata` as u32,
//! `deadlines` as u64 (nanoseconds of the monotonic clock, 0 for none). A column of integers is packed u64; of bytes,
//! (all of them joined, the end of each as u32).
//!
//! Bounds. A whole request keeps its part of the connection's window until it is answered, so the window is the bound of
//! one connection. All requests together are bounded by `pending_bytes_max`, each counted with a fixed cost beside its
//! bytes: at the bound new requests are not taken from any connection, and wait in it (hazard 73). Requests that arrive
//! in pieces give their window back as they are read, or they could wait for each other for ever; one that does not fit
//! the bound ends with UNAVAILABLE before any of it was handed over. Connections are bounded by `connections_max`; silent
//! and idle ones are closed for new ones (`places.rs`).

mod answers;
mod body;
mod columns;
mod connection;
mod inbox;
mod places;
mod push;
mod server;
mod status;

pub use columns::decode_columns;
pub use server::GrpcServer;
